"""Whole inference: a backend's plan against the reference's layer loop.

Of the challenge: 1,024 neurons and 120 layers with up to 10,000 images, and 4,096 neurons with
fewer. Of pruned networks: 784, 1,024, 1,024 and 10 neurons with 90 % zeros, random biases. Planning
(packing, compiling) is no part of the time; it is recorded beside it.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.planner import make_plan
from portable_spdnn_cpu.spmm.clustered.tuning import WIDTHS

from .agreement import assert_agree
from .kernel_models import loads_per_edge, tile_model

LAYERS = 120
INPUTS = {1024: 10_000, 4096: 1_000}
SAMPLED_INPUTS = 16
PRUNED_WIDTHS = (784, 1024, 1024, 10)


def scores_in_float64(network, features):
    """Return the scores of the first inputs, computed densely in float64."""
    Y = features[:SAMPLED_INPUTS].dense(np.float64)
    for layer in network:
        Y = np.clip(Y @ layer.csr(np.float64) + layer.bias, 0, network.y_max)
    return Y


@pytest.mark.cases("1024x120", "4096x120", one_thread=("1024x120",))
def test_inference(case, backend, reference, prepared, challenge_network, images, measure):
    neurons = int(case.partition("x")[0])
    network, weights = challenge_network(neurons, LAYERS)
    features, inputs = images(neurons, INPUTS[neurons])

    def build():
        expected = make_plan(reference, network).run(features)
        sampled = scores_in_float64(network, features)
        assert_agree(expected.score_rows(0, sampled.shape[0]), sampled)
        assert np.array_equal(
            expected.categories[expected.categories < sampled.shape[0]],
            np.flatnonzero(sampled.max(axis=1) > 0),
        )
        return expected, expected.scores

    expected, scores = prepared(build)
    plan = make_plan(backend, network)

    def check(result):
        assert np.array_equal(result.categories, expected.categories)
        assert_agree(result.scores, scores)

    measure(
        lambda: plan.run(features),
        check,
        edges=lambda result: result.executed_edges,
        model=tile_model(
            neurons, np.dtype(np.float32), WIDTHS[0], loads_per_edge(network.layers[-1].csr().T)
        ),
        seconds=2.0,
        least_rounds=3,
        weights=weights,
        inputs=f"{inputs}, {features.shape[0]}",
        survivors=int(expected.categories.size),
        challenge_edges=features.shape[0] * network.edges,
        plan_seconds=round(plan.plan_seconds, 4),
    )


def pruned_network(density):
    """Return layers whose weights and biases are normal random numbers; the last is linear."""
    rng = np.random.default_rng(0)
    layers = [
        ps.Layer(
            sp.random_array(
                shape, density=density, rng=rng, dtype=np.float32, data_sampler=rng.standard_normal
            ),
            0.1 * rng.standard_normal(shape[1]),
            "none" if shape[1] == PRUNED_WIDTHS[-1] else "relu",
        )
        for shape in pairwise(PRUNED_WIDTHS)
    ]
    return ps.Network(layers)


@pytest.mark.cases("1", "16", "100", "300", "8000", one_thread=("1", "300", "8000"))
def test_pruned_inference(case, backend, reference, prepared, measure):
    inputs = int(case)

    def build():
        network = pruned_network(density=0.1)
        Y = np.random.default_rng(1).random((inputs, network.neurons), np.float32)
        exact = Y[:SAMPLED_INPUTS].astype(np.float64)
        for layer in network:
            exact = exact @ layer.csr(np.float64) + layer.bias
            exact = np.maximum(exact, 0) if layer.activation == "relu" else exact
        expected = make_plan(reference, network).run(Y).scores
        assert_agree(expected[:SAMPLED_INPUTS], exact)
        return network, Y, expected

    network, Y, expected = prepared(build)
    plan = make_plan(backend, network, PlanOptions(expected_inputs=inputs))
    measure(
        lambda: plan.run(Y),
        lambda result: assert_agree(result.scores, expected),
        edges=lambda result: result.executed_edges,
        weights="random, 90 % zeros",
        inputs=f"random, {inputs}",
        plan_seconds=round(plan.plan_seconds, 4),
    )
