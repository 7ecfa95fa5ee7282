"""Passes over the rows of a matrix in host memory, compiled: planning spends its time in them.

They run without the interpreter's lock, so that layers are prepared side by side on all cores.
"""

from __future__ import annotations

import numpy as np

from portable_spdnn_cpu.jit.compilation import kernel
from portable_spdnn_gpu.compile.catalog import CLUSTER
from portable_spdnn_gpu.device.interface import Array

WARP = 32
QUARTER = 8  # lanes that shared memory serves at a time, 16 bytes each


@kernel
def hash_rows(
    indptr: Array, indices: Array, rows: Array, hashes: Array, least: Array, whole: Array
) -> None:
    """Fill, for each of some rows, the least and the sum of the hashes of its columns."""
    for number in range(rows.size):
        low, total = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0)
        for entry in range(indptr[rows[number]], indptr[rows[number] + 1]):
            found = hashes[indices[entry]]
            low = min(low, found)
            total += found
        least[number], whole[number] = low, total


@kernel
def have_equal_columns(indptr: Array, indices: Array, groups: Array, equal: Array) -> None:
    """Tell of each group of rows, shape (groups, CLUSTER), whether all have the same columns."""
    for number in range(len(groups)):
        begin = indptr[groups[number, 0]]
        length = indptr[groups[number, 0] + 1] - begin
        same = True
        for member in range(1, CLUSTER):
            other = indptr[groups[number, member]]
            if indptr[groups[number, member] + 1] - other != length:
                same = False
                break
            for entry in range(length):
                same &= indices[begin + entry] == indices[other + entry]
        equal[number] = same


@kernel
def count_common(
    indptr: Array, indices: Array, groups: Array, shared: Array, counts: Array
) -> None:
    """Fill how many columns the rows of each group, shape (groups, CLUSTER), have in common.

    Columns rise within each row; `shared` is space for those of the longest row.
    """
    for number in range(len(groups)):
        first = indptr[groups[number, 0]]
        size = indptr[groups[number, 0] + 1] - first
        shared[:size] = indices[first : first + size]
        for member in range(1, CLUSTER):
            at, end = indptr[groups[number, member]], indptr[groups[number, member] + 1]
            kept = 0
            for place in range(size):
                while at < end and indices[at] < shared[place]:
                    at += 1
                if at < end and indices[at] == shared[place]:
                    shared[kept] = shared[place]
                    kept += 1
            size = kept
            if size == 0:
                break
        counts[number] = size


@kernel
def interleave_rows(indptr: Array, data: Array, groups: Array, values: Array) -> None:
    """Fill `values` with those of groups of rows of one length: of all rows column by column."""
    place = 0
    for number in range(len(groups)):
        for entry in range(indptr[groups[number, 0] + 1] - indptr[groups[number, 0]]):
            for member in range(CLUSTER):
                values[place] = data[indptr[groups[number, member]] + entry]
                place += 1


@kernel
def find_own_entries(
    indptr: Array, indices: Array, cluster: Array, spans: Array, columns: Array, owner: Array,
    rank: Array, entries: Array,
) -> int:  # fmt: skip
    """Fill owner (the row), rank in it and offset of entries outside the common columns.

    Columns rise within each row. `cluster` has the cluster of each row, or -1; the common columns
    of cluster c are columns[spans[c, 0] : spans[c, 1]], rising. Returns how many entries there are.
    """
    found = 0
    for row in range(indptr.size - 1):
        at = end = 0
        if cluster[row] >= 0:
            at, end = spans[cluster[row], 0], spans[cluster[row], 1]
        first = found
        for entry in range(indptr[row], indptr[row + 1]):
            while at < end and columns[at] < indices[entry]:
                at += 1
            if at < end and columns[at] == indices[entry]:
                continue
            owner[found], rank[found], entries[found] = row, found - first, entry
            found += 1
    return found


@kernel
def count_stages(
    indptr: Array, indices: Array, capacity: int, places: Array, spans: Array, read: Array,
    banks: Array,
) -> tuple[int, int, int]:  # fmt: skip
    """Count what staged_spmm reads of a block of rows, laid out as staging.py says.

    Returns how many columns are staged, the slots of all slices, and the passes through shared
    memory in which a QUARTER of a warp reads them, added up. Rows of B that agree modulo QUARTER
    have their vectors in the same banks (staged_spmm.cu), whatever the minibatch, and wait for one
    another; a row that several lanes read is read once.

    `capacity` is how many columns a stage has, `places` has a zero for each column of the matrix.
    The others are space: `spans` for two numbers of each row, `read` and `banks` for QUARTER each.
    """
    for entry in range(indices.size):
        places[indices[entry]] = 1
    staged = 0
    for column in range(places.size):
        if places[column]:
            places[column] = staged
            staged += 1
    rows, buffers = indptr.size - 1, 2 * capacity
    spans[1, :rows] = indptr[:rows]
    slots = passes = 0
    for warp in range(0, rows, WARP):
        for end in range(capacity, staged + capacity, capacity):
            width = 0
            for row in range(warp, min(warp + WARP, rows)):
                last = spans[1, row]
                spans[0, row] = last
                while last < indptr[row + 1] and places[indices[last]] < end:
                    last += 1
                spans[1, row] = last
                width = max(width, last - spans[0, row])
            slots += width * WARP
            for step in range(width):
                for first in range(warp, warp + WARP, QUARTER):
                    banks[:] = 0
                    for lane in range(QUARTER):
                        row = first + lane
                        read[lane] = buffers
                        if row < rows and spans[0, row] + step < spans[1, row]:
                            read[lane] = places[indices[spans[0, row] + step]] % buffers
                        new = 1
                        for other in range(lane):
                            new &= read[other] != read[lane]
                        banks[read[lane] % QUARTER] += new
                    passes += banks.max()
    return staged, slots, passes
