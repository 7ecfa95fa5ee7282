"""Rows of C before sums are added to them, and after."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from portable_spdnn_cpu.activations import NONE, activate_span
from portable_spdnn_cpu.jit.compilation import Array, job_kernel, kernel_part
from portable_spdnn_cpu.jit.jobs import array_at, code_address, float_of, pointer_at
from portable_spdnn_cpu.spmm.direct.job_words import (
    ACTIVATION,
    BIAS,
    BIAS_STEP,
    COLUMNS,
    HAS_EPILOGUE,
    HELD,
    HOLDS_ZEROS,
    LOWER,
    OUT,
    OUT_ROW,
    ROWS,
    UPPER,
)


@kernel_part
def begin_rows(words: Any, dtype: Any) -> None:
    """Set rows of C to their bias, or to zero; or add it to the residual, which C holds then."""
    columns = words[COLUMNS]
    C = array_at(words[OUT], words[ROWS] * columns, dtype)
    if not words[HAS_EPILOGUE]:
        if not words[HOLDS_ZEROS]:
            C[:] = 0
        return
    if words[ROWS] == 0:
        return  # there may be no bias
    has_residual = words[HELD] != 0
    bias = array_at(words[BIAS], words[ROWS], np.float64)
    if not words[BIAS_STEP]:
        set_or_add_one(C, dtype(bias[0]), has_residual)
    elif columns == 1:
        set_or_add_each(C, bias, has_residual, dtype)
    else:
        for row in range(words[ROWS]):
            span = C[row * columns : (row + 1) * columns]
            set_or_add_one(span, dtype(bias[row]), has_residual)


@kernel_part
def set_or_add_one(items: Array, number: Any, adds: bool) -> None:
    """Set all items to a number, or add it to them."""
    if adds:
        for place in range(items.size):
            items[place] += number
    else:
        items[:] = number


@kernel_part
def set_or_add_each(items: Array, numbers: Array, adds: bool, dtype: Any) -> None:
    """Set each item to a number of its own, or add that to it."""
    for place in range(items.size):
        number = dtype(numbers[place])
        items[place] = items[place] + number if adds else number


@kernel_part
def finish_sums(words: Any, begin: int, end: int, dtype: Any) -> None:
    """Add bias and residual to rows begin .. end - 1 of C, of one column, and finish them."""
    if begin == end:
        return  # there may be no bias
    span = array_at(words[OUT], words[ROWS], dtype)[begin:end]
    bias = array_at(words[BIAS], words[ROWS], np.float64)
    if words[BIAS_STEP]:
        set_or_add_each(span, bias[begin:end], True, dtype)
    elif bias[0] != 0:
        set_or_add_one(span, dtype(bias[0]), True)
    if words[HELD]:
        residual = array_at(words[HELD], words[ROWS], dtype)
        set_or_add_each(span, residual[begin:end], True, dtype)
    finish_rows(words, begin, end, dtype)


@kernel_part
def finish_rows(words: Any, begin: int, end: int, dtype: Any) -> None:
    """Apply activation and bounds, if any, to rows begin .. end - 1 of C, which have their bias."""
    lower, upper = float_of(words[LOWER]), float_of(words[UPPER])
    if words[ACTIVATION] == NONE and lower == -np.inf and upper == np.inf:
        return
    # Rows follow each other without a gap.
    row = words[OUT_ROW] // array_at(0, 1, dtype).itemsize
    C = array_at(words[OUT], words[ROWS] * row, dtype)
    activate_span(C, begin * row, end * row, words[ACTIVATION], lower, upper)


@kernel_part
def finish_all_rows(words: Any, dtype: Any) -> None:
    """Apply activation and bounds, if there are any, to C, which has its bias."""
    if words[HAS_EPILOGUE]:
        finish_rows(words, 0, words[ROWS], dtype)


@functools.cache
def begin_rows_code(dtype: np.dtype[Any]) -> int:
    """Return the address of `begin_rows` for `call_code`; it takes the address of the words."""
    return code_address(_begin_rows, "i", dtype.type)


@functools.cache
def finish_all_rows_code(dtype: np.dtype[Any]) -> int:
    """Return the address of `finish_all_rows` for `call_code`; it takes the words' address."""
    return code_address(_finish_all_rows, "i", dtype.type)


@job_kernel
def _begin_rows(words: int, dtype: Any) -> None:
    begin_rows(pointer_at(words, np.int64), dtype)


@job_kernel
def _finish_all_rows(words: int, dtype: Any) -> None:
    finish_all_rows(pointer_at(words, np.int64), dtype)
