"""Launches of tiles on workers: their buffers, and the shared counter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.layout.packing import PackedLayers
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import aligned_empty
from portable_spdnn_cpu.machine.thread_pool import ALONE, ThreadPool, worth_waking
from portable_spdnn_cpu.tiles import kernel as kernels
from portable_spdnn_cpu.tiles.sources import TileSource
from portable_spdnn_cpu.tiles.spilling import SpillCosts


@dataclass
class TileWorkspace:
    """Buffers of all workers, kept between runs; a worker's pages are first touched by it."""

    widest: int = 0
    width: int = 0
    counted: int = 0
    buffers: list[kernels.Buffers] = field(default_factory=list)
    spill_buffer: Array = field(default_factory=lambda: np.empty(0))

    def fit(
        self,
        threads: int,
        widest: int,
        width: int,
        dtype: np.dtype[Any],
        spilled: int = 0,
        counted: int = 0,
    ) -> None:
        """Make room for tiles of so many neurons and inputs.

        Parameters
        ----------
        threads, widest, width : int
        dtype : numpy dtype
        spilled : int
            Features of spilled tiles.
        counted : int
            Neurons that a first layer may count as bytes.
        """
        self.widest, self.width, self.counted = widest, width, counted
        size = widest * width
        fits = len(self.buffers) >= threads and self.buffers[0].front.dtype == dtype
        if not fits or self.buffers[0].front.size < size or self.buffers[0].active.size < width:
            self.buffers = [
                kernels.Buffers(
                    np.empty(0, np.uint64),
                    *(aligned_empty((items,), dtype) for items in (size, size, width)),
                )
                for _ in range(threads)
            ]
        if self.buffers[0].counted.size < counted * width // 8:
            self.buffers = [
                each._replace(counted=aligned_empty((counted * width // 8,), np.uint64))
                for each in self.buffers
            ]
        if self.spill_buffer.size < spilled or self.spill_buffer.dtype != dtype:
            self.spill_buffer = aligned_empty((spilled,), dtype)

    def tile(self, worker: int, width: int) -> kernels.Buffers:
        """Return a worker's buffers as tiles of `width`, at most that of `fit`."""
        counted, front, back, active = self.buffers[worker]
        # Bytes are counted 64 inputs at a time.
        neurons = self.counted if width % BLOCK_BYTES == 0 else 0
        shape = self.widest, width
        return kernels.Buffers(
            counted[: neurons * width // 8].reshape(neurons, width // 8),
            front[: self.widest * width].reshape(shape),
            back[: self.widest * width].reshape(shape),
            active[:width],
        )


def launch(
    workers: ThreadPool,
    workspace: TileWorkspace,
    counters: Array,
    source: TileSource,
    tiles: kernels.Tiles,
    costs: SpillCosts,
    layers: PackedLayers,
    out: Array,
    poll: Callable[[], None] | None = None,
) -> Array:
    """Run tiles on all workers; returns the active inputs per layer, int64."""
    active = np.zeros((workers.threads, layers.table.shape[0]), np.int64)
    counters[kernels.NEXT_TILE] = 0

    def work(worker: int) -> None:
        buffers, spill_buffer = workspace.tile(worker, tiles.width), workspace.spill_buffer
        kernels.run_tiles(
            counters, source, tiles, costs, layers, buffers, active[worker], spill_buffer, out
        )

    def stop() -> None:
        counters[kernels.NEXT_TILE] = np.iinfo(np.int64).max // 2

    # What is done before another thread would wake is done here.
    multiply_adds = int(costs.edges_from[tiles.layer]) * tiles.inputs.size
    pool = worth_waking(workers, multiply_adds)
    pool.run(work, None if pool is ALONE else poll, stop)
    return np.asarray(active.sum(axis=0))


def cut_tiles(
    inputs: Array,
    layer: int,
    stop_layer: int,
    width: int,
    may_spill: bool,
    packs: bool,
    may_drop: Array,
) -> kernels.Tiles:
    """Cut inputs into tiles of `width` that run layers `layer` .. stop_layer - 1; see `Tiles`."""
    count = -(-inputs.size // width)
    next_layer, position, survivor_count = np.zeros((3, count), np.int64)
    survivors = np.zeros((count, width), np.int64)
    asked = inputs, layer, stop_layer, width, may_spill, packs, may_drop
    return kernels.Tiles(*asked, next_layer, position, survivor_count, survivors)
