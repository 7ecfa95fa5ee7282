"""Checks before timing, dense forms, and turns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cuda_emulation.emulated_backend import EmulatedCupyBackend
from cuda_emulation.emulated_device import compiler
from threadpoolctl import ThreadpoolController

import portable_spdnn as ps
from portable_spdnn.dlmc import timing
from portable_spdnn.dlmc.collection import Case, collect
from portable_spdnn.dlmc.timing import Measurement, by_turns, dense_forms, error_of, measure


def case(columns: int = 5) -> Case:
    return Case("model", "layer", (30, 40), 240, columns, None)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ROUNDS", 2), ("SECONDS", 0.0), ("PAUSE", 0.0)):
        monkeypatch.setattr(timing, name, value)


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 40])
def test_products_are_right_and_timed(columns: int) -> None:
    backends = [ps.get_backend(name, 2) for name in ("numba", "scipy")]
    found = list(measure(case(columns), backends, 0, ThreadpoolController()))
    assert [one.backend for one in found if isinstance(one, Measurement)] == ["numba", "scipy"]
    for one in found:
        assert isinstance(one, Measurement)
        assert 0 <= one.error <= 1
        assert min(one.prepared, one.one_shot or 0, one.dense, one.scipy, one.prepare) > 0
        assert one.over_dense == one.dense / one.prepared
        assert one.over_scipy == one.scipy / one.prepared
        assert one.flops == 2 * 240 * columns / one.prepared
        assert one.dense_form == "mm" or columns < 16
        assert one.choice
    assert found[0].scipy == found[1].scipy  # of one run


def test_a_wrong_product_is_named_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ps.get_backend("scipy")
    right = backend.run_spmm

    def wrong(A: Any, B: Any, *rest: Any) -> Any:
        C = right(A, B, *rest)
        C[3, 1] += 1e-4
        return C

    monkeypatch.setattr(backend, "run_spmm", wrong)
    monkeypatch.setattr(timing, "by_turns", None)
    handle, once = measure(case(), [backend], 0, ThreadpoolController())
    for said, operation in ((handle, "spmm_handle"), (once, "spmm")):
        assert isinstance(said, str)
        assert said.startswith(f"{operation} of scipy on layer (30 x 40 x 5): its error is ")


def test_the_bound_of_errors() -> None:
    A, B = case().operands(0)
    error = error_of(A, B)
    exact = A.toarray().astype(np.float64) @ B.astype(np.float64)
    assert error(exact) < 1e-6  # SciPy's order of additions, in float64
    assert 0 < error(A @ B) <= 1
    entries = int(np.diff(A.indptr)[7])
    bound = (entries + 5) * 2.0**-24 * (np.abs(A.toarray()) @ np.abs(B).astype(np.float64))[7, 2]
    for part in (0.5, 1.5):
        off = exact.copy()
        off[7, 2] += part * bound
        np.testing.assert_allclose(error(off), part, rtol=1e-6)
    off[7, 2] = np.nan
    assert np.isnan(error(off))
    off[7, 2] = np.inf
    assert error(off) > 1
    assert error(exact[:-1]) == np.inf
    empty = error_of(sp.csr_array((3, 4), dtype=np.float32), np.ones((4, 2), np.float32))
    assert empty(np.zeros((3, 2))) == 0
    assert empty(np.full((3, 2), 1e-30)) > 1


@pytest.mark.parametrize("columns", [1, 3, 16])
def test_dense_forms_compute_the_product(columns: int) -> None:
    rng = np.random.default_rng(0)
    W, B = (rng.standard_normal(shape, np.float32) for shape in ((6, 4), (4, columns)))
    forms = dense_forms(ps.get_backend("scipy"), W, B)
    few = ["mm", "transposed mm", "repeated mv"]
    assert list(forms) == (few if columns < 16 else few[:1])
    for name, form in forms.items():
        C = np.asarray(form())
        np.testing.assert_allclose(C if name == "mm" else C.T, W @ B, rtol=1e-5)


def test_on_a_device_dense_products_are_the_device_arrays_own() -> None:
    uploaded: list[Any] = []
    device = SimpleNamespace(memory_space="device", upload=lambda W: uploaded.append(W) or 2 * W)
    W, B = np.eye(3, dtype=np.float32), np.ones((3, 2), np.float32)
    forms = dense_forms(device, W, B)
    assert list(forms) == ["mm"]
    np.testing.assert_array_equal(forms["mm"](), 2 * B)
    assert len(uploaded) == 1  # once, not in each product


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++, clang++)")
def test_on_the_cupy_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    # The emulated device has no dense product.
    monkeypatch.setattr(timing, "dense_forms", lambda *operands: {"mm": lambda: None})
    monkeypatch.setattr(EmulatedCupyBackend, "measure_flops", lambda self: 2e9)
    (found,) = measure(case(40), [EmulatedCupyBackend()], 0, ThreadpoolController())
    assert isinstance(found, Measurement)
    assert found.of_peak == found.flops / 2e9
    assert (found.backend, found.error <= 1) == ("cupy", True)


def test_turns_and_least_times() -> None:
    order: list[str] = []
    blas = ThreadpoolController()

    def call(name: str) -> Any:
        def run() -> None:
            order.append(name)
            used = {one["num_threads"] for one in blas.select(user_api="blas").info()}
            assert used <= {1 if name == "a" else 2}

        return run

    def rate() -> float:
        order.append("rate")
        return float(len(order))

    def missing() -> float:
        raise NotImplementedError

    ways = {name: (call(name), threads) for name, threads in (("a", 1), ("b", 2))}
    least, most = by_turns(ways, blas, {"rate": rate, "missing": missing})
    assert order == ["rate", "a", "a", "b", "b"] * 2
    assert most == {"rate": 6}
    assert set(least) == {"a", "b"}
    assert all(0 < seconds < 1 for seconds in least.values())


def test_a_layer_of_the_collection(shared: Path) -> None:
    folder = shared / "dlmc/rn50/magnitude_pruning/0.95"
    if not folder.is_dir():
        pytest.skip(f"patterns of the Deep Learning Matrix Collection are not there: {folder}")
    cases = collect(folder)
    assert [(one.shape, one.columns) for one in cases] == [
        ((128, 512), 784), ((128, 1152), 784), ((256, 2304), 196), ((1024, 256), 196),
    ]  # fmt: skip
    blas, numba = ThreadpoolController(), ps.get_backend("numba", 2)
    (found,) = measure(cases[0], [numba], 0, blas)
    assert isinstance(found, Measurement)
