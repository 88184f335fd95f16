"""Vector code for what follows the accumulation: bias, residual and activation functions.

The activations agree with torch's to about 1e-6 of the largest output, carry NaN through, and need nothing but
arithmetic, so they compile for every instruction set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sparta.kernels.codegen.ir import I32, Function, Value
from sparta.kernels.problem import Activation

_ROUNDER = 1.5 * 2.0**23
"""Adding it to a small float leaves the float rounded to an integer in the low bits of the sum."""
_EXP2 = tuple(math.log(2) ** k / math.factorial(k) for k in range(8))
"""Taylor coefficients of 2**r; on |r| <= 1/2 the remainder is 5e-9."""

# erf(z) = z * p(z^2) / q(z^2) on |z| <= 4, a minimax fit to 2e-7.
_ERF_P = (
    -1.60960333262415e-02,
    -2.95459980854025e-03,
    -7.34990630326855e-04,
    -5.69250639462346e-05,
    -2.10102402082508e-06,
    2.77068142495902e-08,
    -2.72614225801306e-10,
)
_ERF_Q = (
    -1.42647390514189e-02,
    -7.37332916720468e-03,
    -1.68282697438203e-03,
    -2.13374055278905e-04,
    -1.45660718464996e-05,
)
_ERF_SATURATES = 3.92
"""From here on erf is 1 in single precision; the fit is off by an ulp, which a large factor would magnify."""


def _polynomial(f: Function, x: Value, coefficients: Sequence[float]) -> Value:
    """The sum of ``coefficients[k] * x**k``."""
    result = f.constant(x.type, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = f.fma(result, x, f.constant(x.type, coefficient))
    return result


def _clamp(f: Function, x: Value, low: float, high: float) -> Value:
    """`x` within [low, high]; NaN stays NaN."""
    raised = f.select(f.compare("olt", x, low), f.constant(x.type, low), x)
    return f.select(f.compare("ogt", raised, high), f.constant(x.type, high), raised)


def exponential(f: Function, x: Value) -> Value:
    """exp(x) to 1e-7 relative, 0 below -87, infinity above 128 ln 2."""
    power = _clamp(f, x * (1 / math.log(2)), -127.0, 128.0)
    shifted = power + _ROUNDER
    fraction = power - (shifted - _ROUNDER)
    integers = I32.vector(x.type.lanes)
    whole = f.convert("bitcast", shifted, integers) << 23
    mantissa = f.convert("bitcast", _polynomial(f, fraction, _EXP2), integers)
    return f.convert("bitcast", mantissa + whole, x.type)


def _relu(f: Function, x: Value) -> Value:
    return f.select(f.compare("olt", x, 0.0), f.constant(x.type, 0.0), x)


def _over_one_plus_exp(f: Function, x: Value, negated: Value) -> Value:
    """``x * sigmoid(-negated)``; a division, so that an infinite exponential gives 0."""
    return x / (exponential(f, negated) + 1.0)


def _silu(f: Function, x: Value) -> Value:
    return _over_one_plus_exp(f, x, x * -1.0)


def _gelu_tanh(f: Function, x: Value) -> Value:
    # (1 + tanh(u)) / 2 is sigmoid(2u).
    scale = -2 * math.sqrt(2 / math.pi)
    cubic = _polynomial(f, x * x, (scale, scale * 0.044715))
    return _over_one_plus_exp(f, x, x * cubic)


def _gelu(f: Function, x: Value) -> Value:
    z = x * math.sqrt(0.5)
    bounded = _clamp(f, z, -4.0, 4.0)
    square = bounded * bounded
    erf = bounded * _polynomial(f, square, _ERF_P) / _polynomial(f, square, _ERF_Q)
    erf = f.select(f.compare("ogt", z, _ERF_SATURATES), f.constant(x.type, 1.0), erf)
    erf = f.select(f.compare("olt", z, -_ERF_SATURATES), f.constant(x.type, -1.0), erf)
    half = x * 0.5
    return f.fma(half, erf, half)


ACTIVATIONS: dict[Activation, Callable[[Function, Value], Value]] = {
    "none": lambda f, x: x,
    "relu": _relu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
}
"""Emitters of the activation functions."""


def finish(
    f: Function, accumulated: Value, *, bias: Value | None, residual: Value | None, activation: Activation
) -> Value:
    """``activation(accumulated + bias + residual)``; None adds nothing."""
    for term in (bias, residual):
        if term is not None:
            accumulated = accumulated + term
    return ACTIVATIONS[activation](f, accumulated)
