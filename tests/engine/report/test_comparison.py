"""The comparison with the serial reference, on backends whose faults are known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import portable_spdnn as ps
from portable_spdnn.report import comparison
from portable_spdnn.report.comparison import compare, judge_by_reference, run_reference
from portable_spdnn_cpu.scipy_backend import ScipyBackend

NETWORK = ps.Network([ps.Layer(np.eye(3), -1.0)] * 2)
FEATURES = np.diag([6.0, 1.0, 4.0])  # scores 4, 0 and 2


class Larger(ScipyBackend):
    """Adds a quarter to every score after a layer."""

    name = "larger"

    def run_layer(self, W: Any, Y: Any, epilogue: Any, residual: Any) -> Any:
        return 1.25 * super().run_layer(W, Y, epilogue, residual)


class Reviving(ScipyBackend):
    """Gives every input a positive score."""

    name = "reviving"

    def run_layer(self, W: Any, Y: Any, epilogue: Any, residual: Any) -> Any:
        return super().run_layer(W, Y, epilogue, residual) + 0.5


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"scipy": ScipyBackend, "larger": Larger, "reviving": Reviving}
    monkeypatch.setattr(comparison, "get_backend", lambda name, threads: made[name](threads))


def test_differences_are_those_of_the_scores() -> None:
    options = ps.PlanOptions(path="spmm", keep_dead_inputs=True)
    reference, larger, reviving = compare(NETWORK, FEATURES, ["larger", "reviving"], options)
    assert reference.result.scores.tolist() == [[4, 0, 0], [0, 0, 0], [0, 0, 2]]
    assert reference.categories_agree
    assert reference.largest_absolute_difference == reference.largest_relative_difference == 0
    assert reference.speed_up == 1
    # ((6 - 1) 1.25 - 1) 1.25 = 6.5625 in place of 4, and (3.75 - 1) 1.25 = 3.4375 in place of 2.
    assert larger.largest_absolute_difference == 6.5625 - 4
    assert larger.largest_relative_difference == pytest.approx((3.4375 - 2) / 3.4375)
    assert larger.categories_agree
    assert reviving.largest_relative_difference == 1  # where the reference has 0
    assert not reviving.categories_agree
    assert larger.result.edge_rate == pytest.approx(3 * 6 / larger.result.inference_seconds)
    assert larger.result.executed_edge_rate == pytest.approx(
        larger.result.executed_edges / larger.result.inference_seconds
    )
    assert larger.speed_up == reference.result.inference_seconds / larger.result.inference_seconds


def test_the_reference_runs_once_first_and_without_exact_passes() -> None:
    ran: list[str] = []

    @contextmanager
    def show(what: str) -> Iterator[None]:
        ran.append(what)
        yield

    options = ps.PlanOptions(exact_passes="all")
    found = compare(
        NETWORK, FEATURES, ["larger", "scipy", "larger"], options, repeat=2, show_progress=show
    )
    assert ran == [
        "scipy, run 1 of 2", "scipy, run 2 of 2", "larger, run 1 of 2", "larger, run 2 of 2",
    ]  # fmt: skip
    assert [one.result.exact_passes for one in found] == [(), options.exact_passes]


def test_times_are_medians_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three runs of each backend: 9, 1 and 4 seconds, then 1, 2 and 8.
    clock = iter([0, 9, 0, 1, 0, 4, 0, 1, 0, 2, 0, 8])
    monkeypatch.setattr(
        "portable_spdnn.plans.base.NetworkPlan.run",
        lambda plan, features, progress: timed(plan, features, next(clock), next(clock)),
    )
    reference, larger = compare(NETWORK, FEATURES, ["larger"])
    assert (reference.result.inference_seconds, larger.result.inference_seconds) == (4, 2)
    assert larger.speed_up == 2


def timed(plan: Any, features: Any, start: float, end: float) -> ps.Result:
    """Return the result of a run that took from `start` to `end`."""
    batches = list(plan.finished_batches(features))
    result: ps.Result = plan.result(features.shape[0], batches, end - start)
    return result


def test_the_reference_judges_categories() -> None:
    reference = run_reference(NETWORK, FEATURES, np.float64)
    assert judge_by_reference(reference, reference).passed
    wrong = ps.infer(NETWORK, FEATURES, Reviving(), path="spmm")
    assert not judge_by_reference(wrong, reference).passed
