"""Several devices in one process.

What one gives, in order, or an error that names the device.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Cli
from cuda_emulation.emulated_backend import EmulatedCupyBackend
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi_job import run_job
from several_devices import FEATURES, NETWORK, HostDevices, alive, needs_compiler, planned

import portable_spdnn as ps
from portable_spdnn.mpi.ranks import Ranks
from portable_spdnn.mpi.run import run_on_ranks
from portable_spdnn.plans.batch import BatchOutput
from portable_spdnn.plans.partition import static_part
from portable_spdnn.plans.planner import make_plan


@needs_compiler
@pytest.mark.parametrize("path", ["spmm", "spgemm"])
@pytest.mark.parametrize(
    ("devices", "inputs", "batch_size"),
    [
        ("0,1", 40, 7),
        ("all", 40, None),
        ("2,0", 9, 2),
        ("all", 2, None),
        ("all", 0, 3),
        ("1", 5, 2),
    ],
)
def test_devices_give_what_one_gives(
    devices: str, inputs: int, batch_size: int | None, path: str
) -> None:
    features = FEATURES[:inputs]
    plan = planned(devices, batch_size=batch_size, path=path)
    result = plan.run(features)
    alone = make_plan(EmulatedCupyBackend(), NETWORK, ps.PlanOptions(path=path)).run(features)
    expected = ps.infer(NETWORK, features, "scipy", path=path)
    assert inputs < 9 or 0 < expected.categories.size < inputs
    np.testing.assert_array_equal(result.categories, expected.categories)
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-5)
    np.testing.assert_array_equal(result.scores, alone.scores)  # to the bit
    assert alive(result) == alive(expected)
    assert result.executed_edges == alone.executed_edges == expected.executed_edges

    numbers = {"all": [0, 1, 2]}.get(devices) or [int(one) for one in devices.split(",")]
    parts = [static_part(inputs, n, len(numbers)) for n in range(len(numbers))]
    assert [one.inputs for one in result.replicas] == [end - first for first, end in parts]
    assert [one.device for one in result.replicas] == [
        f"{number}: emulated CUDA device" for number in numbers
    ]
    assert result.device == "; ".join(one.device for one in result.replicas)
    assert sum(one.executed_edges for one in result.replicas) == result.executed_edges
    for (first, end), number, one, own in zip(
        parts, numbers, result.replicas, plan.plans, strict=True
    ):
        assert own.backend.cuda.number == number
        assert one.plan_seconds > 0
        assert (one.busy_seconds > 0) == (end > first)
    assert result.imbalance >= 1
    assert 0 <= result.parallel_efficiency <= 1
    assert "inputs shared out over device" in plan.describe()


@needs_compiler
@pytest.mark.parametrize("passes", ["none", "all"])
def test_features_of_any_kind_and_exact_passes(passes: str) -> None:
    for features in (FEATURES, FEATURES.csr(np.float32), FEATURES.dense(np.float32)):
        options: dict[str, Any] = {"path": "auto", "exact_passes": passes}
        expected = ps.infer(NETWORK, features, "scipy", **options)
        result = ps.infer(NETWORK, features, EmulatedCupyBackend(), devices="all", **options)
        np.testing.assert_array_equal(result.categories, expected.categories)
        np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-5)
        assert result.exact_passes == expected.exact_passes


@settings(max_examples=40, deadline=None)
@given(
    inputs=st.integers(0, 40),
    batch_size=st.integers(1, 41),
    devices=st.sampled_from(["all", "5,3", "3"]),
)
def test_any_backend_with_devices_shares_out(inputs: int, batch_size: int, devices: str) -> None:
    features, seen = FEATURES[:inputs], [0]
    options: dict[str, Any] = {"path": "spgemm", "batch_size": batch_size}

    def progress(done: int, total: int) -> None:
        assert seen[-1] <= done <= total == inputs * len(NETWORK)
        assert threading.current_thread() is threading.main_thread()
        seen.append(done)

    result = ps.infer(
        NETWORK, features, HostDevices(), devices=devices, progress=progress, **options
    )
    expected = ps.infer(NETWORK, features, "scipy", **options)
    assert seen[-1] == inputs * len(NETWORK)
    np.testing.assert_array_equal(result.scores, expected.scores)
    np.testing.assert_array_equal(result.categories, expected.categories)
    assert alive(result) == alive(expected)


@needs_compiler
def test_devices_run_at_the_same_time_each_in_a_thread_bound_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = planned("all")
    together = threading.Barrier(3, timeout=60)
    threads = set()
    for one in plan.plans:

        def run(features: Any, report: Any, inner: Any = one.run_batch) -> BatchOutput:
            together.wait()
            threads.add(threading.current_thread())
            return inner(features, report)

        monkeypatch.setattr(one, "run_batch", run)
    expected = ps.infer(NETWORK, FEATURES, "scipy")
    np.testing.assert_array_equal(plan.run(FEATURES).categories, expected.categories)
    assert len(threads) == 3
    assert threading.main_thread() not in threads
    monkeypatch.undo()
    launches = [len(one.backend.cuda.launches) for one in plan.plans]
    output = plan.run_batch(FEATURES, lambda done: None)  # a batch is one device's
    assert output.active.tolist() == expected.categories.tolist()
    after = [len(one.backend.cuda.launches) for one in plan.plans]
    assert [now > before for before, now in zip(launches, after, strict=True)] == [1, 0, 0]


@needs_compiler
def test_one_device_under_a_memory_limit(tmp_path: Path) -> None:
    options: dict[str, Any] = {"devices": "2", "path": "spmm", "memory": "16GiB"}
    backend = EmulatedCupyBackend()
    result = ps.infer(NETWORK, FEATURES, backend, checkpoint=tmp_path / "kept", **options)
    expected = ps.infer(NETWORK, FEATURES, "scipy")
    np.testing.assert_array_equal(result.categories, expected.categories)
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-5)
    assert not backend.cuda.launches  # that of the backend is device 0


def test_one_rank_may_drive_several_devices() -> None:
    pytest.importorskip("mpi4py", reason="extra mpi is not installed")
    expected = ps.infer(NETWORK, FEATURES, "scipy")
    plan = make_plan(HostDevices(), NETWORK, ps.PlanOptions(devices="all", batch_size=3))
    with Ranks() as ranks:
        ranks.bind_gpu("all")
        # Eight chunks of five inputs each, divided 2 and 3.
        for schedule, inputs in (("static", (20, 20)), ("dynamic", (16, 24))):
            result = run_on_ranks(
                ranks, plan, lambda first, end: FEATURES[first:end], 40, schedule,
                load_seconds=1.5, scores=True,
            )  # fmt: skip
            assert result is not None
            np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-6)
            assert [(one.rank, one.inputs, one.load_seconds) for one in result.replicas] == [
                (0, inputs[0], 1.5), (0, inputs[1], 1.5),
            ]  # fmt: skip
            assert [one.device[:2] for one in result.replicas] == ["3:", "5:"]
            assert result.plan_seconds == plan.plan_seconds


def test_devices_are_not_named_where_ranks_share_a_node() -> None:
    done = run_job(2, "-m", "portable_spdnn", "run", "--layers", 6, "--devices", "0,1")
    assert done.returncode == 2
    assert "devices 0,1: 2 ranks on " in done.stderr
    assert "leave the option out, or start one rank a node" in done.stderr
    assert not done.stdout


@needs_compiler
def test_the_command_reports_each_device(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from portable_spdnn.workloads.generation import generate_radixnet

    generate_radixnet(tmp_path / "text", 64, 5, seed=3, features=FEATURES[:11])
    monkeypatch.setattr("portable_spdnn.registry.get_backend", lambda *_: EmulatedCupyBackend())
    done = cli(
        "run", "--data", tmp_path / "text", "--devices", "0,2", "--verify", "--no-progress",
        "--json", tmp_path / "record.json",
    )  # fmt: skip
    assert done.code == 0, done.err
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "devices 2" in lines
    assert any(line.endswith("(busiest device over the mean)") for line in lines)
    assert "device inputs planning busy executed edges" in lines
    assert any(line.startswith("0: emulated CUDA device 5 ") for line in lines)
    assert any(line.startswith("2: emulated CUDA device 6 ") for line in lines)
    assert "PASSED against" in done.out
    record = json.loads((tmp_path / "record.json").read_text())
    assert [one["inputs"] for one in record["replicas"]] == [5, 6]
    assert record["imbalance"] >= 1
    assert 0 < record["parallel_efficiency"] <= 1
    failed = cli("run", "--data", tmp_path / "text", "--devices", "0,3", "--no-progress")
    assert failed.code == 2
    assert "devices 0,3: backend cupy sees no device 3; there are: 0, 1, 2" in failed.err
