"""Models of the kernels.

What each needs for an edge: its speed is held against that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.kernel_model import KernelModel
from portable_spdnn_cpu.activations import Activation
from portable_spdnn_cpu.layout.packing import (
    pack_product,
)
from portable_spdnn_cpu.machine.cpu_info import cache_bytes

WRITTEN = 2  # a line that is written is read first, then written back
SPARSE_INDEX = 4
SLOTS_PER_ENTRY = 3  # between two and four


def level_of(size: int) -> str:
    """Return the level of memory that holds so many bytes."""
    level = "memory"
    for number, name in ((3, "l3"), (2, "l2"), (1, "l1")):
        if size <= cache_bytes(number):
            level = name
    return level


def loads_per_edge(by_output: Any) -> float:
    """Return the loads of a prepared matrix (neurons_out, neurons_in) for each of its edges."""
    rows = sp.csr_array(by_output)
    bias = np.zeros(rows.shape[0], rows.dtype)
    packed, _ = pack_product(rows, bias, Activation())
    return packed.indices.size / max(int(rows.nnz), 1)


def tile_model(
    widest: int, dtype: np.dtype[Any], width: int, loads_per_edge: float = 1.0
) -> KernelModel:
    """Return what the tile kernel needs for an edge and an input: a feature, an addition.

    The feature comes from the level that holds the two buffers of a tile. Indices, and weights
    where they differ, are read once for all inputs of a register tile and do not count.

    Parameters
    ----------
    widest : int
        Neurons of the widest layer.
    dtype : numpy dtype
    width : int
        Inputs of a tile.
    loads_per_edge : float
        Less than one where clusters share them.
    """
    level = level_of(2 * widest * width * dtype.itemsize)
    return KernelModel({level: loads_per_edge * dtype.itemsize}, _addition(dtype))


def product_model(
    shape: tuple[int, int],
    nnz: int,
    columns: int,
    dtype: np.dtype[Any],
    width: int,
    loads_per_edge: float = 1.0,
) -> KernelModel:
    """Return what one product, or fused layer, needs: `tile_model`, and its operands once.

    Parameters
    ----------
    shape : tuple of int
        Neurons out and in.
    nnz : int
    columns : int
        Inputs.
    dtype, width, loads_per_edge
        As in `tile_model`.
    """
    tile = tile_model(max(shape), dtype, width, loads_per_edge)
    sizes = dict(tile.bytes_per_edge)
    operands = sum(shape) * columns * dtype.itemsize
    moved = (shape[1] + WRITTEN * shape[0]) * columns * dtype.itemsize
    level = level_of(operands)
    sizes[level] = sizes.get(level, 0.0) + moved / max(nnz * columns, 1)
    return KernelModel(sizes, tile.flops_per_edge)


def sparse_product_model(A: Any, B: Any, C_nnz: int) -> KernelModel:
    """Return what sparse x sparse needs for a multiply-add, numeric phase.

    An index and a value of B from the level that holds B; a sum read and written in the level
    that holds a dense vector, or a hash table for a row of C if that is smaller, and then a key
    read; A once and C, written, from memory.

    Parameters
    ----------
    A, B : csr_array
    C_nnz : int
        Entries of the result.
    """
    value = A.dtype.itemsize
    products = max(int(np.diff(B.indptr)[A.indices].sum()), 1)
    entry = SPARSE_INDEX + value
    dense = value * B.shape[1]
    table = SLOTS_PER_ENTRY * entry * C_nnz // max(A.shape[0], 1)
    sizes: dict[str, float] = {}
    for level, moved in (
        ("memory", entry * (A.nnz + WRITTEN * C_nnz) / products),
        (level_of(min(dense, table)), 2.0 * value + (SPARSE_INDEX if table < dense else 0)),
        (level_of(entry * B.nnz), entry),
    ):
        sizes[level] = sizes.get(level, 0.0) + moved
    return KernelModel(sizes, _addition(A.dtype))


def _addition(dtype: np.dtype[Any]) -> float:
    """Return an edge's operations, in those of float32."""
    return 2.0 * dtype.itemsize / 4
