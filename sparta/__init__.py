"""sparta: a compiler for sparse PyTorch models.

``fast = sparta.optimize(model, masks)`` computes exactly what the masked dense model computes, faster, and
``fast.report()`` says what was gained, measured. Names load on first use, so that importing sparta stays cheap.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

from sparta.version import __version__ as __version__

_root = _Path(__file__).resolve().parent.parent
if (_root / "tesa").is_dir() and (_root / "pyproject.toml").is_file():
    # A checkout on sys.path would hide the installed subpackages; the mapping of pyproject.toml, by hand.
    __path__.append(str(_root))

if TYPE_CHECKING:
    from sparta.api import load as load
    from sparta.api import optimize as optimize
    from sparta.backend import attach_masks as attach_masks
    from sparta.propagation import annotate as annotate
    from sparta.propagation import capture as capture
    from sparta.propagation.engine import propagate as propagate
    from sparta.propagation.folding import fold as fold
    from sparta.reporting.report import LayerReport as LayerReport
    from sparta.reporting.report import Report as Report
    from sparta.runtime.module import OptimizedModule as OptimizedModule
    from sparta.runtime.rewrite import specialize as specialize
    from sparta.tesa import load_masks as load_masks
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
    from sparta.transformation import transform as transform

_HOMES = {
    "optimize": "sparta.api",
    "load": "sparta.api",
    "attach_masks": "sparta.backend",
    "capture": "sparta.propagation",
    "annotate": "sparta.propagation",
    "propagate": "sparta.propagation.engine",
    "fold": "sparta.propagation.folding",
    "transform": "sparta.transformation",
    "specialize": "sparta.runtime.rewrite",
    "load_masks": "sparta.tesa",
    "OptimizedModule": "sparta.runtime.module",
    "LayerReport": "sparta.reporting.report",
    "Report": "sparta.reporting.report",
    "SpartaError": "sparta.tesa.errors",
    "CaptureError": "sparta.tesa.errors",
    "FormatError": "sparta.tesa.errors",
    "InputError": "sparta.tesa.errors",
    "KernelCompileError": "sparta.tesa.errors",
    "MaskError": "sparta.tesa.errors",
    "OptionError": "sparta.tesa.errors",
    "QuantizationError": "sparta.tesa.errors",
    "UnsupportedOpError": "sparta.tesa.errors",
    "UnsupportedTargetError": "sparta.tesa.errors",
    "VerificationError": "sparta.tesa.errors",
}
"""Public name -> module that defines it."""

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module 'sparta' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(_import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
