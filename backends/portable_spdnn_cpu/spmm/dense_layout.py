"""How dense operands and results lie in memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.jobs import address_of
from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS
from portable_spdnn_cpu.layout.large_results import NONTEMPORAL_BYTES
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.stream.product import has_whole_lines

BYTE = np.dtype(np.uint8)

# Bytes behind the start of a cache line at which NumPy's large arrays begin: Linux maps pages of
# their own for them, and the C library keeps their size in the first bytes.
NUMPY_OFFSET = 16
ALIASING = 512  # bytes: rows that lie multiples of them apart compete for few sets of a cache
# To copy rows of B to where they start on cache lines pays from so many entries in a column of A,
# on average, and so many bytes of B that are loaded: a vector across two lines takes twice as long.
# B of more bytes than MAX_COPIED is not held twice.
MIN_REUSE, MIN_LOADED, MAX_COPIED = 6, 1_280_000, 1 << 25
# Bytes of a copy from which the system makes its pages for each call: glibc's malloc keeps no piece
# of memory that is larger.
MAPPED_BYTES, PAGE = 1 << 25, 4096
# Where A as it is reads B in whole lines, from before column 0 on, a copy spares each entry a
# vector: it pays from so many entries for each vector of a row. With rows of fewer bytes than
# LEAST_SHIFTED_ROW, B is not read so: a vector more is too much.
MIN_REUSE_OF_VECTOR, LEAST_SHIFTED_ROW = 5, 256


class Layout:
    """How B lies in memory: what a choice depends on besides its columns.

    Plain integers: each call looks one up, and the hash of an `Enum` is a function of Python's.
    """

    ALIGNED = 0  # rows start on cache lines, and are whole lines long
    SHIFTED = 1  # rows are whole lines long and apart, but start within one
    UNALIGNED = 2  # other rows
    FORTRAN = 3  # columns lie in one piece each, maybe with gaps between them


def meets_few_rows(entries: int, k: int) -> bool:
    """Whether entries of A meet so few of the k rows of B that not all are worth a copy.

    An item of a row in Fortran order is on a cache line of its own.
    """
    return 8 * entries < k


def is_fortran(B: Array) -> bool:
    """Whether a dense operand lies in memory column by column; a single column is no such."""
    row, column = B.strides
    return bool(row == B.itemsize != column and B.shape[1] > 1)


def layout_of(B: Array) -> int:
    """Return how a dense operand lies in memory: one of `Layout`."""
    if is_fortran(B):
        return Layout.FORTRAN
    if not has_whole_lines(B):
        return Layout.UNALIGNED
    return Layout.SHIFTED if address_of(B) % BLOCK_BYTES else Layout.ALIGNED


def empty_result(
    shape: tuple[int, ...], dtype: np.dtype[Any], fortran: bool = False, offset: int = 0
) -> Array:
    """Return an array for C, in C or Fortran order, that starts on a cache line.

    Vectors then are written to one line each, and threads that share columns share no line. Memory
    is NumPy's: that of a result which is no longer used is taken again, and its pages are there.
    With `offset` it starts so many bytes behind that.
    """
    raw = np.empty(math.prod(shape) * dtype.itemsize + BLOCK_BYTES, BYTE)
    first = (offset - address_of(raw)) % BLOCK_BYTES
    if fortran:
        return np.ndarray(shape[::-1], dtype, raw, first).T
    return np.ndarray(shape, dtype, raw, first)


def new_result(shape: tuple[int, int], dtype: np.dtype[Any], fortran: bool = False) -> Array:
    """Return a new array for C; where stores are to be non-temporal it starts on a cache line."""
    if math.prod(shape) * dtype.itemsize >= NONTEMPORAL_BYTES:
        return empty_result(shape, dtype, fortran)
    return np.empty(shape, dtype, "F" if fortran else "C")


def padded_row_bytes(columns: int, itemsize: int) -> int:
    """Return the bytes of a row of so many columns that is padded to whole vectors."""
    size = columns * itemsize
    vector = itemsize if columns == 1 else 16 if size <= 16 else 32 if size <= 32 else BLOCK_BYTES
    return (size + vector - 1) & -vector  # a power of two


def copied_bytes(k: int, columns: int, itemsize: int) -> int:
    """Return about how many bytes a copy of k rows of B has, padded to whole vectors."""
    return k * padded_row_bytes(columns, itemsize)


def is_shifted(row: int, layout: int) -> bool:
    """Whether A as it is reads B, with rows of so many bytes, in lines from before column 0 on."""
    return layout == Layout.SHIFTED and row >= LEAST_SHIFTED_ROW and HAS_FAST_MASKS


def is_reused(
    entries: int, k: int, columns: int, itemsize: int, layout: int = Layout.UNALIGNED
) -> bool:
    """Whether rows of B are read so often that copies of them that start on cache lines pay."""
    row = columns * itemsize
    if entries < MIN_REUSE * k or entries * row < MIN_LOADED:
        return False
    if is_shifted(row, layout) and entries < MIN_REUSE_OF_VECTOR * k * row // BLOCK_BYTES:
        return False
    return row >= BLOCK_BYTES and k * row <= MAX_COPIED


def copied_if_reused(B: Array, entries: int) -> Array:
    """Return B, in C order, or a copy whose rows start on cache lines where that pays.

    It is multiplied by A as it is, of so many entries.
    """
    (k, columns), item = B.shape, B.itemsize
    # The layout, which takes a microsecond to find, comes last.
    if entries < MIN_REUSE * k or not is_reused(entries, k, columns, item) or starts_on_lines(B):
        return B
    is_wide = columns * item >= LEAST_SHIFTED_ROW
    if is_wide and not is_reused(entries, k, columns, item, layout_of(B)):
        return B
    return with_aligned_rows(B)


def starts_on_lines(B: Array) -> bool:
    """Whether all rows start on cache lines."""
    return B.strides[0] % BLOCK_BYTES == 0 and address_of(B) % BLOCK_BYTES == 0


def with_aligned_rows(B: Array) -> Array:
    """Return B, or a copy of it, in C order, whose rows start on cache lines."""
    if starts_on_lines(B):
        return B
    lanes = BLOCK_BYTES // B.itemsize
    k, columns = B.shape
    copy = empty_result((k, -(-columns // lanes) * lanes), B.dtype)[:, :columns]
    copy[...] = B
    return copy
