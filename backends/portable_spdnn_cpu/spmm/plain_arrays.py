"""How B lies in memory, and whether it and C are plain arrays, in one call of compiled code.

Plain are arrays in C order without gaps, or their transposes, with aligned items, which share no
memory. Checks in Python take a microsecond, as long as a small product.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from portable_spdnn_cpu.jit.compilation import Array, array_types, entry_point, kernel, kernel_part
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.dense_layout import Layout

ALIGNED, UNALIGNED, FORTRAN = Layout.ALIGNED, Layout.UNALIGNED, Layout.FORTRAN
NOT_PLAIN = -1


@kernel_part
def is_contiguous(array: Array) -> bool:
    """Whether an array that is not empty is in C order, without gaps, and its items are aligned.

    Of one dimension or two.
    """
    item, row = array.itemsize, array.size // array.shape[0] * array.itemsize
    adjacent = array.strides[-1] == item or array.shape[-1] == 1
    together = array.strides[0] == row or array.shape[0] == 1
    return bool(adjacent and together and array.ctypes.data % item == 0)


@kernel
def plain_layout(B: Array, out: Array, transposed: bool) -> int:
    """Return how B lies in memory, one of `Layout`, or NOT_PLAIN.

    Parameters
    ----------
    B, out : ndarray
        Of one dimension or two, and not empty.
    transposed : bool
        Whether these are the transposes of B and C.
    """
    begin, out_begin = B.ctypes.data, out.ctypes.data
    apart = out_begin + out.size * out.itemsize <= begin or begin + B.size * B.itemsize <= out_begin
    if not (apart and is_contiguous(B) and is_contiguous(out)):
        return NOT_PLAIN
    if transposed:
        return FORTRAN if B.shape[0] > 1 else UNALIGNED
    row = B.shape[-1] * B.itemsize if B.ndim > 1 else B.itemsize
    return UNALIGNED if row % BLOCK_BYTES or begin % BLOCK_BYTES else ALIGNED


@functools.cache
def layout_function(dtype: np.dtype[Any], dimensions: int) -> Callable[[Array, Array, bool], int]:
    """Return `plain_layout` for Python, of arrays that have been found to be of these."""
    return entry_point(plain_layout, *array_types(dtype, dimensions), types.boolean)
