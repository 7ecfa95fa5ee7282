"""Products that a handle runs with A as it is."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm import handle
from portable_spdnn_cpu.spmm.direct.prepared import DirectProduct
from portable_spdnn_cpu.spmm.handle import WeightsProduct

POOL = ThreadPool(2)


def operands(columns: int, dtype: Any = np.float32) -> tuple[sp.csr_array, Any, Any]:
    rng = np.random.default_rng(columns)
    A = sp.random_array((30, 20), density=0.3, rng=rng, dtype=dtype).tocsr()
    return A, rng.random((20, columns)).astype(dtype), rng.random((30, columns)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [0, 1, 2, 7, 16, 33, 140])
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_b_and_c_of_either_order(orders: Any, columns: int, dtype: Any) -> None:
    A, B, residual = operands(columns, dtype)
    epilogue = ps.Epilogue(np.linspace(-1, 1, 30), "gelu", upper=0.7).prepared("", 30, A.dtype)
    for form in (A, A.tocsc()) if columns == 1 else (A,):
        direct, out = DirectProduct(form, epilogue), np.empty((30, columns), dtype, orders[1])
        for added in (None, residual, np.asfortranarray(residual)):
            assert direct.multiply(np.array(B, order=orders[0]), out, added, POOL)
            expected = epilogue.apply(A @ B, added, per_row=True)
            np.testing.assert_allclose(out, expected, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("order", "CF")
def test_no_columns_of_a_larger_array_leave_it_as_it_is(order: Any) -> None:
    A, B, _ = operands(6)
    epilogue = ps.Epilogue(np.ones(30), "sigmoid").prepared("", 30, A.dtype)
    C = np.full((30, 6), 7, np.float32, order)
    for out in (C[:, 2:2], C.T[2:2].T):
        assert DirectProduct(A, epilogue).multiply(B[:, 2:2], out, None, POOL)
    assert (C == 7).all()


@pytest.mark.parametrize("activation", ["none", "sigmoid"])
@pytest.mark.parametrize("columns", [1, 16, 20])
def test_a_row_of_a_larger_array_takes_a_row(columns: int, activation: str) -> None:
    rng, epilogue = np.random.default_rng(0), ps.Epilogue(activation=activation)
    A = sp.csr_array(rng.random((1, 20), np.float32))
    B, around = rng.random((20, columns), np.float32), np.full((3, 50), 7, np.float32)
    for view in (around[1:2, :columns], around[::-1][1:2, :columns]):
        around[...] = 7
        assert DirectProduct(A, epilogue).multiply(B, view, None, POOL)
        np.testing.assert_allclose(view, epilogue.apply(A @ B), rtol=1e-5)
        assert (np.delete(around, 1, 0) == 7).all()
        assert (around[1, columns:] == 7).all()
    rows = sp.csr_array(rng.random((3, 20), np.float32))
    assert not DirectProduct(rows, epilogue).multiply(B, around[:, :columns], None, POOL)


def test_what_it_cannot_do_is_left_to_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle.cost_model, "direct_seconds", lambda size: 0.0)  # so it is tried
    A, B, _ = operands(16)
    direct = DirectProduct(A, ps.Epilogue())
    assert not direct.multiply(np.repeat(B, 2, 1)[:, ::2], np.empty((30, 16), "f4"), None, POOL)
    # In the trial of a handle it is always the fastest.
    taken = {"kernel": False}

    def seconds(runs: list[Any]) -> list[float]:
        mine = [isinstance(run.func.__self__, DirectProduct) for run in runs]
        taken["kernel"] |= any(mine)
        return [1.0 if one else 2.0 for one in mine]

    monkeypatch.setattr(handle, "least_seconds", seconds)
    product = WeightsProduct(POOL, A, ps.Epilogue(), columns=16)
    assert taken["kernel"]
    for operand in (B, np.asfortranarray(B), np.repeat(B, 2, 1)[:, ::2], B[::-1]):
        np.testing.assert_allclose(product.multiply(operand), A @ operand, rtol=1e-5)
        out, residual = np.empty((30, 16), np.float32), np.ones((30, 16), np.float32)
        np.testing.assert_allclose(
            product.multiply(operand, None, residual), A @ operand + 1, rtol=1e-5
        )
        assert product.multiply(operand, out) is out
        np.testing.assert_allclose(out, A @ operand, rtol=1e-5)
    assert "A is read as it is" in product.describe()


def test_fewer_entries_than_rows_are_tried_by_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []

    def last_by_columns(runs: list[Any]) -> list[float]:
        found = [run.func.__self__.describe() for run in runs]
        chosen.extend(each for each in found if "by columns" in each)
        return [1.0 + ("by columns" not in each) for each in found]

    monkeypatch.setattr(handle, "least_seconds", last_by_columns)
    rng = np.random.default_rng(3)
    few, many = (sp.random_array((900, 40), density=d, rng=rng).tocsr() for d in (0.02, 0.03))
    WeightsProduct(POOL, many, ps.Epilogue(), columns=1)
    WeightsProduct(POOL, few, ps.Epilogue(), columns=2)
    assert not chosen
    product, x = WeightsProduct(POOL, few, ps.Epilogue(), columns=1), rng.random((40, 1))
    residual = rng.random((900, 1))
    assert len(chosen) == 1
    for _ in range(2):
        np.testing.assert_allclose(product.multiply(x), few @ x, rtol=1e-12, atol=1e-14)
    added = product.multiply(x, np.full((900, 1), 7.0), residual)
    np.testing.assert_allclose(added, few @ x + residual, rtol=1e-12)
    assert "A is read by columns, in CSC" in product.describe()


def test_a_is_tried_by_columns_where_it_would_not_be_by_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seconds(size: Any) -> float:
        return 1.0 if size.rows == 900 else 0.0

    tried: list[str] = []

    def noted(runs: list[Any]) -> list[float]:
        tried.extend(run.func.__self__.describe() for run in runs)
        return [1.0] * len(runs)

    monkeypatch.setattr(handle.cost_model, "direct_seconds", seconds)
    monkeypatch.setattr(handle, "least_seconds", noted)
    A = sp.random_array((900, 40), density=0.02, rng=np.random.default_rng(3)).tocsr()
    WeightsProduct(POOL, A, ps.Epilogue(), columns=1)
    assert any("by columns, in CSC" in each for each in tried)
    assert not any("as it is" in each for each in tried)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [2, 33, 140])
def test_threads_share_products_that_take_long(columns: int, dtype: Any) -> None:
    rng = np.random.default_rng(columns)
    A = sp.random_array((901, 400), density=0.9, rng=rng, dtype=dtype).tocsr()
    B, residual = rng.random((400, columns)).astype(dtype), rng.random((901, columns)).astype(dtype)
    for epilogue in (ps.Epilogue(), ps.Epilogue(np.linspace(-1, 1, 901), "silu", upper=90)):
        direct = DirectProduct(A, epilogue.prepared("", 901, A.dtype))
        assert direct.threads_used(2, columns) == 2
        assert direct.threads_used(1, columns) == direct.threads_used(2, 1) == 1
        assert DirectProduct(A[:9], ps.Epilogue()).threads_used(2, 2) == 1
        orders = itertools.product((B, np.asfortranarray(B)), "CF", (None, residual))
        for operand, order, added in orders:
            alone, shared = (np.full((901, columns), np.nan, dtype, order) for _ in range(2))
            assert direct.multiply(operand, alone, added, ThreadPool(1))
            assert direct.multiply(operand, shared, added, POOL)
            np.testing.assert_array_equal(shared, alone)
            expected = epilogue.apply(A @ B, added, per_row=True)
            np.testing.assert_allclose(shared, expected, rtol=1e-4)


def test_layers_of_inputs_of_either_order_beyond_the_last_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    W = sp.random_array((2000, 2000), density=0.005, rng=rng, dtype=np.float32).tocsr()
    monkeypatch.setattr(handle.tuning, "is_fitted", lambda size: True)
    monkeypatch.setattr(handle.cost_model, "direct_seconds", lambda size: 0.0)
    layer = ps.get_backend("numba", threads=2).layer_handle(W, epilogue=ps.Epilogue())
    for order in "CF":
        Y, residual = (np.array(rng.random((90, 2000)), np.float32, order=order) for _ in range(2))
        for out, added in itertools.product((None, np.empty_like(Y, order="C")), (None, residual)):
            found = layer.apply(Y, out=out, residual=added)
            expected = Y @ W if added is None else Y @ W + added
            np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_may_be_met_as_it_is_where_the_model_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    A = sp.random_array((3000, 3000), density=0.002, rng=rng, dtype=np.float32).tocsr()
    B, out = rng.random((3000, 100), np.float32), np.empty((3000, 100), np.float32)
    monkeypatch.setattr(handle, "suited_form", lambda *arguments: None)
    for most, considered in ((4 * 100 - 1, False), (4 * 100, True)):
        monkeypatch.setattr(handle.tuning, "FITTED_BYTES", most)
        # By the model, which is told that it takes no time.
        monkeypatch.setattr(handle.cost_model, "direct_seconds", lambda size: 0.0)
        for operand in (B, np.asfortranarray(B)):
            product = WeightsProduct(POOL, A, ps.Epilogue())
            np.testing.assert_allclose(product.multiply(operand, out), A @ B, rtol=1e-4)
            takes = considered and operand.flags.c_contiguous
            assert ("A is read as it is" in product.describe()) == takes
        # By a trial.
        tried: list[bool] = []

        def seconds(runs: list[Any], tried: list[bool] = tried) -> list[float]:
            mine = [isinstance(run.func.__self__, DirectProduct) for run in runs]
            tried.append(any(mine))
            return [1.0 if one else 2.0 for one in mine]

        monkeypatch.setattr(handle, "least_seconds", seconds)
        product = WeightsProduct(POOL, A, ps.Epilogue(), columns=100)
        assert any(tried) == considered
        np.testing.assert_allclose(product.multiply(B, out), A @ B, rtol=1e-4)


def test_it_is_told_how_many_threads_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    A = sp.random_array((901, 400), density=0.9, rng=rng, dtype=np.float32).tocsr()
    monkeypatch.setattr(handle, "suited_form", lambda *arguments: "csr")
    monkeypatch.setattr(handle.cost_model, "direct_seconds", lambda size: 0.0)
    for order, told in (("C", "on 2 threads"), ("F", "on 1 thread;")):
        product = WeightsProduct(POOL, A, ps.Epilogue())
        product.multiply(np.ones((400, 33), np.float32, order))
        assert f"A is read as it is, {told}" in product.describe()
