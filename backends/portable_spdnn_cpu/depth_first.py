"""Depth-first execution: tiles of inputs run several layers in cache, survivors regroup."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn.network import Network
from portable_spdnn.plan import NetworkPlan, PlanOptions
from portable_spdnn.result import BatchOutput
from portable_spdnn.roofline import KernelModel
from portable_spdnn_cpu import depth_first_tiles as kernels
from portable_spdnn_cpu.compiled import read_only
from portable_spdnn_cpu.host_device import aligned_empty, cache_bytes, l2_bytes
from portable_spdnn_cpu.output_strips import CLUSTER, MOST_COUNTED
from portable_spdnn_cpu.packed_network import (
    CLUSTERS,
    EDGES,
    FIRST_VALUE,
    NEURONS_OUT,
    PackedLayers,
    pack_layers,
)
from portable_spdnn_cpu.tile_moves import GRANULE_BYTES
from portable_spdnn_cpu.workers import Workers

Array = npt.NDArray[Any]

# Measured with a cache of 512 KiB: two buffers in half of it leave room for the indices that
# stream through; beyond 128 inputs a tile gains nothing.
L2_SHARE = 0.5
MOST_INPUTS = 128
# Least width, also where the buffers then leave the second-level cache. The kernel takes 32
# inputs at a time. Where inputs may die a tile must be able to shrink and regroup, which saves
# more than the cache gives: 4,096 to 65,536 neurons ran 1.6 to 3 times as fast with 64 as with 16.
LEAST_INPUTS = 32
LEAST_INPUTS_WHERE_SOME_DIE = 64


def tile_width(widest: int, dtype: np.dtype[Any], inputs: int, threads: int, least: int) -> int:
    """Choose how many inputs a tile holds: a whole number of granules.

    Parameters
    ----------
    widest : int
        Neurons of the widest layer.
    dtype : numpy dtype
    inputs, threads : int
        A tile is no wider than lets every thread have one.
    least : int
        Inputs that a tile should have, whatever the cache holds.

    Returns
    -------
    int
    """
    granule = GRANULE_BYTES // dtype.itemsize
    fits = int(L2_SHARE * l2_bytes()) // (2 * max(widest, 1) * dtype.itemsize)
    each = -(-inputs // threads)
    wanted = min(max(fits, least), MOST_INPUTS, -(-each // granule) * granule)
    # An even number of granules: the kernel takes two at a time.
    return max(granule, wanted // (2 * granule) * 2 * granule)


def kernel_model(widest: int, dtype: np.dtype[Any], width: int) -> KernelModel:
    """Return what the tile kernel needs for each edge and input: one feature, one addition.

    The feature comes from the level that holds the two buffers of a tile. Indices, and weights
    where they differ, are read once for all inputs of a strip and do not count.

    Parameters
    ----------
    widest : int
        Neurons of the widest layer.
    dtype : numpy dtype
    width : int
        Inputs of a tile.
    """
    buffers = 2 * widest * width * dtype.itemsize
    level = "memory"
    for number, name in ((3, "l3"), (2, "l2"), (1, "l1")):
        if buffers <= cache_bytes(number):
            level = name
    return KernelModel(dtype.itemsize, 2.0 * dtype.itemsize / 4, level)


@dataclass
class Workspace:
    """Buffers of all workers, kept between runs; a worker's pages are first touched by it."""

    form: tuple[Any, ...] = ()
    buffers: list[kernels.Buffers] = field(default_factory=list)
    arena: Array = field(default_factory=lambda: np.empty(0))

    def fit(
        self,
        threads: int,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        arena: int = 0,
        counted: int = 0,
    ) -> None:
        """Make room for tiles of `shape`, an arena of features, and `counted` binary neurons."""
        if self.form != (shape, dtype, counted) or len(self.buffers) < threads:
            self.form = (shape, dtype, counted)
            self.buffers = [
                kernels.Buffers(
                    aligned_empty((counted, shape[1] // 8), np.uint64),
                    aligned_empty(shape, dtype),
                    aligned_empty(shape, dtype),
                    aligned_empty(shape[1:], dtype),
                )
                for _ in range(threads)
            ]
        if self.arena.size < arena or self.arena.dtype != dtype:
            self.arena = aligned_empty((arena,), dtype)


@dataclass(frozen=True)
class Rest:
    """What is left of some tiles.

    Attributes
    ----------
    inputs : ndarray of int64
        Inputs of the batch.
    place : ndarray of int64
        Where each one's first feature is in the arena; of those that finished, the output row.
    stride : ndarray of int64
        How far apart its features are in the arena.
    """

    inputs: Array
    place: Array
    stride: Array


def make_source(features: Features, dtype: np.dtype[Any], fortran: bool = False) -> kernels.Source:
    """Describe features in host memory as the first source of tiles."""
    kind, bits = kernels.BITS, np.empty((0, 0), np.uint8)
    dense = np.empty((0, 0), dtype, order="F" if fortran else "C")
    indptr, indices, data = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, dtype)
    if isinstance(features, PackedFeatures):
        bits = features.bits
    elif isinstance(features, np.ndarray):
        kind = kernels.DENSE
        dense = np.asarray(features, dtype=dtype, order="F" if fortran else "C")
    else:
        kind = kernels.CSR
        indptr = features.indptr.astype(np.int64, copy=False)
        indices = features.indices.astype(np.int32, copy=False)
        data = features.data.astype(dtype, copy=False)
    none = np.empty(0, np.int64)
    arrays = (bits, dense, indptr, indices, data, none, none)
    return kernels.Source(kind, *map(read_only, arrays))


def launch(
    workers: Workers,
    workspace: Workspace,
    counters: Array,
    source: kernels.Source,
    tiles: kernels.Tiles,
    layers: PackedLayers,
    y_max: float | None,
    activation: bool,
    out: Array,
    poll: Callable[[], None] | None = None,
) -> Array:
    """Run tiles on all workers; returns the alive inputs per layer, int64."""
    element = layers.bias.dtype.type
    lowest = element(0 if activation else -np.inf)
    highest = element(np.inf if y_max is None else y_max)
    alive = np.zeros((workers.threads, layers.table.shape[0]), np.int64)
    counters[kernels.NEXT_TILE] = 0

    def work(worker: int) -> None:
        kernels.run_tiles(
            counters,
            source,
            tiles,
            layers,
            lowest,
            highest,
            workspace.buffers[worker],
            alive[worker],
            workspace.arena,
            out,
        )

    def stop() -> None:
        counters[kernels.NEXT_TILE] = np.iinfo(np.int64).max // 2

    workers.run(work, poll, stop)
    return np.asarray(alive.sum(axis=0))


def cut_tiles(
    inputs: Array, layer: int, width: int, parks: bool, packs: bool, prunable: Array
) -> kernels.Tiles:
    """Cut inputs into tiles of `width` that start at `layer`."""
    count = -(-inputs.size // width)
    return kernels.Tiles(
        inputs,
        layer,
        width,
        parks and count > 1,
        packs,
        prunable,
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros((count, width), np.int64),
    )


class DepthFirstPlan(NetworkPlan):
    """Dense features, tile by tile; see `depth_first_tiles` for the kernels.

    All inputs start as tiles at the first layer. Rests that stopped after the same layer are
    regrouped into full tiles, the earliest layer first, until none is left.
    """

    def __init__(
        self, backend: Any, workers: Workers, network: Network, options: PlanOptions
    ) -> None:
        super().__init__(backend, network, options)
        self.dtype = np.dtype(options.dtype)
        self.workers = workers
        self.layers = pack_layers(network.layers, self.dtype, workers)
        self.prunable = np.array([self.may_drop_after(n) for n in range(len(network))])
        # Sums of bits that fit into bytes.
        self.counts = (
            self.layers.table[0, FIRST_VALUE] < 0
            and np.bincount(network.layers[0].indices).max(initial=0) <= MOST_COUNTED
        )
        self.workspace = Workspace()
        self._one_at_a_time = threading.Lock()
        # Compiles, or loads from the cache: a run without tiles.
        self.run_batch(PackedFeatures.empty(network.neurons), lambda done: None)

    def width(self, inputs: int) -> int:
        """Return the tile width for a batch of `inputs`."""
        least = LEAST_INPUTS_WHERE_SOME_DIE if self.prunable.any() else LEAST_INPUTS
        return tile_width(self.network.widest, self.dtype, inputs, self.workers.threads, least)

    def describe(self) -> str:
        """Return what the plan chose and why, a line each."""
        table = self.layers.table
        constant = int((table[:, FIRST_VALUE] < 0).sum())
        clustered = CLUSTER * table[:, CLUSTERS].sum() / max(table[:, NEURONS_OUT].sum(), 1)
        saved = 1 - self.layers.indices.size / max(table[:, EDGES].sum(), 1)
        width = self.width(self.batch_size)
        kib = 2 * self.network.widest * width * self.dtype.itemsize / 1024
        pruned = int(self.prunable.sum())
        return (
            f"depth-first tiles of {width} inputs on {self.workers.threads} thread(s), "
            f"{self.dtype}: two buffers take {kib:.0f} KiB, second-level cache "
            f"{l2_bytes() // 1024} KiB\n"
            f"weights: {constant} of {len(table)} layers factored out as constants, "
            f"{len(table) - constant} with values; "
            f"{8 * self.layers.indices.itemsize}-bit indices\n"
            f"{100 * clustered:.0f} % of the outputs in clusters that share inputs, which saves "
            f"{100 * saved:.0f} % of the loads\n"
            f"dead inputs leave after {pruned} of {len(table)} layers; "
            "half-empty tiles are regrouped\n"
            f"batches of {self.batch_size} inputs"
        )

    def run_batch(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        """Run the whole network on one batch; see `NetworkPlan.run_batch`."""
        with self._one_at_a_time:
            return self._run(features, report)

    def _run(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        network, inputs = self.network, features.shape[0]
        width = self.width(inputs)
        packs = bool(self.prunable.any())
        # Each parking halves a tile, so all rests together are fewer than the inputs.
        room = kernels.parked_size(network.widest, 1, GRANULE_BYTES // self.dtype.itemsize)
        parks = bool(self.prunable[:-1].any()) and inputs > width
        self.workspace.fit(
            self.workers.threads,
            (network.widest, width),
            self.dtype,
            inputs * room if parks else 0,
            network.neurons if self.counts and width % GRANULE_BYTES == 0 else 0,
        )
        # Only inputs that finish are written, and read: small pages where most may die.
        shape = (inputs, network.neurons_out)
        out = np.empty(shape, self.dtype) if packs else aligned_empty(shape, self.dtype)
        counters = np.zeros(kernels.COUNTERS, np.int64)
        alive_per_layer = np.zeros(len(network), np.int64)
        pools: dict[int, list[Rest]] = {}
        finished: list[Rest] = []
        source = make_source(features, self.dtype)
        tiles = cut_tiles(np.arange(inputs, dtype=np.int64), 0, width, parks, packs, self.prunable)
        while True:
            alive_per_layer += launch(
                self.workers,
                self.workspace,
                counters,
                source,
                tiles,
                self.layers,
                network.y_max,
                True,
                out,
                lambda: report(int(counters[kernels.WORK_DONE])),
            )
            finished += _collect(tiles, pools)
            if not pools:
                break
            layer = min(pools)
            rest = _join(pools.pop(layer))
            source = source._replace(
                kind=kernels.ARENA, offset=read_only(rest.place), stride=read_only(rest.stride)
            )
            tiles = cut_tiles(rest.inputs, layer, width, parks, packs, self.prunable)
        rest = _join(finished)
        order = np.argsort(rest.inputs, kind="stable")
        # Where nothing may leave, every input has finished, in its own row.
        rows = out[rest.place[order]] if packs else out
        executed = int(counters[kernels.EXECUTED_EDGES])
        return BatchOutput(rest.inputs[order], rows, alive_per_layer, executed)


def _collect(tiles: kernels.Tiles, pools: dict[int, list[Rest]]) -> list[Rest]:
    """File the rests of parked tiles under their next layer; return those that finished."""
    finished = []
    for layer in np.unique(tiles.next_layer):
        chosen = np.flatnonzero(tiles.next_layer == layer)
        counts = tiles.rest_count[chosen]
        column = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rest = Rest(
            tiles.rest[np.repeat(chosen, counts), column],
            np.repeat(tiles.place[chosen], counts) + column,
            np.repeat(counts, counts),
        )
        if layer:
            pools.setdefault(int(layer), []).append(rest)
        else:
            finished.append(rest)
    return finished


def _join(rests: list[Rest]) -> Rest:
    """Put rests end to end: those that were parked side by side stay so."""
    if not rests:
        rests = [Rest(*(np.empty(0, np.int64),) * 3)]
    return Rest(
        np.concatenate([rest.inputs for rest in rests]),
        np.concatenate([rest.place for rest in rests]),
        np.concatenate([rest.stride for rest in rests]),
    )
