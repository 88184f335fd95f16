"""The exceptions of sparta; every message says what is wrong, where, and how to fix it."""

from __future__ import annotations


class SpartaError(Exception):
    """Anything sparta refuses to do; the base of all its exceptions."""


class MaskError(SpartaError):
    """Masks that do not fit the model: wrong names, shapes or values."""


class CaptureError(SpartaError):
    """A model, or a call of it, that cannot be turned into a graph."""


class InputError(SpartaError):
    """Call arguments that do not bind to the model's forward."""


class QuantizationError(SpartaError):
    """A quantization configuration that cannot be honored."""


class OptionError(SpartaError):
    """An unknown option, target or an option value out of range."""


class UnsupportedOpError(SpartaError):
    """Operators that a strict run does not accept as barriers."""


class UnsupportedTargetError(SpartaError):
    """A target this machine or this version cannot produce code for."""


class FormatError(SpartaError):
    """A file or a stored tensor that breaks the rules of its format."""


class KernelCompileError(SpartaError):
    """Generated code that could not be compiled or loaded."""


class VerificationError(SpartaError):
    """An optimized model whose outputs differ from the masked dense model."""
