"""Sliced ELL with preload maps, the format of the staged variant.

The rows of a matrix go to blocks, in order. The columns that a block's rows have, without
repeats and rising, are its preload map, cut into stages; the entries of a stage are kept in
sliced ELL. A slice is what the 32 rows of one warp have in one stage, padded to the longest of
them: entry k of lane l lies at 32 k + l, so that a warp reads neighbours. A column is kept as a
local index, its row in the two buffers of the stages (the first, third, ... stage of a block go
to the first buffer, the others to the second): 16 bits suffice, however many columns the matrix
has. Rows of other lengths than their neighbours cost padding in their slice and stage alone.

Source: A. Monakov, A. Lokhmotov and A. Avetisyan, "Automatically Tuning Sparse Matrix-Vector
Multiplication for GPU Architectures", HiPEAC 2010, for sliced ELL; for maps see staged_spmm.cu.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.jit.compilation import kernel
from portable_spdnn_gpu.compile.catalog import StagedConfig
from portable_spdnn_gpu.device.interface import Array

WARP = 32
QUARTER = 8  # lanes that shared memory serves at a time, 16 bytes each


@dataclass(frozen=True)
class Stages:
    """A CSR matrix in the form that `staged_spmm` reads.

    Attributes
    ----------
    block_stages : ndarray of int32, shape (blocks + 1,)
        The offsets of the stages of each block of rows.
    stage_bounds : ndarray of int32, shape (stages + 1,)
        The offsets of the stages into `columns`.
    columns : ndarray of int32
        The preload maps: columns of A, rising and without repeats in a block.
    slices : ndarray of int32, shape (stages x warps + 1,)
        The offsets of the entries of each warp in each stage, counted in 32 entries.
    local_indices : ndarray of uint16, shape (32 x slices[-1],)
        The row of the two buffers that holds the column of an entry; padding names the row
        beyond both, of zeros.
    values : ndarray, shape (32 x slices[-1],)
        The entries; padding is 0.
    """

    block_stages: Array
    stage_bounds: Array
    columns: Array
    slices: Array
    local_indices: Array
    values: Array


def stage_rows(A: SparseOperand, config: StagedConfig) -> Stages:
    """Lay out a canonical csr_array for a configuration of the kernel."""
    capacity, block_rows = config.stage, config.rows
    warps = block_rows // WARP
    stages_of_blocks, sizes, maps, widths = [0], [], [], []
    local_indices: list[Array] = []
    values: list[Array] = []
    for first in range(0, A.shape[0], block_rows):
        last = min(first + block_rows, A.shape[0])
        entries = slice(A.indptr[first], A.indptr[last])
        columns, place = np.unique(A.indices[entries], return_inverse=True)
        stages = -(-columns.size // capacity)
        stages_of_blocks.append(stages)
        sizes += [min(capacity, columns.size - s * capacity) for s in range(stages)]
        maps.append(columns)
        row = np.repeat(np.arange(last - first), np.diff(A.indptr[first : last + 1]))
        stage = place // capacity
        # Columns rise in a row, so that the entries of one row in one stage are neighbours.
        cell = row * max(stages, 1) + stage
        counts = np.bincount(cell, minlength=block_rows * max(stages, 1))
        rank = np.arange(cell.size) - (np.cumsum(counts) - counts)[cell]
        by_warp = counts.reshape(warps, WARP, -1).max(axis=1).T[:stages]  # (stages, warps)
        begins = (np.cumsum(by_warp) - by_warp.ravel()).reshape(by_warp.shape)
        widths.append(by_warp.ravel())
        total = int(by_warp.sum()) * WARP
        where = (begins[stage, row // WARP] + rank) * WARP + row % WARP
        block_indices = np.full(total, 2 * capacity, np.uint16)
        block_indices[where] = place % (2 * capacity)
        block_values = np.zeros(total, A.dtype)
        block_values[where] = A.data[entries]
        local_indices.append(block_indices)
        values.append(block_values)
    nothing = np.empty(0, np.int32)
    return Stages(
        np.cumsum(stages_of_blocks).astype(np.int32),
        np.cumsum([0, *sizes]).astype(np.int32),
        np.concatenate([nothing, *maps]).astype(np.int32),
        np.concatenate(([0], np.cumsum(np.concatenate([nothing, *widths])))).astype(np.int32),
        np.concatenate([np.empty(0, np.uint16), *local_indices]),
        np.concatenate([np.empty(0, A.dtype), *values]),
    )


@kernel
def count_stages(indptr: Array, indices: Array, width: int, capacity: int) -> tuple[int, int, int]:
    """Count what staged_spmm reads of a block of rows, as `stage_rows` would lay them out.

    Returns how many columns are staged, the slots of all slices, and the passes through shared
    memory in which a QUARTER of a warp reads them, added up. Rows of B that agree modulo QUARTER
    have their vectors in the same banks (staged_spmm.cu), whatever the minibatch, and wait for one
    another; a row that several lanes read is read once.

    Parameters
    ----------
    indptr, indices : ndarray
        The rows of the block in CSR, at most as many as it has.
    width : int
        How many columns the matrix has.
    capacity : int
        How many columns a stage has.
    """
    places = np.zeros(width, np.int32)  # of the staged columns, in all stages
    for column in indices:
        places[column] = 1
    staged = 0
    for column in range(places.size):
        if places[column]:
            places[column] = staged
            staged += 1
    rows, buffers = indptr.size - 1, 2 * capacity
    begins, ends = indptr[:rows].copy(), indptr[:rows].copy()  # of each row's entries in a stage
    read, banks = np.empty(QUARTER, np.int64), np.empty(QUARTER, np.int64)
    slots = passes = 0
    for warp in range(0, rows, WARP):
        for end in range(capacity, staged + capacity, capacity):
            longest = 0
            for row in range(warp, min(warp + WARP, rows)):
                begins[row] = ends[row]
                while ends[row] < indptr[row + 1] and places[indices[ends[row]]] < end:
                    ends[row] += 1
                longest = max(longest, ends[row] - begins[row])
            slots += longest * WARP
            for step in range(longest):
                for first in range(warp, warp + WARP, QUARTER):
                    banks[:] = 0
                    for lane in range(QUARTER):
                        row = first + lane
                        read[lane] = buffers
                        if row < rows and begins[row] + step < ends[row]:
                            read[lane] = places[indices[begins[row] + step]] % buffers
                        new = 1
                        for other in range(lane):
                            new &= read[other] != read[lane]
                        banks[read[lane] % QUARTER] += new
                    passes += banks.max()
    return staged, slots, passes
