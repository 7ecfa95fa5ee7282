"""From CSC to CSR, checked on the way."""

from __future__ import annotations

import functools
from typing import Any, cast

import numba
import numpy as np
import scipy.sparse as sp
from numba.core import types

from portable_spdnn.sparse_arrays import are_extents
from portable_spdnn_cpu.jit.compilation import Array, kernel, kernel_part
from portable_spdnn_cpu.jit.jobs import in_order
from portable_spdnn_cpu.layout.canonical import (
    INDEX_TYPES,
    VALUE_TYPES,
    are_plain,
    offsets_are_valid,
)

Parts = tuple[Array, Array, Array]  # offsets, indices and values


def csc_to_csr(matrix: Any) -> sp.csr_array | None:
    """Return a matrix in CSC as a csr_array; None where it is in another format, or is invalid.

    Columns rise within rows, and duplicates stay. Indices are checked, which SciPy does not do.

    >>> A = sp.csc_array(np.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> csc_to_csr(A).indices.tolist()
    [1, 0]
    """
    if not isinstance(matrix, sp.csc_array | sp.csc_matrix):
        return None
    found = parts_in_csr((matrix.indptr, matrix.indices, matrix.data), matrix.shape)
    if found is None:
        return None
    indptr, indices, values = found
    return sp.csr_array((values, indices, indptr), shape=matrix.shape)


def transposed(matrix: Any) -> Any:
    """Return the transpose of a canonical csr_array as another.

    >>> transposed(sp.csr_array(np.array([[0.0, 2.0], [3.0, 0.0]]))).indices.tolist()
    [1, 0]
    """
    return csc_to_csr(matrix.T)  # not None: it is canonical


def parts_in_csr(parts: Parts, shape: tuple[int, ...]) -> Parts | None:
    """Return offsets, indices and values of a matrix of CSC in CSR; see `csc_to_csr`."""
    if not are_plain(*parts) or not all(part.ndim == 1 for part in parts):
        return None
    if not are_extents(shape):
        return None
    indptr, indices, values = map(in_order, parts)
    rows, index = shape[0], indices.dtype
    fill = _filler(values.dtype, index) if indptr.dtype == index else None
    if fill is None or indptr.size != shape[1] + 1:
        return None
    entries = int(indptr[-1])
    if not 0 <= entries <= min(indices.size, values.size):
        return None
    # Arrays are made here: an interrupt that waits would break the return of compiled code's.
    places = np.zeros(rows + 2, index)
    columns, copies = np.empty(entries, index), np.empty(entries, values.dtype)
    valid = fill(indptr, indices, values, rows, places, columns, copies)
    return (places[: rows + 1], columns, copies) if valid else None


@functools.cache
def _filler(dtype: np.dtype[Any], index_dtype: np.dtype[Any]) -> Any:
    """Return what fills arrays of CSR from those of CSC; None for types that are not taken.

    Its arguments are offsets, indices and values, the number of rows, zeros, one for each row and
    two more, the first of which become offsets, and space for indices and values. It returns false
    where what it gets is invalid.
    """
    if dtype not in VALUE_TYPES or index_dtype not in INDEX_TYPES:
        return None

    @kernel
    def fill(
        indptr: Array, indices: Array, values: Array, rows: int,
        places: Array, columns: Array, copies: Array,
    ) -> bool:  # fmt: skip
        valid = offsets_are_valid(indptr, columns.size)
        return bool(valid and fill_rows(indptr, indices, values, rows, places, columns, copies))

    index, item = numba.from_dtype(index_dtype), numba.from_dtype(dtype)
    given = [types.Array(kind, 1, "C", True) for kind in (index, index, item)]
    made = [types.Array(kind, 1, "C") for kind in (index, index, item)]
    dispatcher = cast(Any, fill)
    dispatcher.compile((*given, types.int64, *made))
    dispatcher.disable_compile()
    return fill


@kernel_part
def fill_rows(
    indptr: Array,
    indices: Array,
    values: Array,
    rows: int,
    places: Array,
    columns: Array,
    copies: Array,
) -> bool:
    """Fill what `_filler` says, from valid offsets; false where an index is not below the rows."""
    # Indices are unsigned: see `jit.compilation`.
    extent, one = np.uint64(rows), np.uint64(1)
    # places[row + 1] is where the next entry of a row goes; in the end it is where it stops.
    for entry in range(columns.size):
        found = np.uint64(indices[entry])
        if found >= extent:
            return False
        places[found + one + one] += 1
    for row in range(rows):
        places[row + 2] += places[row + 1]
    for column in range(indptr.size - 1):
        for entry in range(np.uint64(indptr[column]), np.uint64(indptr[column + 1])):
            after = np.uint64(indices[entry]) + one
            place = np.uint64(places[after])
            places[after] += 1
            columns[place], copies[place] = column, values[entry]
    return True
