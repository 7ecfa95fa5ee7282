"""Depth-first execution: tiles of inputs run several layers in cache, survivors regroup."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from portable_spdnn.backend import Backend
from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn.network import Network
from portable_spdnn.plans.base import Build, NetworkPlan
from portable_spdnn.plans.batch import BatchOutput
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn_cpu.activations import activation_of
from portable_spdnn_cpu.jit.compilation import read_only
from portable_spdnn_cpu.layout.packing import CLUSTERS, EDGES, FIRST_VALUE, NEURONS_OUT, pack_layers
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES, CLUSTER, MAX_COUNTED
from portable_spdnn_cpu.machine.cpu_info import aligned_empty, cache_bytes
from portable_spdnn_cpu.machine.thread_pool import ForkSafeLock, ThreadPool
from portable_spdnn_cpu.network.sparse_prefix import SparsePrefix, SparsePrefixResult
from portable_spdnn_cpu.network.survivors import SurvivorPools, Survivors, join
from portable_spdnn_cpu.tiles import kernel as kernels
from portable_spdnn_cpu.tiles.launch import TileWorkspace, cut_tiles, launch
from portable_spdnn_cpu.tiles.sources import SPILLED, make_source
from portable_spdnn_cpu.tiles.spilling import SpillCosts, spilled_size
from portable_spdnn_cpu.tiles.tuning import measure_tile_costs

FEW_TILES = 4  # for each thread: more inputs go on by themselves
# Of the features of all inputs: for those that are spilled, those that are spilled again while
# the former are read, and gaps. What is never written takes no memory.
SPILL_SHARE = 3


class DepthFirstPlan(NetworkPlan):
    """Dense features, tile by tile; see `tiles.kernel`.

    All inputs start as tiles at the first layer. Survivors of tiles that stopped after the same
    layer are regrouped into full tiles, the earliest layer first, until none is left. Few that
    are left stop where others wait, where that makes for better tiles.

    Parameters
    ----------
    backend : Backend
    workers : ThreadPool
    network : Network
    options : PlanOptions
    like : DepthFirstPlan, optional
        A plan of other layers of the same widths, whose measurements and buffers this one
        takes over; the two do not run at the same time. It starts on dense features.
    """

    def __init__(
        self,
        backend: Backend,
        workers: ThreadPool,
        network: Network,
        options: PlanOptions,
        like: DepthFirstPlan | None = None,
    ) -> None:
        super().__init__(backend, network, options)
        self.dtype = np.dtype(options.dtype)
        self.workers = workers
        activations = [
            activation_of(layer.epilogue(network.y_max), self.dtype) for layer in network
        ]
        self.layers = pack_layers(network.layers, activations, self.dtype, workers)
        self.may_drop = np.array([self.may_drop_after(n) for n in range(len(network))])
        # Sums of bits that fit into bytes.
        self.counts = (
            self.layers.table[0, FIRST_VALUE] < 0
            and np.bincount(network.layers[0].indices).max(initial=0) <= MAX_COUNTED
        )
        if like is None:
            self.costs = measure_tile_costs(
                workers, self.layers, network.widest, bool(self.may_drop.any())
            )
            self.workspace, self._one_at_a_time = TileWorkspace(), ForkSafeLock()
        else:
            self.costs = like.costs
            self.workspace, self._one_at_a_time = like.workspace, like._one_at_a_time
        edges = self.layers.table[::-1, EDGES]
        full = self.costs.per_edge[-1] / self.costs.width
        self._spill_costs = SpillCosts(
            read_only(self.costs.per_edge),
            float(full),
            self.costs.per_feature,
            read_only(np.append(np.cumsum(edges)[::-1], 0)),
        )
        self.sparse_prefix = None
        sparse_is_exact = network.sparse_features_exact and not options.keep_dead_inputs
        if options.path == "auto" and sparse_is_exact and like is None:
            seconds = float(full) / workers.threads
            self.sparse_prefix = SparsePrefix(workers, network, self.dtype, seconds)
        if like is None:
            # Compiles, or loads from the cache: a run without tiles.
            self.run_batch(PackedFeatures.empty(network.neurons), lambda done: None)

    def for_layers(self, network: Network, options: PlanOptions, build: Build) -> NetworkPlan:
        """Return a plan for other layers; see `NetworkPlan.for_layers`."""
        if network.widest != self.network.widest:
            return super().for_layers(network, options, build)
        return DepthFirstPlan(self.backend, self.workers, network, options, like=self)

    def width(self, inputs: int) -> int:
        """Return the tile width for so many inputs."""
        return self.costs.cheapest(inputs, self.workers.threads)[0]

    def describe(self) -> str:
        """Return what the plan chose and why, a line each."""
        table = self.layers.table
        constant = int((table[:, FIRST_VALUE] < 0).sum())
        clustered = CLUSTER * table[:, CLUSTERS].sum() / max(table[:, NEURONS_OUT].sum(), 1)
        saved = 1 - self.layers.indices.size / max(table[:, EDGES].sum(), 1)
        width = self.width(self.batch_size)
        kib = 2 * self.network.widest * width * self.dtype.itemsize / 1024
        threads = self.workers.threads
        widths = ", ".join(map(str, self.costs.rates))
        rates = ", ".join(f"{rate / 1e9:.3g}" for rate in self.costs.rates.values())
        sparse = "Features are dense from the first layer on."
        if self.sparse_prefix is not None:
            sparse = self.sparse_prefix.describe()
        return (
            f"Tiles of {width} inputs go depth first through the layers, in {self.dtype}, on "
            f"{threads} thread{'s' if threads > 1 else ''}.\n"
            f"The two buffers of a tile take {kib:.0f} KiB; the second-level cache has "
            f"{cache_bytes(2) // 1024} KiB.\n"
            f"Tiles of {widths} inputs were timed on these layers, at {rates} G edges/s: "
            f"{self.costs.why(width)}.\n"
            f"{constant} of {len(table)} layers have one weight for all edges, multiplied after "
            f"each sum; {len(table) - constant} have a weight for each edge.\n"
            f"Column indices are stored in {8 * self.layers.indices.itemsize} bits.\n"
            f"{100 * clustered:.0f} % of the outputs are in clusters that share inputs, which "
            f"saves {100 * saved:.0f} % of the loads.\n"
            "Inactive inputs (all features zero) may be dropped after "
            f"{int(self.may_drop.sum())} of the {len(table)} layers.\n"
            "Half-empty tiles are regrouped once the time that they waste reaches the cost of "
            "regrouping.\n"
            f"{sparse}\n"
            f"A batch has up to {self.batch_size} inputs."
        )

    def run_batch(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        """Run the whole network on one batch; see `NetworkPlan.run_batch`."""
        with self._one_at_a_time.lock:
            return self._run(features, report)

    def _run(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        network, inputs, threads = self.network, features.shape[0], self.workers.threads
        packs = bool(self.may_drop.any())
        counters = np.zeros(kernels.COUNTERS, np.int64)
        active_per_layer = np.zeros(len(network), np.int64)
        prefix = SparsePrefixResult(0, features, np.arange(inputs, dtype=np.int64), [], 0)
        if self.sparse_prefix is not None:
            prefix = self.sparse_prefix.run(features)
        active_per_layer[: prefix.layers] = prefix.active_per_layer
        room = spilled_size(network.widest, 1, BLOCK_BYTES // self.dtype.itemsize)
        pools = SurvivorPools(SPILL_SHARE * prefix.inputs.size * room if packs else 0)
        width, counted = self.width(prefix.inputs.size), network.neurons if self.counts else 0
        self.workspace.fit(threads, network.widest, width, self.dtype, pools.room, counted)
        # Only inputs that finish are written, and read: small pages where most may leave.
        shape = (inputs, network.neurons_out)
        out = np.empty(shape, self.dtype) if packs else aligned_empty(shape, self.dtype)
        finished: list[Survivors] = []
        source, going_on, layer = (
            make_source(prefix.features, self.dtype), prefix.inputs, prefix.layers,
        )  # fmt: skip
        counters[kernels.WORK_DONE] = inputs * prefix.layers
        counters[kernels.EXECUTED_EDGES] = prefix.executed_edges
        while True:
            left = going_on.size
            width = min(self.width(left), self.workspace.width)
            begin = pools.gap(left * room)
            stop_layer = len(network) if begin is None else self._stop_layer(left, pools)
            may_spill = begin is not None and left > threads * width
            counters[kernels.SPILL_TOP] = begin or 0
            tiles = cut_tiles(going_on, layer, stop_layer, width, may_spill, packs, self.may_drop)
            active_per_layer += launch(
                self.workers,
                self.workspace,
                counters,
                source,
                tiles,
                self._spill_costs,
                self.layers,
                out,
                lambda: report(int(counters[kernels.WORK_DONE])),
            )
            pools.release(layer)
            finished += pools.collect(tiles, begin or 0, int(counters[kernels.SPILL_TOP]))
            following = pools.next_layer()
            if following is None:
                break
            layer = following
            pool = pools.take(layer)
            going_on = pool.inputs
            source = source._replace(
                kind=SPILLED, position=read_only(pool.position), stride=read_only(pool.stride)
            )
        survivors = join(finished)
        order = np.argsort(survivors.inputs, kind="stable")
        # Where nothing may leave, every input has finished, in its own row.
        rows = out[survivors.position[order]] if packs else out
        executed = int(counters[kernels.EXECUTED_EDGES])
        return BatchOutput(survivors.inputs[order], rows, active_per_layer, executed)

    def _stop_layer(self, left: int, pools: SurvivorPools) -> int:
        """Return the layer at which `left` inputs stop for others: all layers for none.

        They stop where running the rest of the network together saves more than spilling costs.
        Of many, tiles are nearly full as they are, and most may leave on the way.
        """
        later, threads = pools.next_layer(), self.workers.threads
        if later is None or left > FEW_TILES * threads * self.costs.width:
            return len(self.network)
        waiting = pools.waiting(later)
        apart = self.costs.cheapest(left, threads)[1] + self.costs.cheapest(waiting, threads)[1]
        saved = apart - self.costs.cheapest(left + waiting, threads)[1]
        price = self.costs.per_feature * self.network.layers[later].shape[0] * left / threads
        return later if saved * self._spill_costs.edges_from[later] > price else len(self.network)
