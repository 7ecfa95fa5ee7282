"""The contract of spmm."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn.testing.operands import (
    DTYPES,
    SHAPES,
    host,
    random_sparse,
    refused,
    tolerance,
)

# Numbers of columns for which a handle is called; it may prepare something for each.
PREPARED_COLUMNS = 1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 64, 100, 130


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("density", [0.05, 0.6])
def test_spmm(backend: ps.Backend, shape: Any, density: float, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    A = random_sparse(rng, shape[:2], density, dtype)
    B = rng.uniform(-1, 1, shape[1:]).astype(dtype)
    C = host(backend, backend.spmm(A, B))
    assert C.shape == (shape[0], shape[2])
    assert C.dtype == dtype
    np.testing.assert_allclose(C, oracle.spmm(A, B), **tolerance(dtype))
    handle = backend.spmm_handle(A)
    for _ in range(2):
        again = host(backend, handle.multiply(B))
        assert again.dtype == dtype
        np.testing.assert_allclose(again, oracle.spmm(A, B), **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_spmm_of_empty_and_full_rows_times_1_to_130_columns(
    backend: ps.Backend, dtype: Any
) -> None:
    rng = np.random.default_rng(12)
    # Whole numbers, whose sums both types hold exactly, in any order.
    dense = rng.integers(-4, 5, (9, 40)) * (rng.random((9, 40)) < 0.3)
    dense[[0, 5]], dense[3] = 0, rng.integers(1, 5, 40)
    A = sp.csr_array(dense.astype(dtype))
    B = rng.integers(-4, 5, (40, 130)).astype(dtype)
    expected = oracle.spmm(A, B)
    handle = backend.spmm_handle(A)
    for columns in range(1, 131):
        first = np.ascontiguousarray(B[:, :columns])
        C = host(backend, backend.spmm(A, first))
        np.testing.assert_array_equal(C, expected[:, :columns])
        if columns in PREPARED_COLUMNS:
            C = host(backend, handle.multiply(first))
            np.testing.assert_array_equal(C, expected[:, :columns])


@pytest.mark.parametrize("columns", [1, 6, 40])
def test_spmm_takes_a_b_that_starts_anywhere_in_memory(backend: ps.Backend, columns: int) -> None:
    rng = np.random.default_rng(13)
    A = random_sparse(rng, (20, 30), 0.3, np.float32)
    B = rng.uniform(-1, 1, (30, columns)).astype(np.float32)
    handle = backend.spmm_handle(A)
    for offset in range(1, 9):
        memory = np.zeros(B.nbytes + 8, np.uint8)[offset : offset + B.nbytes]
        shifted = memory.view(np.float32).reshape(B.shape)
        shifted[:] = B
        for C in (backend.spmm(A, shifted), handle.multiply(shifted)):
            np.testing.assert_allclose(host(backend, C), oracle.spmm(A, B), **tolerance(np.float32))


@pytest.mark.parametrize("columns", [1, 6, 20])
def test_spmm_and_layer_with_more_than_65536_columns_of_a(
    backend: ps.Backend, columns: int
) -> None:
    rng = np.random.default_rng(14)
    depth = 70_001
    some = np.sort(rng.choice(depth, 400, replace=False))
    rows: list[Any] = [[], np.arange(depth), some, np.arange(65_500, 65_600), [depth - 1], []]
    A = sp.csr_array(
        (
            np.concatenate([1 + np.arange(len(row)) % 3 for row in rows]).astype(np.float32),
            np.concatenate(rows).astype(np.int64),
            np.cumsum([0, *map(len, rows)]),
        ),
        shape=(len(rows), depth),
    )
    # Whole numbers, whose sums float32 holds exactly, in any order.
    B = rng.integers(-4, 5, (depth, columns)).astype(np.float32)
    expected = oracle.spmm(A, B)
    np.testing.assert_array_equal(host(backend, backend.spmm(A, B)), expected)
    handle = backend.spmm_handle(A)
    np.testing.assert_array_equal(host(backend, handle.multiply(B)), expected)
    layer = host(backend, backend.layer(A.T, B.T, bias=-1.0))
    np.testing.assert_array_equal(layer, np.maximum(expected.T - 1, 0))


def test_spmm_takes_any_layout_format_and_type(backend: ps.Backend) -> None:
    rng = np.random.default_rng(2)
    A = random_sparse(rng, (20, 30), 0.3, np.float32)
    B = rng.uniform(-1, 1, (60, 40)).astype(np.float32)
    for view in (B[::2, ::-1], np.asfortranarray(B[:30]), B[:30].astype(np.float64), B[5:35, 3:4]):
        C = host(backend, backend.spmm(A, view))
        assert C.dtype == view.dtype
        np.testing.assert_allclose(C, oracle.spmm(A, view), **tolerance(np.float32))
    integers = rng.integers(-3, 4, (30, 5))
    for same in (A.tocsc(), A.tocoo(), sp.csr_matrix(A)):
        C = host(backend, backend.spmm(same, integers))
        np.testing.assert_allclose(C, oracle.spmm(A, integers), **tolerance(np.float32))


def test_spmm_sums_duplicates_and_leaves_operands_alone(backend: ps.Backend) -> None:
    # Row 0 holds column 2 twice and out of order.
    A = sp.csr_array(
        (np.array([1.0, 2.0, 4.0], np.float32), np.array([2, 0, 2]), np.array([0, 3, 3])),
        shape=(2, 3),
    )
    B = np.arange(6, dtype=np.float32).reshape(3, 2)
    C = host(backend, backend.spmm(A, B))
    np.testing.assert_array_equal(C, [[2 * 0 + 5 * 4, 2 * 1 + 5 * 5], [0, 0]])
    assert A.indices.tolist() == [2, 0, 2]
    assert B.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_sums_of_duplicates_and_large_integers_are_not_rounded(backend: ps.Backend) -> None:
    large = 1 << 24  # float32 has no number between this one and the next but one
    once = sp.csr_array(np.array([[large, 1], [1, 0]], np.float64))
    parts = np.array([large, 1, 1, 1]), np.array([0, 0, 1, 0]), np.array([0, 3, 4])
    exact = np.array([[large + 1.0, 1.0], [1.0, 0.0]])
    for values in (np.float32, np.int32, np.uint32):
        twice = sp.csr_array((parts[0].astype(values), *parts[1:]), shape=(2, 2))
        matrices = [twice, twice.tocsc()]
        if values != np.float32:  # which has no such number
            matrices.append(sp.csr_array(exact.astype(values)))
        for same in matrices:
            for C in (backend.spmm(same, np.eye(2)), backend.layer(same, np.eye(2))):
                np.testing.assert_array_equal(host(backend, C), exact)
            for C in (backend.spgemm(same, sp.eye_array(2)), backend.spgemm(sp.eye_array(2), same)):
                np.testing.assert_array_equal(host(backend, C).toarray(), exact)
            for C in (backend.layer(once, same), backend.layer_handle(once).apply(same)):
                np.testing.assert_array_equal(host(backend, C).toarray(), exact @ once.toarray())


def test_spmm_propagates_nan_and_infinity_through_stored_entries_alone(
    backend: ps.Backend,
) -> None:
    A = sp.csr_array(np.array([[1.0, 0, 2], [0, 3, 0], [0, 0, 0]]))
    B = np.array([[np.nan, 1], [np.inf, -np.inf], [1, 1]])
    C = host(backend, backend.spmm(A, B))
    np.testing.assert_array_equal(C, [[np.nan, 3], [np.inf, -np.inf], [0, 0]])
    A.data[0] = np.nan
    np.testing.assert_array_equal(host(backend, backend.spmm(A, B))[0], [np.nan, np.nan])


def test_spmm_names_what_does_not_fit(backend: ps.Backend) -> None:
    A = sp.csr_array((4, 5), dtype=np.float32)
    with refused("spmm", "A", "4 x 5", "B", 6):
        backend.spmm(A, np.zeros((6, 2)))
    with refused("spmm", "A", "ndarray"):
        backend.spmm(np.zeros((4, 5)), np.zeros((5, 2)))  # type: ignore[arg-type]
    with refused("spmm", "B", "3 dimension"):
        backend.spmm(A, np.zeros((5, 2, 1)))
    with refused("spmm", "B", 6, 5):
        backend.spmm(A, np.zeros(6))
    with refused("complex128"):
        backend.spmm(A, np.zeros((5, 2), complex))
    with refused("spmm", "residual", "(4, 3)", "(4, 2)"):
        backend.spmm(A, np.zeros((5, 2)), residual=np.zeros((4, 3)))
    with refused("spmm", "bias", "(5,)", "(4,)"):
        backend.spmm(A, np.zeros((5, 2)), ps.Epilogue(bias=np.zeros(5)))
    with refused("spmm", "columns", 0):
        backend.spmm_handle(A, columns=0)


def test_spmm_handle_writes_where_it_is_told_and_names_what_does_not_fit(
    backend: ps.Backend,
) -> None:
    A = random_sparse(np.random.default_rng(5), (12, 16), 0.3, np.float32)
    B = np.random.default_rng(6).uniform(-1, 1, (16, 32)).astype(np.float32)
    handle = backend.spmm_handle(A)
    out = backend.upload(np.full((12, 32), np.nan, np.float32))
    assert handle.multiply(B, out) is out
    np.testing.assert_allclose(host(backend, out), oracle.spmm(A, B), **tolerance(np.float32))
    with refused("spmm", "A", "12 x 16", "B", 6):
        handle.multiply(np.zeros((6, 2), np.float32))
    with refused("spmm", "B", "float64", "float32"):
        handle.multiply(B.astype(np.float64))
    for wrong in (
        np.zeros((12, 31), np.float32),
        np.zeros((12, 32)),
        np.asfortranarray(host(backend, out)),
    ):
        with refused("spmm", "out", "(12, 32)", "C order"):
            handle.multiply(B, backend.upload(wrong))
    square = backend.spmm_handle(sp.csr_array(np.eye(4, dtype=np.float32)))
    both = backend.upload(np.ones((4, 4), np.float32))
    with refused("spmm", "out", "overlaps"):
        square.multiply(both, both)


@pytest.mark.parametrize("columns", [1, 16, 20, 64, 320])
def test_spmm_handle_takes_operands_in_any_order(backend: ps.Backend, columns: int) -> None:
    rng = np.random.default_rng(columns)
    A = random_sparse(rng, (21, 40), 0.3, np.float32)
    wide = rng.uniform(-1, 1, (40, 2 * columns)).astype(np.float32)
    for handle in (backend.spmm_handle(A), backend.spmm_handle(A, columns=columns)):
        check_every_order(backend, handle, A, wide, columns)
        assert handle.describe()


def check_every_order(backend: ps.Backend, handle: Any, A: Any, wide: Any, columns: int) -> None:
    """Multiply by operands of C and Fortran order and of strides, with and without `out`."""
    out = backend.upload(np.empty((21, columns), np.float32))
    for B in (wide[:, :columns].copy(), np.asfortranarray(wide[:, :columns]), wide[:, ::2]):
        expected = oracle.spmm(A, B)
        for _ in range(3):
            for found in (handle.multiply(B, out), handle.multiply(B)):
                np.testing.assert_allclose(host(backend, found), expected, **tolerance(np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_spmm_takes_vectors(backend: ps.Backend, dtype: Any) -> None:
    rng = np.random.default_rng(8)
    A = random_sparse(rng, (33, 70), 0.3, dtype)
    x, added = rng.uniform(-1, 1, 70).astype(dtype), rng.uniform(-1, 1, 33).astype(dtype)
    expected = oracle.spmm(A, x[:, None])[:, 0]
    for handle in (backend.spmm_handle(A), backend.spmm_handle(A, columns=1)):
        out = backend.upload(np.full(33, np.nan, dtype))
        assert handle.multiply(x, out) is out
        for found in (backend.spmm(A, x), backend.spmm(A, x.tolist()), handle.multiply(x), out):
            assert found.shape == (33,)
            np.testing.assert_allclose(host(backend, found), expected, **tolerance(dtype))
        both = backend.spmm(A, x, residual=added), handle.multiply(x, residual=added)
        for found in both:
            np.testing.assert_allclose(host(backend, found), expected + added, **tolerance(dtype))
        with refused("spmm", "B", 71, 70):
            handle.multiply(np.ones(71, dtype))
        with refused("spmm", "out", "(32,)"):
            handle.multiply(x, backend.upload(np.ones(32, dtype)))


ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "hardswish", "sigmoid", "tanh")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_spmm_epilogue(backend: ps.Backend, activation: str, dtype: Any) -> None:
    rng = np.random.default_rng(12)
    A = random_sparse(rng, (19, 30), 0.3, dtype)
    B = (3 * rng.uniform(-1, 1, (30, 37))).astype(dtype)
    bias, residual = rng.uniform(-1, 1, 19), rng.uniform(-1, 1, (19, 37)).astype(dtype)
    sums = oracle.spmm(A, B)
    for lower, upper in ((None, None), (-0.25, 1.5), (None, 6.0)):
        epilogue = ps.Epilogue(bias, activation, lower, upper)
        handle = backend.spmm_handle(A, epilogue=epilogue)
        for added in (None, residual):
            expected = oracle.finish(sums, bias[:, None], activation, lower, upper, added)
            C = host(backend, backend.spmm(A, B, epilogue, added))
            assert C.dtype == dtype
            np.testing.assert_allclose(C, expected, **tolerance(dtype))
            again = host(backend, handle.multiply(B, residual=added))
            np.testing.assert_allclose(again, expected, **tolerance(dtype))
            out = backend.upload(np.full((19, 37), np.nan, dtype))
            assert handle.multiply(B, out, added) is out
            np.testing.assert_allclose(host(backend, out), expected, **tolerance(dtype))


@pytest.mark.parametrize("columns", [1, 3, 40])
def test_bounds_beyond_the_type_are_ignored(backend: ps.Backend, columns: int) -> None:
    A, B = random_sparse(np.random.default_rng(3), (9, 7), 0.5, np.float32), np.ones((7, columns))
    B = B.astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for activation in ("none", "relu", "gelu"):
            wide = ps.Epilogue(None, activation, -1e300, 1e300)
            expected = host(backend, backend.spmm(A, B, ps.Epilogue(None, activation)))
            np.testing.assert_array_equal(host(backend, backend.spmm(A, B, wide)), expected)
            handle = backend.spmm_handle(A, columns=columns, epilogue=wide)
            C = host(backend, handle.multiply(B))
            np.testing.assert_allclose(C, expected, **tolerance(np.float32))
            for features in (B.T.copy(), sp.csr_array(B.T)):
                network = ps.Network([ps.Layer(A.T, 0, activation, -1e300, 1e300)])
                Y = ps.infer(network, features, backend).scores
                np.testing.assert_allclose(Y, expected.T, **tolerance(np.float32))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_epilogues_pass_nan_on_and_take_their_limits_at_infinity(
    backend: ps.Backend, activation: str
) -> None:
    values = np.array([[np.nan, np.inf, -np.inf, -200.0, 200.0, 0.0]])
    eye = sp.csr_array(np.eye(1))
    with np.errstate(over="ignore"):
        expected = oracle.finish(values, np.zeros(1), activation)
    found = host(backend, backend.spmm(eye, values, ps.Epilogue(activation=activation)))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    narrow = backend.spmm(eye, values, ps.Epilogue(activation=activation, lower=-1, upper=2))
    np.testing.assert_allclose(host(backend, narrow), np.clip(expected, -1, 2), atol=1e-12)
