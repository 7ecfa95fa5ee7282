"""Rows of C before sums are added to them, and after."""

from __future__ import annotations

from typing import Any

import numpy as np

from portable_spdnn_cpu.activations import NONE, activate_span
from portable_spdnn_cpu.jit.compilation import Array, kernel_part
from portable_spdnn_cpu.jit.jobs import array_at, float_of
from portable_spdnn_cpu.spmm.direct.job_words import (
    ACCUMULATES,
    ACTIVATION,
    BIAS,
    BIAS_STEP,
    COLUMNS,
    HAS_EPILOGUE,
    HELD,
    LOWER,
    OUT,
    OUT_ROW,
    ROWS,
    UPPER,
)


@kernel_part
def begin_rows(words: Any, dtype: Any) -> None:
    """Let rows of C be their bias, or zero, plus what they hold where sums are added to that."""
    columns = words[COLUMNS]
    C = array_at(words[OUT], words[ROWS] * columns, dtype)
    if not words[HAS_EPILOGUE]:
        if not words[ACCUMULATES]:
            C[:] = 0
        return
    if words[ROWS] == 0:
        return  # there may be no bias
    accumulates = words[ACCUMULATES] != 0
    bias = array_at(words[BIAS], words[ROWS], np.float64)
    if not words[BIAS_STEP]:
        begin_items(C, dtype(bias[0]), accumulates)
    elif columns == 1:
        for row in range(C.size):
            start = dtype(bias[row])
            C[row] = C[row] + start if accumulates else start
    else:
        for row in range(words[ROWS]):
            span = C[row * columns : (row + 1) * columns]
            begin_items(span, dtype(bias[row]), accumulates)


@kernel_part
def begin_items(items: Array, start: Any, accumulates: bool) -> None:
    """Set items to a number, or add it to what they hold where sums are added to that."""
    if accumulates:
        for place in range(items.size):
            items[place] += start
    else:
        items[:] = start


@kernel_part
def finish_sums(words: Any, begin: int, end: int, dtype: Any) -> None:
    """Add bias and residual to rows begin .. end - 1 of C, of one column, and finish them."""
    if begin == end:
        return  # there may be no bias
    span = array_at(words[OUT], words[ROWS], dtype)[begin:end]
    bias = array_at(words[BIAS], words[ROWS], np.float64)
    if words[BIAS_STEP]:
        added = bias[begin:end]
        for row in range(span.size):
            span[row] += dtype(added[row])
    elif bias[0] != 0:
        start = dtype(bias[0])
        for row in range(span.size):
            span[row] += start
    if words[ACCUMULATES]:
        residual = array_at(words[HELD], words[ROWS], dtype)[begin:end]
        for row in range(span.size):
            span[row] += residual[row]
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
