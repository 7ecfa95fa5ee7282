"""B and C in Fortran order become rows, which is what the kernels of a single product take.

CSR computes some rows of C at a time, which are written as columns while they are near; CSC
computes all of them before.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import job_kernel, kernel_part
from portable_spdnn_cpu.jit.jobs import array_at, call_code, code_address, pointer_at
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.spmm.dense_layout import ALIASING, meets_few_rows, padded_row_bytes
from portable_spdnn_cpu.spmm.direct.choice import CSC_BYTES, is_almost_empty
from portable_spdnn_cpu.spmm.direct.code_table import LOAD_COLUMNS, MET_ROWS, STORE_COLUMNS, code_of
from portable_spdnn_cpu.spmm.direct.job_words import (
    B_FORTRAN,
    B_ROW,
    COLUMNS,
    ENTRIES,
    HELD,
    INDICES,
    INDPTR,
    ITEM,
    OUT,
    OUT_FORTRAN,
    OUT_ROW,
    ROWS,
    SCRATCH,
    B,
    K,
)  # fmt: skip

L2 = cache_bytes(2)
# Of rows of C that are computed before they are written as columns, so that they are still near:
# how many at least, and bytes.
LEAST_TOGETHER, BYTES_TOGETHER = 32, 1 << 14

_is_almost_empty = kernel_part(is_almost_empty)
few_rows_are_met = kernel_part(meets_few_rows)
row_bytes = kernel_part(padded_row_bytes)


@kernel_part
def columns_into_rows(words: Any) -> int:
    """Let B, if it is in Fortran order, be in rows of whole vectors in memory of the job's.

    Where few of its rows are met, only these are copied. Returns the address of the memory that is
    left.
    """
    n, k, scratch, itemsize = words[COLUMNS], words[K], words[SCRATCH], words[ITEM]
    if not words[B_FORTRAN]:
        return int(scratch)
    row = row_pitch(n, itemsize)
    apart, width = words[B_ROW] // itemsize, row // itemsize
    if few_rows_are_met(words[ENTRIES], k):
        call_code(code_of(words, MET_ROWS), (words, scratch, width))
    else:
        copied = words[B], apart, scratch, width, n, 0, k, n
        call_code(code_of(words, LOAD_COLUMNS), copied)
    words[B], words[B_ROW] = scratch, row
    return int(scratch + k * row)


@functools.cache
def met_rows_code(is_csc: bool, dtype: np.dtype[Any], index_dtype: np.dtype[Any]) -> int:
    """Return the address of the machine code of `copy_met_rows`, for `call_code`."""
    return code_address(copy_met_rows, "iii", (0,) * is_csc, dtype.type, index_dtype.type)


@job_kernel
def copy_met_rows(
    words: int, scratch: int, width: int, csc: tuple[int, ...], dtype: Any, index_dtype: Any
) -> None:
    """Copy the rows of B in Fortran order that entries of A meet to rows of `width` items.

    `words` is the address of the job's; A is in CSC where `csc` is not empty. Indices that are
    beyond B meet none, and are refused later; offsets were checked before.
    """
    at = pointer_at(words, np.int64)
    k = at[K]
    if len(csc):
        indptr = array_at(at[INDPTR], k + 1, index_dtype)
        for column in range(k):
            if indptr[column] != indptr[column + 1]:
                copy_row(at, column, scratch, width, dtype)
        return
    indices = array_at(at[INDICES], at[ENTRIES], index_dtype)
    for entry in range(at[ENTRIES]):
        column = indices[entry]
        if 0 <= column < k:
            copy_row(at, column, scratch, width, dtype)


@kernel_part
def copy_row(words: Any, number: int, scratch: int, width: int, dtype: Any) -> None:
    """Copy a row of B in Fortran order to its place among rows of `width` items.

    `load_columns`, which transposes squares, takes 1.3 to 2.5 times as long for a row.
    """
    n, apart = words[COLUMNS], words[B_ROW]
    itemsize = array_at(0, 1, dtype).itemsize
    target = array_at(scratch + number * width * itemsize, width, dtype)
    source = words[B] + number * itemsize  # not in the loop: LLVM would load the word each time
    for column in range(n):
        target[column] = array_at(source + column * apart, 1, dtype)[0]
    for column in range(n, width):
        target[column] = 0


@kernel_part
def into_rows(words: Any, scratch: int) -> tuple[int, int]:
    """Let C, if it is in Fortran order, be in rows of whole vectors from `scratch` on.

    Returns where it is to be in the end: its address, and the bytes from column to column.
    """
    out, out_row, n, itemsize = words[OUT], words[OUT_ROW], words[COLUMNS], words[ITEM]
    if words[OUT_FORTRAN]:
        rows, row = words[ROWS], row_bytes(n, itemsize)
        width = row // itemsize
        words[OUT], words[OUT_ROW] = scratch, row
        if words[HELD]:
            copied = out, out_row // itemsize, scratch, width, width, 0, rows, n
            call_code(code_of(words, LOAD_COLUMNS), copied)
    return out, out_row


@kernel_part
def into_columns(words: Any, out: int, out_row: int) -> None:
    """Let C be where `into_rows` said, if it is in Fortran order."""
    if words[OUT_FORTRAN]:
        itemsize, rows, n = words[ITEM], words[ROWS], words[COLUMNS]
        width = words[OUT_ROW] // itemsize
        written = out, out_row // itemsize, words[OUT], width, 0, rows, n, n * out_row
        call_code(code_of(words, STORE_COLUMNS), written)


@kernel_part
def takes_whole_rows(
    entries: int, rows: int, k: int, columns: int, itemsize: int, out_fortran: bool
) -> bool:
    """Whether CSC is multiplied a whole row of B at a time, and not in more than one panel.

    Of B from beyond the second-level cache the processor fetches whole rows ahead, and not the
    pieces of panels. Where most rows of C are zero, panels would begin each of them; and where most
    columns of A are empty, each panel would look at all of them again.
    """
    row = columns * itemsize
    is_empty = _is_almost_empty(entries, rows) or are_mostly_empty(entries, k)
    return row > CSC_BYTES and (k * row > L2 or is_empty) and not out_fortran


@kernel_part
def are_mostly_empty(entries: int, k: int) -> bool:
    """Whether most columns of A in CSC have no entry."""
    return 4 * entries < k


@kernel_part
def scratch_bytes(
    is_csc: bool,
    rows: int,
    k: int,
    columns: int,
    itemsize: int,
    b_fortran: bool,
    out_fortran: bool,
) -> int:
    """Return the bytes of memory that one worker needs for B and C in rows of whole vectors."""
    size = k * row_pitch(columns, itemsize) if b_fortran else 0
    if out_fortran:
        row = row_bytes(columns, itemsize)
        size += row * (rows if is_csc else rows_together(row))
    return size


@kernel_part
def row_pitch(columns: int, itemsize: int) -> int:
    """Return how many bytes apart rows of B lie that are copied from Fortran order."""
    row = row_bytes(columns, itemsize)
    return row if row % ALIASING else row + BLOCK_BYTES


@kernel_part
def rows_together(row: int) -> int:
    """Return how many rows of C, of so many bytes, are computed before they become columns."""
    return max(LEAST_TOGETHER, BYTES_TOGETHER // row)
