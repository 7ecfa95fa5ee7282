"""How B lies in memory, and whether it and C are plain arrays, in one call of compiled code.

Plain arrays have aligned items and share no memory. C, or its transpose, is in C order without
gaps. B is in C or Fortran order, its transpose in C order; there may be gaps between its rows (in
Fortran order, columns), as in a slice of a wider array. Checks in Python take a microsecond or two,
as long as a small product.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.core import types

from portable_spdnn_cpu.jit.array_objects import (
    ARRAY_OBJECT,
    DATA,
    FLAG_ALIGNED,
    FLAGS,
    MAX_NDIM,
    NDIM,
    SHAPE,
    STRIDES,
    fields_of,
    locked_kernel,
)
from portable_spdnn_cpu.jit.compilation import entry_point, kernel_part
from portable_spdnn_cpu.jit.jobs import array_at
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.dense_layout import Layout

ALIGNED, SHIFTED = Layout.ALIGNED, Layout.SHIFTED
UNALIGNED, FORTRAN = Layout.UNALIGNED, Layout.FORTRAN
BY_ROWS, BY_COLUMNS, APART = range(3)  # which items are adjacent: of rows, of columns, neither
NOT_PLAIN = -1


class Place(NamedTuple):
    """Where a matrix lies.

    Attributes
    ----------
    address : int
        Of the first item.
    rows, columns : int
    row_step, column_step : int
        Bytes from a row to the next, and from a column to the next.
    order : int
        `BY_ROWS` (also where both hold), `BY_COLUMNS`, or `APART`, also where items are not aligned
        or rows overlap.
    """

    address: int
    rows: int
    columns: int
    row_step: int
    column_step: int
    order: int


@kernel_part
def place_of(array: Any, itemsize: int) -> Place:
    """Return where an array object lies; a vector is a matrix of one column."""
    words, halves = fields_of(array)
    shape = array_at(words[SHAPE], MAX_NDIM, np.int64)
    strides = array_at(words[STRIDES], MAX_NDIM, np.int64)
    rows, columns = shape[0], shape[1] if halves[2 * NDIM] > 1 else 1
    # NumPy's stride of an axis of one item may be any number.
    row_step = strides[0] if rows > 1 else columns * itemsize
    column_step = strides[1] if columns > 1 else itemsize
    order = APART
    if halves[2 * FLAGS] & FLAG_ALIGNED:
        if column_step == itemsize and row_step >= columns * itemsize:
            order = BY_ROWS
        elif row_step == itemsize and column_step >= rows * itemsize:
            order = BY_COLUMNS
    return Place(words[DATA], rows, columns, row_step, column_step, order)


@kernel_part
def end_of(place: Place, itemsize: int) -> int:
    """Return the address behind the last item of a matrix that has items, and is not `APART`."""
    last = (place.rows - 1) * place.row_step + (place.columns - 1) * place.column_step
    return place.address + last + itemsize


@kernel_part
def layout_between(B: Place, out: Place, itemsize: int, transposed: bool) -> int:
    """Do what `plain_layout` does, given where B, or a residual, and C lie."""
    if out.order != BY_ROWS or out.row_step != out.columns * itemsize or B.order == APART:
        return NOT_PLAIN
    if end_of(B, itemsize) > out.address and end_of(out, itemsize) > B.address:
        return NOT_PLAIN  # they share memory
    if B.order == BY_COLUMNS:
        return NOT_PLAIN if transposed else FORTRAN
    if transposed:
        return FORTRAN if B.rows > 1 else UNALIGNED
    if B.columns * itemsize % BLOCK_BYTES or B.row_step % BLOCK_BYTES:
        return UNALIGNED
    return SHIFTED if B.address % BLOCK_BYTES else ALIGNED


@locked_kernel
def plain_layout(B: Any, out: Any, itemsize: int, transposed: bool) -> int:
    """Return how B lies in memory, one of `Layout`, or NOT_PLAIN.

    Parameters
    ----------
    B, out : ndarray, as `ARRAY_OBJECT`
        Of one dimension or two, and not empty.
    itemsize : int
        Of both.
    transposed : bool
        Whether these are the transposes of B and C.
    """
    return layout_between(place_of(B, itemsize), place_of(out, itemsize), itemsize, transposed)


@functools.cache
def layout_function() -> Callable[[object, object, int, bool], int]:
    """Return `plain_layout` for Python, which has looked at types and shapes; compiled but once."""
    return entry_point(plain_layout, ARRAY_OBJECT, ARRAY_OBJECT, types.intp, types.boolean)
