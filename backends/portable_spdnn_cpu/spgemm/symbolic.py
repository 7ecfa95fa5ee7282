"""Kernels of the symbolic phase: how many entries rows of a product have.

They take some rows of the result by their numbers, the operands, of which values are not read, the
multiply-adds of each row, and the accumulator's memory; counts[i] becomes the entries of row i.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu.jit.compilation import kernel_part
from portable_spdnn_cpu.jit.intrinsics import bit_count
from portable_spdnn_cpu.spgemm.accumulators import (
    GOLDEN,
    Workspace,
    hash_shape,
    prefetch_ahead,
    unite_bitmaps,
)
from portable_spdnn_cpu.spgemm.operands import LOW_SIX, ONE, SIX, CsrOperand

Array = npt.NDArray[Any]


@kernel_part
def count_dense(
    rows: Array, A: CsrOperand, B: CsrOperand, products: Array, work: Workspace, counts: Array
) -> None:
    """Count the bits that become set."""
    A_indptr, A_indices = A.indptr, A.indices
    B_indptr, B_indices = B.indptr, B.indices
    bits = work.bits
    for row in rows:
        if A_indptr[row + 1] - A_indptr[row] == 1:
            counts[row] = products[row]  # a row of B
            continue
        count = 0
        for k in range(A_indptr[row], A_indptr[row + 1]):
            prefetch_ahead(k, A_indices, B_indptr, B_indices, B_indices)  # no values
            middle = A_indices[k]
            for q in range(B_indptr[middle], B_indptr[middle + 1]):
                column = np.uint64(B_indices[q])
                word = bits[column >> SIX]
                count += word >> (column & LOW_SIX) & ONE == 0
                bits[column >> SIX] = word | ONE << (column & LOW_SIX)
        # Few bits are cleared one by one.
        if bits.size <= products[row]:
            for position in range(bits.size):
                bits[position] = 0
        else:
            for k in range(A_indptr[row], A_indptr[row + 1]):
                middle = A_indices[k]
                for q in range(B_indptr[middle], B_indptr[middle + 1]):
                    bits[np.uint64(B_indices[q]) >> SIX] = 0
        counts[row] = count


@kernel_part
def count_bitmaps(
    rows: Array, A: CsrOperand, B: CsrOperand, work: Workspace, counts: Array
) -> None:
    """Count the bits of the union of bitmaps."""
    bits = work.bits
    for row in rows:
        unite_bitmaps(row, A, B, bits)
        count = 0
        for position in range(bits.size):
            count += bit_count(bits[position])
            bits[position] = 0
        counts[row] = count


@kernel_part
def count_hash(
    rows: Array, A: CsrOperand, B: CsrOperand, products: Array, work: Workspace, counts: Array
) -> None:
    """Count the columns that the hash table takes."""
    A_indptr, A_indices = A.indptr, A.indices
    B_indptr, B_indices = B.indptr, B.indices
    keys, slots = work.keys, work.order
    for row in rows:
        if A_indptr[row + 1] - A_indptr[row] == 1:
            counts[row] = products[row]
            continue
        _, mask, shift = hash_shape(min(products[row], B.columns))
        count = 0
        for k in range(A_indptr[row], A_indptr[row + 1]):
            prefetch_ahead(k, A_indices, B_indptr, B_indices, B_indices)
            middle = A_indices[k]
            for q in range(B_indptr[middle], B_indptr[middle + 1]):
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
