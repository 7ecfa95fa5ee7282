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
    rows, blocks = end - begin, max(1, -(-A.shape[1] // k_block))
    first, stop = (int(A.indptr[row]) for row in (begin, end))
    unit = panel_vectors * BLOCK_BYTES // OFFSET_UNIT
    offsets = np.empty(stop - first, np.uint16 if unit else np.int32)
    values = np.empty(stop - first, A.dtype)
    order, counts = (np.empty(rows * blocks, np.int32) for _ in range(2))
    first_row, first_entry = (np.zeros(blocks + 1, np.int64) for _ in range(2))
    indptr, indices, data = map(read_only, (A.indptr[begin : end + 1], A.indices, A.data))
    used = pack_blocks(
        indptr, indices, data, k_block, unit, begin,
        order, counts, first_row, first_entry, offsets, values,
    )  # fmt: skip
    return StreamPart(order[:used], counts[:used], first_row, first_entry, offsets, values)


def may_be_short(k_block: int, panel_vectors: int) -> bool:
    """Whether offsets into such a panel fit into 16 bits."""
    return k_block * panel_vectors * BLOCK_BYTES // OFFSET_UNIT <= SHORT_OFFSETS


@kernel
def pack_blocks(
    indptr: Array,
    indices: Array,
    data: Array,
    k_block: int,
    unit: int,
    begin: int,
    order: Array,
    counts: Array,
    first_row: Array,
    first_entry: Array,
    offsets: Array,
    values: Array,
) -> int:
    """Fill the arrays of a `StreamPart`; returns how many `rows` and `counts` there are.

    Entries of a row rise in their columns, so that those of a block follow each other; `unit` is
    the offset from a row of the panel to the next, 0 for 1. `order` takes the rows.
    """
    rows, blocks = indptr.size - 1, first_row.size - 1
    here = indptr[:rows].astype(np.int64)  # the first entry of each row that is not yet packed
    length = np.zeros(rows, np.int32)
    starts = np.zeros(min(k_block, indices.size) + 2, np.int64)
    entry = used = 0
    for block in range(blocks):
        stop = (block + 1) * k_block
        starts[:] = 0
        for row in range(rows):
            last = here[row]
            while last < indptr[row + 1] and indices[last] < stop:
                last += 1
            length[row] = last - here[row]
            starts[length[row] + 1] += 1
        if 0 < block < blocks - 1:
            starts[1] = 0  # rows without entries are left out
        for count in range(starts.size - 1):
            starts[count + 1] += starts[count]
        found = used + starts[-1]
        for row in range(rows):  # a counting sort
            if length[row] or block in (0, blocks - 1):
                count = length[row] if blocks > 1 else 0  # one block keeps the order of rows
                order[used + starts[count]] = row
                starts[count] += 1
        for place in range(used, found):
            row = order[place]
            for k in range(here[row], here[row] + length[row]):
                column = indices[k] - block * k_block
                offsets[entry] = column * max(unit, 1)
                values[entry] = data[k]
                entry += 1
            here[row] += length[row]
            counts[place], order[place] = length[row], row + begin
        used = found
        first_row[block + 1], first_entry[block + 1] = used, entry
    return used
