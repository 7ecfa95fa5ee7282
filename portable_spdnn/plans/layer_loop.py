"""The neutral plan of every backend: one layer after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np

from portable_spdnn.backend import Backend
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.features import Features, PackedFeatures, cast_features
from portable_spdnn.network import Network
from portable_spdnn.plans.base import NetworkPlan
from portable_spdnn.plans.batch import BatchOutput
from portable_spdnn.plans.crossover import break_even_density, dense_seconds_per_edge
from portable_spdnn.plans.options import PlanOptions

TURN_BACK = 0.5  # dense features turn sparse again below this part of the break-even density


class LayerLoopPlan(NetworkPlan):
    """The neutral plan: one layer after the other over all inputs of a batch.

    Inputs without a nonzero feature leave after each layer from which on zeros stay zeros. Where
    both sparse and dense features are exact and the path is left to the plan, features change from
    one to the other as their density passes the one at which both cost the same.
    """

    def __init__(self, backend: Backend, network: Network, options: PlanOptions) -> None:
        super().__init__(backend, network, options)
        self.weights = [backend.upload(layer.csr(options.dtype)) for layer in network]
        dtype = np.dtype(options.dtype)
        self.epilogues = [
            layer.epilogue(network.y_max).prepared("layer", layer.shape[1], dtype)
            for layer in network
        ]
        self.break_even: float | None = None  # where it is measured
        self.always_sparse = options.path == "spgemm"
        if options.path == "auto" and network.sparse_features_exact:
            self.break_even = self._measure()
        self.sparse_layers: list[bool] = []  # of the last batch
        # Compiles what the backend compiles: a run without inputs.
        self.run_batch(PackedFeatures.empty(network.neurons), lambda done: None)
        self.sparse_layers = []

    def _measure(self) -> float:
        """Return the density at which the first layer costs the same on either path."""
        backend, dtype = self.backend, self.options.dtype
        W = self.network.layers[0].csr(dtype)
        # Without a bias nothing is lost below zero: what comes out costs time too.
        epilogue = Epilogue(activation="relu", upper=self.network.y_max)

        def run(Y: Any) -> None:
            backend.run_layer(self.weights[0], backend.upload(Y), epilogue, None)
            backend.synchronize()

        dense = dense_seconds_per_edge(W, run, dtype)
        return break_even_density(W, dense, run, dtype)

    def describe(self) -> str:
        """Return what the plan chose and why, a line each."""
        if self.break_even is not None:
            choice = f"sparse below {100 * self.break_even:.2g} % nonzero, else dense (measured)"
        elif self.options.path == "auto":
            choice = "dense (a layer turns zeros into nonzeros)"
        else:
            choice = f"{'sparse' if self.always_sparse else 'dense'} (asked for)"
        if self.break_even is not None and self.sparse_layers:
            choice += f"; in the last batch {_layers_in_words(self.sparse_layers)}"
        keep = self.options.keep_dead_inputs
        inactive = "kept (asked for)" if keep else "dropped after each layer"
        if not keep and self.first_prunable_layer:
            inactive += (
                f" from layer {self.first_prunable_layer} on, the last to turn zeros into nonzeros"
            )
        return (
            f"layer loop on {self.backend.name}\n"
            f"features between layers: {choice}\n"
            f"inactive inputs: {inactive}\n"
            f"batches of {self.batch_size} inputs"
        )

    def run_batch(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        """Run the layer loop on one batch; see `NetworkPlan.run_batch`."""
        backend = self.backend
        inputs, layers = features.shape[0], len(self.network)
        count = np.count_nonzero(features) if isinstance(features, np.ndarray) else features.nnz
        sparse = self._takes_sparse(int(count), features.shape, sparse=True)
        y = backend.upload(cast_features(features, self.options.dtype, sparse))
        kept = np.arange(inputs, dtype=np.int64)
        active_per_layer = np.zeros(layers, np.int64)
        seconds = np.zeros(layers)
        executed_edges = 0
        sparse_layers = []
        steps = zip(self.weights, self.epilogues, strict=True)
        for number, (weights, epilogue) in enumerate(steps):
            start = time.perf_counter()
            if number and self.break_even is not None:
                y = self._choose(y)
            sparse_layers.append(backend.is_sparse(y))
            executed_edges += backend.multiply_adds(weights, y)
            y = backend.run_layer(weights, y, epilogue, None)
            active = backend.active_inputs(y)
            active_per_layer[number] = active.size
            if self.may_drop_after(number) and active.size < kept.size:
                y = backend.take_inputs(y, active)
                kept = kept[active]
            backend.synchronize()
            seconds[number] = time.perf_counter() - start
            report(kept.size * (number + 1) + (inputs - kept.size) * layers)
        self.sparse_layers = sparse_layers
        return BatchOutput(kept, backend.download(y), active_per_layer, executed_edges, seconds)

    def _choose(self, y: Any) -> Any:
        """Return features in the form that is the cheaper for their density."""
        sparse = self.backend.is_sparse(y)
        wanted = self._takes_sparse(self.backend.nonzeros(y), y.shape, sparse)
        return y if wanted == sparse else self.backend.convert_features(y, wanted)

    def _takes_sparse(self, nonzero: int, shape: tuple[int, int], sparse: bool) -> bool:
        """Whether features should be sparse; `sparse` says whether they are."""
        if self.break_even is None:
            return self.always_sparse
        # Changing costs about a layer: to be earned before it is changed back.
        limit = self.break_even * (1 if sparse else TURN_BACK)
        return nonzero < limit * max(shape[0] * shape[1], 1)


def _layers_in_words(sparse: list[bool]) -> str:
    """Return which layers took sparse features, as runs of layers counted from 1."""
    runs, end = [], 0
    for taken, run in groupby(sparse):
        first, end = end + 1, end + len(list(run))
        layers = f"layers {first} to {end}" if end > first else f"layer {end}"
        runs.append(f"{layers} {'sparse' if taken else 'dense'}")
    return ", ".join(runs)
