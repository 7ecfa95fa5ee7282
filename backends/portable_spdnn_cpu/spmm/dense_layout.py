"""How dense operands and results lie in memory."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.jobs import address_of
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.stream.product import has_aligned_rows


class Layout(Enum):
    """How B lies in memory: what a choice depends on besides its columns."""

    ALIGNED = "rows that start on cache lines"
    UNALIGNED = "rows that do not"
    TURNED = "columns that lie together"


def layout_of(B: Array) -> Layout:
    """Return how a dense operand lies in memory."""
    if B.flags.f_contiguous and not B.flags.c_contiguous:
        return Layout.TURNED
    return Layout.ALIGNED if has_aligned_rows(B) else Layout.UNALIGNED


def empty_result(rows: int, columns: int, dtype: np.dtype[Any], turned: bool) -> Array:
    """Return an array for C, in Fortran order where it is turned, aligned on cache lines.

    Vectors then are written to one line each, and threads that share columns share no line. Memory
    is NumPy's: that of a result which is no longer used is taken again, and its pages are there.
    """
    raw = np.empty(rows * columns + BLOCK_BYTES // dtype.itemsize, dtype)
    first = -address_of(raw) % BLOCK_BYTES // dtype.itemsize
    flat = raw[first : first + rows * columns]
    return flat.reshape(columns, rows).T if turned else flat.reshape(rows, columns)


def one_item_further(array: Array) -> Array:
    """Return an uninitialised array of the same shape, in C order, that starts on no cache line."""
    wide = empty_result(1, array.size + 1, array.dtype, turned=False)
    return wide[0, 1:].reshape(array.shape)
