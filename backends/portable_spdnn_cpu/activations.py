"""Kernels: activation functions, of one value and of a contiguous span.

`activate` calls the C library, in float64, and suits the scattered entries of a sparse row.
`activate_span` is for dense results: kernels call, by its address, the machine code of the one
activation that a layer has, so that none holds them all. Its loops over float32 have neither calls
nor branches, so that LLVM makes vector code of them. Their exponential reduces its argument by a
power of two and is a polynomial on what remains; the others are formed from it, in ways that do not
cancel. All let NaN pass, and take infinities to the functions' limits.

Sources: D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units (GELUs)", arXiv:1606.08415 (2016),
for both forms of GELU and for SiLU; A. Howard et al., "Searching for MobileNetV3", ICCV 2019, for
hardswish; W. J. Cody, W. Waite, "Software Manual for the Elementary Functions" (1980), for the
reduction of the argument with a constant in two parts.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from portable_spdnn.epilogue import ACTIVATIONS, Epilogue
from portable_spdnn_cpu.jit.compilation import (
    Array,
    Function,
    job_kernel,
    kernel,
    kernel_part,
)
from portable_spdnn_cpu.jit.intrinsics import polynomial, prefetch
from portable_spdnn_cpu.jit.jobs import array_at, call_code, code_address
from portable_spdnn_cpu.machine.cpu_info import CACHE_LINE

# The places of activations in `ACTIVATIONS`.
NONE, RELU, GELU, GELU_TANH, SILU, HARDSWISH, SIGMOID, TANH = map(
    ACTIVATIONS.index,
    ("none", "relu", "gelu", "gelu_tanh", "silu", "hardswish", "sigmoid", "tanh"),
)


def elementwise(function: Function) -> Function:
    """Compile for loops that are to be vectors: a branch to Python's ZeroDivisionError is none."""
    return kernel(function, error_model="numpy")


def formula(function: Function) -> Function:
    """Compile what `elementwise` kernels alone call."""
    return kernel_part(function, error_model="numpy")


def _single(*constants: float) -> tuple[np.float32, ...]:
    """Round to float32; Numba would compute in float64 with Python's floats."""
    return tuple(np.float32(constant) for constant in constants)


BLOCK = 1024  # values


class Activation(NamedTuple):
    """What follows a layer's sums: y = min(max(activation(z), lower), upper).

    Attributes
    ----------
    code : int
        NONE or RELU; of any other activation, the address of its machine code for spans.
    lower, upper : float
        Of ReLU, `lower` is at least 0: kernels that know bounds alone need no more.
    """

    code: int = NONE
    lower: float = -np.inf
    upper: float = np.inf


def activation_of(epilogue: Epilogue, dtype: np.dtype[Any]) -> Activation:
    """Return what an epilogue does after the bias to sums of a type, in the form of kernels."""
    bounds = epilogue.interval or epilogue.bounds
    return Activation(activation_code(epilogue.activation, dtype), *bounds)


@functools.cache
def activation_code(name: str, dtype: np.dtype[Any]) -> int:
    """Return the `code` of an activation that is applied to values of a type."""
    place = ACTIVATIONS.index(name)
    if place <= RELU:
        return place
    return code_address(activate_items, "iiff", place, dtype.type)


SQRT_HALF = math.sqrt(0.5)
# (1 + tanh(y)) / 2 = sigmoid(2 y), which does not cancel where y is negative.
TANH_SCALE, TANH_CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715
ZERO_BELOW = -1000.0  # here all that go to 0 are there; infinity times 0 would be NaN

ZERO, HALF, ONE, TWO, THREE, SIX = _single(0, 0.5, 1, 2, 3, 6)
LOG2_E, SCALE_32, CUBIC_32 = _single(math.log2(math.e), TANH_SCALE, TANH_CUBIC)
# -ln 2 in two parts; a multiple of the first by up to 2^15 is exact.
MINUS_LN2_HIGH, MINUS_LN2_LOW = _single(-0.693359375, 2.12194440e-4)
EXP_MIN = np.float32(-88)  # here the power of two has become 0
# With these as their least, or most, arguments the functions below give what they tend to.
SIGMOID_MIN, HARDSWISH_MIN, TAIL_MAX = _single(-104, -4, 14)

# expm1(r) = r + r^2 P(r) for |r| <= ln(2) / 2: minimax in exp's relative error, 3.3e-9.
EXPM1 = _single(
    1.3813144423515577e-3, 8.369418844569458e-3, 4.166845678919549e-2, 1.6666514791299653e-1,
    4.9999993050715213e-1,
)  # fmt: skip
# erfc(t / sqrt 2) / 2 = exp(-t^2 / 2) P(t) / Q(t) for 0 <= t <= 14: minimax in the relative error,
# 5.6e-9. No coefficient is negative, so that nothing cancels.
TAIL_P = _single(
    4.07759049670061e-3, 4.037242439683817e-2, 1.8246144715213203e-1, 4.3725039365666024e-1,
    5.000000027564726e-1,
)  # fmt: skip
TAIL_Q = _single(
    1.0220874874978105e-2, 1.0120547061925028e-1, 4.674280878470632e-1, 1.199289139422179,
    1.6723857425957656, 1.0,
)  # fmt: skip


@elementwise
def activate(value: float, activation: int) -> float:
    """Return the activation of one value.

    Parameters
    ----------
    value : float32 or float64
        The argument.
    activation : int
        The place of the activation's name in `ACTIVATIONS`.

    Returns
    -------
    float64
        The result. Its error is a few units in the last place of max(1, |value|).
    """
    z = np.float64(value)
    # Comparisons are false for NaN, which therefore passes.
    if activation == RELU:
        return 0.0 if z < 0 else z
    if activation == NONE:
        return z
    if activation == TANH:
        return math.tanh(z)
    if activation == SIGMOID:
        return 1 / (1 + math.exp(-z))
    if z < ZERO_BELOW:
        return 0.0
    if activation == GELU:
        return 0.5 * z * math.erfc(-SQRT_HALF * z)  # 1 + erf(x) = erfc(-x), without cancelling
    if activation == GELU_TANH:
        return z / (1 + math.exp(-TANH_SCALE * (z + TANH_CUBIC * z * z * z)))
    if activation == SILU:
        return z / (1 + math.exp(-z))
    return z * (min(max(z + 3, 0.0), 6.0) / 6)  # 6 z might overflow


@elementwise
def activate_span(
    values: Array, first: int, end: int, code: int, lower: float, upper: float
) -> None:
    """values[first:end] = min(max(activation(values[first:end]), lower), upper), in place.

    On float32, errors are at most 5e-7 max(1, |z|); on float64 as in `activate`.

    Parameters
    ----------
    values : ndarray of float32 or float64, 1-D and contiguous
        Takes the result.
    first, end : int
        What part of it; the rest is not written.
    code : int
    lower, upper : float
        Those of an `Activation`, which was made for the type of the values.
    """
    if code > RELU:
        address = values.ctypes.data + first * values.itemsize
        call_code(code, (address, end - first, float(lower), float(upper)))
        return
    low, high = values.dtype.type(lower), values.dtype.type(upper)
    if code == RELU:
        low = max(low, values.dtype.type(0))
    span = values[first:end]
    for k in range(span.size):
        span[k] = clamp(span[k], low, high)


@functools.partial(job_kernel, error_model="numpy")
def activate_items(
    address: int, count: int, lower: float, upper: float, activation: int, dtype: Any
) -> None:
    """Apply an activation, then bounds, to so many items at an address.

    `activation`, a place in `ACTIVATIONS` beyond RELU, and `dtype` are constants.
    """
    items = array_at(address, count, dtype)
    low, high = dtype(lower), dtype(upper)
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        # A formula is so much work that few cache lines are within the processor's view at once:
        # without prefetching, values that lie in memory took three times as long.
        for line in range(stop, min(stop + BLOCK, count), CACHE_LINE // items.itemsize):
            prefetch(items, line)
        # One loop for each function: a choice inside keeps a loop from being vectors, though it is
        # known at compile time.
        span = items[start:stop]
        if span.itemsize == 8:
            for k in range(span.size):
                span[k] = clamp(activate(span[k], activation), low, high)
        elif activation == GELU:
            for k in range(span.size):
                span[k] = clamp(gelu(np.float32(span[k])), low, high)
        elif activation == GELU_TANH:
            for k in range(span.size):
                span[k] = clamp(gelu_tanh(np.float32(span[k])), low, high)
        elif activation == SILU:
            for k in range(span.size):
                span[k] = clamp(silu(np.float32(span[k])), low, high)
        elif activation == HARDSWISH:
            for k in range(span.size):
                span[k] = clamp(hardswish(np.float32(span[k])), low, high)
        elif activation == SIGMOID:
            for k in range(span.size):
                span[k] = clamp(sigmoid(np.float32(span[k])), low, high)
        else:
            for k in range(span.size):
                span[k] = clamp(tanh(np.float32(span[k])), low, high)


@formula
def clamp(z: Any, lower: Any, upper: Any) -> Any:
    """Return min(max(z, lower), upper); NaN passes."""
    z = lower if z < lower else z
    return upper if z > upper else z


# From here on: float32 in, float32 out, with selections in the place of branches.


@formula
def exp_parts(x: np.float32) -> tuple[np.float32, np.float32]:
    """Return expm1(r) and 2^n with x = n ln 2 + r, for x <= 0; 2^n is 0 where exp(x) underflows."""
    x = x if x > EXP_MIN else EXP_MIN  # NaN too: the conversion of NaN is not defined
    n = np.int32(x * LOG2_E - HALF)  # cut off towards 0: rounds what is negative
    whole = np.float32(n)
    r = polynomial(whole, (MINUS_LN2_LOW, polynomial(whole, (MINUS_LN2_HIGH, x))))
    power = np.int32((n + 127) << 23).view(np.float32)  # the bits of the exponent
    return polynomial(r * r, (polynomial(r, EXPM1), r)), power


@formula
def sigmoid(z: np.float32) -> np.float32:
    """Return 1 / (1 + exp(-z)), from exp(-|z|), which cannot overflow."""
    expm1, power = exp_parts(-abs(z))
    decay = polynomial(power, (expm1, power))
    result = (decay if z < ZERO else ONE) / (ONE + decay)
    return z if z != z else result


@formula
def tanh(z: np.float32) -> np.float32:
    """Return tanh(z) = -m / (2 + m) with m = expm1(-2 |z|), and the sign of z."""
    expm1, power = exp_parts(-TWO * abs(z))
    m = polynomial(power, (expm1, power - ONE))
    size = (ZERO - m) / (TWO + m)  # +0 where m is
    result = -size if z < ZERO else size
    return z if z != z else result


@formula
def silu(z: np.float32) -> np.float32:
    """Return z sigmoid(z)."""
    z = SIGMOID_MIN if z < SIGMOID_MIN else z
    return z * sigmoid(z)


@formula
def gelu_tanh(z: np.float32) -> np.float32:
    """Return z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) / 2."""
    z = SIGMOID_MIN if z < SIGMOID_MIN else z
    return z * sigmoid(SCALE_32 * polynomial(z * z * z, (CUBIC_32, z)))


@formula
def gelu(z: np.float32) -> np.float32:
    """Return z (1 + erf(z / sqrt 2)) / 2 = max(z, 0) - t erfc(t / sqrt 2) / 2 with t = |z|."""
    t = abs(z)
    t = t if t < TAIL_MAX else TAIL_MAX
    expm1, power = exp_parts(-HALF * t * t)
    tail: np.float32 = (
        polynomial(power, (expm1, power)) * polynomial(t, TAIL_P) / polynomial(t, TAIL_Q)
    )
    return (ZERO if z < ZERO else z) - t * tail


@formula
def hardswish(z: np.float32) -> np.float32:
    """Return z min(max(z + 3, 0), 6) / 6."""
    z = HARDSWISH_MIN if z < HARDSWISH_MIN else z
    part: np.float32 = clamp(z + THREE, ZERO, SIX) / SIX
    return z * part
