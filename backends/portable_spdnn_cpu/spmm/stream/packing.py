"""Weights in the order in which the stream kernel meets them.

A part of the rows is cut into blocks of columns, so that a block's rows of B, as wide as a panel,
stay in a cache. Within a block rows are ordered by their number of entries: the loop over entries
then runs as often as it did for the row before, and its end is predicted. Where there is one block,
and a row of C is written as soon as it is summed, rows are ordered so within WINDOW of them, which
lie near each other in C. Two rows that follow each other with as many entries may be a pair, whose
entries are stored by turns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from portable_spdnn_cpu.jit.compilation import Array, kernel, read_only
from portable_spdnn_cpu.spmm.stream.entries import OFFSET_UNIT, PADDING

# How weights lie in memory, as tuples, whose length is part of a type: as they were given; packed
# for panels that are copied; packed for panels that are read in B, whose rows are told by number.
Form = tuple[int, ...]
GIVEN: Form = ()
BY_OFFSETS: Form = (0,)
BY_ROWS: Form = (0, 0)
WINDOW = 64  # rows
# Added to the number of entries of a row where the next row has as many, and both are stored by
# turns.
PAIR = 1 << 30


class StreamPart(NamedTuple):
    """Some rows of A, packed.

    Attributes
    ----------
    visits : ndarray of int32, shape (visits + 2, 2)
        Of each block after the other: a row of A, and how many entries it has there, plus PAIR for
        the first row of a pair. The first block and the last have all rows, those between only such
        as have entries. The last one is there three times: what is prefetched is looked up ahead.
    first_visit, first_entry : ndarray of int64, shape (blocks + 1,)
        Where each block begins in `visits` and in `offsets`.
    offsets : ndarray of uint16
        Where each entry's row of B lies in the panel: BY_OFFSETS in units of OFFSET_UNIT bytes,
        BY_ROWS the number of the row. Behind the last entry are PADDING items more.
    values : ndarray of float32 or float64
        As many.
    """

    visits: Array
    first_visit: Array
    first_entry: Array
    offsets: Array
    values: Array


BEGUN = 1  # entries that take as long as to begin and end a row
SKIPPED = 8  # entries that are in a block where the last of them is


def pack_rows(
    A: sp.csr_array, begin: int, end: int, k_block: int, unit: int, paired: bool
) -> StreamPart:
    """Pack rows begin .. end - 1 of A.

    Parameters
    ----------
    A : csr_array, shape (m, k)
    begin, end : int
    k_block : int
        Columns of A in a block.
    unit : int
        What is added to the offset from one row of the panel to the next.
    paired : bool
        Whether there are pairs: `microkernels.pairs` of the panel.
    """
    blocks = max(1, -(-A.shape[1] // k_block))
    first, stop = (int(A.indptr[row]) for row in (begin, end))
    offsets = np.empty(stop - first + PADDING, np.uint16)
    values = np.empty(stop - first + PADDING, A.dtype)
    offsets[stop - first :], values[stop - first :] = 0, 0
    first_visit, first_entry = (np.zeros(blocks + 1, np.int64) for _ in range(2))
    indptr, indices, data = map(read_only, (A.indptr[begin : end + 1], A.indices, A.data))
    most = stop - first + 2 * (end - begin)
    blocks_met, order, counts = (np.empty(most, np.int32) for _ in range(3))
    begins = np.empty(most, np.int64)
    used = find_rows(
        indptr, indices, k_block, begin, first_visit, blocks_met, order, counts, begins
    )
    found = order[:used], counts[:used], begins[:used]
    visits, begins = np.zeros((used + 2, 2), np.int32), np.empty(used, np.int64)
    groups, group_starts = blocks_met[:used], first_visit
    if blocks == 1:
        groups = np.arange(used, dtype=np.int32) // WINDOW
        group_starts = np.arange(0, used + WINDOW, WINDOW)
    order_rows(group_starts, groups, found, visits, begins)
    fill_blocks(
        indices, data, k_block, unit, paired, first_visit, visits, begins, first_entry, offsets,
        values,
    )  # fmt: skip
    if used:
        visits[used:] = visits[used - 1]
    return StreamPart(visits, first_visit, first_entry, offsets, values)


def unit_of(row_bytes: int) -> int:
    """Return the unit of offsets into a panel that is copied, from the bytes of its rows."""
    return row_bytes // OFFSET_UNIT


@kernel
def find_rows(
    indptr: Array,
    indices: Array,
    k_block: int,
    number: int,
    first_visit: Array,
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
    last, used = first_visit.size - 2, 0  # indices are unsigned: see `jit.compilation`
    for row in range(indptr.size - 1):
        entry, end = np.int64(indptr[row]), np.int64(indptr[row + 1])
        block = 0
        while True:
            begins[used], blocks_met[used], order[used] = entry, block, row + number
            if block == last:
                counts[used] = end - entry
            else:
                stop = (block + 1) * k_block
                while entry + SKIPPED <= end and indices[np.uint64(entry + SKIPPED - 1)] < stop:
                    entry += SKIPPED
                while entry < end and indices[np.uint64(entry)] < stop:
                    entry += 1
                counts[used] = entry - begins[used]
            used += 1
            first_visit[block + 1] += 1
            if block == last:
                break
            block += 1  # mostly the next
            if entry == end:
                block = last
            elif indices[np.uint64(entry)] >= stop + k_block:
                block = indices[np.uint64(entry)] // k_block
    for block in range(last + 1):
        first_visit[block + 1] += first_visit[block]
    return used


@kernel
def order_rows(
    group_starts: Array,
    groups: Array,
    found: tuple[Array, Array, Array],
    visits: Array,
    begins: Array,
) -> None:
    """Order what was found by group, and in each by its entries: by two counting sorts."""
    found_order, found_counts, found_begins = found
    longest = np.int32(0)
    for count in found_counts:
        longest = max(longest, count)
    starts = np.zeros(longest + 2, np.int64)
    for count in found_counts:
        starts[count + 1] += 1
    for before in range(longest + 1):
        starts[before + 1] += starts[before]
    by_length = np.empty(found_counts.size, np.int32)
    for place in range(found_counts.size):
        at = starts[found_counts[place]]
        starts[found_counts[place]] += 1
        by_length[at] = place
    following = group_starts.copy()
    for taken in by_length:
        at = following[groups[taken]]
        following[groups[taken]] += 1
        visits[at, 0], visits[at, 1] = found_order[taken], found_counts[taken]
        begins[at] = found_begins[taken]


@kernel
def fill_blocks(
    indices: Array,
    data: Array,
    k_block: int,
    unit: int,
    paired: bool,
    first_visit: Array,
    visits: Array,
    begins: Array,
    first_entry: Array,
    offsets: Array,
    values: Array,
) -> None:
    """Write the entries of each block, and where these begin, and mark pairs of rows.

    `unit` is the offset from a row of the panel to the next.
    """
    entry = 0  # indices are unsigned: see `jit.compilation`
    for block in range(first_visit.size - 1):
        place, stop, column = first_visit[block], first_visit[block + 1], block * k_block
        while place < stop:
            count, begin = visits[place, 1], begins[place]
            if paired and place + 1 < stop and visits[place + 1, 1] == count:
                visits[place, 1] = count + PAIR
                second = begins[place + 1]  # a loop of its own, for a step that is constant
                for k in range(count):
                    one, other = np.uint64(begin + k), np.uint64(second + k)
                    offsets[np.uint64(entry)] = (indices[one] - column) * unit
                    offsets[np.uint64(entry + 1)] = (indices[other] - column) * unit
                    values[np.uint64(entry)] = data[one]
                    values[np.uint64(entry + 1)] = data[other]
                    entry += 2
                place += 2
            else:
                for k in range(np.uint64(begin), np.uint64(begin + count)):
                    offsets[np.uint64(entry)] = (indices[k] - column) * unit
                    values[np.uint64(entry)] = data[k]
                    entry += 1
                place += 1
        first_entry[block + 1] = entry
