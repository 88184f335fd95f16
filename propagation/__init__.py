"""What an operator does to annotations: capture, rules, the fixed point, folding."""

from sparta.propagation.annotate import annotate as annotate
from sparta.propagation.annotate import masked_weights as masked_weights
from sparta.propagation.annotate import unused_masks as unused_masks
from sparta.propagation.binding import bind as bind
from sparta.propagation.capture import capture as capture
from sparta.propagation.capture import flatten_call as flatten_call
from sparta.propagation.capture import interpret as interpret
from sparta.propagation.engine import propagate as propagate
from sparta.propagation.guards import mismatch as mismatch
from sparta.propagation.shadow import masked as masked
from sparta.propagation.stages import Annotated as Annotated
from sparta.propagation.stages import Barrier as Barrier
from sparta.propagation.stages import Captured as Captured
from sparta.propagation.stages import Folded as Folded
from sparta.propagation.stages import Propagated as Propagated
from sparta.propagation.tree import capture_tree as capture_tree
