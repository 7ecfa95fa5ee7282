"""Kernels of the symbolic phase: how many entries rows of a product have.

They take some rows of the result by their numbers, the product, of which values are not read, and
the accumulator's memory; counts[i] becomes the entries of row i.

Bound: where B is larger than the caches, reads of its rows from memory, in the order in which A
names them: hence the prefetches. Else a read and a write of a word of bits, or of a slot of the
table, for each product, in the cache level that holds them; with bitmaps, reads of n / 64 words
for each entry of A, for n columns of B.
"""

from __future__ import annotations

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel_part
from portable_spdnn_cpu.jit.intrinsics import bit_count
from portable_spdnn_cpu.spgemm.accumulators import (
    GOLDEN,
    RowWorkspace,
    hash_shape,
    prefetch_ahead,
    unite_bitmaps,
)
from portable_spdnn_cpu.spgemm.operands import LOW_SIX, ONE, SIX, Product


@kernel_part
def count_dense(rows: Array, product: Product, work: RowWorkspace, counts: Array) -> None:
    """Count the bits that become set."""
    A, B, bounds = product
    A_indptr, A_indices = A.indptr, A.indices
    B_indptr, B_indices = B.indptr, B.indices
    bits = work.bits
    for row in rows:
        if A_indptr[row + 1] - A_indptr[row] == 1:
            counts[row] = bounds[row]  # a row of B
            continue
        count = 0
        for k in range(A_indptr[row], A_indptr[row + 1]):
            prefetch_ahead(k, A_indices, B_indptr, B_indices, B_indices)  # no values
            middle = A_indices[k]
            for q in range(np.uint64(B_indptr[middle]), np.uint64(B_indptr[middle + 1])):
                column = np.uint64(B_indices[q])
                word = bits[column >> SIX]
                # Without a branch: which columns are new is as good as random.
                count += word >> (column & LOW_SIX) & ONE == 0
                bits[column >> SIX] = word | ONE << (column & LOW_SIX)
        # Few bits are cleared one by one.
        if bits.size <= bounds[row]:
            for position in range(bits.size):
                bits[position] = 0
        else:
            for k in range(A_indptr[row], A_indptr[row + 1]):
                middle = A_indices[k]
                for q in range(np.uint64(B_indptr[middle]), np.uint64(B_indptr[middle + 1])):
                    bits[np.uint64(B_indices[q]) >> SIX] = 0
        counts[row] = count


@kernel_part
def count_bitmaps(rows: Array, product: Product, counts: Array) -> None:
    """Count the bits of the union of bitmaps."""
    indptr, indices, bitmaps = product.A.indptr, product.A.indices, product.B.bitmaps
    # Numba aligns its arrays to vectors, NumPy does not: a twentieth of the time.
    union = np.empty(bitmaps.shape[1], np.uint64)
    for row in rows:
        unite_bitmaps(indptr[row], indptr[row + 1], indices, bitmaps, union)
        count = 0
        for word in union:
            count += bit_count(word)
        counts[row] = count


@kernel_part
def count_hash(rows: Array, product: Product, work: RowWorkspace, counts: Array) -> None:
    """Count the columns that the hash table takes."""
    A, B, bounds = product
    A_indptr, A_indices = A.indptr, A.indices
    B_indptr, B_indices = B.indptr, B.indices
    keys, slots = work.keys, work.order
    for row in rows:
        if A_indptr[row + 1] - A_indptr[row] == 1:
            counts[row] = bounds[row]
            continue
        _, mask, shift = hash_shape(bounds[row])
        count = 0
        for k in range(A_indptr[row], A_indptr[row + 1]):
            prefetch_ahead(k, A_indices, B_indptr, B_indices, B_indices)
            middle = A_indices[k]
            for q in range(np.uint64(B_indptr[middle]), np.uint64(B_indptr[middle + 1])):
                column = np.uint64(B_indices[q])
                key = column + ONE
                slot = (column * GOLDEN) >> shift
                while True:  # in the form of `numeric.add_hash`, for speed
                    found = keys[slot]
                    if found == key:
                        break
                    if found == 0:
                        keys[slot] = key
                        slots[count] = slot
                        count += 1
                        break
                    slot = (slot + ONE) & mask
        for k in range(count):
            keys[slots[k]] = 0
        counts[row] = count
