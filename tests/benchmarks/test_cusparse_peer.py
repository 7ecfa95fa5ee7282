"""The cuSPARSE peer, on stand-ins: its plan, and its calls of CuPy and cuSPARSE."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from benchmark_scripts import load_script
from cuda_emulation.emulated_backend import EmulatedCupyBackend
from cuda_emulation.emulated_device import compiler
from host_cusparse import COLUMN, ROW, HostCusparse, HostDevice, install

import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.testing import oracle
from portable_spdnn_gpu.device.cuda_device import CudaDevice
from portable_spdnn_gpu.device.interface import LaunchError

peer = load_script("peers/cusparse_peer")
cusparse_library = sys.modules["cusparse_library"]
CSR_ALG1, CSR_ALG2 = cusparse_library.CSR_ALG1, cusparse_library.CSR_ALG2
BACKEND = SimpleNamespace(
    name="cupy", device="host", execution_space="cuda", download=lambda array: array
)
ORDERS = pytest.mark.parametrize("row_major", [True, False], ids=["row-major", "column-major"])


@pytest.fixture
def cusparse(monkeypatch: pytest.MonkeyPatch) -> HostCusparse:
    return install(monkeypatch)


@pytest.fixture
def library(cusparse: HostCusparse) -> Any:
    return cusparse_library.CusparseLibrary(HostDevice())


def plan_of(network: Any, library: Any, row_major: bool | None = None, **options: Any) -> Any:
    return peer.CusparsePlan(BACKEND, network, ps.PlanOptions(**options), library, row_major)


def random_network(
    rng: np.random.Generator, widths: list[int], biases: list[float], y_max: float | None
) -> ps.Network:
    layers = []
    for rows, columns, bias in zip(widths[:-1], widths[1:], biases, strict=True):
        W = np.where(rng.random((rows, columns)) < 0.4, rng.uniform(-1, 1, (rows, columns)), 0)
        layers.append(ps.Layer(W, bias + rng.uniform(-0.1, 0, columns)))
    return ps.Network(layers, y_max=y_max)


@ORDERS
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("keep", [False, True], ids=["dropping", "keeping"])
def test_against_plain_loops(library: Any, row_major: bool, dtype: Any, keep: bool) -> None:
    rng = np.random.default_rng(3)
    network = random_network(rng, [9, 14, 5, 14, 3], [-0.3, -0.1, -0.1, 0.0], 1.5)
    Y = rng.random((23, 9)) * (rng.random((23, 9)) < 0.4)
    categories, scores, alive = oracle.infer(network, Y)
    assert 0 < len(categories) < 23
    plan = plan_of(network, library, row_major, dtype=dtype, keep_dead_inputs=keep)
    result = plan.run(Y.astype(dtype))
    assert result.categories.tolist() == categories
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(result.scores, scores, rtol=tolerance, atol=tolerance)
    assert [record.alive_inputs for record in result.records] == alive
    before = [23] * 4 if keep else [23, *alive[:-1]]
    edges = [layer.nnz for layer in network]
    assert result.executed_edges == sum(n * e for n, e in zip(before, edges, strict=True))
    waits = [record.seconds is not None for record in result.records]
    assert waits == [not keep] * 4


@ORDERS
def test_radixnet_as_the_scipy_backend(library: Any, row_major: bool) -> None:
    network = ps.radixnet(64, 12, seed=1, bias=-0.3)
    rng = np.random.default_rng(0)
    Y = rng.random((50, 64)) < 0.5 * rng.random((50, 1))
    expected = make_plan(ps.get_backend("scipy"), network, ps.PlanOptions(path="spmm")).run(Y)
    assert 0 < expected.categories.size < 50
    forms = [Y, Y.astype(np.float32), sp.csr_array(Y.astype(np.float32)), np.packbits(Y, axis=1)]
    for features in forms:
        for batch_size in (None, 7):
            plan = plan_of(network, library, row_major, batch_size=batch_size)
            done: list[tuple[int, int]] = []
            result = plan.run(features, progress=lambda *work, done=done: done.append(work))
            np.testing.assert_array_equal(result.categories, expected.categories)
            np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-5)
            assert result.executed_edges == expected.executed_edges
            ours = [record.alive_inputs for record in result.records]
            assert ours == [record.alive_inputs for record in expected.records]
            assert done[-1] == (50 * 12, 50 * 12)
            assert done == sorted(done)


@ORDERS
def test_biases_that_revive_inputs_keep_them(library: Any, row_major: bool) -> None:
    rng = np.random.default_rng(5)
    network = random_network(rng, [8, 8, 8, 6], [-0.9, 0.3, -0.2], None)
    Y = rng.random((17, 8)) * (rng.random((17, 1)) < 0.5)
    categories, scores, alive = oracle.infer(network, Y)
    result = plan_of(network, library, row_major, dtype=np.float64).run(Y)
    assert result.categories.tolist() == categories
    np.testing.assert_allclose(result.scores, scores, rtol=1e-12, atol=1e-12)
    assert [record.alive_inputs for record in result.records] == alive


@ORDERS
def test_all_inputs_dead_and_layers_without_weights(library: Any, row_major: bool) -> None:
    empty = ps.Layer(sp.csr_array((4, 3), dtype=np.float32), -0.5)
    network = ps.Network([ps.Layer(np.eye(4), -0.1), empty, ps.Layer(np.ones((3, 2)), -0.1)])
    Y = np.eye(4)[[0, 1, 1]]
    result = plan_of(network, library, row_major).run(Y)
    assert result.categories.size == 0
    assert result.scores.shape == (3, 2)
    assert [record.alive_inputs for record in result.records] == [3, 0, 0]
    assert result.executed_edges == 3 * 4
    # With a bias that is positive all come to life again.
    revived = ps.Network([empty, ps.Layer(np.ones((3, 2)), 0.5)])
    result = plan_of(revived, library, row_major).run(Y)
    np.testing.assert_array_equal(result.scores, np.full((3, 2), 0.5))
    assert plan_of(revived, library, row_major).run(np.empty((0, 4))).categories.size == 0


@ORDERS
def test_an_overflow_is_an_error(library: Any, row_major: bool) -> None:
    layers = [ps.Layer(np.full((2, 2), 3e38, np.float32)), ps.Layer(np.array([[1.0, 1], [-1, 1]]))]
    with pytest.raises(ps.NumericalError, match="NaN"):
        plan_of(ps.Network(layers), library, row_major).run(np.ones((2, 2)))


def test_the_faster_order_is_measured_and_told(
    library: Any, cusparse: HostCusparse, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = ps.radixnet(64, 3, bias=-0.3)
    for slow in (CSR_ALG1, CSR_ALG2):
        clock = [0.0]
        time = SimpleNamespace(perf_counter=lambda clock=clock: clock[0])
        monkeypatch.setattr(peer, "time", time)

        def timed(*call: Any, slow: int = slow, clock: Any = clock) -> None:
            HostCusparse.spMM(cusparse, *call)
            clock[0] += 2e-3 if call[9] == slow else 1e-3

        with monkeypatch.context() as patch:
            patch.setattr(cusparse, "spMM", timed)
            plan = plan_of(network, library)
        assert plan.row_major == (slow == CSR_ALG1)
        assert set(cusparse.products) == {(CSR_ALG2, ROW), (CSR_ALG1, COLUMN)}
        order = "row-major, CSR_ALG2" if plan.row_major else "column-major, CSR_ALG1"
        assert f"{order} (measured: " in plan.describe()
        assert "2 ms" in plan.describe()
        cusparse.products.clear()
        again = plan_of(network, library, plan.row_major)
        assert not cusparse.products
        assert again.row_major == plan.row_major
        assert "(asked for)" in again.describe()


def test_weights_are_uploaded_once_and_descriptors_destroyed(cusparse: HostCusparse) -> None:
    device = HostDevice()
    network = ps.radixnet(64, 4, bias=-0.3)
    plan = plan_of(network, cusparse_library.CusparseLibrary(device), True)
    planned = device.uploads
    assert planned == 4 * (3 + 1)
    Y = np.random.default_rng(0).random((20, 64)) < 0.5
    for _ in range(2):
        plan.run(Y)
    assert device.uploads == planned + 2  # the bits of the features
    gc.collect()
    assert sorted(type(made).__name__ for made in cusparse.made.values()) == ["csr_array"] * 4
    del plan
    gc.collect()
    assert not cusparse.made


def test_what_the_library_refuses_is_an_error(library: Any) -> None:
    operand = library.prepare(sp.csr_array(np.eye(3)))
    B, C = (library.zeros(6, np.float32).reshape(3, 2) for _ in range(2))
    with pytest.raises(LaunchError, match="cuSPARSE: the product failed: CUSPARSE_STATUS_INV"):
        library.multiply(operand, B, C, True)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++, clang++)")
def test_cusparse_is_a_peer_and_no_kernel_of_the_backend() -> None:
    backend = EmulatedCupyBackend()
    network = ps.radixnet(64, 2, bias=-0.3)
    with pytest.raises(ps.InputError, match="the emulated CUDA device has no cuSPARSE"):
        peer.cusparse_plan(backend, network)
    with pytest.raises(ps.InputError, match="is none of backend cupy: choose one of auto"):
        make_plan(backend, network, ps.PlanOptions(kernel="cusparse"))


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    device = object.__new__(CudaDevice)
    assert cusparse_library.open_cusparse(device).name == "cuSPARSE"
    monkeypatch.setitem(sys.modules, "cupyx.cusparse", None)
    with pytest.raises(ps.BackendUnavailable, match=r"cuSPARSE does not load \(.*cupyx.*extra ctk"):
        cusparse_library.open_cusparse(device)
