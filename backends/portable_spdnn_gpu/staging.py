"""Preload maps and sliced-ELL entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn_gpu.kernel_catalog import STAGE, STAGED_ROWS

Array = npt.NDArray[Any]
WARP = 32


@dataclass(frozen=True)
class Stages:
    """A CSR matrix in the form that `staged_spmm` reads.

    Attributes
    ----------
    block_stages : ndarray of int32, shape (blocks + 1,)
        Offsets of the stages of each block of STAGED_ROWS rows.
    stage_bounds : ndarray of int32, shape (stages + 1,)
        Offsets into `columns`.
    columns : ndarray of int32
        The map: columns of A, without repeats in a block, rising.
    slices : ndarray of int32, shape (stages x warps + 1,)
        Offsets of the entries of each warp, in warps.
    positions : ndarray of uint16, values : ndarray, shape (32 x slices[-1],)
        Where in its stage the column of an entry is, and the entry; absent ones name the
        position beyond the stage and are 0.
    """

    block_stages: Array
    stage_bounds: Array
    columns: Array
    slices: Array
    positions: Array
    values: Array


def stage_rows(A: Any) -> Stages:
    """Lay out a canonical csr_array."""
    capacity = STAGE[A.dtype.itemsize]
    warps = STAGED_ROWS // WARP
    stages_of_blocks, sizes, maps, widths = [0], [], [], []
    positions: list[Array] = []
    values: list[Array] = []
    for first in range(0, A.shape[0], STAGED_ROWS):
        last = min(first + STAGED_ROWS, A.shape[0])
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
        counts = np.bincount(cell, minlength=STAGED_ROWS * max(stages, 1))
        rank = np.arange(cell.size) - (np.cumsum(counts) - counts)[cell]
        by_warp = counts.reshape(warps, WARP, -1).max(axis=1).T[:stages]  # (stages, warps)
        begins = (np.cumsum(by_warp) - by_warp.ravel()).reshape(by_warp.shape)
        widths.append(by_warp.ravel())
        total = int(by_warp.sum()) * WARP
        where = (begins[stage, row // WARP] + rank) * WARP + row % WARP
        block_positions = np.full(total, capacity, np.uint16)
        block_positions[where] = place % capacity
        block_values = np.zeros(total, A.dtype)
        block_values[where] = A.data[entries]
        positions.append(block_positions)
        values.append(block_values)
    nothing = np.empty(0, np.int32)
    return Stages(
        np.cumsum(stages_of_blocks).astype(np.int32),
        np.cumsum([0, *sizes]).astype(np.int32),
        np.concatenate([nothing, *maps]).astype(np.int32),
        np.concatenate(([0], np.cumsum(np.concatenate([nothing, *widths])))).astype(np.int32),
        np.concatenate([np.empty(0, np.uint16), *positions]),
        np.concatenate([np.empty(0, A.dtype), *values]),
    )
