"""Which plan is made of which options, and what is refused before one is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.plans.layer_loop import LayerLoopPlan
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.plans.rewritten import RewrittenPlan
from portable_spdnn.plans.streamed import StreamedPlan
from portable_spdnn_cpu.scipy_backend import ScipyBackend


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "csr"}, "kernel"),
        ({"storage": "float16"}, r"takes no option storage \('float16'\)"),
        ({"device_memory": 1 << 30}, "takes no option device_memory"),
        ({"devices": "all"}, r"takes no option devices \('all'\)"),
    ],
)
def test_options_of_other_backends_are_errors(options: dict[str, Any], message: str) -> None:
    network = ps.Network([ps.Layer(sp.csr_array(np.eye(3)))])
    with pytest.raises(ps.InputError, match=message):
        ps.infer(network, np.eye(3), "scipy", **options)


def test_a_plan_is_what_its_options_ask_for() -> None:
    network, scipy = ps.radixnet(64, 3), ps.get_backend("scipy")
    for options, kind in (
        (ps.PlanOptions(), LayerLoopPlan),
        (ps.PlanOptions(exact_passes="all"), RewrittenPlan),
        (ps.PlanOptions(memory=16 << 30), StreamedPlan),
        (ps.PlanOptions(exact_passes="all", memory=16 << 30), RewrittenPlan),
    ):
        made = make_plan(scipy, network, options)
        assert type(made) is kind
        assert made.plan_seconds > 0
        assert made.options == options


def test_a_backend_may_bring_a_plan_of_its_own() -> None:
    class OwnPlan(LayerLoopPlan):
        pass

    class Planner(ScipyBackend):
        def build_plan(self, network: ps.Network, options: ps.PlanOptions) -> Any:
            return OwnPlan(self, network, options) if options.path == "spmm" else None

    network = ps.radixnet(64, 3)
    assert type(make_plan(Planner(), network, ps.PlanOptions(path="spmm"))) is OwnPlan
    assert type(make_plan(Planner(), network, ps.PlanOptions(path="spgemm"))) is LayerLoopPlan


def test_a_backend_is_given_by_name_or_at_hand() -> None:
    network, scipy = ps.Network([ps.Layer(np.eye(2))]), ps.get_backend("scipy")
    assert ps.plan(network, scipy).backend is scipy
    assert ps.plan(network, "numba", threads=1).backend.threads == 1
    with pytest.raises(ps.InputError, match="threads goes with a backend given by name"):
        ps.plan(network, scipy, threads=1)


@pytest.mark.parametrize("network", [[np.eye(2)], ps.Layer(np.eye(2))])
def test_only_networks_are_planned(network: Any) -> None:
    with pytest.raises(ps.InputError, match=r"network is a (list|Layer); expected a Network"):
        ps.plan(network, "scipy")
    with pytest.raises(ps.InputError, match=r"network is a (list|Layer); expected a Network"):
        ps.infer(network, np.eye(2), "scipy")


def test_amounts_of_memory_may_be_text() -> None:
    network = ps.Network([ps.Layer(np.eye(2))])
    assert ps.plan(network, "scipy", memory="16GiB").options.memory == 16 << 30
    with pytest.raises(ps.InputError, match="memory is 'much'"):
        ps.plan(network, "scipy", memory="much")
