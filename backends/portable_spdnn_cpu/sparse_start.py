"""First layers on sparse features, where so few are nonzero that tiles would waste more."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn.network import Network
from portable_spdnn.plan import cast_features
from portable_spdnn_cpu.sparse_operations import sparse_layer
from portable_spdnn_cpu.workers import Workers

Array = npt.NDArray[Any]

SAMPLE_INPUTS = 256
SAMPLE_DENSITY = 0.01
TURNS = 3


@dataclass(frozen=True)
class Start:
    """What is left after some layers on sparse features.

    Attributes
    ----------
    layers : int
        Done; 0 where tiles are cheaper from the first on.
    features : PackedFeatures, ndarray or csr_array
    inputs : ndarray of int64
        Of the batch, those that are alive.
    alive_per_layer : list of int
    executed_edges : int
    """

    layers: int
    features: Features
    inputs: Array
    alive_per_layer: list[int]
    executed_edges: int


class SparseStart:
    """Decides layer by layer whether sparse features are the cheaper ones.

    Parameters
    ----------
    workers : Workers
    network : Network
        Exact on sparse features: no bias is positive.
    dtype : numpy dtype
    dense_seconds : float
        Of tiles, for an edge and an input, all threads together.
    """

    def __init__(
        self, workers: Workers, network: Network, dtype: np.dtype[Any], dense_seconds: float
    ) -> None:
        self.workers, self.network, self.dtype = workers, network, dtype
        self.dense_seconds = dense_seconds
        self.product_seconds = self._measure()
        self._weights: dict[int, Any] = {}

    @property
    def break_even(self) -> float:
        """Density of features below which sparse ones are the cheaper."""
        return self.dense_seconds / self.product_seconds

    def run(self, features: Features) -> Start:
        """Run layers while sparse features are cheaper, all but the last at most."""
        rows = np.arange(features.shape[0], dtype=np.int64)
        alive, executed, layer = [], 0, 0
        while layer < len(self.network) - 1 and self._is_sparse(features):
            Y = cast_features(features, self.dtype, sparse=True)
            W = self._layer(layer)
            executed += int(np.diff(W.indptr)[Y.indices].sum(dtype=np.int64))
            bias = self.network.layers[layer].bias.astype(self.dtype)
            Y = sparse_layer(self.workers, W, Y, bias, self.network.y_max)
            kept = np.flatnonzero(np.diff(Y.indptr))
            alive.append(kept.size)
            features, rows = (Y if kept.size == rows.size else Y[kept]), rows[kept]
            layer += 1
        return Start(layer, features, rows, alive, executed)

    def _is_sparse(self, features: Features) -> bool:
        inputs, neurons = features.shape
        if isinstance(features, np.ndarray) or not inputs or not neurons:
            return False  # finding the nonzeros costs as much as a layer
        if isinstance(features, PackedFeatures):
            nonzero = int(np.bitwise_count(features.bits).sum(dtype=np.int64))
        else:
            nonzero = int(features.nnz)
        return bool(nonzero < self.break_even * inputs * neurons)

    def _layer(self, number: int) -> Any:
        if number not in self._weights:
            self._weights[number] = self.network.layers[number].csr(self.dtype)
        return self._weights[number]

    def _measure(self) -> float:
        """Return the seconds of a multiply-add on sparse features, all threads together."""
        layer = self.network.layers[0]
        neurons = layer.shape[0]
        each = max(1, int(SAMPLE_DENSITY * neurons))
        rng = np.random.default_rng(0)
        columns = np.sort(rng.integers(0, neurons, (SAMPLE_INPUTS, each)), axis=1).ravel()
        indptr = np.arange(0, columns.size + 1, each)
        ones = np.ones(columns.size, self.dtype)
        Y = sp.csr_array((ones, columns.astype(np.int32), indptr), shape=(SAMPLE_INPUTS, neurons))
        Y.sum_duplicates()
        W = layer.csr(self.dtype)
        products = max(int(np.diff(W.indptr)[Y.indices].sum()), 1)
        # Nothing is lost below zero: what comes out costs time too.
        bias = np.zeros(layer.shape[1], self.dtype)
        least = np.inf
        for _ in range(TURNS):
            start = time.perf_counter()
            sparse_layer(self.workers, W, Y, bias, self.network.y_max)
            least = min(least, time.perf_counter() - start)
        return float(least) / products
