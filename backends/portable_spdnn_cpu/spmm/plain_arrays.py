"""How B lies in memory, and whether it and C are plain arrays, in one call of compiled code.

Plain are arrays without gaps, with aligned items, which share no memory: C in C order, or its
transpose, B in either order, or its transpose in C order. Checks in Python take a microsecond, as
long as a small product.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from portable_spdnn_cpu.jit.array_objects import (
    ARRAY_OBJECT,
    DATA,
    FLAG_ALIGNED,
    FLAG_C_CONTIGUOUS,
    FLAG_F_CONTIGUOUS,
    FLAGS,
    MAX_NDIM,
    NDIM,
    SHAPE,
    fields_of,
    locked_kernel,
)
from portable_spdnn_cpu.jit.compilation import entry_point, kernel_part
from portable_spdnn_cpu.jit.jobs import array_at
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.dense_layout import Layout

ALIGNED, SHIFTED = Layout.ALIGNED, Layout.SHIFTED
UNALIGNED, FORTRAN = Layout.UNALIGNED, Layout.FORTRAN
BY_ROWS, BY_COLUMNS, APART = range(3)  # items without gaps, in C or Fortran order, or others
NOT_PLAIN = -1


@kernel_part
def place_of(array: Any) -> tuple[int, int, int, int]:
    """Return address, rows and columns of an array object, and how its items lie.

    A vector counts as one column. `BY_ROWS`, also where the order is either, or `BY_COLUMNS`; where
    there are gaps, or items are not aligned, `APART`.
    """
    words, halves = fields_of(array)
    shape = array_at(words[SHAPE], MAX_NDIM, np.int64)
    columns = shape[1] if halves[2 * NDIM] > 1 else 1
    flags, order = halves[2 * FLAGS], APART
    if flags & FLAG_ALIGNED:
        if flags & FLAG_C_CONTIGUOUS:
            order = BY_ROWS
        elif flags & FLAG_F_CONTIGUOUS:
            order = BY_COLUMNS
    return words[DATA], shape[0], columns, order


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
    begin, rows, columns, order = place_of(B)
    out_begin, out_rows, out_columns, out_order = place_of(out)
    end, out_end = (
        begin + rows * columns * itemsize,
        out_begin + out_rows * out_columns * itemsize,
    )
    if out_order != BY_ROWS or order == APART or not (out_end <= begin or end <= out_begin):
        return NOT_PLAIN
    if order == BY_COLUMNS:
        return NOT_PLAIN if transposed else FORTRAN
    if transposed:
        return FORTRAN if rows > 1 else UNALIGNED
    if columns * itemsize % BLOCK_BYTES:
        return UNALIGNED
    return SHIFTED if begin % BLOCK_BYTES else ALIGNED


@functools.cache
def layout_function() -> Callable[[object, object, int, bool], int]:
    """Return `plain_layout` for Python, which has looked at types and shapes; compiled but once."""
    return entry_point(plain_layout, ARRAY_OBJECT, ARRAY_OBJECT, types.intp, types.boolean)
