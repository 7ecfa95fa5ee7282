"""Activation functions, applied in place to features in a cache."""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt

from portable_spdnn_cpu.jit.compilation import kernel

NONE, RELU, GELU, GELU_TANH, SILU, HARDSWISH, SIGMOID, TANH = range(8)


@kernel
def activate_span(
    values: npt.NDArray[Any], first: int, end: int, code: int, lower: Any, upper: Any
) -> None:
    """y = min(max(activation(z), lower), upper) for values[first:end], in place; NaN passes."""
    for position in range(first, end):
        z = values[position]
        y = z
        if code == RELU and z < 0:
            y = z * 0
        elif code == GELU:
            y = z * (1 + math.erf(z * math.sqrt(0.5))) / 2
        elif code == GELU_TANH:
            y = z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z * z * z))) / 2
        elif code == SILU:
            y = z / (1 + math.exp(-z))
        elif code == HARDSWISH:
            y = z * min(max(z + 3, 0), 6) / 6
        elif code == SIGMOID:
            y = 1 / (1 + math.exp(-z))
        elif code == TANH:
            y = math.tanh(z)
        if y < lower:
            y = lower
        if y > upper:
            y = upper
        values[position] = y
