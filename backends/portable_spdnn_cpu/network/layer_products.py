"""Layer by layer: the plan of pruned networks, whose layers are products of prepared weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from portable_spdnn.backend import Backend
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.errors import NumericalError
from portable_spdnn.features import Features, cast_features, check_magnitudes
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network
from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn.plans.base import NetworkPlan
from portable_spdnn.plans.batch import OVERFLOW, BatchOutput
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.layout.csc_to_csr import transposed
from portable_spdnn_cpu.machine.buffers import Buffers, Spare
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.machine.thread_pool import ALONE, ThreadPool, worth_waking
from portable_spdnn_cpu.network.compiled_scores import ScoresInOneCall
from portable_spdnn_cpu.network.counts import (
    COUNTS,
    SAVED,
    find_active_columns,
    find_positive_rows,
)
from portable_spdnn_cpu.network.sparse_features import SparseFirstLayer
from portable_spdnn_cpu.spmm.dense_layout import empty_result
from portable_spdnn_cpu.spmm.handle import WeightsProduct

LANES = 16  # the inputs of a group are a multiple: whole vectors of either type
LEAST_GROUP, MOST_GROUP = 64, 1024  # inputs that go through all layers together
CACHE_SHARE = 0.75  # of the second level, for features before and after a layer
# Bytes of these features up to which a group has LEAST_GROUP inputs, whatever the cache; fewer in
# wider networks.
MOST_BYTES = 1 << 26
# Up to so many inputs, as many as a vector of float32 has, are one group: each product decides by
# its own length whether threads share it.
FEW_INPUTS = 16
DESCRIBED_LAYERS = 8


class LayerProductsPlan(NetworkPlan):
    """Y'^T = W^T Y^T, layer after layer, each product by the kernel that suits it.

    Inputs go in groups whose features before and after a layer fit in the second-level cache. Of
    several groups each is run by one thread; the products of a single one are shared by all.

    Parameters
    ----------
    backend : Backend
    workers : ThreadPool
    network : Network
    options : PlanOptions
    """

    def __init__(
        self, backend: Backend, workers: ThreadPool, network: Network, options: PlanOptions
    ) -> None:
        super().__init__(backend, network, options)
        self.dtype = np.dtype(options.dtype)
        self.workers = workers
        layers = tuple(network)  # once: those of a file are other objects each time
        self._layer_edges = np.array([layer.nnz for layer in layers])
        # After the last layer nothing is left to save.
        self._may_leave = [
            number + 1 < len(layers) and self.may_drop_after(number)
            for number in range(len(layers))
        ]
        # Bytes of an input's features before and after the layer where they are most.
        self._input_bytes = max(1, *(sum(layer.shape) for layer in layers)) * self.dtype.itemsize
        least = LEAST_GROUP if LEAST_GROUP * self._input_bytes <= MOST_BYTES else LANES
        fitting = int(CACHE_SHARE * cache_bytes(2)) // self._input_bytes // LANES * LANES
        self.group = min(max(fitting, least), MOST_GROUP)
        self._buffers = Spare(Buffers)
        self._in_one_call = ScoresInOneCall()
        operands = {layer: self._operands(layer) for layer in layers}  # some may be one object
        self._own_products = self._products(ALONE, layers, operands)
        self._shared_products = self._own_products
        if workers.threads > 1:
            self._shared_products = self._products(workers, layers, operands)
        self._sparse_first = None
        if options.path == "auto":
            self._sparse_first = SparseFirstLayer(layers[0], operands[layers[0]][1], self.dtype)
        self._warm_up()

    def _operands(self, layer: Layer) -> tuple[SparseOperand, Epilogue]:
        """Return the weights of a layer with a row for each output, and what follows its sums."""
        epilogue = layer.epilogue(self.network.y_max)
        by_output = transposed(layer.csr(self.dtype))
        return by_output, epilogue.prepared("layer", layer.shape[1], self.dtype)

    def _products(
        self,
        pool: ThreadPool,
        layers: Sequence[Layer],
        operands: dict[Layer, tuple[SparseOperand, Epilogue]],
    ) -> list[WeightsProduct]:
        """Return the product of each layer, on a pool of threads."""
        made = {layer: WeightsProduct(pool, *each) for layer, each in operands.items()}
        return [made[layer] for layer in layers]

    def _warm_up(self) -> None:
        """Run made-up groups: weights are packed for them, kernels compiled or loaded.

        They are those of the expected inputs, or full ones, and halves of them where inputs leave.
        """
        expected, products = self.options.expected_inputs, self._own_products
        size, pool = min(self.group, self.batch_size), ALONE
        inputs = size
        if expected is not None:
            inputs = min(expected, self.batch_size)
            pool, size, products = self._cut(inputs)
        left = min(size, inputs)
        for group in dict.fromkeys((inputs % size, left)):
            self._run_made_up(products, group)
        # What is left of whole groups meets the layers after the first that inputs may leave.
        later = products[self._may_leave.index(True) + 1 :] if any(self._may_leave) else []
        while later and halved(left) < left:
            left = halved(left)
            self._run_made_up(later, left)
        if expected is not None and pool is ALONE and 0 < inputs <= size:
            self._in_one_call.prepare(products, inputs)

    def _run_made_up(self, products: Sequence[WeightsProduct], inputs: int) -> None:
        """Run so many made-up inputs through some layers, as batches do, but all stay."""
        if not inputs:
            return
        neurons = products[0].A.shape[1]
        if len(products) == len(self._layer_edges):
            sample = np.ones((inputs, neurons), self.dtype)
        else:  # as features lie between layers
            sample = empty_result((neurons, inputs), self.dtype).T
            sample[...] = 1
        rows = empty_result((inputs, products[-1].A.shape[0]), self.dtype)
        positive, counts = np.empty(inputs, np.bool_), np.zeros((COUNTS, len(products)), np.int64)
        buffers = self._buffers.take()
        self._run_group(products, sample, rows, positive, buffers, 0, counts, all_stay=True)
        self._buffers.give_back(buffers)

    def describe(self) -> str:
        """Return what the plan chose and why, a line each."""
        threads = self.workers.threads
        kib = self._input_bytes * self.group // 1024
        leave = [str(number) for number, may in enumerate(self._may_leave, start=1) if may]
        lines = [
            "Layers run one after the other, each a product of prepared weights, in "
            f"{self.dtype}, on {threads} thread{'s' if threads > 1 else ''}: weights differ, and "
            "outputs share few inputs, or a quarter of all possible weights is there, or the "
            "network is small.",
            f"Groups of {self.group} inputs go through all layers, one on each thread; of up to "
            f"{LEAST_GROUP * threads} inputs all threads share each product.",
            f"Features of a group before and after a layer take {kib} KiB; the second-level cache "
            f"has {cache_bytes(2) // 1024} KiB.",
            "Inactive inputs (all features zero) leave where half of a group will do, after "
            f"{len(leave)} of the {len(self._may_leave)} layers"
            + (f": from layer {leave[0]} on." if leave else "."),
            f"A batch has up to {self.batch_size} inputs.",
        ]
        if self._sparse_first is not None:
            lines.append(self._sparse_first.describe())
        lines += self._in_one_call.describe()
        lines.append("Each layer is the product of A = W^T and B = Y^T.")
        both = zip(self._shared_products, self._own_products, strict=True)
        for number, products in enumerate(both, start=1):
            if number > DESCRIBED_LAYERS:
                lines.append(f"And {len(self._layer_edges) - DESCRIBED_LAYERS} more layers.")
                break
            outputs, inputs = products[0].A.shape
            zeros = 100 * (1 - products[0].A.nnz / max(1, outputs * inputs))
            lines.append(f"Layer {number}, {inputs} x {outputs} with {zeros:.0f} % zeros:")
            chosen = [each for each in dict.fromkeys(products) if each.has_chosen]
            lines += [each.describe(layer=True) for each in chosen]
        return "\n".join(lines)

    def _cut(self, inputs: int) -> tuple[ThreadPool, int, list[WeightsProduct]]:
        """Return the threads that run groups, the inputs of a group, and the products."""
        threads = self.workers.threads
        if inputs <= FEW_INPUTS:
            return ALONE, max(1, inputs), self._shared_products
        pool = ALONE
        if threads > 1:
            pool = worth_waking(self.workers, self._edges * inputs)
        if pool is not ALONE and inputs <= LEAST_GROUP * threads:
            return ALONE, inputs, self._shared_products
        groups = max(1, -(-inputs // self.group))
        groups += -groups % pool.threads
        return pool, max(1, -(-inputs // (groups * LANES))) * LANES, self._own_products

    def run_batch(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        """Run the whole network on one batch; see `NetworkPlan.run_batch`."""
        inputs, layers = features.shape[0], len(self._layer_edges)
        pool, size, products = self._cut(inputs)
        rows = empty_result((inputs, self.network.neurons_out), self.dtype)
        begins = range(0, inputs, size)
        left: list[Array | None] = [None] * len(begins)
        counts = np.zeros((pool.threads, COUNTS, layers), np.int64)
        positive = np.empty(inputs, np.bool_)
        waiting = iter(enumerate(begins))  # shared: the interpreter's lock makes next() atomic
        done = [0] * pool.threads
        buffers = self._buffers.take()

        def work(worker: int) -> None:
            for number, begin in waiting:
                end = min(begin + size, inputs)
                left[number] = self._run_group(
                    products, features[begin:end], rows[begin:end], positive[begin:end],
                    buffers, worker, counts[worker],
                )  # fmt: skip
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
            rows, positive = (
                np.concatenate(
                    [each[n : n + part.size] for n, part in zip(begins, parts, strict=True)]
                )
                for each in (rows, positive)
            )
            active = np.concatenate(parts)
        after, computed, saved, with_nan = counts.sum(axis=0)
        edges = int(computed @ self._layer_edges) - int(saved[0])
        # Of NaN the engine decides: after the last block of a network it is an error.
        known = None if with_nan[-1] else positive
        return BatchOutput(active, rows, after, edges, positive=known, computed_per_layer=computed)

    def scores_as_given(self, features: object) -> Array | None:
        """Return the scores of plain features, where they are computed in one call."""
        return self._in_one_call.scores(features)

    def run_scores(self, features: Features) -> Array:
        """Return the scores of valid features; see `NetworkPlan.run_scores`.

        If all inputs make one group, no batch is cut off, no result is made, and nothing is
        counted.
        """
        rows: Array
        inputs = features.shape[0]
        pool, size, products = self._cut(inputs)
        if pool is not ALONE or not 0 < inputs <= min(size, self.batch_size):
            batches = list(self.finished_batches(features))
            if len(batches) == 1 and batches[0].output.active.size == inputs:
                rows = batches[0].output.rows  # new ones, each in its place: no copy is needed
                return rows
            return self.scores_of(inputs, batches)
        check_magnitudes(features, self.dtype)
        scores = self._in_one_call.scores_of_valid(features)
        if scores is not None:
            return scores
        rows = self._run_whole(products, features)
        if isinstance(features, np.ndarray):
            self._in_one_call.prepare(products, inputs)
            scores = self._in_one_call.scores_of_valid(features)
            if scores is not None:
                return scores  # as the next calls will, to the bit
        # The least number is NaN where one is: no array of booleans is made.
        if np.isnan(rows.min(initial=0)):
            raise NumericalError(OVERFLOW)
        return rows

    def _first_for(
        self, features: Features, products: Sequence[WeightsProduct]
    ) -> SparseFirstLayer | None:
        """Return the first layer for sparse features; None where a product is faster for these."""
        threads = 1
        if products is not self._own_products:
            threads = worth_waking(self.workers, self._edges * features.shape[0]).threads
        first = self._sparse_first
        return first if first is not None and first.suits(features, threads) else None

    def _run_whole(self, products: Sequence[WeightsProduct], features: Features) -> Array:
        """Run a group of which all inputs stay, and nothing is counted; return its scores."""
        rows = empty_result((features.shape[0], products[-1].A.shape[0]), self.dtype)
        buffers = self._buffers.take()
        self._run_group(products, features, rows, None, buffers, 0, None)
        self._buffers.give_back(buffers)
        return rows

    def _run_group(
        self,
        products: Sequence[WeightsProduct],
        features: Features,
        rows: Array,
        positive: Array | None,
        buffers: Buffers,
        worker: int,
        counts: Array | None,
        all_stay: bool = False,
    ) -> Array | None:
        """Run a group of inputs through all layers.

        Parameters
        ----------
        products : sequence of WeightsProduct
        features : PackedFeatures, ndarray or csr_array, shape (inputs, neurons)
        rows : ndarray, shape (inputs, neurons_out)
            Takes the features after the last layer, one row after the other for inputs that have
            not left.
        positive : ndarray of bool, shape (inputs,), or None
            Takes which of `rows` have a positive score.
        buffers : Buffers
        worker : int
            Whose buffers are used.
        counts : ndarray of int64, shape (COUNTS, layers), or None
            Takes, besides what it holds, what is counted of each layer. Where this and `positive`
            are None, nothing is counted, and all inputs stay.
        all_stay : bool
            Whether inactive inputs stay wherever they may leave, although they are counted.

        Returns
        -------
        ndarray of int64, or None
            The inputs that have not left, rising; None for all.
        """
        first = self._first_for(features, products)
        Y: Any = None
        if first is None:
            Y = cast_features(features, self.dtype, sparse=False).T
        inputs = features.shape[0]
        left: Array | None = None
        for number, product in enumerate(products):
            neurons = product.A.shape[0]
            last = number == len(products) - 1
            name, shape = ("front", "back")[number % 2], (neurons, inputs)
            out = rows[:inputs].T if last else buffers.take(name, worker, shape, self.dtype)
            if first is not None and number == 0:
                sums = rows[:inputs]
                if not last:
                    sums = buffers.take("sums", worker, (inputs, neurons), self.dtype)
                done = first.apply(features, sums, None if last else out)
                if counts is not None:
                    counts[SAVED, 0] += inputs * self._layer_edges[0] - done
            elif product.multiply_as_given(Y, out, None) is None:
                product.multiply(Y, out)
            if counts is None or positive is None:
                Y = out
                continue
            if last:
                find_positive_rows(rows[:inputs], positive, counts[:, number])
                break
            active = np.zeros(inputs, np.bool_)
            count = find_active_columns(out, active, counts[:, number])
            Y = out
            if not self._may_leave[number] or all_stay:
                continue
            if count == 0:
                return np.arange(0)  # and none comes back
            size = inputs
            while count <= halved(size) < size:
                size = halved(size)
            if size < inputs:
                # Active inputs stay, and as many others as fill the vectors.
                staying = np.sort(np.argsort(~active, kind="stable")[:size])
                left = staying if left is None else left[staying]
                Y = buffers.take("left", worker, (neurons, size), self.dtype)
                out.take(staying, axis=1, out=Y, mode="clip")  # in which it has no copy of `out`
                inputs = size
        return left


def halved(inputs: int) -> int:
    """Return half of a group, in whole vectors: of few sizes, as weights are packed for each."""
    return -(-inputs // (2 * LANES)) * LANES
