"""Kernels: accumulators, which add up a row of a sparse product.

- *Dense*: a sum for every column of B, and a bit for every column that was touched. The sums alone
  would not do: an entry whose products cancel is an entry still, and finding entries among n sums
  reads n values, among the bits n / 64 words. Scanning the bits gives the columns in order. Where
  rows of B are dense in few columns, B has bitmaps of them, and the bits are their union: a word
  brings many columns at once.
- *Hash*: open addressing with linear probing in a power of two of slots, at least twice as many
  as the row may have entries, so that it stays in the first caches however wide B is. What was
  inserted is sorted by column.
- *Sorted*: the products are listed, sorted by column, and neighbours in one column added up.

All begin a sum with 0 and add to it in the order of A's columns: the answers are equal to the
bit. Columns come out sorted. `row_bins` says which rows take which.

Here are their memory and what the kernels of `symbolic` and `numeric`, which use them, share.

Bound: the scattered additions, served by the cache level that holds the accumulator.

Sources: the accumulators of Kokkos Kernels, and of Y. Nagasaka, S. Matsuoka, A. Azad, A. Buluc,
"Performance Optimization, Modeling and Analysis of Sparse Matrix-Matrix Products on Multi-Core
and Many-Core Processors", Parallel Computing 90 (2019); multiplicative hashing as in D. E. Knuth,
The Art of Computer Programming 3, section 6.4.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel_part
from portable_spdnn_cpu.jit.intrinsics import bit_length, prefetch
from portable_spdnn_cpu.spgemm.operands import ONE, CsrOperand
from portable_spdnn_cpu.spgemm.radix_sort import BUCKETS, PADDING
from portable_spdnn_cpu.spgemm.row_bins import DENSE, HASH, RowBin

# 2^64 over the golden ratio: spreads columns in arithmetic progressions, which layers have. The
# upper bits of a product with it are the slot to begin at: its lower bits depend on the column's
# lower bits alone, which columns of a large stride have in common.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class RowWorkspace(NamedTuple):
    """A thread's memory for one accumulator; arrays that it does not need are empty.

    Attributes
    ----------
    bits : ndarray of uint64, shape (ceil(columns / 64),)
        A bit for each column of B, zero between rows.
    sums : ndarray
        For each column a sum, zero between rows; for each slot of the hash table a sum; or, where
        products are sorted, the products of a row.
    keys : ndarray, shape (slots,)
        For each slot of the hash table the column + 1; 0, as between rows, where it is free.
    order, spare : ndarray of int64, shape (longest + PADDING,)
        Keys for `sort_keys`: a column and, in the low bits, its slot or the number of its product.
        Where nothing is sorted, the slots in use.
    digits : ndarray of int64, shape (BUCKETS,)
        For `sort_keys`.
    """

    bits: Array
    sums: Array
    keys: Array
    order: Array
    spare: Array
    digits: Array


def make_workspace(
    accumulator: int, row_bin: RowBin, B: CsrOperand, symbolic: bool = False
) -> RowWorkspace:
    """Make the memory that an accumulator needs for the rows of a bin, in one of the phases.

    The hash table has at least two slots for each entry of the longest row. The system gives
    zeroed memory when it is first touched: that one row is long costs the others nothing.
    """
    none = _no_memory(B.data.dtype, B.indices.dtype)
    if accumulator == DENSE:
        bits = np.zeros(-(-B.columns // 64), np.uint64)
        sums = none.sums if symbolic else np.zeros(B.columns, B.data.dtype)
        return RowWorkspace(bits, sums, *none[2:])
    slots = 1 << (2 * row_bin.longest - 1).bit_length() if accumulator == HASH else 0
    keys, order = np.zeros(slots, B.indices.dtype), np.empty(row_bin.longest + PADDING, np.int64)
    if symbolic:
        return none._replace(keys=keys, order=order)
    sums = np.empty(slots or row_bin.longest, B.data.dtype)
    digits = np.empty(BUCKETS, np.int64)
    return RowWorkspace(none.bits, sums, keys, order, np.empty_like(order), digits)


@cache
def _no_memory(value_type: np.dtype[Any], index_type: np.dtype[Any]) -> RowWorkspace:
    none = np.empty(0, np.int64)
    bits, sums = np.empty(0, np.uint64), np.empty(0, value_type)
    return RowWorkspace(bits, sums, np.empty(0, index_type), none, none, none)


@kernel_part
def prefetch_ahead(
    k: int, A_indices: Array, B_indptr: Array, B_indices: Array, B_data: Array
) -> None:
    """Prefetch the row of B that the eighth entry of A after k names, and the 16th one's offset.

    Rows of B are named in no order that a hardware prefetcher could follow: where B is larger than
    the caches, this saves a fifth to a half of the time.
    """
    last = A_indices.size - 1
    prefetch(B_indptr, np.int64(A_indices[min(k + 16, last)]))
    first = B_indptr[A_indices[min(k + 8, last)]]
    prefetch(B_indices, first)
    if B_data.size:
        prefetch(B_data, first)


@kernel_part
def hash_shape(bound: int) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Return log2 of the slots for a row of up to `bound` entries, slots - 1, and 64 - log2."""
    length = np.uint64(bit_length(np.uint64(2 * bound - 1)))
    return length, (ONE << length) - ONE, np.uint64(64) - length


@kernel_part
def unite_bitmaps(first: int, end: int, indices: Array, bitmaps: Array, union: Array) -> None:
    """union = the columns of those rows that indices[first:end] name."""
    for word in range(union.size):
        union[word] = 0
    for k in range(first, end):
        row = indices[k]
        for word in range(union.size):
            union[word] |= bitmaps[row, word]
