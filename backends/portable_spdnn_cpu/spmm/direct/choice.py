"""Which products are done with A as it is given, and in which form of A."""

from __future__ import annotations

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.target import is_zen_4
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.spmm.costs import COSTS, LAST_CACHE
from portable_spdnn_cpu.spmm.dense_layout import (
    MAPPED_BYTES,
    PAGE,
    copied_bytes,
    is_fortran,
    meets_few_rows,
)
from portable_spdnn_cpu.spmm.row_ends import adds_each_entry
from portable_spdnn_cpu.spmm.stream.microkernels import MAX_VECTORS

L2 = cache_bytes(2)
# Work is counted in entries times vectors of B but one, half a nanosecond each on one thread.
# Beyond so much of it the stream is faster, which copies panels of B to where they are near: for B
# in the second-level cache, for B from beyond it, and for B in Fortran order, where threads share
# the stream besides.
MAX_WORK, MAX_FAR_WORK, MAX_FORTRAN_WORK = 2_000_000, 700_000, 1_000_000
TRANSPOSE_WORK = 4  # for each vector of a row of B or C that is transposed
# For a page that the system makes for copied rows, see MAPPED_BYTES; and bytes of B that the stream
# copies in the time of one unit of work.
PAGE_WORK, COPIED_BYTES = 7000, 5
# Up to so many entries of A and B together, and up to so many entries of A times columns of B, to
# choose would take longer than it saves. By columns all of C is finished, or transposed: then the
# second number counts only if C has so many items at most.
SMALL, SMALL_WORK, SMALL_RESULT = 4000, 16_000, 8000
# Of the widest panel in CSC, where both a row of B and one of C are in registers. A panel gives up
# a vector for the next one to be wide enough, and must then have one left.
CSC_BYTES = max(2, MAX_VECTORS // 2) * BLOCK_BYTES
# Nanoseconds that a product by columns of CSC takes more than one by rows: for each vector of B but
# the first, for an entry and to begin a row of C; in several panels so many times as much. As
# measured on an Intel Xeon; the others, to FAR_READ, as fitted to 6,500 random products on a Zen 3,
# but FINISHED and those below FAR_READ to 13,000 on a Zen 4. All are used on every processor.
ADDED_ENTRY, BEGUN_ROW, IN_PANELS = 0.4, 0.5, 1.5
# For an entry and a vector of C beyond the bytes of the last cache that C may have: entries of a
# column meet rows of C anywhere, while by rows C is written once, in order.
FAR_ADDED, C_BYTES = 4.0, COSTS.last_share * LAST_CACHE
# Where A and B are beyond the second level and C is near, columns are taken without an estimate: A
# and B are read once, in order. In several panels not so on a Zen 4, where 950 random products took
# 1.2 times as long as by rows.
ENTRY_BYTES = 8  # of a value and an index, of 32 bits each
IN_ORDER_IN_PANELS = not is_zen_4()
# Where C is in Fortran order, of which columns compute all in rows before it is transposed: for a
# row and a vector; and, besides FAR_ADDED, for an entry and a vector of C beyond the second level.
TURNED, FAR_TURNED = 2.0, 1.5
# Where an epilogue follows, which by rows is done in registers: for a row and a vector.
FINISHED = 1.0
# Nanoseconds that by rows it takes to convert CSC to CSR: for an entry, for a row, and for the
# call; and for each entry instead where there are more than MOST_NEAR, as copies of A are on new
# pages then and leave the second level.
CONVERTED_ENTRY, CONVERTED_ROW, CONVERSION = 2.0, 1.0, 300.0
FAR_CONVERTED_ENTRY, MOST_NEAR = 4.0, L2 // 16
# Nanoseconds that by rows an entry takes besides for each vector of B beyond the second level, as
# entries of a row meet rows of B anywhere.
FAR_READ = 0.25
# If B is in C order; in Fortran order its rows are copied first. Nanoseconds that an entry takes by
# rows, besides FAR_READ, for each vector of B if the rows of B that A meets have more bytes than
# these of the last cache; and that columns take in several panels, once for each vector of a row
# that A meets, if such rows leave the second level. A core waits for some of these rows, since it
# does not know which columns of A have an entry until it is there.
FARTHEST_READ, B_IN_LAST_CACHE, FAR_ROW = 1.0, LAST_CACHE // 4, 1.0
# Mostly empty: there are more than so many rows of A, or columns in CSC, for an entry.
MOSTLY_EMPTY = 2
# Bytes of C from which on the system makes its pages, and those that stay zeros are never touched;
# so many rows tell whether it begins as zeros.
SAMPLED_BYTES, SAMPLED_ROWS = 1 << 20, 64
# In CSC rows are counted only where one of C has at least so many bytes, and A at most so many
# entries for a row: with more, entries at random reach three rows in four.
COUNTED_BYTES, COUNTED_ENTRIES = 1024, 1.5


def suited_form(
    form: str,
    shape: tuple[int, ...],
    entries: int,
    B: Array,
    keeps_order: bool = False,
    finishes: bool = False,
) -> str | None:
    """Return the form in which A is multiplied as it is; None where the stream takes less time.

    Parameters
    ----------
    form : str
        In which A is given: "csr" or "csc".
    shape : tuple of int
        Of A.
    entries : int
        Of A.
    B : ndarray of one dimension or two
        Of the type that is computed in.
    keeps_order : bool
        Whether C is in Fortran order where B is; else it is in C order.
    finishes : bool
        Whether an epilogue follows.

    Returns
    -------
    str or None
        "csr" for a matrix in "csc" that is to be converted first.
    """
    columns = B.shape[1] if B.ndim == 2 else 1
    is_small = entries * B.size <= SMALL_WORK * shape[1]
    if is_small and form == "csc" and shape[0] * columns > SMALL_RESULT:
        is_small = not (finishes or (keeps_order and is_fortran(B)))
    if is_small or entries + B.size <= SMALL:
        return form
    vectors = -(-columns * B.itemsize // BLOCK_BYTES)
    # Of other strides B is copied to C order before.
    transposed = columns > 1 and is_fortran(B)
    turns_back = transposed and keeps_order
    if form == "csc" and goes_by_columns(
        shape, entries, vectors, B.nbytes, transposed, turns_back, finishes
    ):
        return form
    work, most = entries * (vectors - 1), MAX_WORK if B.nbytes <= L2 else MAX_FAR_WORK
    if transposed:
        # Then rows of B start on cache lines: an entry takes half as long.
        met = entries if meets_few_rows(entries, shape[1]) else shape[1]
        turned = met + shape[0] * turns_back
        work, most = work // 2 + TRANSPOSE_WORK * turned * vectors, MAX_FORTRAN_WORK
        copied = copied_bytes(shape[1], columns, B.itemsize)
        if met < shape[1] and copied >= MAPPED_BYTES:
            pages = min(copied // PAGE, met * max(1, copied // shape[1] // PAGE))
            work, most = work + PAGE_WORK * pages, max(most, B.nbytes // COPIED_BYTES)
    return "csr" if work <= most else None


def goes_by_columns(
    shape: tuple[int, ...],
    entries: int,
    vectors: int,
    bytes_of_B: int,
    transposed: bool,
    turns_back: bool,
    finishes: bool,
) -> bool:
    """Whether to multiply columns of A in CSC takes less time than to convert A first.

    `transposed` and `turns_back`: whether B, and whether C, is in Fortran order. `finishes`:
    whether an epilogue follows. What the caller does with A converted, as it is or by the stream,
    is not weighed here.
    """
    if vectors <= 1 or (is_almost_empty(entries, shape[0]) and not (turns_back or finishes)):
        return True
    rows, row_bytes = shape[0], vectors * BLOCK_BYTES
    bytes_of_C = rows * row_bytes
    is_one_panel = row_bytes <= CSC_BYTES
    are_far = bytes_of_B + ENTRY_BYTES * entries > L2
    are_in_order = not transposed and (is_one_panel or IN_ORDER_IN_PANELS)
    if are_far and are_in_order and bytes_of_C <= L2 // 2:
        return True
    reads = vectors * entries  # of a vector of B
    met = vectors * min(entries, shape[1])  # vectors of B
    by_columns = (vectors - 1) * (ADDED_ENTRY * entries + BEGUN_ROW * rows)
    if not is_one_panel:
        by_columns *= IN_PANELS
    if turns_back:
        by_columns += TURNED * vectors * rows + FAR_TURNED * reads * _share_beyond(L2, bytes_of_C)
    if finishes:
        by_columns += FINISHED * vectors * rows
    by_columns += FAR_ADDED * reads * _share_beyond(C_BYTES, bytes_of_C)
    by_rows = CONVERTED_ROW * rows + CONVERSION + FAR_READ * reads * _share_beyond(L2, bytes_of_B)
    if not transposed:
        by_rows += FARTHEST_READ * reads * _share_beyond(B_IN_LAST_CACHE, met * BLOCK_BYTES)
        if not is_one_panel:
            by_columns += FAR_ROW * met * _share_beyond(L2, met * BLOCK_BYTES)
    by_rows += (CONVERTED_ENTRY if entries <= MOST_NEAR else FAR_CONVERTED_ENTRY) * entries
    return by_columns <= by_rows


def _share_beyond(held: float, size: int) -> float:
    """Return which share of an operand is beyond a cache that holds so many bytes."""
    return 1 - held / size if size > held else 0.0


def begins_as_zeros(entries: int, rows: int, row_bytes: int) -> bool:
    """Whether C begins as zeros, of rows of so many bytes, where A is in CSR.

    Where entries are added to rows one by one these begin as zeros then, while they are near,
    unless C is so large that the system makes its pages.
    """
    are_begun_later = adds_each_entry(entries, rows, row_bytes) and rows * row_bytes < SAMPLED_BYTES
    return is_almost_empty(entries, rows) and not are_begun_later


def is_almost_empty(entries: int, rows: int) -> bool:
    """Whether A has so few entries that C begins as zeros, and rows without entries stay so."""
    return 4 * entries < 3 * rows


def has_few_rows(form: str, indptr: Array, indices: Array, rows: int, row_bytes: int) -> bool:
    """Whether few rows of A have an entry, though A has enough for all, and that is worth knowing.

    In CSR some rows tell. In CSC rows are counted, where rows of C are long and random entries
    would not be in more of them.
    """
    if rows * row_bytes < SAMPLED_BYTES:
        return False
    if form == "csr":
        step = max(1, indptr.size // SAMPLED_ROWS)
        begins, ends = indptr[:-1:step], indptr[1::step]
        return bool(4 * np.count_nonzero(ends > begins) < 3 * begins.size)
    if row_bytes < COUNTED_BYTES or indices.size > COUNTED_ENTRIES * rows:
        return False
    valid = indices[(indices >= 0) & (indices < rows)]  # others are refused later
    return bool(4 * np.count_nonzero(np.bincount(valid, minlength=rows)) < 3 * rows)
