"""Sparse matrices packed for the variants of SpMM, each as one piece of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.errors import InputError
from portable_spdnn.host import usable_cores
from portable_spdnn_gpu.compile.catalog import (
    BOUNDED,
    CLUSTER_PANEL,
    CSR_PANEL,
    Kernel,
    StagedConfig,
    clustered_spmm,
    csr_spmm,
    staged_configs,
    staged_spmm,
)
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.interface import Array
from portable_spdnn_gpu.spmm.output_rows import OutputRows
from portable_spdnn_gpu.spmm.staging import stage_rows

VARIANTS = ("csr", "clustered", "staged")
ENTRIES_OF_A_THREAD = 1 << 16  # of a layer: with fewer for each, threads wait for one another
# Where an array is in the memory of a packed matrix: offset, shape, type.
Placed = tuple[int, tuple[int, ...], np.dtype[Any]]
ALIGNMENT = 256  # bytes: every array begins at a multiple of it in the memory of a packed matrix


@dataclass(frozen=True)
class PackedLaunch:
    """One of the launches that compute a product.

    Attributes
    ----------
    kernel : callable
        The function (precision, epilogue) -> Kernel; see `catalog.ANY_EPILOGUE`.
    arrays : tuple of (offset, shape, dtype)
        The arrays in the memory of the packed matrix, in the order of the kernel's parameters.
    rows : int
        How many rows of C it computes.
    units : int
        What its blocks divide the rows into: rows, clusters, or blocks of rows.
    panel : int
        How many columns a block computes at a time.
    by_turns : bool
        Whether more blocks may be launched than are resident at a time.
    """

    kernel: Callable[[Precision, int], Kernel]
    arrays: tuple[Placed, ...]
    rows: int
    units: int
    panel: int
    by_turns: bool = False


@dataclass(eq=False)
class PackedSpmm:
    """A sparse matrix in the form of a variant, as one piece of host memory.

    Attributes
    ----------
    variant : str
        The name of the variant, one of VARIANTS.
    shape : (int, int)
    nnz : int
    loads : int
        How many elements of B are read for each column of C.
    memory : ndarray of uint8
        The packed matrix; empty once the host's copy has been released.
    launches : tuple of PackedLaunch
        The launches that compute a product, in order.
    constant : bool
        Whether all values are equal, so that clusters have but one.
    """

    variant: str
    shape: tuple[int, int]
    nnz: int
    loads: int
    memory: Array
    launches: tuple[PackedLaunch, ...]
    constant: bool

    def describe(self) -> str:
        """Return which kernels run on how many rows."""
        return ", ".join(
            f"{(name := launch.kernel(Precision(), BOUNDED).name)} on {launch.rows} rows"
            + (f" in {launch.units} clusters" if name == "clustered_spmm" else "")
            for launch in self.launches
        )


class _Memory:
    """Arrays put end to end, each aligned."""

    def __init__(self) -> None:
        self.parts: list[Array] = []
        self.size = 0

    def add(self, *arrays: Array) -> tuple[Placed, ...]:
        placed = []
        for array in arrays:
            placed.append((self.size, array.shape, array.dtype))
            padding = -array.nbytes % ALIGNMENT
            self.parts += [np.ascontiguousarray(array).view(np.uint8), np.zeros(padding, np.uint8)]
            self.size += array.nbytes + padding
        return tuple(placed)

    def joined(self) -> Array:
        if not self.parts:  # a matrix without entries: no memory is no address
            return np.zeros(ALIGNMENT, np.uint8)
        return np.concatenate(self.parts)


def pack(
    A: sp.csr_array | OutputRows,
    variant: str,
    precision: Precision,
    config: StagedConfig | None = None,
) -> PackedSpmm:
    """Pack a canonical csr_array, or a layer's weights by output.

    Parameters
    ----------
    A : csr_array or OutputRows, shape (m, k)
        The matrix, with values of the type of the precision's sums.
    variant : str
        "csr" computes row by row; "clustered" takes rows that share columns together, and the
        others row by row; "staged" reads B through a preload map and shared memory.
    precision : Precision
    config : StagedConfig, optional
        The tile sizes of the staged variant. By default the precision's usual ones.

    Raises
    ------
    InputError
        If the variant is none of these, or a value is beyond what half precision holds.
    """
    if variant not in VARIANTS:
        raise InputError(f"variant is {variant!r}; choose one of {', '.join(VARIANTS)}")
    given, memory = OutputRows.of(A), _Memory()
    launches = []
    height, loads = given.shape[0], 0
    rows = np.arange(height, dtype=np.int32)
    if variant == "staged" and rows.size:
        config = staged_configs(precision)[0] if config is None else config
        stages = stage_rows(given.csr, config)
        blocks = stages.block_stages.size - 1
        arrays = memory.add(
            stages.block_stages, stages.stage_bounds, stages.columns, stages.slices,
            stages.local_indices, precision.stored(stages.values), np.array([height], np.int32),
        )  # fmt: skip
        kernel = partial(staged_spmm, config=config)
        launches.append(PackedLaunch(kernel, arrays, height, blocks, config.minibatch))
        rows, loads = rows[:0], stages.columns.size
    if variant == "clustered":
        found = given.clusters
        if found.count:
            values = precision.stored(given.weight if given.constant else found.values)
            arrays = memory.add(found.bounds, found.indices, found.starts, values, found.rows)
            kernel = partial(clustered_spmm, constant=given.constant)
            launches.append(
                PackedLaunch(kernel, arrays, found.rows.size, found.count, CLUSTER_PANEL, True)
            )
        rows, loads = found.rest, found.indices.size
    if rows.size:
        alone = given.outside_clusters() if variant == "clustered" else given.csr
        indptr, indices = alone.indptr.astype(np.int32), alone.indices.astype(np.int32)
        arrays = memory.add(indptr, indices, precision.stored(alone.data), rows)
        launches.append(PackedLaunch(csr_spmm, arrays, rows.size, rows.size, CSR_PANEL))
        loads += indices.size
    return PackedSpmm(
        variant, given.shape, given.nnz, loads, memory.joined(), tuple(launches), given.constant
    )


def packing_threads(entries: int) -> int:
    """Return how many threads pack layers side by side that have so many entries each.

    Each of many short operations of NumPy takes the interpreter's lock again, for which threads
    wait longer the more there are. On two cores a second thread gained nothing with layers of
    32,768 entries, and a factor of 1.4 with layers of 131,072.
    """
    return max(1, min(usable_cores(), entries // ENTRIES_OF_A_THREAD))
