"""Small pruned networks: microseconds of `plan.run`, `plan.scores`, layer handles and dense NumPy.

Run it from the root: ``python benchmarks/small_networks.py [threads]``, on one thread by default.
It prints the table of the guide: networks with a bias and ReLU in each layer, float32, 90 % zeros
(70 % in the smallest), all four ways by turns on the same features, the least time of each. The
scores of all are compared first. NumPy's BLAS has as many threads.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from threadpoolctl import ThreadpoolController

import portable_spdnn as ps
from portable_spdnn.dlmc.timing import by_turns

# Neurons, share of nonzeros, and numbers of inputs.
NETWORKS: tuple[tuple[tuple[int, ...], float, tuple[int, ...]], ...] = (
    ((16, 16, 4), 0.3, (1, 64)),
    ((64, 64, 64, 10), 0.1, (1, 8, 64, 256)),
    ((256, 256, 256, 10), 0.1, (1, 24, 64)),
    ((784, 1024, 1024, 10), 0.1, (1, 8, 64)),
    ((64, 1024), 0.1, (32,)),
)
BIAS = 0.1


def ways_of(backend: ps.Backend, layers: list[ps.Layer], Y: Any) -> dict[str, Any]:
    """Return functions that compute the scores of features, by what they are called."""
    plan = ps.plan(ps.Network(layers), backend, expected_inputs=len(Y))
    handles = [backend.layer_handle(layer, inputs=len(Y)) for layer in layers]
    weights = [layer.csr(np.float32).toarray() for layer in layers]

    def by_handles() -> Any:
        features = Y
        for handle in handles:
            features = handle.apply(features)
        return features

    def dense() -> Any:
        features = Y
        for W in weights:
            features = features @ W
            features += np.float32(BIAS)
            np.maximum(features, 0, out=features)
        return features

    return {
        "run": lambda: plan.run(Y),
        "scores": lambda: plan.scores(Y),
        "layer handles": by_handles,
        "dense": dense,
    }


def main() -> None:
    """Print the table; AssertionError where scores differ."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    backend, blas = ps.get_backend("numba", threads), ThreadpoolController()
    rng = np.random.default_rng(0)
    print("| neurons | inputs | `run` | `scores` | layer handles | dense |")
    print("| --- | --- | --- | --- | --- | --- |")
    for neurons, density, numbers in NETWORKS:
        weights = (
            sp.random_array(shape, density=density, rng=rng, data_sampler=rng.normal)
            for shape in pairwise(neurons)
        )
        layers = [ps.Layer(W.astype(np.float32), BIAS) for W in weights]
        for inputs in numbers:
            Y = rng.normal(size=(inputs, neurons[0])).astype(np.float32)
            ways = ways_of(backend, layers, Y)
            expected = ways["dense"]()
            for found in (ways["scores"](), ways["layer handles"](), ways["run"]().scores):
                atol = 1e-4 * np.abs(expected).max()
                np.testing.assert_allclose(found, expected, rtol=1e-3, atol=atol)
            least, _ = by_turns({name: (way, threads) for name, way in ways.items()}, blas, {})
            values = [1e6 * seconds for seconds in least.values()]
            cells = [f"{value:.2g}" if value < 10 else f"{value:,.0f}" for value in values]
            print(f"| {', '.join(f'{n:,}' for n in neurons)} | {inputs} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
