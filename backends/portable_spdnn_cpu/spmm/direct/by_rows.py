"""Rows of A in CSR times all columns of B: which microkernels multiply them, and in which order."""

from __future__ import annotations

from typing import Any

import numpy as np

from portable_spdnn_cpu.activations import NONE
from portable_spdnn_cpu.jit.compilation import kernel_part
from portable_spdnn_cpu.jit.intrinsics import stay_apart
from portable_spdnn_cpu.jit.jobs import array_at, call_code, call_code_for_integer, float_of
from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS, is_zen
from portable_spdnn_cpu.layout.large_results import NONTEMPORAL_BYTES
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.cost_model import L2, L2_WAYS
from portable_spdnn_cpu.spmm.dense_layout import LEAST_SHIFTED_ROW
from portable_spdnn_cpu.spmm.direct.code_table import (
    EACH_ENTRY,
    FEW_COLUMNS,
    OVERLAPS,
    PANELS,
    SHIFTED_PANELS,
    code_of,
    panel_width_part,
)
from portable_spdnn_cpu.spmm.direct.each_entry import LINES, MOST_NUMBERS
from portable_spdnn_cpu.spmm.direct.job_words import (
    ACTIVATION,
    B_ROW,
    COLUMNS,
    ENTRIES,
    HAS_EPILOGUE,
    INDPTR,
    ITEM,
    LOWER,
    OUT,
    OUT_BYTES,
    OUT_ROW,
    ROWS,
    TASKS,
    UPPER,
    B,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.row_ends import adds_each_entry, lengths_vary, may_add_each_entry
from portable_spdnn_cpu.spmm.stream.microkernels import MAX_VECTORS

MOST_ADDED = 4  # entries in a row, beyond which sums in registers take less time on a Zen 5
PANEL_BYTES = MAX_VECTORS * BLOCK_BYTES  # of a row of B or C in the widest panel, but for the first
# Bytes of C in the rows that are multiplied with all panels of B before the next rows are: so A's
# entries, C's pages and, where there is an activation, C's rows are still in a cache. With 16 and
# 256 KiB products took 1.02 and 1.03 times as long on an Intel Xeon. On a Zen 5 products without an
# activation, whose B the second-level cache holds, took 0.94 of the time with 1 MiB; but 1.1 to 1.2
# times as long where C has FAR_C.
BLOCK_OF_C = 1 << 16
BLOCK_IF_B_IS_NEAR = 1 << 20 if is_zen() else BLOCK_OF_C
# Entries for a row of B in each task, from which all rows are multiplied with one panel first.
KEPT_REUSE = 4
# Bytes of C from which that goes through its pages too often, unless B is larger than the
# second-level cache and A has LONG_ROW entries for each row on average.
FAR_C, LONG_ROW = 1 << 25, 8

_adds_each_entry = kernel_part(adds_each_entry)
_may_add_each_entry = kernel_part(may_add_each_entry)
_lengths_vary = kernel_part(lengths_vary)


@kernel_part
def multiply_and_finish(words: Any, begin: int, end: int, index: Any) -> bool:
    """Multiply rows begin .. end - 1 of CSR by all columns of B, and apply the activation.

    Returns false where an index is not below the rows of B.
    """
    is_finished = words[HAS_EPILOGUE] and words[ACTIVATION] != NONE
    together, row = rows_of_block(words, is_finished), words[OUT_ROW]
    while begin < end:
        until = min(begin + together, end)
        if not multiply_by_rows(words, begin, until, index):
            return False
        if is_finished:  # rows follow each other without a gap, but for padding of one's own
            items = (until - begin) * row // words[ITEM]
            bounds = float_of(words[LOWER]), float_of(words[UPPER])
            call_code(words[ACTIVATION], (words[OUT] + begin * row, items, *bounds))
        begin = until
    return True


@kernel_part
def rows_of_block(words: Any, is_finished: bool) -> Any:
    """Return how many rows are multiplied with all panels of B, and finished, before the next are.

    All of them where the second-level cache holds a panel of B but not B and what passes through it
    besides, and each task reads the panel several times: then that is worth more. Where C is large
    it is so for long rows alone.
    """
    rows, row = words[ROWS], words[COLUMNS] * words[ITEM]
    if row <= PANEL_BYTES and not is_finished:
        return rows
    entries, apart = words[ENTRIES], words[B_ROW]
    met = min(entries, words[K])  # rows of B
    # Rows that lie a power of two apart compete for few of the cache's sets.
    panel = met * max(PANEL_BYTES, min(apart & -apart, L2 // L2_WAYS))
    is_kept = panel <= L2 < 2 * met * row and entries >= KEPT_REUSE * met * words[TASKS]
    is_far = rows * words[OUT_ROW] >= FAR_C
    if is_far:
        is_kept = is_kept and met * row > L2 and entries >= LONG_ROW * rows
    if row > PANEL_BYTES and is_kept:
        return rows
    is_near = met * row <= L2 and not (is_finished or is_far)
    block = BLOCK_IF_B_IS_NEAR if is_near else BLOCK_OF_C
    return max(1, block // max(1, row))


@kernel_part
def multiply_by_rows(words: Any, begin: int, end: int, index: Any) -> Any:
    """Multiply rows begin .. end - 1 of CSR by all columns of B."""
    row = words[COLUMNS] * words[ITEM]
    if row == 0:
        return True
    if not words[HAS_EPILOGUE]:
        entries, rows = words[ENTRIES], words[ROWS]
        indptr = array_at(words[INDPTR], rows + 1, index)
        if _adds_each_entry(entries, rows, row) or (
            _may_add_each_entry(entries, rows, row) and _lengths_vary(indptr, begin, end)
        ):
            return multiply_few_entries(words, begin, end, index)
    return multiply_in_panels(words, begin, end)


@kernel_part
def multiply_few_entries(words: Any, begin: int, end: int, index: Any) -> Any:
    """Multiply rows entry by entry, but in panels where of LINES some are long.

    Sums of long rows are to stay in registers: entries that are added one by one wait for each
    other.
    """
    indptr, n = array_at(words[INDPTR], words[ROWS] + 1, index), words[COLUMNS]
    valid = True
    while begin < end:
        until = after = begin
        while until < end:
            after = min(until + LINES, end)
            if are_long(indptr, until, after):
                break
            until = after
        if begin < until:
            given = words, begin, until, 0, n
            valid &= call_code_for_integer(code_of(words, EACH_ENTRY), given) != 0
        if until < after:
            valid &= multiply_in_panels(words, until, after)
        begin = after
    return valid


@kernel_part
def are_long(indptr: Any, begin: int, end: int) -> bool:
    """Whether rows begin .. end - 1 that have an entry have more than MOST_ADDED on average."""
    entries, filled = indptr[end] - indptr[begin], np.int32(0)
    if entries > MOST_NUMBERS or entries <= MOST_ADDED:
        return bool(entries > MOST_NUMBERS)
    before, after = indptr[begin:end], indptr[begin + 1 : end + 1]
    for row in range(before.size):  # of slices, so that LLVM compares many at a time
        filled += np.int32(before[row] != after[row])
    return bool(entries > MOST_ADDED * filled)


@kernel_part
def multiply_in_panels(words: Any, begin: int, end: int) -> bool:
    """Multiply rows by all columns of B, at least one."""
    stay_apart()  # so that there is one copy of it, for both callers
    n, few = words[COLUMNS], code_of(words, FEW_COLUMNS)
    if few:
        return bool(call_code_for_integer(few, (words, begin, end, 0, n)))
    lanes, valid, first = BLOCK_BYTES // words[ITEM], 1, 0
    # As `code_table.row_panels` has them.
    before = columns_before(words)
    if before:
        width = min(n + before, (MAX_VECTORS + 1) * lanes)
        code = code_of(words, SHIFTED_PANELS + (width + lanes - 1) // lanes)
        valid = call_code_for_integer(code, (words, begin, end, -before, width))
        first = width - before
    while first < n:
        width = panel_width_part(n - first, MAX_VECTORS * lanes, lanes if OVERLAPS else 0)
        code = code_of(words, PANELS + (width + lanes - 1) // lanes)
        valid &= call_code_for_integer(code, (words, begin, end, first, width))
        first += width
    return valid != 0


@kernel_part
def columns_before(words: Any) -> int:
    """Return how many columns before 0 the first panel begins at, so that loads of B are of lines.

    0 where rows of B are not whole cache lines long and apart, and where C is large and starts on a
    line: then non-temporal stores are worth more.
    """
    itemsize = words[ITEM]
    row, before = words[COLUMNS] * itemsize, words[B] % BLOCK_BYTES
    if not HAS_FAST_MASKS or row < LEAST_SHIFTED_ROW:
        return 0
    if words[OUT_BYTES] >= NONTEMPORAL_BYTES and words[OUT] % BLOCK_BYTES == 0:
        return 0
    if row % BLOCK_BYTES or words[B_ROW] % BLOCK_BYTES or before % itemsize:
        return 0
    return int(before // itemsize)
