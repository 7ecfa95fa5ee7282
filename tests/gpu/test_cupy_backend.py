"""When the backend chooses, packs and compiles, which is never in a call; what operands may be."""

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


def test_new_values_may_lie_apart_and_have_any_real_type(backend: EmulatedCupyBackend) -> None:
    A = sp.csr_array(np.array([[1.0, 2.0], [0.0, 3.0]]))
    handle = backend.spgemm_handle(A, A)
    expected = np.array([[4.0, 6.0], [0.0, 9.0]]) @ A.toarray()
    apart = np.array([0, 9, 0, 6, 0, 4], np.float64)
    for given in (apart[::-2], apart[::-2].astype(">f4"), [4, 6, 9], apart[::-2].astype(np.uint8)):
        found = backend.download(handle.numeric(A_data=given))
        np.testing.assert_array_equal(found.toarray(), expected)
    on_device: Any = backend.upload(np.array([4.0, 0, 6, 0, 9, 0]))
    found = backend.download(handle.numeric(A_data=on_device[::2]))
    np.testing.assert_array_equal(found.toarray(), expected)
    for wrong in (np.array([1j, 2, 3]), ["1", "2", "3"], np.array([1, 2, 3], "M8[s]"), [1.0, 2.0]):
        with pytest.raises(ps.InputError, match="spgemm: new values for A"):
            handle.numeric(A_data=wrong)


def test_weights_on_the_device_are_widened_for_wider_operands(backend: EmulatedCupyBackend) -> None:
    W = sp.csr_array(np.array([[1.5, 0.0, -2.0], [0.0, 0.5, 1.0]], np.float32))
    on_device = backend.upload(W)
    for Y in (np.array([[1 / 3, 0.1]]), [[1, 2**30]]):
        for operand in (Y, backend.upload(np.array(Y, np.float64))):
            found = backend.download(backend.layer(on_device, operand))
            assert found.dtype == np.float64
            expected = np.maximum(np.array(Y, np.float64) @ W.toarray(), 0)
            np.testing.assert_allclose(found, expected, rtol=1e-15)


@pytest.mark.parametrize("dtype", [">f4", ">i8", "<f8", "?", "u1"])
def test_uploads_are_in_the_bytes_of_the_device(backend: EmulatedCupyBackend, dtype: str) -> None:
    given = np.array([[0, 1, 1], [1, 0, 0]], dtype)
    found = backend.download(backend.upload(given))
    assert found.dtype == given.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, given)


@pytest.mark.parametrize("dtype", ["c8", "O", "U3", "M8[s]"])
def test_uploads_are_of_real_numbers(backend: EmulatedCupyBackend, dtype: str) -> None:
    with pytest.raises(ps.InputError, match="array has type"):
        backend.upload(np.zeros(3, dtype))
