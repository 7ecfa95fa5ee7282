"""Exact passes on the device: the answers of the host's, and features that stay where they are."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cuda_emulation.device_at_hand import ON_GPU, needs_device
from cuda_emulation.emulated_backend import EmulatedCupyBackend
from cuda_emulation.emulated_device import EmulatedDevice

import portable_spdnn as ps
from portable_spdnn.passes.compared_rows import HostRows
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.plans.rewritten import RewrittenPlan
from portable_spdnn.testing import oracle
from portable_spdnn_gpu.cupy_backend import CupyBackend
from portable_spdnn_gpu.network import memory
from portable_spdnn_gpu.network.plan import DevicePlan

pytestmark = needs_device


@pytest.fixture(scope="module")
def backend() -> CupyBackend:
    return CupyBackend() if ON_GPU else EmulatedCupyBackend()


def mixing(layers: int, neurons: int = 32, activations: str = "relu") -> ps.Network:
    """Return layers of 4 equal weights an output, of sum 2; inputs saturate, or become inactive."""
    rng = np.random.default_rng(3)
    ring = sum(np.roll(np.eye(neurons), shift, axis=0) for shift in (0, 1, 5, 11)) / 2
    return ps.Network(
        [ps.Layer(ring[rng.permutation(neurons)], -0.5, activations) for _ in range(layers)], 4.0
    )


def few_kinds(inputs: int, neurons: int = 32, kinds: int = 9) -> np.ndarray:
    """Return binary inputs that are copies of a few; some die, some saturate, some keep going."""
    rng = np.random.default_rng(inputs)
    kind = rng.random((kinds, neurons)) < np.linspace(0, 0.8, kinds)[:, None]
    return kind[rng.integers(0, kinds, inputs)]


def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans compare rows in host memory, as those of other backends do."""
    monkeypatch.setattr(DevicePlan, "compared_rows", lambda self, features: HostRows(features))
    run = DevicePlan.run_rows

    def run_fetched(self: DevicePlan, rows: Any, report: Callable[[int], None]) -> Any:
        return run(self, rows, report).fetched()

    monkeypatch.setattr(DevicePlan, "run_rows", run_fetched)


# Every form of features, and every option with one or two of them.
RUNS = [
    (np.asarray, {}), (np.float32, {}), (sp.csr_array, {}), (np.asarray, {"dtype": "float64"}),
    (sp.csr_array, {"batch_size": 13}), (np.float32, {"batch_size": 13}),
    (np.float32, {"storage": "float16"}), (np.asarray, {"keep_dead_inputs": True}),
    (np.float32, {"kernel": "resident"}), (np.asarray, {"memory": "8GiB"}),
    (sp.csr_array, {"devices": "0,2"}),
]  # fmt: skip


@functools.cache
def right_answers() -> tuple[list[int], np.ndarray, list[int]]:
    return oracle.infer(mixing(37), few_kinds(60))


@pytest.mark.parametrize("passes", ["merge-inputs", "fixed-point", "all", "merge-neurons"])
@pytest.mark.parametrize(
    ("form", "options"), RUNS, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_rows_compared_on_the_device_change_nothing(
    backend: CupyBackend, monkeypatch: pytest.MonkeyPatch, form: Any, options: Any, passes: str
) -> None:
    if ON_GPU and "devices" in options:
        pytest.skip("there may be one device")
    network, Y = mixing(37), form(few_kinds(60))
    categories, scores, active = right_answers()
    here = ps.infer(network, Y, backend, exact_passes=passes, **options)
    assert here.categories.tolist() == categories
    assert 0 < len(categories) < 60
    for record, expected in zip(here.records, active, strict=True):
        assert record.alive_inputs in (None, expected)
    if options.get("memory") is None:
        np.testing.assert_allclose(here.scores, scores, rtol=1e-2, atol=1e-2)
    with monkeypatch.context() as patch:
        on_the_host(patch)
        there = ps.infer(network, Y, backend, exact_passes=passes, **options)
    assert [record.alive_inputs for record in here.records] == [
        record.alive_inputs for record in there.records
    ]
    assert here.executed_edges == there.executed_edges
    if options.get("memory") is None:
        assert here.scores.tobytes() == there.scores.tobytes()


@pytest.mark.parametrize("inputs", [0, 1, 2, 50])
def test_any_number_of_inputs(backend: CupyBackend, inputs: int) -> None:
    network = mixing(18)
    plan = make_plan(backend, network, ps.PlanOptions(exact_passes="all", batch_size=50))
    for Y in (few_kinds(inputs), np.ones((inputs, 32)), np.zeros((inputs, 32))):
        categories, scores, _ = oracle.infer(network, Y)
        result = plan.run(Y)
        assert result.categories.tolist() == categories
        np.testing.assert_allclose(result.scores, scores, rtol=1e-5, atol=1e-5)


def test_a_linear_end_and_layers_that_differ_take_uniform_inputs_back(backend: CupyBackend) -> None:
    rng = np.random.default_rng(0)
    uneven = ps.Layer(rng.integers(-2, 4, (32, 32)) / 8 * (rng.random((32, 32)) < 0.3), -0.25)
    layers = [*mixing(24).layers, uneven, *mixing(9).layers, ps.Layer(np.eye(32), 0.5, "none")]
    network, Y = ps.Network(layers, y_max=4.0), few_kinds(80)
    categories, scores, _ = oracle.infer(network, Y)
    for passes in ("fixed-point", "all"):
        result = ps.infer(network, Y, backend, exact_passes=passes, dtype="float64")
        assert result.categories.tolist() == categories
        np.testing.assert_allclose(result.scores, scores, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("passes", ["none", "merge-inputs", "fixed-point", "all"])
@pytest.mark.parametrize("bias", [0.5, -0.25])
def test_inputs_that_became_inactive_come_back_where_a_layer_fills_zeros(
    backend: CupyBackend, passes: str, bias: float
) -> None:
    layers = [ps.Layer(np.eye(6), -0.25)] * 12 + [ps.Layer(np.eye(6), [bias, 0, 0, 0, 0, 0])]
    Y = np.zeros((12, 6))
    Y[3], Y[5], Y[7, 2] = 1, 9, 5
    for network in (ps.Network(layers), ps.Network([*layers, *layers])):
        categories, scores, active = oracle.infer(network, Y)
        result = ps.infer(network, Y, backend, exact_passes=passes)
        assert result.categories.tolist() == categories
        np.testing.assert_array_equal(result.scores, scores)
        for record, expected in zip(result.records, active, strict=True):
            assert record.alive_inputs in (None, expected)


def test_nan_and_infinities_pass_through_comparisons(backend: CupyBackend) -> None:
    # Features of 3e38 double to infinity in layer 8 at the latest; the last layer takes half of
    # the inputs no notice of them, or subtracts them.
    grows = [ps.Layer(2e4 * np.eye(4)) for _ in range(9)]
    unseen = ps.Network([*grows, ps.Layer(np.diag([0.0, 0, 0, 1]))])
    Y = np.repeat([[1.0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]], 6, axis=0)
    expected = ps.infer(unseen, Y, "scipy", path="spmm", exact_passes="all")
    found = ps.infer(unseen, Y, backend, exact_passes="all")
    np.testing.assert_array_equal(found.categories, expected.categories)
    np.testing.assert_array_equal(found.scores, expected.scores)
    cancels = np.eye(4) - np.roll(np.eye(4), 1, axis=0)
    with pytest.raises(ps.NumericalError, match="became NaN"):
        ps.infer(ps.Network([*grows, ps.Layer(cancels)]), Y, backend, exact_passes="all")


def test_features_stay_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    if ON_GPU:
        pytest.skip("what crosses is seen on the emulated device")
    backend, network, Y = EmulatedCupyBackend(), mixing(40), few_kinds(300)
    options = ps.PlanOptions(exact_passes="merge-inputs", batch_size=300)
    plan = make_plan(backend, network, options)
    crossed: dict[str, list[int]] = {"upload": [], "download": []}

    def note(way: str) -> Callable[..., Any]:
        move = getattr(EmulatedDevice, way)

        def noted(device: EmulatedDevice, array: Any) -> Any:
            crossed[way].append(array.nbytes)
            return move(device, array)

        return noted

    with monkeypatch.context() as patch:
        for way in crossed:
            patch.setattr(EmulatedDevice, way, note(way))
        patch.setattr(EmulatedDevice, "_load", None)  # nor is a kernel compiled
        result = plan.run(Y)
    assert max(crossed["upload"]) == 300 * 4  # the bits, and numbers of inputs
    assert max(crossed["download"]) <= 320 * 4  # a number for each input
    assert sum(crossed["download"]) < 10_000  # features of 300 inputs take 38,400
    assert isinstance(plan, RewrittenPlan)
    assert plan.rows_merged > 250
    assert result.categories.tolist() == oracle.infer(network, Y)[0]
    launches = backend.cuda.launches  # type: ignore[attr-defined]
    assert launches.count("hash_rows") == launches.count("match_rows") > 1


def test_rows_leave_the_device_with_the_run_that_takes_them(backend: CupyBackend) -> None:
    if ON_GPU:
        pytest.skip("the library's pool keeps memory")
    plan = make_plan(backend, mixing(33), ps.PlanOptions(exact_passes="all"))
    gc.collect()
    gc.disable()
    try:
        before = backend.cuda.free_memory()
        result = plan.run(few_kinds(90))
        rows = result._batches[0].output.rows
        kept = 4 * np.prod(rows.shape)
        assert before - backend.cuda.free_memory() <= kept
        del rows
        scores = result.scores  # brings what is left to the host
        assert scores.any()
        assert backend.cuda.free_memory() == before
    finally:
        gc.enable()


def test_rows_that_may_not_wait_on_the_device_are_compared_on_the_host(
    backend: CupyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, Y = mixing(20), np.random.default_rng(5).random((40, 32)) < 0.5
    monkeypatch.setattr(memory, "RESERVE", 0)
    plan: Any = make_plan(backend, network, ps.PlanOptions(exact_passes="all", batch_size=40))
    first = plan.segments[0].plan
    assert isinstance(first.compared_rows(Y.astype(np.float32)), HostRows)
    assert isinstance(first.run_batch(Y.astype(np.float32), lambda done: None).rows, np.ndarray)
    assert plan.run(Y).categories.tolist() == oracle.infer(network, Y)[0]


def test_checkpoints_hold_expanded_rows(backend: CupyBackend, tmp_path: Path) -> None:
    network, Y = mixing(20), few_kinds(50)
    plan = make_plan(backend, network, ps.PlanOptions(exact_passes="all", batch_size=20))
    expected = plan.run(Y)
    for resumed in (0, 50):
        result = plan.run(Y, checkpoint=tmp_path / "run")
        assert result.resumed_inputs == resumed
        np.testing.assert_array_equal(result.categories, expected.categories)
        assert result.scores.tobytes() == expected.scores.tobytes()


def test_segments_expect_the_inputs_that_are_left(backend: CupyBackend) -> None:
    # Neurons merged, no two rows share much: what is left runs many layers in a launch.
    network = ps.radixnet(1024, 20)
    plan = make_plan(backend, network, ps.PlanOptions(exact_passes="all", expected_inputs=1000))
    assert isinstance(plan, RewrittenPlan)
    assert plan.batch_size == 1000
    for segment in plan.segments[1:]:
        assert segment.plan.options.expected_survival == (0.03,)
        assert "persistent kernel, 1 fused segment" in segment.plan.describe()


@pytest.mark.skipif(ON_GPU, reason="the memory of the emulated device may be small")
@pytest.mark.parametrize("limited", [False, True])
def test_segments_share_the_memory(limited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = EmulatedCupyBackend()
    monkeypatch.setattr(backend.cuda, "watch_memory", lambda: None)  # the peak of all runs
    network, Y = mixing(60, 128), np.random.default_rng(1).random((300, 128)) < 0.4
    # Weights take 369 KB; 3,000 inputs would take 3.1 MB.
    given: dict[str, Any] = {"device_memory": 500_000} if limited else {}
    if not limited:
        backend.cuda.memory = 1_000_000
    options = {"kernel": "csr", "exact_passes": "merge-inputs", "expected_inputs": 3000}
    plan: Any = make_plan(backend, network, ps.PlanOptions(**options, **given))
    plans = [segment.plan for segment in plan.segments]
    assert len({id(each.features) for each in plans}) == 1
    taken = sum(each.weights.device_bytes for each in plans) + plans[0].features.nbytes
    if limited:
        assert taken <= 500_000
        assert all(each.weights.streamed_bytes for each in plans[:-1])
    else:
        assert not any(each.weights.streamed_bytes for each in plans)
        assert 300 < plan.batch_size < 600
    result = plan.run(Y)
    assert result.categories.tolist() == ps.infer(network, Y, "scipy").categories.tolist()
    assert limited or backend.cuda.peak_memory() <= 1_000_000


def test_rows_that_wait_are_counted_until_they_leave(backend: CupyBackend) -> None:
    plan: Any = make_plan(backend, mixing(8), ps.PlanOptions(batch_size=40))
    Y = few_kinds(40)
    held = plan.compared_rows(ps.PackedFeatures.from_dense(Y))
    others = plan.compared_rows(Y.astype(np.float32)).take(np.arange(7))
    assert plan.features.waiting_bytes() == 40 * 4 + 40 * 32 * 4  # the rows of all, as long as some
    rows = plan.run_rows(held, lambda done: None).rows
    others.let_go()
    gc.collect()
    assert plan.features.waiting_bytes() == rows.shape[0] * 32 * 4
    rows.fetched()
    assert plan.features.waiting_bytes() == 0
