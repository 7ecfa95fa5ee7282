"""Weights in the order in which the stream kernel meets them.

A part of the rows is cut into blocks of columns, so that a block's rows of B, as wide as a panel,
stay in a cache. Within a block rows are ordered by their number of entries: the loop over entries
then runs as often as it did for the row before, and its end is predicted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from portable_spdnn_cpu.jit.compilation import Array, kernel, read_only
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.stream.microkernels import OFFSET_UNIT

SHORT_OFFSETS = 1 << 16


class StreamPart(NamedTuple):
    """Some rows of A, packed.

    Attributes
    ----------
    rows, counts : ndarray of int32
        Of each block after the other: the rows of A, and how many entries they have there. The
        first block and the last have all rows, those between only such as have entries.
    first_row, first_entry : ndarray of int64, shape (blocks + 1,)
        Where each block begins in `rows` and in `offsets`.
    offsets : ndarray of uint16 or int32
        Where each entry's row of B lies in the block: see `microkernels.sum_row`.
    values : ndarray of float32 or float64
    """

    rows: Array
    counts: Array
    first_row: Array
    first_entry: Array
    offsets: Array
    values: Array


BEGUN = 1  # entries that take as long as to begin and end a row


def pack_rows(
    A: sp.csr_array, begin: int, end: int, k_block: int, panel_vectors: int
) -> StreamPart:
    """Pack rows begin .. end - 1 of A.

    Parameters
    ----------
    A : csr_array, shape (m, k)
    begin, end : int
    k_block : int
        Columns of A in a block.
    panel_vectors : int
        Vectors of 64 bytes in a row of the panel that offsets are for; 0 for row numbers as
        offsets, which serve any panel.
    """
    blocks = max(1, -(-A.shape[1] // k_block))
    first, stop = (int(A.indptr[row]) for row in (begin, end))
    unit = panel_vectors * BLOCK_BYTES // OFFSET_UNIT
    offsets = np.empty(stop - first, np.uint16 if unit else np.int32)
    values = np.empty(stop - first, A.dtype)
    first_row, first_entry = (np.zeros(blocks + 1, np.int64) for _ in range(2))
    indptr, indices, data = map(read_only, (A.indptr[begin : end + 1], A.indices, A.data))
    most = stop - first + 2 * (end - begin)
    blocks_met, order, counts = (np.empty(most, np.int32) for _ in range(3))
    begins = np.empty(most, np.int64)
    used = find_rows(indptr, indices, k_block, begin, first_row, blocks_met, order, counts, begins)
    found = order[:used], counts[:used], begins[:used]
    if blocks == 1:  # it keeps the order of rows
        order, counts, begins = found[0].copy(), found[1].copy(), found[2]
    else:
        order, counts = np.empty(used, np.int32), np.empty(used, np.int32)
        begins = np.empty(used, np.int64)
        order_rows(first_row, blocks_met[:used], found, order, counts, begins)
    fill_blocks(
        indices, data, k_block, unit, first_row, counts, begins, first_entry, offsets, values
    )
    return StreamPart(order, counts, first_row, first_entry, offsets, values)


def may_be_short(k_block: int, panel_vectors: int) -> bool:
    """Whether offsets into such a panel fit into 16 bits."""
    return k_block * panel_vectors * BLOCK_BYTES // OFFSET_UNIT <= SHORT_OFFSETS


@kernel
def find_rows(
    indptr: Array,
    indices: Array,
    k_block: int,
    number: int,
    first_row: Array,
    blocks_met: Array,
    order: Array,
    counts: Array,
    begins: Array,
) -> int:
    """Write which blocks each row is in, how many entries it has there, and the first of these.

    All rows are in the first block and the last. Entries of a row rise in their columns, so that
    those of a block follow each other. `number` is that of the first row. Returns how many rows all
    blocks have, and writes how many those before each have.
    """
    last, used = first_row.size - 2, 0
    for row in range(indptr.size - 1):
        entry, end = np.int64(indptr[row]), np.int64(indptr[row + 1])
        block = 0
        while True:
            begins[used], blocks_met[used], order[used] = entry, block, row + number
            if block == last:
                counts[used] = end - entry
            else:
                stop = (block + 1) * k_block
                while entry < end and indices[entry] < stop:
                    entry += 1
                counts[used] = entry - begins[used]
            used += 1
            first_row[block + 1] += 1
            if block == last:
                break
            block += 1  # mostly the next
            if entry == end:
                block = last
            elif indices[entry] >= stop + k_block:
                block = indices[entry] // k_block
    for block in range(last + 1):
        first_row[block + 1] += first_row[block]
    return used


@kernel
def order_rows(
    first_row: Array,
    blocks_met: Array,
    found: tuple[Array, Array, Array],
    order: Array,
    counts: Array,
    begins: Array,
) -> None:
    """Order what was found by block, and in each by its entries: by two counting sorts."""
    found_order, found_counts, found_begins = found
    longest = np.int32(0)
    for count in found_counts:
        longest = max(longest, count)
    starts = np.zeros(longest + 2, np.int64)
    for count in found_counts:
        starts[count + 1] += 1
    for before in range(longest + 1):
        starts[before + 1] += starts[before]
    by_length = np.empty(counts.size, np.int32)
    for place in range(counts.size):
        at = starts[found_counts[place]]
        starts[found_counts[place]] += 1
        by_length[at] = place
    following = first_row.copy()
    for taken in by_length:
        block = blocks_met[taken]
        at = following[block]
        following[block] += 1
        order[at], counts[at] = found_order[taken], found_counts[taken]
        begins[at] = found_begins[taken]


@kernel
def fill_blocks(
    indices: Array,
    data: Array,
    k_block: int,
    unit: int,
    first_row: Array,
    counts: Array,
    begins: Array,
    first_entry: Array,
    offsets: Array,
    values: Array,
) -> None:
    """Write the entries of each block, and where these begin.

    `unit` is the offset from a row of the panel to the next, 0 for 1.
    """
    entry = 0
    for block in range(first_row.size - 1):
        for place in range(first_row[block], first_row[block + 1]):
            begin = begins[place]
            for k in range(begin, begin + counts[place]):
                offsets[entry] = (indices[k] - block * k_block) * max(unit, 1)
                values[entry] = data[k]
                entry += 1
        first_entry[block + 1] = entry
