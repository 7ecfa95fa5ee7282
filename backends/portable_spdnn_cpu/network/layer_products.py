"""Layer by layer: the plan of pruned networks, whose layers are products of prepared weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from portable_spdnn.backend import Backend
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.features import Features, cast_features
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network
from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn.plans.base import Build, NetworkPlan
from portable_spdnn.plans.batch import BatchOutput
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn_cpu.jit.compilation import Array, kernel
from portable_spdnn_cpu.layout.csc_to_csr import csc_to_csr
from portable_spdnn_cpu.machine.buffers import Buffers, Spare
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.machine.thread_pool import ALONE, ThreadPool, worth_waking
from portable_spdnn_cpu.spmm.dense_layout import empty_result
from portable_spdnn_cpu.spmm.handle import WeightsProduct

LEAST_GROUP, MOST_GROUP = 64, 1024  # inputs that go through all layers together
CACHE_SHARE = 0.75  # of the second level, for features before and after a layer
LANES = 16  # groups are whole vectors
# Inactive inputs leave a group where they are at least this part of it: the others are copied.
WORTH_LEAVING = 0.25
DESCRIBED_LAYERS = 8


class LayerProductsPlan(NetworkPlan):
    """Y'^T = W^T Y^T, layer after layer, each product by the kernel that suits it.

    Inputs go in groups whose features before and after a layer fit in the second-level cache. Of
    several groups each is run by one thread; the products of a single one by all.

    Parameters
    ----------
    backend : Backend
    workers : ThreadPool
    network : Network
    options : PlanOptions
    buffers : Spare of Buffers, optional
        Those of a plan for other layers.
    """

    def __init__(
        self,
        backend: Backend,
        workers: ThreadPool,
        network: Network,
        options: PlanOptions,
        buffers: Spare[Buffers] | None = None,
    ) -> None:
        super().__init__(backend, network, options)
        self.dtype = np.dtype(options.dtype)
        self.workers = workers
        self._edges = np.array([layer.nnz for layer in network])
        self.may_drop = [self.may_drop_after(number) for number in range(len(network))]
        features = 2 * max(1, network.widest) * self.dtype.itemsize
        fitting = int(CACHE_SHARE * cache_bytes(2)) // features
        self.group = min(max(fitting // LANES * LANES, LEAST_GROUP), MOST_GROUP)
        self._buffers = Spare(Buffers) if buffers is None else buffers
        # Layers may be one object.
        operands = {
            id(layer): (
                _by_output(layer, self.dtype),
                layer.epilogue(network.y_max).prepared("layer", layer.shape[1], self.dtype),
            )
            for layer in network
        }
        # For one group at a time, of which all threads run each product; and for a group a thread.
        self._together = self._products(workers, operands)
        self._apart = self._products(ALONE, operands) if workers.threads > 1 else self._together
        # A group of made-up inputs: weights are packed, kernels compiled or loaded.
        expected = options.expected_inputs
        inputs = self.group * workers.threads if expected is None else expected
        _, size, products = self._cut(inputs)
        made_up = np.ones((min(size, inputs), network.neurons), self.dtype)
        rows = empty_result((len(made_up), network.neurons_out), self.dtype)
        counts, mine = np.zeros((2, len(network)), np.int64), self._buffers.take()
        self._run_group(products, made_up, rows, mine, 0, counts)
        self._buffers.give_back(mine)

    def _products(
        self, pool: ThreadPool, operands: dict[int, tuple[SparseOperand, Epilogue]]
    ) -> list[WeightsProduct]:
        """Return the product of each layer, on a pool of threads."""
        made = {layer: WeightsProduct(pool, *operand) for layer, operand in operands.items()}
        return [made[id(layer)] for layer in self.network]

    def for_layers(self, network: Network, options: PlanOptions, build: Build) -> NetworkPlan:
        """Return a plan for other layers; see `NetworkPlan.for_layers`."""
        return LayerProductsPlan(self.backend, self.workers, network, options, self._buffers)

    def describe(self) -> str:
        """Return what the plan chose and why, a line each."""
        threads = self.workers.threads
        kib = 2 * self.network.widest * self.group * self.dtype.itemsize // 1024
        lines = [
            f"Layers run one after the other, each a product of prepared weights, in {self.dtype}, "
            f"on {threads} thread{'s' if threads > 1 else ''}: few of their outputs share inputs, "
            "or they are nearly dense.",
            f"Groups of up to {self.group} inputs go through all layers. Their features before and "
            f"after a layer take {kib} KiB; the second-level cache has {cache_bytes(2) // 1024} "
            "KiB.",
            f"Inactive inputs (all features zero) may leave after {sum(self.may_drop)} of the "
            f"{len(self.may_drop)} layers.",
            f"A batch has up to {self.batch_size} inputs.",
        ]
        for number, layer in enumerate(self.network.layers[:DESCRIBED_LAYERS]):
            rows, columns = layer.shape
            zeros = 100 * (1 - layer.nnz / max(1, rows * columns))
            lines.append(f"Layer {number + 1}, {rows} x {columns} with {zeros:.0f} % zeros:")
            for product in dict.fromkeys((self._together[number], self._apart[number])):
                lines.append(product.describe(layer=True))
        return "\n".join(lines)

    def _cut(self, inputs: int) -> tuple[ThreadPool, int, list[WeightsProduct]]:
        """Return the threads that run groups, the inputs of a group, and the products."""
        threads = self.workers.threads
        pool = ALONE
        if threads > 1:
            pool = worth_waking(self.workers, int(self._edges.sum()) * inputs)
        if pool is not ALONE and inputs <= LEAST_GROUP * threads:
            return ALONE, inputs, self._together
        groups = max(1, -(-inputs // self.group))
        groups += -groups % pool.threads
        return pool, max(1, -(-inputs // (groups * LANES))) * LANES, self._apart

    def run_batch(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        """Run the whole network on one batch; see `NetworkPlan.run_batch`."""
        inputs, layers = features.shape[0], len(self.network)
        pool, size, products = self._cut(inputs)
        rows = empty_result((inputs, self.network.neurons_out), self.dtype)
        begins = range(0, inputs, size)
        left: list[Array | None] = [None] * len(begins)
        counts = np.zeros((pool.threads, 2, layers), np.int64)
        waiting = iter(enumerate(begins))  # shared: next() is atomic
        done = [0] * pool.threads
        buffers = self._buffers.take()

        def work(worker: int) -> None:
            for number, begin in waiting:
                end = min(begin + size, inputs)
                left[number] = self._run_group(
                    products, features[begin:end], rows[begin:end], buffers, worker, counts[worker]
                )
                done[worker] += end - begin
                if pool is ALONE:
                    report(layers * done[0])

        def stop() -> None:
            for _ in waiting:
                pass

        pool.run(work, None if pool is ALONE else lambda: report(layers * sum(done)), stop)
        self._buffers.give_back(buffers)
        active = np.arange(inputs)
        if any(one is not None for one in left):
            parts = [
                active[begin : begin + size] if one is None else begin + one
                for begin, one in zip(begins, left, strict=True)
            ]
            rows = np.concatenate(
                [rows[begin : begin + part.size] for begin, part in zip(begins, parts, strict=True)]
            )
            active = np.concatenate(parts)
        after, computed = counts.sum(axis=0)
        edges = int(computed @ self._edges)
        return BatchOutput(active, rows, after, edges, computed_per_layer=computed)

    def _run_group(
        self,
        products: Sequence[WeightsProduct],
        features: Features,
        rows: Array,
        buffers: Buffers,
        worker: int,
        counts: Array,
    ) -> Array | None:
        """Run a group of inputs through all layers.

        Parameters
        ----------
        products : sequence of WeightsProduct
        features : PackedFeatures, ndarray or csr_array, shape (inputs, neurons)
        rows : ndarray, shape (inputs, neurons_out)
            Takes the features after the last layer, one row after the other for inputs that have
            not left.
        buffers : Buffers
        worker : int
            Whose buffers are used.
        counts : ndarray of int64, shape (2, layers)
            Takes the inputs that are active after each layer, and those that it computed, besides
            what it holds.

        Returns
        -------
        ndarray of int64, or None
            The inputs that have not left, rising; None for all.
        """
        Y = cast_features(features, self.dtype, sparse=False).T
        left: Array | None = None
        for number, product in enumerate(products):
            neurons, inputs = product.A.shape[0], Y.shape[1]
            last = number == len(products) - 1
            name, shape = ("front", "back")[number % 2], (neurons, inputs)
            out = rows[:inputs].T if last else buffers.take(name, worker, shape, self.dtype)
            if product.multiply_as_given(Y, out, None) is None:
                product.multiply(Y, out)
            active = np.zeros(inputs, np.bool_)
            count = find_active_rows(rows, active) if last else find_active_columns(out, active)
            counts[0, number] += count
            counts[1, number] += inputs
            Y = out
            if self.may_drop[number] and inputs - count >= max(1, WORTH_LEAVING * inputs):
                staying = np.flatnonzero(active)
                left = staying if left is None else left[staying]
                Y = Y.take(staying, axis=1)
                if last:
                    rows[:count] = Y.T
        return left


def _by_output(layer: Layer, dtype: np.dtype[Any]) -> Any:
    """Return a layer's weights as a csr_array with a row for each output."""
    return csc_to_csr(layer.csr(dtype).T)  # not None: layers are canonical


@kernel
def find_active_columns(features: Array, active: Array) -> int:
    """Mark columns of features that hold a value other than zero, and return how many do."""
    rows, columns = features.shape
    count = 0
    for row in range(rows):
        count = 0
        for column in range(columns):
            active[column] |= features[row, column] != 0
            count += active[column]
        if count == columns:
            break  # soon: few inputs are inactive
    return count


@kernel
def find_active_rows(features: Array, active: Array) -> int:
    """Mark rows of features that hold a value other than zero, and return how many do."""
    count = 0
    for row in range(active.size):
        for column in range(features.shape[1]):
            if features[row, column] != 0:
                active[row] = True
                count += 1
                break
    return count
