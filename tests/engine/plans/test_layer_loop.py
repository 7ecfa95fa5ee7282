"""The layer loop: sparse or dense features, layer by layer, and the same answer by either."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan


@pytest.mark.parametrize("break_even", [0.0, 0.15, 0.6, 2.0])
def test_the_layer_loop_changes_path_with_the_density(
    break_even: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Layer 1 spreads each feature over all neurons, layer 4 gathers them in one again.
    spread, keep, gather = np.ones((12, 12)), np.eye(12), np.zeros((12, 12))
    gather[:, 0] = 1
    network = ps.Network([ps.Layer(part) for part in (spread, keep, keep, gather, keep, spread)])
    Y = np.zeros((5, 12))
    Y[range(5), range(5)] = 1
    plan = make_plan(ps.get_backend("scipy"), network)
    assert "sparse below" in plan.describe()
    monkeypatch.setattr(plan, "break_even", break_even)
    expected = ps.infer(network, Y, "scipy", path="spmm").scores
    np.testing.assert_array_equal(ps.infer(network, Y, "scipy", path="spgemm").scores, expected)
    words = {
        0.0: "layers 1 to 6 dense",
        0.15: "layer 1 sparse, layers 2 to 6 dense",  # one in twelve is above half of 0.15
        0.6: "layer 1 sparse, layers 2 to 4 dense, layers 5 to 6 sparse",
        2.0: "layers 1 to 6 sparse",
    }[break_even]
    for features in (Y, sp.csr_array(Y), ps.PackedFeatures.from_dense(Y)):
        result = plan.run(features)
        np.testing.assert_array_equal(result.scores, expected)
        assert f"in the last batch {words}\n" in plan.describe()


def test_the_path_is_measured_only_where_there_is_a_choice() -> None:
    network = ps.radixnet(64, 3)
    biased = ps.Network([ps.Layer(np.eye(4), 0.5)])
    for chosen, options, words in [
        (network, ps.PlanOptions(path="spmm"), "dense (asked for)"),
        (network, ps.PlanOptions(path="spgemm"), "sparse (asked for)"),
        (biased, ps.PlanOptions(), "dense (a layer turns zeros into nonzeros)"),
    ]:
        plan = make_plan(ps.get_backend("scipy"), chosen, options)
        assert plan.break_even is None
        plan.run(np.ones((2, chosen.neurons)))
        assert f"features between layers: {words}\n" in plan.describe()
