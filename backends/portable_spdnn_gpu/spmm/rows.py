"""Passes over the rows of a matrix in host memory, compiled: planning spends its time in them.

They run without the interpreter's lock, so that layers are prepared side by side on all cores.
"""

from __future__ import annotations

import numpy as np

from portable_spdnn_cpu.jit.compilation import kernel
from portable_spdnn_gpu.compile.catalog import CLUSTER
from portable_spdnn_gpu.device.interface import Array


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
def count_common(indptr: Array, indices: Array, groups: Array, counts: Array) -> None:
    """Fill how many columns the rows of each group, shape (groups, CLUSTER), have in common.

    Columns rise within each row.
    """
    for number in range(len(groups)):
        first = indptr[groups[number, 0]]
        size = indptr[groups[number, 0] + 1] - first
        shared = indices[first : first + size].copy()
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
