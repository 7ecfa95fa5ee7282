"""Whole inference: a backend's plan against the reference's layer loop.

1,024 neurons and 120 layers with up to 10,000 images, and 4,096 neurons with fewer. Planning
(packing, compiling) is no part of the time; it is recorded beside it.
"""

from __future__ import annotations

import numpy as np
import pytest

from portable_spdnn.plans.planner import make_plan
from portable_spdnn_cpu.spmm.clustered.tuning import WIDTHS

from .agreement import assert_agree
from .kernel_models import loads_per_edge, tile_model

LAYERS = 120
INPUTS = {1024: 10_000, 4096: 1_000}
SAMPLED_INPUTS = 16


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
