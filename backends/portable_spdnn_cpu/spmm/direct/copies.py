"""B and C in rows of whole vectors, where the kernels of a single product need them so.

Those of CSR read and write any rows, those of CSC write whole vectors, and neither takes columns.
CSR computes some rows of C at a time, which are written as columns while they are near.
"""

from __future__ import annotations

from typing import Any

from portable_spdnn_cpu.jit.compilation import kernel_part
from portable_spdnn_cpu.jit.jobs import array_at
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.spmm.direct.job_words import (
    ACCUMULATES,
    B_ROW,
    COLUMNS,
    FORTRAN,
    OUT,
    OUT_ROW,
    ROWS,
    SCRATCH,
    B,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.stream.microkernels import MAX_VECTORS
from portable_spdnn_cpu.spmm.transposes import load_columns, store_columns
from portable_spdnn_cpu.tiles.copies import copy_block

L2 = cache_bytes(2)
# Of the widest panel in CSC, where both a row of B and one of C are in registers.
CSC_BYTES = MAX_VECTORS // 2 * BLOCK_BYTES
FEW_ENTRIES = 3  # in a row of A on average, for rows of C that are not whole vectors
# Of rows of C that are computed before they are written as columns, in the first-level cache: how
# many at least, and bytes.
LEAST_TOGETHER, BYTES_TOGETHER = 32, 1 << 14


@kernel_part
def columns_into_rows(words: Any, dtype: Any) -> int:
    """Let B, in Fortran order, be in rows of whole vectors in memory of the job's.

    Returns the address of the memory that follows them.
    """
    n, scratch = words[COLUMNS], words[SCRATCH]
    itemsize = array_at(0, 1, dtype).itemsize
    row = row_bytes(n, itemsize)
    apart, width = words[B_ROW] // itemsize, row // itemsize
    load_columns(words[B], apart, scratch, width, n, 0, words[K], n, dtype)
    words[B], words[B_ROW] = scratch, row
    return int(scratch + words[K] * row)


@kernel_part
def to_whole_vectors(words: Any, dtype: Any) -> tuple[int, int]:
    """Let B and C be in rows, and those of C whole vectors, in memory of the job's if need be.

    Returns where C is to be in the end: its address, and the bytes from row to row, or from column
    to column.
    """
    out, out_row, n = words[OUT], words[OUT_ROW], words[COLUMNS]
    itemsize, scratch, rows = array_at(0, 1, dtype).itemsize, words[SCRATCH], words[ROWS]
    width = row_bytes(n, itemsize) // itemsize
    if words[FORTRAN]:
        scratch = columns_into_rows(words, dtype)
    if words[FORTRAN] or width > n:
        words[OUT], words[OUT_ROW] = scratch, width * itemsize
        if words[ACCUMULATES]:
            if words[FORTRAN]:
                load_columns(out, out_row // itemsize, scratch, width, width, 0, rows, n, dtype)
            else:
                copy_rows(out, scratch, rows, n, width, dtype)
    return out, out_row


@kernel_part
def from_whole_vectors(words: Any, out: int, out_row: int, dtype: Any) -> None:
    """Copy C to an address where it is to be, if it is elsewhere."""
    if words[OUT] == out:
        return
    itemsize, rows, n = array_at(0, 1, dtype).itemsize, words[ROWS], words[COLUMNS]
    width = words[OUT_ROW] // itemsize
    if words[FORTRAN]:
        store_columns(out, out_row // itemsize, words[OUT], width, 0, rows, n, dtype)
        return
    copy_rows(words[OUT], out, rows, width, n, dtype)


@kernel_part
def copy_rows(
    source: int, target: int, rows: int, source_width: int, target_width: int, dtype: Any
) -> None:
    """Copy rows from one address to another; what the target has more of a row is zero."""
    found = array_at(source, (rows, source_width), dtype)
    copy = array_at(target, (rows, target_width), dtype)
    width, lanes, whole = min(source_width, target_width), BLOCK_BYTES // found.itemsize, 0
    if source_width % lanes == 0 and source_width - lanes < target_width < source_width:
        whole = max(0, rows - 1)
    for row in range(whole):
        # What a vector writes beyond a row is overwritten by the next one.
        for column in range(0, target_width, lanes):
            copy_block(copy, row * target_width + column, found, row * source_width + column)
    for row in range(whole, rows):
        for column in range(width):
            copy[row, column] = found[row, column]
        for column in range(width, target_width):
            copy[row, column] = dtype(0)


@kernel_part
def takes_whole_rows(entries: int, rows: int, k: int, row: int, fortran: bool) -> bool:
    """Whether CSC is multiplied a whole row of B at a time, of so many bytes, and not in panels.

    Where rows of C have few entries, to pad them and to copy them would take longer than the
    product. Of B from beyond the second-level cache the processor fetches whole rows ahead, and not
    the pieces of panels.
    """
    few = rows if row % BLOCK_BYTES == 0 else FEW_ENTRIES * rows
    is_sparse = entries < few and row > BLOCK_BYTES
    is_far = row > CSC_BYTES and k * row > L2
    return (is_sparse or is_far) and not fortran


@kernel_part
def scratch_bytes(
    is_csc: bool, entries: int, rows: int, k: int, columns: int, itemsize: int, fortran: bool
) -> int:
    """Return the bytes of memory that one worker needs for B and C in rows of whole vectors."""
    if not (fortran or is_csc) or takes_whole_rows(entries, rows, k, columns * itemsize, fortran):
        return 0
    row = row_bytes(columns, itemsize)
    lines = k if fortran else 0
    if is_csc and (fortran or row > columns * itemsize):
        lines += rows
    return lines * row if is_csc else lines * row + rows_together(row) * row


@kernel_part
def rows_together(row: int) -> int:
    """Return how many rows of C, of so many bytes, are computed before they become columns."""
    return max(LEAST_TOGETHER, BYTES_TOGETHER // row)


@kernel_part
def row_bytes(columns: int, itemsize: int) -> int:
    """Return the bytes of the vectors that `kernel.multiply_columns` takes for so many columns."""
    size = columns * itemsize
    vector = itemsize if columns == 1 else 16 if size <= 16 else 32 if size <= 32 else BLOCK_BYTES
    return (size + vector - 1) & -vector  # a power of two
