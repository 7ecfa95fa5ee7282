"""Errors on one of several devices: the others stop, it is named, and a run goes on later."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_emulation.emulated_device import EmulatedDevice
from several_devices import FEATURES, NETWORK, HostDevices, alive, needs_compiler, planned

import portable_spdnn as ps
from portable_spdnn.plans.batch import BatchOutput
from portable_spdnn.plans.multi_device import MultiDevicePlan
from portable_spdnn.plans.planner import make_plan
from portable_spdnn_cpu.scipy_backend import ScipyBackend
from portable_spdnn_gpu.device.interface import DeviceMemoryError, LaunchError


def fail_on_device_1(
    monkeypatch: pytest.MonkeyPatch, plan: MultiDevicePlan, method: str, error: Exception
) -> list[int]:
    """Let a method of device 1 fail when the others are in their first batch, which ends later.

    Returns a list that comes to hold the device of every batch that was finished.
    """
    failed, finished = threading.Event(), []
    thread: list[threading.Thread] = []
    running = threading.Barrier(len(plan.plans), timeout=60)

    def fail(*arguments: Any) -> None:
        thread.append(threading.current_thread())
        failed.set()
        raise error

    monkeypatch.setattr(plan.plans[1].backend.cuda, method, fail)
    for number, one in enumerate(plan.plans):

        def run(
            features: Any, report: Any, inner: Any = one.run_batch, number: int = number
        ) -> BatchOutput:
            if not failed.is_set():
                running.wait()
            output: BatchOutput = inner(features, report)
            assert failed.wait(60)
            thread[0].join(60)
            finished.append(number)
            return output

        monkeypatch.setattr(one, "run_batch", run)
    return finished


@needs_compiler
@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        ("empty", DeviceMemoryError("an array of 3 x 4 does not fit"), "device 1: an array of 3"),
        ("launch", LaunchError("csr_spmm: the launch failed"), "device 1: csr_spmm: the launch"),
        ("download", KeyError("a defect"), "a defect"),
    ],
)
def test_an_error_on_one_device_stops_the_others_and_names_it(
    method: str, error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned("all", batch_size=1)
    with monkeypatch.context() as patches:
        finished = fail_on_device_1(patches, plan, method, error)
        with pytest.raises(type(error), match=message) as caught:
            plan.run(FEATURES)
    assert caught.value is error
    assert sorted(finished) == [0, 2]  # of 13 batches of each, the one they were in
    if isinstance(error, KeyError):
        assert error.__notes__ == ["on device 1"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("spdnn-")]
    # Nothing is left of it in the plan.
    expected = ps.infer(NETWORK, FEATURES, "scipy")
    np.testing.assert_array_equal(plan.run(FEATURES).categories, expected.categories)


@needs_compiler
def test_an_error_at_planning_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    upload = EmulatedDevice.upload

    def fail(device: EmulatedDevice, array: Any) -> Any:
        if device.number == 2:
            raise DeviceMemoryError("an array of 3 x 4 does not fit")
        return upload(device, array)

    monkeypatch.setattr(EmulatedDevice, "upload", fail)
    with pytest.raises(DeviceMemoryError, match=r"^device 2: an array of 3 x 4 does not fit"):
        planned("all")
    assert len(planned("0,1").plans) == 2


def test_an_error_in_the_callers_progress_stops_all() -> None:
    plan = make_plan(HostDevices(), NETWORK, ps.PlanOptions(devices="all", batch_size=1))

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.run(FEATURES, interrupted)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("spdnn-")]


@needs_compiler
def test_a_run_goes_on_from_a_checkpoint_with_any_number_of_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = ps.infer(NETWORK, FEATURES, "scipy", path="spmm")
    plan = planned("all", batch_size=4)
    with monkeypatch.context() as patches:
        fail_on_device_1(patches, plan, "launch", LaunchError("planted"))
        with pytest.raises(LaunchError):
            plan.run(FEATURES, checkpoint=tmp_path / "kept")
    # Batches fit where they begin and end within a part: 0, 4, 8, 12 and 13 of those of three.
    for devices, resumed in (("all", 8), ("0,2", 17), ("1", 40)):
        result = planned(devices, batch_size=4).run(FEATURES, checkpoint=tmp_path / "kept")
        np.testing.assert_array_equal(result.categories, expected.categories)
        np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-5)
        assert alive(result) == alive(expected)
        assert result.executed_edges == expected.executed_edges
        assert sum(one.inputs for one in result.replicas) == 40
        assert result.resumed_inputs == resumed
        assert result.inference_seconds >= max(one.busy_seconds for one in result.replicas)


def test_devices_that_are_not_there_or_named_twice() -> None:
    def plan(devices: str, **options: Any) -> None:
        make_plan(HostDevices(), NETWORK, ps.PlanOptions(devices=devices, **options))

    with pytest.raises(ps.InputError, match=r"host-devices sees no devices 0, 4; there are: 3, 5$"):
        plan("0,3,4")
    with pytest.raises(ps.InputError, match=r"devices 3,3: a device is named twice"):
        plan("3,3")
    with pytest.raises(ps.InputError, match=r"memory goes with one device, not 2: each would"):
        plan("all", memory=8 << 30)
    with pytest.raises(NotImplementedError, match="backend bare does not tell its devices"):
        make_plan(
            type("Bare", (ScipyBackend,), {"name": "bare", "plan_options": {"devices"}})(),
            NETWORK,
            ps.PlanOptions(devices="all"),
        )
