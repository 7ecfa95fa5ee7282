"""The cupy backend in a forked child: CUDA's state in the parent is of no use there."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cuda_emulation.emulated_backend import EmulatedCupyBackend
from cuda_emulation.emulated_device import compiler

import portable_spdnn as ps
from portable_spdnn_gpu.compile.catalog import list_active
from portable_spdnn_gpu.cupy_backend import CupyBackend
from portable_spdnn_gpu.device.cuda_device import CudaDevice
from portable_spdnn_gpu.device.forks import CudaProcess

REFUSAL = "BackendUnavailable: this process was forked from one that had opened a CUDA device"


def in_forked_child(*actions: Callable[[], Any]) -> list[str]:
    """Return what actions give or raise in a forked child, as text; fail where one hangs."""

    def answer(action: Callable[[], Any]) -> str:
        try:
            return str(action())
        except Exception as error:  # noqa: BLE001 - the parent says whether it is right
            return f"{type(error).__name__}: {error}"

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send([answer(action) for action in actions]))
    child.start()
    try:
        assert receiver.poll(60), "the child gives no answer"
        found: list[str] = receiver.recv()
        return found
    finally:
        child.kill()
        child.join()


@pytest.fixture(autouse=True)
def cupy_of_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let CuPy have one device, and this process have opened none."""
    properties = {
        "name": b"one", "multiProcessorCount": 2, "sharedMemPerBlockOptin": 232448,
        "l2CacheSize": 1 << 20,
    }  # fmt: skip
    cuda = SimpleNamespace(
        Device=lambda number=0: SimpleNamespace(id=0, compute_capability="90"),
        runtime=SimpleNamespace(getDeviceProperties=lambda number: properties),
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, ndarray=SimpleNamespace))
    monkeypatch.setattr(CudaProcess, "opened", False)
    monkeypatch.setattr(CudaProcess, "forked", False)


def test_every_use_of_a_device_that_the_parent_opened_is_refused() -> None:
    backend = CupyBackend()
    device, ones = backend.cuda, np.ones(4, np.float32)
    there: Any = SimpleNamespace(data=None, nbytes=4)
    uses: list[Callable[[], Any]] = [
        device.bound,
        lambda: device.owns(ones),
        lambda: device.adopt(ones),
        lambda: device.empty((3,), np.float32),
        lambda: device.upload(ones),
        lambda: device.download(there),
        lambda: device.overlaps(there, there),
        lambda: device.launch(list_active(), (1, 1), []),
        lambda: device.resident_blocks(list_active()),
        lambda: device.capture(lambda: None),
        lambda: device.view(there, 0, (1,), np.float32),
        lambda: device.pinned(8),
        lambda: device.copy_in(ones, there),
        device.new_stream,
        device.mark,
        lambda: device.seconds(there, there),
        device.free_memory,
        device.synchronize,
        lambda: backend.spmm(sp.eye_array(4, format="csr", dtype=np.float32), ones[:, None]),
        lambda: ps.plan(ps.radixnet(64, 3), backend),
        CudaDevice,
        CupyBackend,
    ]
    for found in in_forked_child(*uses):
        assert found.startswith(REFUSAL)
        assert "start it with the method 'spawn'" in found


def test_the_backend_is_not_available_in_such_a_child() -> None:
    CudaDevice()
    (named, chosen) = in_forked_child(
        lambda: ps.get_backend("cupy"), lambda: ps.get_backend("auto").name
    )
    assert named.startswith("BackendUnavailable: backend cupy is not available: this process was ")
    assert "'spawn'" in named
    assert chosen != "cupy"
    assert CudaDevice().description == "one, sm_90"  # the parent goes on


def test_a_child_may_open_the_first_device() -> None:
    def open_one() -> tuple[str, bool]:
        return CudaDevice().description, CudaProcess.opened

    assert in_forked_child(open_one) == ["('one, sm_90', True)"]
    assert not CudaProcess.opened
    CudaDevice()
    # A child of the child has no device either.
    assert in_forked_child(lambda: in_forked_child(CudaDevice)[0])[0].startswith(REFUSAL)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++, clang++)")
def test_a_plan_that_ran_at_the_fork_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network, features = ps.radixnet(64, 3), ps.digits_features(64)[:20]
    plan: Any = ps.plan(network, EmulatedCupyBackend())
    monkeypatch.setattr(plan.device, "bound", CudaDevice().bound)
    with plan.features.one_at_a_time:  # as by another thread, which no child has
        (found,) = in_forked_child(lambda: plan.run(features))
    assert found.startswith(REFUSAL)
