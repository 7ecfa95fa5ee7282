"""Sparse operands and results, in the one form that kernels are compiled for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn.sparse_arrays import common_value, unchecked_csr
from portable_spdnn_cpu.jit.compilation import Array, kernel, read_only
from portable_spdnn_cpu.jit.jobs import in_order

# Column c has bit c & 63 of word c >> 6.
ONE, SIX, LOW_SIX = np.uint64(1), np.uint64(6), np.uint64(63)

# Bitmaps of rows pay where B has an entry for every two of their words: a word of 64 columns costs
# about as much as a scattered addition, though four go at once.
BITMAP_WORDS_PER_ENTRY = 2
MAX_BITMAP_BYTES = 1 << 24
NO_BITMAPS = read_only(np.empty((0, 0), np.uint64))


class CsrOperand(NamedTuple):
    """A sparse matrix by rows. All arrays are read-only.

    Attributes
    ----------
    indptr : ndarray of int64, shape (rows + 1,)
        The offsets of the rows; 64-bit, so that products may have more than 2^31 entries.
    indices : ndarray of uint32 or uint64, shape (nnz,)
        The columns, without duplicates in a row. Being unsigned they spare the kernels Numba's
        check for indices that count from the end.
    data : ndarray, shape (nnz,)
        The values.
    columns : int
        The number of columns.
    uniform : scalar of data's type
        The one value that all entries have, where that is known; else NaN.
    bitmaps : ndarray of uint64, shape (rows, ceil(columns / 64)) or (0, 0)
        The pattern of each row as bits, where that is of use: bit c % 64 of word c // 64 tells
        whether the row has an entry in column c.
    """

    indptr: Array
    indices: Array
    data: Array
    columns: int
    uniform: np.floating[Any]
    bitmaps: Array


class Product(NamedTuple):
    """A product C = A B.

    Attributes
    ----------
    A, B : CsrOperand
        The operands.
    bounds : ndarray of int64, shape (rows of A,)
        The most entries that each row of C may have; its entries, once the symbolic phase is over.
    """

    A: CsrOperand
    B: CsrOperand
    bounds: Array


def as_operand(matrix: SparseOperand) -> CsrOperand:
    """Bring a csr_array into the form that kernels take.

    Arrays of another type are copied, and strided ones: kernels would be compiled anew for these.
    """
    narrow = np.int32 if matrix.shape[1] <= 1 << 31 else np.int64
    unsigned = np.uint32 if narrow == np.int32 else np.uint64
    return CsrOperand(
        read_only(in_order(matrix.indptr.astype(np.int64, copy=False))),
        read_only(in_order(matrix.indices.astype(narrow, copy=False)).view(unsigned)),
        read_only(in_order(matrix.data)),
        int(matrix.shape[1]),
        matrix.dtype.type(np.nan),
        NO_BITMAPS,
    )


def with_uniform(B: CsrOperand) -> CsrOperand:
    """Return B with the one value that all its entries have as `uniform`, if they have one."""
    if not B.data.size or B.data[0] != B.data[-1]:  # a short test, which few others pass
        return B
    value = common_value(B.data)
    return B if value is None else B._replace(uniform=value)


def with_bitmaps(B: CsrOperand) -> CsrOperand:
    """Return B with bitmaps if its rows are so dense that uniting them is the cheaper way."""
    rows, words = B.indptr.size - 1, -(-B.columns // 64)
    if rows * words > BITMAP_WORDS_PER_ENTRY * B.indices.size:
        return B
    if 8 * rows * words > MAX_BITMAP_BYTES:
        return B
    bitmaps = np.zeros((rows, words), np.uint64)
    fill_bitmaps(B, bitmaps)
    return B._replace(bitmaps=read_only(bitmaps))


@kernel
def fill_bitmaps(B: CsrOperand, bitmaps: Array) -> None:
    """Set the bits of B's entries in `bitmaps`, which are zero before."""
    for row in range(B.indptr.size - 1):
        for k in range(B.indptr[row], B.indptr[row + 1]):
            column = np.uint64(B.indices[k])
            bitmaps[row, column >> SIX] |= ONE << (column & LOW_SIX)


def result_index_type(nnz: int, B: CsrOperand) -> np.dtype[Any]:
    """Return the type of C's columns: scipy.sparse wants them as wide as the offsets."""
    return B.indices.dtype if nnz < 1 << 31 else np.dtype(np.uint64)


def as_csr(data: Array, indices: Array, indptr: Array, shape: tuple[int, int]) -> sp.csr_array:
    """Return a result as a csr_array, with offsets of 32 bits where those suffice."""
    signed = np.int32 if indices.dtype == np.uint32 else np.int64
    indices = indices.view(signed)
    if indptr[-1] < 1 << 31:
        indptr = indptr.astype(np.int32)
    return unchecked_csr(data, indices, indptr, shape)
