"""Launches of tiles on workers.

Buffers, sources, the shared counter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn_cpu.jit.compilation import read_only
from portable_spdnn_cpu.jit.cpu_info import aligned_empty
from portable_spdnn_cpu.jit.thread_pool import Workers
from portable_spdnn_cpu.layout.packing import PackedLayers
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.tiles import copies as tile_copies
from portable_spdnn_cpu.tiles import kernel as kernels

Array = npt.NDArray[Any]


@dataclass
class Workspace:
    """Buffers of all workers, kept between runs; a worker's pages are first touched by it."""

    widest: int = 0
    width: int = 0
    counted: int = 0
    buffers: list[kernels.Buffers] = field(default_factory=list)
    arena: Array = field(default_factory=lambda: np.empty(0))

    def fit(
        self,
        threads: int,
        widest: int,
        width: int,
        dtype: np.dtype[Any],
        arena: int = 0,
        counted: int = 0,
    ) -> None:
        """Make room for tiles of so many neurons and inputs.

        Parameters
        ----------
        threads, widest, width : int
        dtype : numpy dtype
        arena : int
            Features of parked tiles.
        counted : int
            Neurons that a first layer may count as bytes.
        """
        self.widest, self.width, self.counted = widest, width, counted
        size = widest * width
        fits = len(self.buffers) >= threads and self.buffers[0].front.dtype == dtype
        if not fits or self.buffers[0].front.size < size or self.buffers[0].live.size < width:
            self.buffers = [
                kernels.Buffers(
                    np.empty(0, np.uint64),
                    aligned_empty((size,), dtype),
                    aligned_empty((size,), dtype),
                    aligned_empty((width,), dtype),
                )
                for _ in range(threads)
            ]
        if self.buffers[0].counted.size < counted * width // 8:
            self.buffers = [
                each._replace(counted=aligned_empty((counted * width // 8,), np.uint64))
                for each in self.buffers
            ]
        if self.arena.size < arena or self.arena.dtype != dtype:
            self.arena = aligned_empty((arena,), dtype)

    def tile(self, worker: int, width: int) -> kernels.Buffers:
        """Return a worker's buffers as tiles of `width`, at most that of `fit`."""
        counted, front, back, live = self.buffers[worker]
        # Bytes are counted 64 inputs at a time.
        neurons = self.counted if width % BLOCK_BYTES == 0 else 0
        shape = self.widest, width
        return kernels.Buffers(
            counted[: neurons * width // 8].reshape(neurons, width // 8),
            front[: self.widest * width].reshape(shape),
            back[: self.widest * width].reshape(shape),
            live[:width],
        )


def make_source(
    features: Features, dtype: np.dtype[Any], fortran: bool = False
) -> tile_copies.Source:
    """Describe features in host memory as the first source of tiles."""
    kind, bits = tile_copies.BITS, np.empty((0, 0), np.uint8)
    dense = np.empty((0, 0), dtype, order="F" if fortran else "C")
    indptr, indices, data = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, dtype)
    if isinstance(features, PackedFeatures):
        bits = features.bits
    elif isinstance(features, np.ndarray):
        kind = tile_copies.DENSE
        dense = np.asarray(features, dtype=dtype, order="F" if fortran else "C")
    else:
        kind = tile_copies.CSR
        indptr = features.indptr.astype(np.int64, copy=False)
        indices = features.indices.astype(np.int32, copy=False)
        data = features.data.astype(dtype, copy=False)
    none = np.empty(0, np.int64)
    arrays = (bits, dense, indptr, indices, data, none, none)
    return tile_copies.Source(kind, *map(read_only, arrays))


def launch(
    workers: Workers,
    workspace: Workspace,
    counters: Array,
    source: tile_copies.Source,
    tiles: kernels.Tiles,
    costs: kernels.Costs,
    layers: PackedLayers,
    out: Array,
    poll: Callable[[], None] | None = None,
) -> Array:
    """Run tiles on all workers; returns the alive inputs per layer, int64."""
    alive = np.zeros((workers.threads, layers.table.shape[0]), np.int64)
    counters[kernels.NEXT_TILE] = 0

    def work(worker: int) -> None:
        kernels.run_tiles(
            counters,
            source,
            tiles,
            costs,
            layers,
            workspace.tile(worker, tiles.width),
            alive[worker],
            workspace.arena,
            out,
        )

    def stop() -> None:
        counters[kernels.NEXT_TILE] = np.iinfo(np.int64).max // 2

    workers.run(work, poll, stop)
    return np.asarray(alive.sum(axis=0))


def cut_tiles(
    inputs: Array, layer: int, until: int, width: int, parks: bool, packs: bool, prunable: Array
) -> kernels.Tiles:
    """Cut inputs into tiles of `width` that run layers `layer` .. until - 1; see `Tiles`."""
    count = -(-inputs.size // width)
    return kernels.Tiles(
        inputs,
        layer,
        until,
        width,
        parks,
        packs,
        prunable,
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros((count, width), np.int64),
    )
