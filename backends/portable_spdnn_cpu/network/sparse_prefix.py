"""First layers on sparse features, where so few are nonzero that tiles would waste more."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.features import Features, cast_features
from portable_spdnn.network import Network
from portable_spdnn.plans.crossover import break_even_density
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spgemm.fused_layer import sparse_layer


@dataclass(frozen=True)
class SparsePrefixResult:
    """What is left after some layers on sparse features.

    Attributes
    ----------
    layers : int
        Done; 0 where tiles are cheaper from the first on.
    features : PackedFeatures, ndarray or csr_array
    inputs : ndarray of int64
        Of the batch, those that are active.
    active_per_layer : list of int
    executed_edges : int
    """

    layers: int
    features: Features
    inputs: Array
    active_per_layer: list[int]
    executed_edges: int


class SparsePrefix:
    """Decides layer by layer whether sparse features are the cheaper ones.

    Parameters
    ----------
    workers : ThreadPool
    network : Network
        Exact on sparse features: in every layer zeros stay zeros.
    dtype : numpy dtype
    dense_seconds : float
        Of tiles, for an edge and an input, all threads together.
    """

    def __init__(
        self, workers: ThreadPool, network: Network, dtype: np.dtype[Any], dense_seconds: float
    ) -> None:
        self.workers, self.network, self.dtype = workers, network, dtype
        self._layer = functools.cache(lambda number: network.layers[number].csr(self.dtype))
        self._epilogues = [layer.epilogue(network.y_max) for layer in network]
        W = self._layer(0)
        # Without a bias nothing is lost below zero: what comes out costs time too.
        epilogue = Epilogue(activation="relu", upper=network.y_max)

        def run_sparse(Y: sp.csr_array) -> sp.csr_array:
            return sparse_layer(workers, W, Y, epilogue)

        self.break_even = break_even_density(W, dense_seconds, run_sparse, dtype)
        self.last = ""

    def describe(self) -> str:
        """Return where sparse features begin to pay, and where they did."""
        percent = f"{100 * self.break_even:.2g} %"
        return f"Features are sparse at first, while less than {percent} is nonzero{self.last}."

    def run(self, features: Features) -> SparsePrefixResult:
        """Run layers while sparse features are cheaper, all but the last at most."""
        rows = np.arange(features.shape[0], dtype=np.int64)
        active, executed, layer = [], 0, 0
        while layer < len(self.network) - 1 and self._pays(features):
            Y = cast_features(features, self.dtype, sparse=True)
            W = self._layer(layer)
            executed += int(np.diff(W.indptr)[Y.indices].sum(dtype=np.int64))
            epilogue = self._epilogues[layer].prepared("layer", W.shape[1], self.dtype)
            Y = sparse_layer(self.workers, W, Y, epilogue)
            kept = np.flatnonzero(np.diff(Y.indptr))
            active.append(kept.size)
            features, rows = (Y if kept.size == rows.size else Y[kept]), rows[kept]
            layer += 1
        if features.shape[0]:
            self.last = f": in the last batch, for {layer} layers"
        return SparsePrefixResult(layer, features, rows, active, executed)

    def _pays(self, features: Features) -> bool:
        """Whether features are so sparse that the next layer should take them so."""
        inputs, neurons = features.shape
        if isinstance(features, np.ndarray) or not inputs or not neurons:
            return False  # finding the nonzeros costs as much as a layer
        return bool(features.nnz < self.break_even * inputs * neurons)
