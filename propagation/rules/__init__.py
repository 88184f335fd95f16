"""The rules, one file per operator family; importing this package fills the registry."""

from sparta.propagation.rules import attention as attention
from sparta.propagation.rules import contraction as contraction
from sparta.propagation.rules import convolution as convolution
from sparta.propagation.rules import elementwise as elementwise
from sparta.propagation.rules import embedding as embedding
from sparta.propagation.rules import factory as factory
from sparta.propagation.rules import joining as joining
from sparta.propagation.rules import movement as movement
from sparta.propagation.rules import norm as norm
from sparta.propagation.rules import pooling as pooling
from sparta.propagation.rules import reduction as reduction
from sparta.propagation.rules import selection as selection
from sparta.propagation.rules import shape as shape
