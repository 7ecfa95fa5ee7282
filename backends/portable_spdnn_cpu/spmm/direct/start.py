"""Starting the job of a single product: arrays are looked at, and become words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from portable_spdnn_cpu.activations import NONE
from portable_spdnn_cpu.jit.compilation import Array, job_kernel, kernel, kernel_part
from portable_spdnn_cpu.jit.intrinsics import advise_large_pages
from portable_spdnn_cpu.jit.jobs import array_at, run_share
from portable_spdnn_cpu.layout.canonical import offsets_are_valid
from portable_spdnn_cpu.layout.csc_to_csr import fill_rows
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import LARGE_BYTES
from portable_spdnn_cpu.spmm.direct.code_table import CONVERSION, JOB, LOAD_COLUMNS, code_of
from portable_spdnn_cpu.spmm.direct.copies import few_rows_are_met, scratch_bytes
from portable_spdnn_cpu.spmm.direct.job_words import (
    ACTIVATION,
    B_FORTRAN,
    B_ROW,
    BIAS,
    BIAS_STEP,
    COLUMNS,
    COUNTERS,
    ENTRIES,
    FINISHES_LATER,
    HAS_EPILOGUE,
    HELD,
    HOLDS_ZEROS,
    INDICES,
    INDPTR,
    ITEM,
    LOWER,
    OUT,
    OUT_BYTES,
    OUT_FORTRAN,
    OUT_ROW,
    REFUSED,
    ROWS,
    SCRATCH,
    TABLE,
    TASKS,
    UPPER,
    VALUES,
    WORKERS,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.direct.job_words import B as B_AT

# How A is taken: in CSR, in CSC, or in CSC that is converted to CSR before.
BY_ROWS, BY_COLUMNS, CONVERTED = range(3)
TAKEN = {"csr": BY_ROWS, "csc": BY_COLUMNS}  # by its form, as it is
TASKS_PER_WORKER = 4  # of equal numbers of rows, whose entries may differ


class Part(NamedTuple):
    """One of the arrays of A: where it lies, and whether its items follow each other."""

    address: int
    size: int
    itemsize: int
    is_adjacent: bool


class Dense(NamedTuple):
    """B or C; an array of one dimension is a column.

    Attributes
    ----------
    address : int
        Of the first item.
    rows, columns : int
    itemsize : int
        Bytes of an item.
    is_fortran : bool
        Whether columns are taken as they lie in memory, and not rows.
    pitch : int
        Bytes from row to row, or from column to column in Fortran order.
    is_adjacent : bool
        Whether items of a row follow each other; in Fortran order, or of a single column, those of
        a column.
    """

    address: int
    rows: int
    columns: int
    itemsize: int
    is_fortran: bool
    pitch: int
    is_adjacent: bool


@kernel_part
def part_of(array: Array) -> Part:
    """Return where an array of A lies."""
    is_adjacent = array.strides[0] == array.itemsize or array.size <= 1
    return Part(np.int64(array.ctypes.data), array.size, array.itemsize, is_adjacent)  # type: ignore[arg-type]


@kernel_part
def dense_of(array: Array) -> Dense:
    """Return where B or C lies."""
    columns = array.shape[-1] if array.ndim > 1 else 1
    is_fortran = array.ndim > 1 and columns > 1 and array.strides[-1] != array.itemsize
    step = array.strides[0 if columns == 1 or is_fortran else -1]
    return Dense(
        np.int64(array.ctypes.data), array.shape[0], columns, array.itemsize, is_fortran,  # type: ignore[arg-type]
        array.strides[-1 if is_fortran else 0], step == array.itemsize or array.size <= 1,
    )  # fmt: skip


@kernel_part
def fill_places(
    words: Any, table: int, workers: int, indptr: Part, indices: Part, values: Part, B: Dense,
    out: Dense,
) -> bool:  # fmt: skip
    """Do what `fill_words` does, but for offsets, which are not looked at."""
    words[REFUSED], words[WORKERS], words[TABLE], words[ITEM] = 0, workers, table, B.itemsize
    for worker in range(workers):
        words[COUNTERS + worker] = 0
    rows, columns, item = out.rows, B.columns, B.itemsize
    words[TASKS] = 1 if workers == 1 else workers * TASKS_PER_WORKER
    words[ROWS], words[COLUMNS], words[K] = rows, columns, B.rows
    words[ENTRIES] = min(indices.size, values.size)
    words[INDPTR], words[INDICES], words[VALUES] = indptr.address, indices.address, values.address
    words[B_AT], words[B_FORTRAN], words[B_ROW] = B.address, B.is_fortran, B.pitch
    words[OUT], words[OUT_FORTRAN], words[OUT_ROW] = out.address, out.is_fortran, out.pitch
    if not out.is_fortran and (rows <= 1 or columns == 0):
        words[OUT_ROW] = columns * item  # the stride of a single row, or none, may be any
    words[OUT_BYTES] = rows * columns * item
    fine = B.is_adjacent and B.address % item == 0 and out.is_adjacent
    if B.is_fortran or out.is_fortran:
        fine &= code_of(words, LOAD_COLUMNS) != 0
    # Rows of C follow each other without a gap.
    fine &= out.is_fortran or rows * columns == 0 or words[OUT_ROW] == columns * item
    if B.is_fortran:
        fine &= B.pitch >= B.rows * item and B.pitch % item == 0
    for part in (indptr, indices):
        fine &= part.is_adjacent and part.address % part.itemsize == 0
        fine &= part.itemsize == 8 or max(rows, B.rows) < 1 << 31
    return bool(fine and values.is_adjacent)


@kernel_part
def fill_words(
    words: Any, table: int, workers: int, taken: int, offsets: Array, indptr: Part, indices: Part,
    values: Part, B: Dense, out: Dense,
) -> bool:  # fmt: skip
    """Fill the words of a job but for SCRATCH, and what `fill_epilogue` fills.

    `table` is the address of the job's table; `offsets` are those that `indptr` says the place of.
    Returns false where items of an array (of B in Fortran order, those of a column) are apart,
    where offsets, indices or items of B are misaligned, where C has gaps, where indices are too
    narrow for the shape, where offsets are not one more than A has rows (columns in CSC), or do not
    rise from 0 to at most the number of entries, and where B or C is in Fortran order and the table
    has no code for that.
    """
    lines = out.rows if taken == BY_ROWS else B.rows
    fine = fill_places(words, table, workers, indptr, indices, values, B, out)
    return bool(fine and indptr.size == lines + 1 and offsets_are_valid(offsets, words[ENTRIES]))


@kernel_part
def fill_epilogue(
    words: Any, taken: int, held: int, code: int, bias: Array, lower: float, upper: float
) -> None:
    """Let a job finish C, and add a residual that `held` is the address of, unless that is 0.

    Its other words are there already. There is a bias for each row of C, or one for all. `code` is
    that of an `Activation`. By rows a single column is finished after its sums, unless it holds the
    residual itself, so that kernels serve that do not finish rows, and take less time.
    """
    changes = held != 0 or code != NONE or bias.size != 1 or bias[0] != 0
    changes = changes or lower > -np.inf or upper < np.inf
    later = words[COLUMNS] == 1 and taken != BY_COLUMNS and held != words[OUT]
    words[HAS_EPILOGUE], words[FINISHES_LATER] = changes and not later, changes and later
    words[HOLDS_ZEROS], words[HELD], words[ACTIVATION] = 0, held, code
    words[BIAS], words[BIAS_STEP] = bias.ctypes.data, bias.itemsize if bias.size > 1 else 0
    limits = words[LOWER : UPPER + 1].view(np.float64)
    limits[0], limits[1] = lower, upper


@kernel_part
def aligned(address: int) -> int:
    """Return the first address from this one on where a vector may begin."""
    return (address + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


@kernel_part
def empty_words(taken: int, indices: Part, values: Part, B: Dense, out: Dense) -> Array:
    """Return room for the words of a job for one worker, and for the memory that it needs.

    The memory, where SCRATCH says, holds A in CSR where it is converted, and rows of B and C that
    are in Fortran order.
    """
    entries = min(indices.size, values.size)
    size = BLOCK_BYTES + scratch_bytes(
        taken == BY_COLUMNS, out.rows, B.rows, B.columns, B.itemsize, B.is_fortran, out.is_fortran
    )
    if taken == CONVERTED:  # see `convert`
        size += (entries + 1) * values.itemsize + (out.rows + 2 + entries) * indices.itemsize
        size += BLOCK_BYTES
    words = np.empty(COUNTERS + 1 + size // 8, np.int64)
    if size >= LARGE_BYTES and not (B.is_fortran and few_rows_are_met(entries, B.rows)):
        # What malloc gets from the system for each call: 33 MiB of B take 5 in place of 17 ms.
        advise_large_pages(words.ctypes.data, size)
    words[SCRATCH] = aligned(words.ctypes.data + 8 * (COUNTERS + 1))
    return words


@kernel_part
def words_for_one(
    table: int, taken: int, indptr: Array, indices: Array, values: Array, B: Array, out: Array
) -> Array:
    """Return the words of a job for one worker, without what `fill_epilogue` fills.

    REFUSED is set where `fill_words` returns false.
    """
    parts = part_of(indptr), part_of(indices), part_of(values)
    dense = dense_of(B), dense_of(out)
    words = empty_words(taken, parts[1], parts[2], *dense)
    words[REFUSED] = not fill_words(words, table, 1, taken, indptr, *parts, *dense)
    return words


@job_kernel
def convert(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    """Convert A, given in CSC with valid offsets, to CSR, which the words then name.

    SCRATCH has the room that `empty_words` makes. REFUSED is set where an index is invalid: see
    `fill_rows`. This is a job of its own so that it is compiled only where A is converted.
    """
    indptr = array_at(words[INDPTR], words[K] + 1, index_dtype)
    entries, rows = indptr[words[K]], words[ROWS]
    indices = array_at(words[INDICES], entries, index_dtype)
    values = array_at(words[VALUES], entries, dtype)
    at = words[SCRATCH]
    copies = array_at(at, entries, dtype)
    at += (entries * copies.itemsize + 7) // 8 * 8
    places = array_at(at, rows + 2, index_dtype)
    at += (rows + 2) * places.itemsize
    columns = array_at(at, entries, index_dtype)
    words[VALUES], words[INDPTR], words[INDICES] = words[SCRATCH], places.ctypes.data, at
    words[ENTRIES] = entries
    words[SCRATCH] = aligned(at + entries * columns.itemsize)
    places[:] = 0
    words[REFUSED] = not fill_rows(indptr, indices, values, rows, places, columns, copies)


@kernel_part
def run_jobs(words: Any) -> bool:
    """Run the job of a table, after the one that converts A if the table has one.

    Returns false where either fails, or A is refused.
    """
    converting = code_of(words, CONVERSION)
    if converting and (run_share(converting, 0, words.ctypes.data) or words[REFUSED]):
        return False
    failed = run_share(code_of(words, JOB), 0, words.ctypes.data)
    return bool(not failed and words[REFUSED] == 0)


@kernel
def run_alone(
    table: int, indptr: Array, indices: Array, values: Array, B: Array, out: Array, taken: int,
    zeroed: bool,
) -> bool:  # fmt: skip
    """Compute C on the calling thread by the job of a table, which was made for `taken`.

    `table` is the table's address. `zeroed`: whether C holds zeros. Returns false where
    `fill_words` does, and for invalid indices.
    """
    words = words_for_one(table, taken, indptr, indices, values, B, out)
    if words[REFUSED]:
        return False
    words[HOLDS_ZEROS], words[HELD] = zeroed, 0
    words[HAS_EPILOGUE] = words[FINISHES_LATER] = 0
    return run_jobs(words)


@kernel
def run_alone_with_epilogue(
    table: int, indptr: Array, indices: Array, values: Array, B: Array, out: Array, taken: int,
    held: int, code: int, bias: Array, lower: float, upper: float,
) -> bool:  # fmt: skip
    """Do what `run_alone` does; what `fill_epilogue` takes stands in place of `zeroed`."""
    words = words_for_one(table, taken, indptr, indices, values, B, out)
    if words[REFUSED]:
        return False
    fill_epilogue(words, taken, held, code, bias, lower, upper)
    return run_jobs(words)


@kernel
def fill_all_words(
    words: Array, table: int, workers: int, indptr: Array, indices: Array, values: Array, B: Array,
    out: Array, held: int, code: int, bias: Array, lower: float, upper: float,
) -> bool:  # fmt: skip
    """Fill the words of a job for any number of workers, with A in CSR, and B and C in C order.

    Returns false where `fill_words` does, and for B or C in Fortran order, which takes memory of a
    worker's own.
    """
    parts = part_of(indptr), part_of(indices), part_of(values)
    filled = fill_words(words, table, workers, BY_ROWS, indptr, *parts, dense_of(B), dense_of(out))
    fill_epilogue(words, BY_ROWS, held, code, bias, lower, upper)
    return bool(filled and not words[B_FORTRAN] and not words[OUT_FORTRAN])
