"""Products of columns of A, in CSC, without the microkernel.

It does not pay where columns are short, where most rows of C stay zero, or where B is far.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel_part
from portable_spdnn_cpu.jit.jobs import array_at
from portable_spdnn_cpu.spmm.direct.job_words import (
    ACCUMULATES,
    B_ROW,
    BIAS,
    BIAS_STEP,
    COLUMNS,
    ENTRIES,
    HAS_EPILOGUE,
    INDICES,
    INDPTR,
    OUT,
    ROWS,
    VALUES,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.direct.job_words import B as B_AT

# Entries that are added together, and items of B that are written for a column without a loop.
BLOCK_ENTRIES, WRITTEN = 512, 4


@kernel_part
def initialise_rows(words: Any, dtype: Any) -> None:
    """Let rows of C be their bias, or zero, plus what they hold where sums are added to that."""
    columns = words[COLUMNS]
    C = array_at(words[OUT], words[ROWS] * columns, dtype)
    if not words[HAS_EPILOGUE]:
        if not words[ACCUMULATES]:
            C[:] = 0
        return
    step = words[BIAS_STEP] // 8
    bias = array_at(words[BIAS], words[ROWS], np.float64)
    for row in range(words[ROWS]):
        start, first = dtype(bias[row * step]), row * columns
        for place in range(first, first + columns):
            C[place] = C[place] + start if words[ACCUMULATES] else start


@kernel_part
def multiply_whole_rows(words: Any, dtype: Any, index_dtype: Any) -> bool:
    """Add the product of A and B to C, which `initialise_rows` has begun, row of B by row.

    Returns false where an index is not below the rows of C; offsets were checked before.
    """
    rows, k, columns = words[ROWS], words[K], words[COLUMNS]
    indptr = array_at(words[INDPTR], k + 1, index_dtype)
    indices = array_at(words[INDICES], words[ENTRIES], index_dtype)
    values = array_at(words[VALUES], words[ENTRIES], dtype)
    C = array_at(words[OUT], (rows, columns), dtype)
    extent = np.uint64(rows)
    for column in range(k):
        source = array_at(words[B_AT] + column * words[B_ROW], columns, dtype)
        for entry in range(np.uint64(indptr[column]), np.uint64(indptr[column + 1])):
            row, value = np.uint64(indices[entry]), values[entry]
            if row >= extent:
                return False
            target = C[row]
            for place in range(columns):
                target[place] += value * source[place]
    return True


@kernel_part
def has_short_columns(entries: int, k: int, columns: int) -> bool:
    """Whether `multiply_vector` takes less time than the microkernel of columns."""
    return columns == 1 and k <= 2 * entries and entries <= WRITTEN * k


@kernel_part
def multiply_vector(words: Any, dtype: Any, index_dtype: Any) -> bool:
    """Do what `multiply_whole_rows` does, for a single column of B and short columns of A.

    First an item of B is written for each entry of its column of A, several at once and most for
    nothing; then the entries of many columns are added in one loop. So few branches depend on how
    many entries a column has.
    """
    k = words[K]
    indptr = array_at(words[INDPTR], k + 1, index_dtype)
    indices = array_at(words[INDICES], words[ENTRIES], index_dtype)
    values = array_at(words[VALUES], words[ENTRIES], dtype)
    B, C = array_at(words[B_AT], k, dtype), array_at(words[OUT], words[ROWS], dtype)
    items = np.empty(BLOCK_ENTRIES + WRITTEN, dtype)
    # Unsigned: of a signed index Numba asks at each use whether it counts from the end.
    one, most, written = np.uint64(1), np.uint64(BLOCK_ENTRIES), np.uint64(WRITTEN)
    column, columns = np.uint64(0), np.uint64(k)
    while column < columns:
        base = np.uint64(indptr[column])
        first, end = np.uint64(0), column
        while end < columns:
            stop = np.uint64(indptr[end + one]) - base
            if stop > most:
                break
            item = B[end]
            for place in range(written):
                items[first + place] = item
            for place in range(first + written, stop):
                items[place] = item
            first = stop
            end += one
        if end > column:
            if not add_entries(indices, values, items, base, first, C):
                return False
            column = end
            continue
        # A column of more entries, in parts.
        items[:] = B[column]
        last = np.uint64(indptr[column + one])
        while base < last:
            count = min(most, last - base)
            if not add_entries(indices, values, items, base, count, C):
                return False
            base += count
        column += one
    return True


@kernel_part
def add_entries(
    indices: Array, values: Array, items: Array, first: Any, count: Any, C: Array
) -> bool:
    """Add so many entries from `first` on to C, each times its item of B; all are unsigned."""
    extent = np.uint64(C.size)
    for number in range(count):
        entry = first + number
        row = np.uint64(indices[entry])
        if row >= extent:
            return False
        C[row] += values[entry] * items[number]
    return True
