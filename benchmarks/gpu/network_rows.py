"""Whole networks, checked and timed, beside the same work by cuSPARSE (benchmarks/peers)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from budget import Budget
from cusparse_peer import cusparse_plan
from layer_rows import attempt
from outcome import NOT_ASKED_FOR
from targets import EDGE_RATES, champion

import portable_spdnn as ps
from portable_spdnn.backend import Backend
from portable_spdnn.graphchallenge.categories import categories_sha256
from portable_spdnn.kernel_model import Limits, part_of_limit
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.report.run_report import layer_speeds
from portable_spdnn_gpu.network.plan import DevicePlan

Record = dict[str, Any]
VARIANTS = {
    "auto": ps.PlanOptions(),
    "exact passes": ps.PlanOptions(exact_passes="all"),
    "float16": ps.PlanOptions(storage="float16"),
}
# Bounds of the reference's and the peer's work: inputs x edges of the network.
REFERENCE_EDGES = 2e11
COMPARED_EDGES = 4e12
LEAST_REFERENCE_INPUTS = 256
COMPARED_LAYERS = 120
MANY_INPUTS = 10_000  # active in a layer whose part of its limit is a target
# Of the categories of half precision, so many per thousand, or one, may differ: scores near zero.
HALF_DIFFERS = 5


@dataclass
class Bench:
    """What all networks share.

    Attributes
    ----------
    backend, reference : Backend
        The backend that is measured, and the one that its categories are compared with.
    limits : Limits or None
        The limits of the device; None where they could not be measured.
    budget : Budget
    left_out : tuple of str
        Variants that are not measured.
    peer : bool
        Whether cuSPARSE is measured too.
    """

    backend: Backend
    reference: Backend
    limits: Limits | None
    budget: Budget
    left_out: tuple[str, ...] = ()
    peer: bool = True


def network_row(
    bench: Bench, network: ps.Network, features: Any, keep: Callable[[Record], None]
) -> Record:
    """Run one network in all variants.

    Parameters
    ----------
    bench : Bench
    network : Network
    features : Features
    keep : callable
        Given the row as it stands, after each variant.

    Returns
    -------
    dict
        ``variants``: for each of VARIANTS what `_variant` gives, or `state` "failed" with
        `error`, or "skipped" with `reason`; ``compared``: the same work with and without
        cuSPARSE; ``check``: what categories were compared with.
    """
    inputs = int(features.shape[0])
    some = min(inputs, max(LEAST_REFERENCE_INPUTS, int(REFERENCE_EDGES / network.edges)))
    start = time.perf_counter()
    expected = make_plan(bench.reference, network).run(features[:some]).categories
    row: Record = {
        "neurons": network.neurons,
        "layers": len(network),
        "inputs": inputs,
        "edges": network.edges,
        "target_edge_rate": EDGE_RATES.get((network.neurons, len(network))),
        "champion_edge_rate": champion(network.neurons, len(network)),
        "check": {
            "against": bench.reference.name,
            "inputs": some,
            "categories": int(expected.size),
            "seconds": time.perf_counter() - start,
        },
        "variants": {},
    }
    first: list[Any] = []  # categories of all inputs, by the first variant
    plans: dict[str, ps.NetworkPlan] = {}

    def variant(name: str) -> Record:
        plans[name] = make_plan(bench.backend, network, VARIANTS[name])
        record, categories = _variant(bench, plans[name], features, expected, some)
        first.append(categories)
        return record | {"differs_from_first": int(np.setxor1d(first[0], categories).size)}

    def compared(name: str) -> Record:
        return _compared(bench, network, features, plans.get(name))

    row["variants"]["auto"] = attempt(variant, "auto", bench.budget)
    skipped: Record = {"state": "skipped", "reason": NOT_ASKED_FOR}
    row["compared"] = attempt(compared, "auto", bench.budget) if bench.peer else skipped
    plans.clear()  # its memory
    keep(row)
    auto = row["variants"]["auto"]
    needed = auto.get("plan_seconds", 0.0) + auto.get("first_seconds", 0.0)
    for name in [name for name in VARIANTS if name != "auto"]:
        row["variants"][name] = (
            skipped if name in bench.left_out else attempt(variant, name, bench.budget, needed)
        )
        plans.clear()
        keep(row)
    return row


def _variant(
    bench: Bench, plan: ps.NetworkPlan, features: Any, expected: Any, checked: int
) -> tuple[Record, Any]:
    """Run a plan once for the answer, and again for the time."""
    result = plan.run(features)
    categories = result.categories
    differing = int(np.setxor1d(categories[categories < checked], expected).size)
    half = plan.options.storage == "float16"
    right = differing <= (-(-HALF_DIFFERS * expected.size // 1000) if half else 0)
    record: Record = {
        "state": "done",
        "verdict": "PASSED" if right else "WRONG",
        "differs_from_reference": differing,
        "plan": plan.describe().splitlines(),
        "plan_seconds": plan.plan_seconds,
        "first_seconds": result.inference_seconds,
        "categories": int(categories.size),
        "categories_sha256": categories_sha256(categories),
        "executed_edges": result.executed_edges,
        "alive_inputs_per_layer": [one.alive_inputs for one in result.records],
    }
    if not right:  # the time of a wrong answer means nothing
        return record, categories
    times = bench.budget.runs(lambda: plan.run(features).inference_seconds)
    least = min(times)
    record |= {
        "seconds": times,
        "least_seconds": least,
        "edge_rate": result.inputs * result.edges / least,
        "executed_edge_rate": result.executed_edges / least,
        **_limit(bench, plan, result, least),
        "profile": _profile(bench, plan, features),
    }
    return record, categories


def _profile(bench: Bench, plan: ps.NetworkPlan, features: Any) -> Record | None:
    """Run once more with every step timed by itself; None where that cannot be."""
    if bench.limits is None or not isinstance(plan, DevicePlan):
        return None
    plan.profile = True
    try:
        result = plan.run(features)
    finally:
        plan.profile = False
    speeds, spent = layer_speeds(plan, result, bench.limits), result.device_report
    if speeds is None or spent is None:
        return None
    many = [
        speed.fraction
        for speed, record in zip(speeds, result.records, strict=True)
        if (record.computed_inputs or 0) >= MANY_INPUTS
    ]
    return {
        **asdict(spent),
        "layers_of_many_inputs": len(many),
        "median_fraction": float(np.median(many)) if many else None,
        "least_fraction": min(many, default=None),
    }


def _limit(bench: Bench, plan: ps.NetworkPlan, result: ps.Result, seconds: float) -> Record:
    """Return the part of what the device allows to the plan's kernels, for what they executed."""
    computed = [record.computed_inputs for record in result.records]
    known = [inputs for inputs in computed if inputs is not None]
    models = plan.layer_models(known) if len(known) == len(computed) else None
    edges = [layer.nnz * inputs for layer, inputs in zip(plan.network, known, strict=False)]
    if bench.limits is None or models is None or not sum(edges):
        return {"fraction_of_limit": None, "bound_by": None}
    part, binding = part_of_limit(models, bench.limits, edges, seconds)
    return {"fraction_of_limit": part, "bound_by": binding}


def _compared(
    bench: Bench, network: ps.Network, features: Any, own: ps.NetworkPlan | None
) -> Record:
    """Run the plan and the one of cuSPARSE on the same part of the work, one after the other."""
    part = network
    if len(network) > COMPARED_LAYERS:
        part = ps.Network(network.layers[:COMPARED_LAYERS], network.y_max)
    if own is None or part is not network:
        own = make_plan(bench.backend, part)
    inputs = min(int(features.shape[0]), max(1, int(COMPARED_EDGES / part.edges)))
    some = features[:inputs]
    other = cusparse_plan(bench.backend, part)
    one, two = own.run(some), other.run(some)
    agree = np.array_equal(one.categories, two.categories)
    record: Record = {
        "state": "done",
        "layers": len(part),
        "inputs": inputs,
        "edges": part.edges,
        "verdict": "PASSED" if agree else "WRONG",
        "plan": other.describe().splitlines(),
    }
    if not agree:
        return record
    own_times = bench.budget.runs(lambda: own.run(some).inference_seconds)
    other_times = bench.budget.runs(lambda: other.run(some).inference_seconds)
    return record | {
        "seconds": own_times,
        "cusparse_seconds": other_times,
        "speed_up": min(other_times) / min(own_times),
    }
