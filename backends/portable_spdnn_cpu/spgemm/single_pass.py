"""C = A B of few multiply-adds, in one pass on the calling thread, for operands as a user has them.

Without a symbolic phase C gets as much memory as it may need, and is cut to what it has. A row that
is one row of B times a number is copied, others of few products are sorted as they are added up,
and longer ones are added up in a dense vector.
"""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
from numba.core import types

from portable_spdnn.operations.operands import common_dtype
from portable_spdnn.sparse_arrays import are_extents, unchecked_csr
from portable_spdnn_cpu.jit.compilation import Array, entry_point, kernel
from portable_spdnn_cpu.jit.intrinsics import trailing_zeros
from portable_spdnn_cpu.layout.canonical import (
    INDEX_TYPES,
    VALUE_TYPES,
    has_canonical_structure,
)
from portable_spdnn_cpu.layout.csc_to_csr import parts_in_csr
from portable_spdnn_cpu.spgemm.operands import LOW_SIX, ONE, SIX

# Of more multiply-adds the two phases take less time: C then has far fewer entries than it may
# have, or several threads share them. Of more columns a row takes long to be looked through.
MOST_PRODUCTS, MOST_COLUMNS = 1 << 18, 1 << 16
MOST_SORTED = 16  # products of a row that are sorted
INT32 = np.dtype(np.int32)
CSR_KINDS, CSC_KINDS = (sp.csr_array, sp.csr_matrix), (sp.csc_array, sp.csc_matrix)
MOST_CONVERTED = 1 << 15  # entries: of a product that goes another way they are converted twice


def multiply_as_given(A: Any, B: Any) -> sp.csr_array | None:
    """Return C = A B; None where the operands are to be validated first, or go another way.

    Parameters
    ----------
    A, B : anything
        Taken where they are SciPy's canonical matrices in CSR, or small ones in CSC, of real
        values, and C is of few multiply-adds and columns.
    """
    left, right = _plain_parts(A), _plain_parts(B)
    if left is None or right is None:
        return None
    (rows, inner), columns = A.shape, B.shape[1]
    if inner != B.shape[0] or columns > MOST_COLUMNS:
        return None
    entries = left[2].size, right[2].size
    expected = entries[0] * entries[1] / max(1, inner)  # multiply-adds
    if expected > 2 * MOST_PRODUCTS or max(entries) > 4 * MOST_PRODUCTS:
        return None  # to look at each entry would take longer than it saves
    index, _, dtype, *_ = kinds = [part.dtype for part in (*left, *right)]
    if kinds != 2 * [index, index, dtype] or dtype not in VALUE_TYPES:
        dtype = common_dtype("spgemm", A=left[2], B=right[2])
        index = np.result_type(*left[:2], *right[:2])
        left, right = (
            (indptr.astype(index), indices.astype(index), data.astype(dtype))
            for indptr, indices, data in (left, right)
        )
    count, fill = _functions(dtype, index)
    most = count(*left[:2], *right[:2], inner, columns)
    if most < 0:
        return None
    indptr, indices = np.empty(rows + 1, INT32), np.empty(most, INT32)
    data = np.empty(most, dtype)
    found = fill(*left, *right, columns, indptr, indices, data)
    for array in (indices, data):  # lets the memory go that is not needed, without a copy
        array.resize(found, refcheck=False)
    return unchecked_csr(data, indices, indptr, (rows, columns))


def _plain_parts(matrix: Any) -> tuple[Array, Array, Array] | None:
    """Return offsets, indices and values of SciPy's matrix in CSR, if they are plain arrays.

    One in CSC of few entries, such as the transpose of one in CSR, is converted.
    """
    by_columns = type(matrix) in CSC_KINDS
    if not (by_columns or type(matrix) in CSR_KINDS) or not are_extents(matrix.shape):
        return None
    indptr, indices, data = parts = matrix.indptr, matrix.indices, matrix.data
    for array in parts:
        if type(array) is not np.ndarray or array.ndim != 1:
            return None
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned):
            return None
    if indptr.dtype not in INDEX_TYPES or indices.dtype not in INDEX_TYPES:
        return None
    if data.dtype.kind not in "fiub":
        return None
    if indptr.size != matrix.shape[by_columns] + 1 or indices.size != data.size:
        return None
    if not by_columns:
        return parts
    return parts_in_csr(parts, matrix.shape) if indices.size <= MOST_CONVERTED else None


@functools.cache
def _functions(dtype: np.dtype[Any], index_dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return `most_entries` and `fill_rows` for values and indices of some types."""
    item, index = numba.from_dtype(dtype), numba.from_dtype(index_dtype)
    indices, values = (types.Array(kind, 1, "C", readonly=True) for kind in (index, item))
    written = types.Array(types.int32, 1, "C"), types.Array(item, 1, "C")
    operands = indices, indices, values
    return (
        entry_point(most_entries, *[indices] * 4, types.int64, types.int64),
        entry_point(fill_rows, *operands, *operands, types.int64, written[0], *written),
    )


@kernel
def most_entries(
    A_indptr: Array, A_indices: Array, B_indptr: Array, B_indices: Array, inner: int, columns: int
) -> int:
    """Return a bound of the entries of C: of each row its products, but at most all columns.

    -1 where A or B is not canonical, or there are more than MOST_PRODUCTS.
    """
    if not has_canonical_structure(B_indptr, B_indices, columns):
        return -1
    if not has_canonical_structure(A_indptr, A_indices, inner):
        return -1
    total = most = 0
    for row in range(A_indptr.size - 1):
        products = 0
        for entry in range(np.uint64(A_indptr[row]), np.uint64(A_indptr[row + 1])):
            middle = np.uint64(A_indices[entry])
            products += B_indptr[middle + ONE] - B_indptr[middle]
        total += products
        most += min(products, columns)
        if total > MOST_PRODUCTS:
            return -1
    return most


@kernel
def fill_rows(
    A_indptr: Array, A_indices: Array, A_data: Array, B_indptr: Array, B_indices: Array,
    B_data: Array, columns: int, C_indptr: Array, C_indices: Array, C_data: Array,
) -> int:  # fmt: skip
    """Write C, and return how many entries it has. The structure was checked."""
    zero = C_data.dtype.type(0)
    sums, bits = np.zeros(columns, C_data.dtype), np.zeros(columns // 64 + 1, np.uint64)
    place = np.uint64(0)
    C_indptr[0] = 0
    for row in range(A_indptr.size - 1):
        begin, end = np.uint64(A_indptr[row]), np.uint64(A_indptr[row + 1])
        start, products = place, np.uint64(0)
        for entry in range(begin, end):
            middle = np.uint64(A_indices[entry])
            products += np.uint64(B_indptr[middle + ONE]) - np.uint64(B_indptr[middle])
        if end - begin == ONE:  # a row of B, which is in order
            middle, factor = np.uint64(A_indices[begin]), A_data[begin]
            for q in range(np.uint64(B_indptr[middle]), np.uint64(B_indptr[middle + ONE])):
                C_indices[place] = B_indices[q]
                C_data[place] = zero + factor * B_data[q]
                place += ONE
        elif products <= np.uint64(MOST_SORTED):
            for entry in range(begin, end):
                middle, factor = np.uint64(A_indices[entry]), A_data[entry]
                for q in range(np.uint64(B_indptr[middle]), np.uint64(B_indptr[middle + ONE])):
                    column, term = B_indices[q], factor * B_data[q]
                    at = place
                    while at > start and C_indices[at - ONE] > column:
                        at -= ONE
                    if at > start and C_indices[at - ONE] == column:
                        C_data[at - ONE] += term
                        continue
                    for later in range(place - at):
                        to = place - np.uint64(later)
                        C_indices[to], C_data[to] = C_indices[to - ONE], C_data[to - ONE]
                    C_indices[at], C_data[at] = column, zero + term
                    place += ONE
        else:
            first, last = np.uint64(bits.size), np.uint64(0)
            for entry in range(begin, end):
                middle, factor = np.uint64(A_indices[entry]), A_data[entry]
                low, high = np.uint64(B_indptr[middle]), np.uint64(B_indptr[middle + ONE])
                if low == high:
                    continue
                first = min(first, np.uint64(B_indices[low]) >> SIX)
                last = max(last, np.uint64(B_indices[high - ONE]) >> SIX)
                for q in range(low, high):
                    column = np.uint64(B_indices[q])
                    sums[column] += factor * B_data[q]
                    bits[column >> SIX] |= ONE << (column & LOW_SIX)
            for position in range(first, last + ONE):
                word = bits[position]
                if word:
                    bits[position] = 0
                    while word:
                        column = np.uint64(64) * position + np.uint64(trailing_zeros(word))
                        word &= word - ONE
                        C_indices[place], C_data[place] = column, sums[column]
                        sums[column] = zero
                        place += ONE
        C_indptr[row + 1] = place
    return int(place)
