"""What a value is: the sparsity attribute of a tensor, patterns, and masks from elsewhere."""

from sparta.tesa.attribute import TeSA as TeSA
from sparta.tesa.errors import CaptureError as CaptureError
from sparta.tesa.errors import FormatError as FormatError
from sparta.tesa.errors import InputError as InputError
from sparta.tesa.errors import KernelCompileError as KernelCompileError
from sparta.tesa.errors import MaskError as MaskError
from sparta.tesa.errors import OptionError as OptionError
from sparta.tesa.errors import QuantizationError as QuantizationError
from sparta.tesa.errors import SpartaError as SpartaError
from sparta.tesa.errors import UnsupportedOpError as UnsupportedOpError
from sparta.tesa.errors import UnsupportedTargetError as UnsupportedTargetError
from sparta.tesa.errors import VerificationError as VerificationError
from sparta.tesa.io import load_masks as load_masks
from sparta.tesa.masks import normalize_masks as normalize_masks
from sparta.tesa.patterns import NM as NM
from sparta.tesa.patterns import Block as Block
from sparta.tesa.patterns import Channel as Channel
from sparta.tesa.patterns import Dense as Dense
from sparta.tesa.patterns import Pattern as Pattern
from sparta.tesa.patterns import Unstructured as Unstructured
from sparta.tesa.patterns import find_pattern as find_pattern
