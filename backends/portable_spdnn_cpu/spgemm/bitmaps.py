"""Kernels: sparse x sparse where the rows of B are bits: their union gives the columns of C.

For dense rows in few columns this finds the columns of a row of C, sorted, without asking the
accumulator whether it has seen them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu.jit.compilation import kernel
from portable_spdnn_cpu.jit.intrinsics import bit_count, fetch_add, trailing_zeros
from portable_spdnn_cpu.spgemm.gustavson import Rows, Share, add_row

Array = npt.NDArray[Any]

# A word of 64 columns costs about as much as a scattered addition, though four go at once.
WORDS_PER_ENTRY = 2
MOST_MASK_BYTES = 1 << 24


@kernel
def fill_masks(B: Rows, masks: Array) -> None:
    """Set bit c of row r of `masks`, shape (rows, ceil(columns / 64)), for each entry of B."""
    for row in range(B.indptr.size - 1):
        for k in range(B.indptr[row], B.indptr[row + 1]):
            column = np.uint64(B.indices[k])
            masks[row, column >> np.uint64(6)] |= np.uint64(1) << (column & np.uint64(63))


@kernel
def unite(first: int, end: int, indices: Array, masks: Array, union: Array) -> None:
    """union = the columns of those rows of B that indices[first:end] name."""
    for word in range(union.size):
        union[word] = 0
    for k in range(first, end):
        middle = indices[k]
        for word in range(union.size):
            union[word] |= masks[middle, word]


@kernel
def count_rows_by_masks(counter: Array, share: Share, A: Rows, masks: Array, counts: Array) -> None:
    """Do what `count_dense_rows` does, by the masks of B."""
    indptr, indices = A.indptr, A.indices
    rows, edges = share.rows, share.edges
    union = np.empty(masks.shape[1], np.uint64)
    while True:
        chunk = fetch_add(counter, 0, 1)
        if chunk >= share.rooms.size:
            break
        for number in range(edges[chunk], edges[chunk + 1]):
            row = rows[number]
            unite(indptr[row], indptr[row + 1], indices, masks, union)
            count = 0
            for word in union:
                count += bit_count(word)
            counts[row] = count


@kernel
def fill_rows_by_masks(
    counter: Array,
    share: Share,
    A: Rows,
    B: Rows,
    weight: Any,
    masks: Array,
    C_indptr: Array,
    C_indices: Array,
    C_data: Array,
) -> None:
    """Do what `add_dense_rows` does, by the masks of B; `weight` as in `add_row`."""
    indptr, indices = A.indptr, A.indices
    rows, edges = share.rows, share.edges
    union = np.empty(masks.shape[1], np.uint64)
    sums = np.zeros(B.columns, C_data.dtype)
    while True:
        chunk = fetch_add(counter, 0, 1)
        if chunk >= share.rooms.size:
            break
        for number in range(edges[chunk], edges[chunk + 1]):
            row = rows[number]
            unite(indptr[row], indptr[row + 1], indices, masks, union)
            add_row(row, A, B, weight, sums)
            place = C_indptr[row]
            for position in range(union.size):
                word = union[position]
                while word:
                    column = np.uint64(64 * position + trailing_zeros(word))
                    word &= word - np.uint64(1)
                    C_indices[place] = column
                    C_data[place] = sums[column]
                    sums[column] = 0
                    place += 1
