"""Columns of A in CSC, each times its item of a single column of B, added to C."""

from __future__ import annotations

from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel_part
from portable_spdnn_cpu.jit.intrinsics import stay_apart, store_repeated
from portable_spdnn_cpu.jit.jobs import array_at
from portable_spdnn_cpu.spmm.direct.choice import MOSTLY_EMPTY
from portable_spdnn_cpu.spmm.direct.job_words import (
    ENTRIES,
    INDICES,
    INDPTR,
    OUT,
    ROWS,
    VALUES,
    B,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.direct.microkernels import CSC, LONG_CSC, NONEMPTY_CSC, multiply_apart

CHECKED = 8192  # entries whose indices are checked together, and are in a cache when they are used
# From how many entries in a column on average a loop for each column goes by steps of several: that
# takes 0.7 to 1.0 of the time on a Zen 5, of bands with fewer up to 1.15.
LEAST_LONG = 10
BLOCK_ENTRIES = 512  # that are added together
# Items of B that are written for a column without a loop, as many as a tuple has numbers (of which
# its type tells, so that they are a constant for Numba), and up to how many entries in a column on
# average. With up to MOST_SHORT that takes less time than a loop for each column, where ends are
# not predicted, as measured on a Zen 5.
EIGHT, SIXTEEN, MANY = (0,) * 8, (0,) * 16, (0,) * 32
MOST_OF_EIGHT, MOST_OF_SIXTEEN, MOST_SHORT = 3, 11, 20


@kernel_part
def add_columns(
    words: Any, begin: int, end: int, by_branches: bool, dtype: Any, index_dtype: Any
) -> Any:
    """Add columns begin .. end - 1 of A to C, each times its item of B.

    `by_branches` is whether to loop over each column, with a branch where it ends. Returns false
    where an index is not below the rows of C; offsets were checked before.
    """
    indptr = array_at(words[INDPTR], words[K] + 1, index_dtype)
    indices = array_at(words[INDICES], words[ENTRIES], index_dtype)
    columns, entries = end - begin, indptr[end] - indptr[begin]
    if by_branches and entries >= LEAST_LONG * columns:
        return multiply_apart(LONG_CSC, words, begin, end, dtype, index_dtype)
    together = max(1, CHECKED * columns // max(1, entries))
    while begin < end:
        until = min(end, begin + together)
        if not are_below(indices, np.uint64(indptr[begin]), np.uint64(indptr[until]), words[ROWS]):
            return False
        if by_branches or entries > MOST_SHORT * columns:
            multiply_apart(CSC, words, begin, until, dtype, index_dtype)
        elif MOSTLY_EMPTY * entries < columns:
            multiply_apart(NONEMPTY_CSC, words, begin, until, dtype, index_dtype)
        elif entries <= MOST_OF_EIGHT * columns:
            add_short_columns(words, begin, until, EIGHT, dtype, index_dtype)
        elif entries <= MOST_OF_SIXTEEN * columns:
            add_short_columns(words, begin, until, SIXTEEN, dtype, index_dtype)
        else:
            add_short_columns(words, begin, until, MANY, dtype, index_dtype)
        begin = until
    return True


@kernel_part
def are_below(indices: Array, first: Any, stop: Any, extent: int) -> bool:
    """Whether indices `first` .. `stop` - 1 are from 0 to `extent` - 1."""
    if first == stop:
        return True
    least = most = indices[first]
    for entry in range(first, stop):
        least, most = min(least, indices[entry]), max(most, indices[entry])
    return bool(least >= 0 and most < extent)


@kernel_part
def add_short_columns(
    words: Any, begin: int, until: int, written: tuple[int, ...], dtype: Any, index_dtype: Any
) -> None:
    """Add columns begin .. until - 1, where a processor does not predict how long each is.

    First an item of B is written for each entry of its column of A, as many at once as `written`
    has numbers, of which those of the next column overwrite what is too many; then the entries of
    many columns are added in one loop.
    """
    stay_apart()
    k = words[K]
    indptr = array_at(words[INDPTR], k + 1, index_dtype)
    indices = array_at(words[INDICES], words[ENTRIES], index_dtype)
    values = array_at(words[VALUES], words[ENTRIES], dtype)
    x, C = array_at(words[B], k, dtype), array_at(words[OUT], words[ROWS], dtype)
    items = np.empty(BLOCK_ENTRIES + len(written), dtype)
    # Indices are unsigned: see `jit.compilation`.
    one, most, at_once = np.uint64(1), np.uint64(BLOCK_ENTRIES), np.uint64(len(written))
    column, columns = np.uint64(begin), np.uint64(until)
    while column < columns:
        base = np.uint64(indptr[column])
        first, end = np.uint64(0), column
        while end < columns:
            stop = np.uint64(indptr[end + one]) - base
            if stop > most:
                break
            item = x[end]
            store_repeated(items, first, item, written)
            for place in range(first + at_once, stop):
                items[place] = item
            first = stop
            end += one
        if end > column:
            add_entries(indices, values, items, base, first, C)
            column = end
            continue
        # A column of more entries, in parts.
        items[:] = x[column]
        last = np.uint64(indptr[column + one])
        while base < last:
            count = min(most, last - base)
            add_entries(indices, values, items, base, count, C)
            base += count
        column += one


@kernel_part
def add_entries(
    indices: Array, values: Array, items: Array, first: Any, count: Any, C: Array
) -> None:
    """Add so many entries from `first` on to C, each times its item of B; all are unsigned."""
    for number in range(count):
        entry = first + number
        C[np.uint64(indices[entry])] += values[entry] * items[number]
