"""Plans that begin on sparse features: where they do, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tile_settings import set_tile_costs

import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.testing import oracle

pytestmark = pytest.mark.usefixtures("depth_first_plans")


@pytest.fixture
def network() -> ps.Network:
    rng = np.random.default_rng(0)
    layers = [
        ps.Layer(np.where(rng.random((60, 60)) < 0.1, rng.random((60, 60)), 0), -0.1)
        for _ in range(5)
    ]
    return ps.Network(layers, y_max=4)


def sparse_inputs(density: float) -> Any:
    rng = np.random.default_rng(1)
    return np.where(rng.random((300, 60)) < density, rng.random((300, 60)), 0).astype(np.float32)


@pytest.mark.parametrize("break_even", [0.0, 0.05, 0.3, 2.0])
@pytest.mark.parametrize("form", ["csr", "bits"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_answers_do_not_depend_on_where_tiles_begin(
    network: ps.Network, form: str, break_even: float, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Y = sparse_inputs(0.03)
    if form == "bits":
        Y = (Y > 0).astype(np.float32)
    given = sp.csr_array(Y) if form == "csr" else np.packbits(Y > 0, axis=1)
    lanes = 64 // np.dtype(dtype).itemsize
    set_tile_costs(monkeypatch, lanes, lanes)  # tiles so narrow that they stop where inputs leave
    plan = make_plan(ps.get_backend("numba", threads=2), network, ps.PlanOptions(dtype))
    monkeypatch.setattr(plan.sparse_prefix, "break_even", break_even)
    starts: list[int] = []
    run = plan.sparse_prefix.run

    def noted(features: Any) -> Any:
        start = run(features)
        starts.append(start.layers)
        return start

    monkeypatch.setattr(plan.sparse_prefix, "run", noted)
    result = plan.run(given)
    assert starts == [{0.0: 0, 0.05: 1, 0.3: starts[0], 2.0: 4}[break_even]]
    assert f"is nonzero: in the last batch, for {starts[0]} layers.\n" in plan.describe()
    categories, scores, active = oracle.infer(network, Y)
    assert result.categories.tolist() == categories
    np.testing.assert_allclose(result.scores, scores, rtol=1e-5, atol=1e-6)
    assert [record.alive_inputs for record in result.records] == active
    dense = ps.infer(network, Y.astype(dtype), "numba", dtype=dtype, keep_dead_inputs=True)
    assert dense.executed_edges == 300 * network.edges > result.executed_edges


def test_all_inputs_may_leave_on_the_way(
    network: ps.Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(ps.get_backend("numba"), network)
    monkeypatch.setattr(plan.sparse_prefix, "break_even", 2.0)
    result = plan.run(sp.csr_array((7, 60), dtype=np.float32))
    assert result.categories.size == 0
    assert [record.alive_inputs for record in result.records] == [0] * 5
    assert not result.scores.any()


def test_the_ratio_is_measured_and_said(network: ps.Network) -> None:
    plan = make_plan(ps.get_backend("numba"), network)
    assert 0 < plan.sparse_prefix.break_even < np.inf
    assert "Features are sparse at first, while less than" in plan.describe()
    assert plan.describe().count("% is nonzero.\n") == 1


def test_sparse_features_are_left_out_where_they_are_not_exact_or_not_wanted(
    network: ps.Network,
) -> None:
    backend = ps.get_backend("numba")
    biased = ps.Network([ps.Layer(np.eye(4), 0.5), ps.Layer(np.eye(4))])
    for plan in (
        make_plan(backend, biased),
        make_plan(backend, network, ps.PlanOptions(path="spmm")),
        make_plan(backend, network, ps.PlanOptions(keep_dead_inputs=True)),
    ):
        assert plan.sparse_prefix is None
        assert "dense from the first layer on" in plan.describe()
