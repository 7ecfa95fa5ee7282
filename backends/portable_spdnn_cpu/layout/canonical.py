"""Whether a sparse matrix is in canonical form, found in one compiled pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.sparse_arrays import are_extents
from portable_spdnn_cpu.jit.compilation import Array, kernel, kernel_part, read_only
from portable_spdnn_cpu.jit.jobs import array_at

VALUE_TYPES = np.dtype(np.float32), np.dtype(np.float64)  # that kernels compute with
INDEX_TYPES = np.dtype(np.int32), np.dtype(np.int64)


def are_plain(*arrays: object) -> bool:
    """Whether all are arrays of NumPy, and none is masked.

    >>> are_plain(np.ones(2)), are_plain(np.ma.array([1.0], mask=True)), are_plain([1.0])
    (True, False, False)
    """
    return all(
        type(array) is np.ndarray
        or (isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray))
        for array in arrays
    )


def is_canonical(matrix: Any) -> bool:
    """Whether a matrix is a canonical csr_array that kernels may take as it is.

    False means: let `Backend.sparse_operand` check it, and convert it.

    >>> is_canonical(sp.csr_array(np.eye(2))), is_canonical(sp.coo_array(np.eye(2)))
    (True, False)
    """
    if not isinstance(matrix, sp.csr_array) or not are_extents(matrix.shape):
        return False
    values, indices, indptr = matrix.data, matrix.indices, matrix.indptr
    rows, columns = matrix.shape
    arrays = values, indices, indptr
    return (
        are_plain(*arrays)
        and values.dtype in VALUE_TYPES
        and indices.dtype == indptr.dtype
        and indices.dtype in INDEX_TYPES
        and values.shape == indices.shape == (indices.size,)
        and indptr.shape == (rows + 1,)
        and all(array.flags.c_contiguous and array.flags.aligned for array in arrays)
        and has_canonical_structure(read_only(indptr), read_only(indices), columns)
    )


@kernel_part
def offsets_are_valid(offsets: Array, most: int) -> bool:
    """Whether offsets, in one piece, rise from 0 to at most a number."""
    last = offsets.size - 1
    found = array_at(offsets.ctypes.data, offsets.size, offsets.dtype)
    fall = False
    for place in range(last):
        fall |= found[place] > found[place + 1]
    return found[0] == 0 and found[last] <= most and not fall


@kernel
def has_canonical_structure(indptr: Array, indices: Array, columns: int) -> bool:
    """Whether offsets divide all of `indices`, and each row's rise within 0 .. columns - 1."""
    if indptr[0] != 0 or indptr[-1] != indices.size:
        return False
    after, before, descents = indices[1:], indices[:-1], 0
    # Of all neighbours, in vectors; descents from one row to the next are subtracted below.
    for entry in range(after.size):
        descents += after[entry] <= before[entry]
    for row in range(indptr.size - 1):
        first, end = indptr[row], indptr[row + 1]
        if end < first or end > indices.size:
            return False
        if end > first:
            if indices[first] < 0 or indices[end - 1] >= columns:
                return False
            if first > 0:
                descents -= indices[first] <= indices[first - 1]
    return descents == 0
