"""Costs of a plan's tiles by width, measured when it is made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel, read_only
from portable_spdnn_cpu.layout.packing import EDGES, PackedLayers
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import aligned_empty
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.machine.timing import seconds_each
from portable_spdnn_cpu.tiles.layer import apply_layer
from portable_spdnn_cpu.tiles.spilling import load_spilled, spill_tile, spilled_size

CANDIDATES = (2, 4, 8)  # vector blocks of a full tile
SAMPLED_LAYERS = 3
MAX_SAMPLED_EDGES = 1 << 22  # beyond, one layer tells enough
REPEATS = 3
SECONDS = 5e-4  # of one timing at least, where a layer takes less
# A wider tile wastes less of its last vector block, and is regrouped less often where inputs leave.
WIDER_IS_WORTH = 1.1
# Of a few inputs: narrow tiles share them out better, but each is loaded and stored.
FEWER_ARE_WORTH = 1.2


@dataclass(frozen=True)
class TileCosts:
    """Measured costs of a plan's tiles, on all threads together.

    Attributes
    ----------
    width : int
        Inputs of a full tile.
    rates : dict of int to float
        Edges per second, all threads together, by the width of a full tile.
    per_edge : ndarray of float64, shape (blocks + 1,)
        Seconds that a worker takes for an edge of a layer, by vector blocks of the tile in use.
    per_feature : float
        Seconds that a worker takes to spill a feature and to load it again.
    some_leave : bool
        Whether inputs may leave, so that the widest tile that is nearly the fastest was taken.
    """

    width: int
    rates: dict[int, float]
    per_edge: Array
    per_feature: float
    some_leave: bool

    def why(self, width: int) -> str:
        """Return why a plan's tiles have so many inputs, in a clause."""
        near = 100 * (WIDER_IS_WORTH - 1)
        widest = f"the widest within {near:.0f} % of the fastest" if self.some_leave else "fastest"
        full = f"full ones have {self.width} ({widest})"
        if width == self.width:
            return full
        return f"{full}, those of a batch {width}, which its threads share out better"

    def cheapest(self, inputs: int, threads: int) -> tuple[int, float]:
        """Choose the tiles that run so many inputs at the least cost, or wider ones near it.

        Returns
        -------
        width : int
            Inputs of a tile.
        seconds : float
            That the worker with most tiles takes for an edge of a layer.
        """
        full = self.per_edge.size - 1
        lanes = self.width // full
        choices = [full]
        while choices[-1] > 1:
            choices.append((choices[-1] + 1) // 2)
        seconds = [self._last_worker(inputs, threads, blocks, lanes) for blocks in choices]
        limit = FEWER_ARE_WORTH * min(seconds)
        number = next(number for number, each in enumerate(seconds) if each <= limit)
        needed = max(1, -(-inputs // lanes))
        return min(choices[number], needed) * lanes, seconds[number]

    def _last_worker(self, inputs: int, threads: int, blocks: int, lanes: int) -> float:
        """Return the seconds for an edge until the last worker has run its last tile."""
        tiles = -(-inputs // (blocks * lanes))
        if tiles == 0:
            return 0.0
        rounds = (tiles - 1) // threads
        # A last tile that is not full takes less; other workers may have full ones meanwhile.
        alone = tiles - rounds * threads == 1
        last = -(-(inputs - (tiles - 1) * blocks * lanes) // lanes)
        return float(rounds * self.per_edge[blocks] + self.per_edge[last if alone else blocks])


def measure_tile_costs(
    workers: ThreadPool, layers: PackedLayers, widest: int, some_leave: bool
) -> TileCosts:
    """Time layers of a plan on tiles of several widths and choose one.

    Parameters
    ----------
    workers : ThreadPool
    layers : PackedLayers
    widest : int
        Neurons of the widest layer.
    some_leave : bool
        Whether inputs may leave: then the widest tile is taken that is nearly the fastest.
    """
    lanes = BLOCK_BYTES // layers.bias.itemsize
    chosen = np.unique(np.linspace(0, len(layers.table) - 1, SAMPLED_LAYERS + 2).astype(int)[1:-1])
    if layers.table[chosen, EDGES].sum() > MAX_SAMPLED_EDGES:
        chosen = chosen[:1]
    timed = {blocks: _Timed(workers, layers, chosen, widest, blocks * lanes)
             for blocks in CANDIDATES}  # fmt: skip
    costs = {blocks: one.per_edge(blocks) for blocks, one in timed.items()}
    cheapest = min(costs, key=lambda blocks: costs[blocks] / blocks)
    full = cheapest
    if some_leave:
        limit = WIDER_IS_WORTH * costs[cheapest] / cheapest
        full = max(blocks for blocks in costs if costs[blocks] / blocks <= limit)
    per_edge = np.zeros(full + 1)
    for blocks in range(1, full):
        per_edge[blocks] = timed[full].per_edge(blocks)
    per_edge[full] = costs[full]
    # Measured one by one they may not rise, as they should.
    per_edge = np.maximum.accumulate(per_edge)
    rates = {
        blocks * lanes: workers.threads * blocks * lanes / cost if cost else 0.0
        for blocks, cost in costs.items()
    }
    return TileCosts(full * lanes, rates, per_edge, timed[full].per_feature(), some_leave)


class _Timed:
    """Tiles of one width, a pair of buffers for each worker."""

    def __init__(
        self, workers: ThreadPool, layers: PackedLayers, chosen: Array, widest: int, width: int
    ) -> None:
        dtype = layers.bias.dtype
        self.workers, self.layers, self.chosen, self.width = workers, layers, chosen, width
        self.lanes = BLOCK_BYTES // dtype.itemsize
        self.buffers: list[tuple[Array, Array, Array]] = []
        for _ in range(workers.threads):
            front, back = (aligned_empty((max(widest, 1), width), dtype) for _ in range(2))
            front[:] = 1
            back[:] = 0  # its pages are no part of the work
            self.buffers.append((front, back, np.empty(width, dtype)))

    def per_edge(self, blocks: int) -> float:
        """Return the seconds for an edge of the chosen layers on so many vector blocks."""
        edges = int(self.layers.table[self.chosen, EDGES].sum())
        if not edges:
            return 0.0

        def work(worker: int, times: int) -> None:
            repeat_layers(
                self.layers, self.chosen, *self.buffers[worker], blocks * self.lanes, times
            )

        return seconds_each(self.workers, work, SECONDS, REPEATS) / edges

    def per_feature(self) -> float:
        """Return the seconds to spill a feature of half a tile and to load it again."""
        neurons = int(self.buffers[0][0].shape[0])
        count = max(self.width // 2, 1)
        size = spilled_size(neurons, count, self.lanes)
        position = read_only(np.arange(count))
        spill_buffers = [aligned_empty((size,), self.buffers[0][0].dtype) for _ in self.buffers]

        def work(worker: int, times: int) -> None:
            tile = self.buffers[worker][0]
            repeat_spills(tile, neurons, count, spill_buffers[worker], position, times)

        return seconds_each(self.workers, work, SECONDS, REPEATS) / (neurons * count)


@kernel
def repeat_layers(
    layers: PackedLayers,
    chosen: Array,
    front: Array,
    back: Array,
    active: Array,
    width: int,
    times: int,
) -> None:
    """Run the chosen layers on the first `width` columns of a tile, again and again."""
    for _ in range(times):
        for layer in chosen:
            apply_layer(layers, layer, front, back, active, 0, width, 0)


@kernel
def repeat_spills(
    tile: Array, neurons: int, count: int, buffer: Array, position: Array, times: int
) -> None:
    """Spill `count` columns of a tile and load them again, again and again."""
    strides = np.full(count, count)
    for _ in range(times):
        spill_tile(tile, neurons, count, buffer, 0)
        load_spilled(position, strides, buffer, 0, count, neurons, tile)
