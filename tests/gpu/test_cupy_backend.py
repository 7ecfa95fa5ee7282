"""When the backend chooses, packs and compiles: before a user's call, never during one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cuda_emulation.emulated_backend import EmulatedCupyBackend
from cuda_emulation.emulated_device import EmulatedDevice, compiler

import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan, own_plan
from portable_spdnn.testing import oracle
from portable_spdnn_gpu.network import plan as network_plan
from portable_spdnn_gpu.spmm import tuning
from portable_spdnn_gpu.spmm.tuning import TunedStaged, tune_staged

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++, clang++)")


def fail(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("chosen, packed or compiled during a call")


@pytest.fixture
def backend() -> EmulatedCupyBackend:
    return EmulatedCupyBackend()


def only_launches(patch: pytest.MonkeyPatch) -> None:
    """Let everything fail from now on that belongs to the making of handles and plans."""
    patch.setattr(EmulatedDevice, "_load", fail)
    patch.setattr("portable_spdnn_gpu.spmm.launch.pack", fail)
    patch.setattr(network_plan, "tune_staged", fail)


def test_handles_are_ready_when_they_are_made(
    backend: EmulatedCupyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    W = sp.csr_array(np.where(rng.random((40, 30)) < 0.3, 0.25, 0).astype(np.float32))
    Y = np.where(rng.random((7, 40)) < 0.4, 1, 0).astype(np.float32)
    bias = np.full(30, -0.125)
    spmm, layer = backend.spmm_handle(W), backend.layer_handle(W, bias, 1.0)
    spgemm = backend.spgemm_handle(sp.csr_array(Y), W)
    only_launches(monkeypatch)
    expected = oracle.layer(W, Y, bias, 1.0)
    for features in (Y, np.asfortranarray(Y)):
        found = backend.download(layer.apply(features))
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        found = backend.download(spmm.multiply(features[:, :30].T))
        np.testing.assert_allclose(found, W @ Y[:, :30].T, rtol=1e-6)
    found = backend.download(layer.apply(sp.csr_array(Y)))
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-6)
    np.testing.assert_allclose(backend.download(spgemm.numeric()).toarray(), Y @ W.toarray())


@pytest.mark.parametrize("kernel", ["auto", "staged", "resident"])
def test_plans_are_ready_when_they_are_made(
    backend: EmulatedCupyBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, kernel: str
) -> None:
    def tune(device: Any, A: Any, precision: Any, versions: Any) -> TunedStaged:
        return tune_staged(device, A, precision, versions)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "INPUTS", 1)
    monkeypatch.setattr(network_plan, "tune_staged", tune)
    monkeypatch.setattr(type(backend), "tunes", True)
    network, Y = ps.radixnet(64, 3), np.random.default_rng(1).random((30, 64)) < 0.4
    plan = make_plan(backend, network, ps.PlanOptions(kernel=kernel))
    expected = oracle.infer(network, Y)[0]
    with monkeypatch.context() as patch:
        only_launches(patch)
        assert plan.run(Y).categories.tolist() == expected
    # A block of layers that is planned while inputs wait takes over what was measured.
    monkeypatch.setattr(network_plan, "tune_staged", fail)
    block = plan.for_layers(network, replace(plan.options, keep_dead_inputs=True), own_plan)
    assert block.run(Y).categories.tolist() == expected
    assert ("staged_spmm for" in block.describe()) == (kernel == "staged")
