"""What follows a single product: as the reference does it, in every order and form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from direct_products import FORMS, POOLS, matrix, multiply
from hypothesis import given, settings
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn_cpu.machine.cpu_info import cache_bytes

COLUMNS = 1, 2, 4, 5, 8, 9, 12, 15, 16, 17, 24, 33, 64, 65, 100, 130, 200


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 1000), st.integers(1, 40), st.integers(1, 60), st.sampled_from(COLUMNS),
    st.sampled_from([0.0, 0.05, 0.4]), st.sampled_from([np.float32, np.float64]),
    st.sampled_from(sorted(FORMS)), st.sampled_from("CF"), st.sampled_from("CF"),
    st.sampled_from([None, 0.25, "each"]), st.sampled_from(ps.epilogue.ACTIVATIONS),
    st.sampled_from([(None, None), (0.1, 0.4), (-0.2, None)]), st.booleans(),
)  # fmt: skip
def test_a_finished_product(
    seed: int, rows: int, k: int, columns: int, density: float, dtype: Any, form: str, order: Any,
    residual_order: Any, bias: Any, activation: str, bounds: Any, begun: bool,
) -> None:  # fmt: skip
    A, rng = FORMS[form](matrix(seed, (rows, k), density, dtype)), np.random.default_rng(seed)
    B = np.array(rng.uniform(-1, 1, (k, columns)).astype(dtype), order=order)
    residual = rng.uniform(-1, 1, (rows, columns)).astype(dtype) if begun else None
    if residual is not None:
        residual = np.array(residual, order=residual_order)
    added = rng.uniform(-1, 1, rows) if bias == "each" else bias
    epilogue = ps.Epilogue(added, activation, *bounds)
    expected = ps.get_backend("scipy").spmm(A, B, epilogue, residual)
    close = 1e-5 if dtype == np.float32 else 1e-12
    before = None if residual is None else residual.copy()
    for pool in POOLS:
        found = multiply(pool, form, A, B, epilogue, residual)
        np.testing.assert_allclose(found, expected, rtol=close, atol=close)
        assert found.dtype == dtype
        fortran = order == "F" and columns > 1 and k > 1
        assert found.flags["F_CONTIGUOUS" if fortran else "C_CONTIGUOUS"]
    if residual is not None:
        np.testing.assert_array_equal(residual, before)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_other_operands(form: str) -> None:
    A, rng = FORMS[form](matrix(3, (20, 30), 0.3)), np.random.default_rng(3)
    A.indices, A.indptr = A.indices.astype(np.int64), A.indptr.astype(np.int64)
    epilogue = ps.Epilogue(rng.uniform(-1, 1, 20), "silu", upper=0.4)
    B = rng.uniform(-1, 1, (30, 12)).astype(np.float32)
    residual = rng.uniform(-1, 1, (20, 24)).astype(np.float32)[:, ::2]  # in neither order
    for operand in (B, np.asfortranarray(B), np.broadcast_to(B[:, :1], B.shape), B[::-1, ::-1]):
        expected = ps.get_backend("scipy").spmm(A, operand, epilogue, residual)
        for pool in POOLS:
            found = multiply(pool, form, A, operand, epilogue, residual)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    expected = ps.get_backend("scipy").spmm(A, B[:, 0], epilogue, residual[:, 0])
    for pool in POOLS:
        found = multiply(pool, form, A, B[:, 0], epilogue, residual[:, 0])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        assert found.shape == (20,)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_extents_of_zero(form: str) -> None:
    backend, epilogue = ps.get_backend("numba"), ps.Epilogue(0.5, "tanh")
    for shape in ((0, 3), (3, 0), (0, 0), (3, 3)):
        A = FORMS[form](np.zeros(shape, np.float32))
        for columns in (0, 1, 20):
            B = np.ones((shape[1], columns), np.float32)
            expected = np.full((shape[0], columns), np.tanh(0.5), np.float32)
            np.testing.assert_allclose(backend.spmm(A, B, epilogue), expected, rtol=1e-6)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_invalid_structure_is_refused_whatever_follows(form: str) -> None:
    A = FORMS[form](matrix(2, (40, 41), 0.2))
    A.indices[20] = 1000
    epilogue = ps.Epilogue(np.ones(40), "gelu")
    for columns in COLUMNS:
        for order in "CF":
            B = np.ones((41, columns), np.float32, order)
            residual = np.ones((40, columns), np.float32)
            for pool in POOLS:
                assert multiply(pool, form, A, B, epilogue, residual) is None


@pytest.mark.parametrize("dtype", [np.int64, np.dtype(">f8"), np.float32])
def test_a_prepared_bias_of_any_type_is_what_it_says(dtype: Any) -> None:
    A, B = matrix(1, (6, 5), 0.5), np.ones((5, 3), np.float32)
    epilogue = ps.Epilogue(np.arange(6.0))
    expected = multiply(POOLS[0], "csr", A, B, epilogue)
    prepared = epilogue.prepared("spmm", 6, dtype)
    np.testing.assert_array_equal(multiply(POOLS[0], "csr", A, B, prepared), expected)
    square = epilogue.prepared("spmm", 6, np.dtype(np.float64))
    square.bias.shape = 3, 2
    np.testing.assert_array_equal(multiply(POOLS[0], "csr", A, B, square), expected)
    turned = ps.Epilogue(np.arange(6.0))
    object.__setattr__(turned, "bias", np.arange(5.0, -1, -1)[::-1])
    np.testing.assert_array_equal(multiply(POOLS[0], "csr", A, B, turned), expected)


def test_the_bias_comes_before_the_residual() -> None:
    huge = np.float32(3e38)
    epilogue = ps.Epilogue(-huge)
    for columns in (1, 16):
        B = np.full((1, columns), huge)
        for form, kind in FORMS.items():
            A = kind(np.ones((1, 1), np.float32))
            for pool in POOLS:
                np.testing.assert_array_equal(multiply(pool, form, A, B, epilogue, B), B)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_not_finite_numbers_pass_what_finishes_them(form: str) -> None:
    A = FORMS[form](np.eye(4, dtype=np.float32))
    for columns in COLUMNS:
        B = np.ones((4, columns), np.float32) * [[np.nan], [np.inf], [-np.inf], [2.0]]
        B = B.astype(np.float32)
        for order in ("C", "F"):
            operand = np.array(B, order=order)
            for epilogue in (
                ps.Epilogue(0.5, "relu", upper=1.5),
                ps.Epilogue(lower=-1.0),
                ps.Epilogue(0, "silu"),
            ):
                expected = ps.get_backend("scipy").spmm(A, operand, epilogue)
                for pool in POOLS:
                    found = multiply(pool, form, A, operand, epilogue, None)
                    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_all_is_finished_as_for_checked_operands() -> None:
    backend, rng = ps.get_backend("numba"), np.random.default_rng(7)
    A, B = matrix(7, (30, 20), 0.4), rng.uniform(-1, 1, (20, 6)).astype(np.float32)
    residual = rng.uniform(-1, 1, (30, 6)).astype(np.float32)
    for epilogue in (None, ps.Epilogue(rng.uniform(-1, 1, 30), "gelu", upper=0.5)):
        for added in (None, residual, residual.astype(np.float64), residual.tolist()):
            for features in (B, B[:, 0]):
                extra = added if added is None or features is B else np.asarray(added)[:, 0]
                found = backend.spmm(A, features, epilogue, extra)
                expected = ps.get_backend("scipy").spmm(A, features, epilogue, extra)
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
                assert found.dtype == expected.dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [33, 100, 128])
def test_rows_of_b_from_beyond_the_cache(columns: int, dtype: Any) -> None:
    k, rng = cache_bytes(2) // (columns * np.dtype(dtype).itemsize) + 3, np.random.default_rng(7)
    A = FORMS["csc"](matrix(7, (5, k), 0.02, dtype))
    B = rng.uniform(-1, 1, (k, columns)).astype(dtype)
    residual = rng.uniform(-1, 1, (5, columns)).astype(dtype)
    epilogue = ps.Epilogue(rng.uniform(-1, 1, 5), "gelu", upper=3)
    rows_apart = np.repeat(B, 2, axis=1)[:, :columns]
    for operand in (B, B[::-1], rows_apart, np.asfortranarray(B)):
        for finish in ((None, None), (epilogue, None), (epilogue, residual)):
            expected = ps.get_backend("scipy").spmm(A, operand, *finish)
            found = multiply(POOLS[0], "csc", A, operand, *finish)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    A.indices[-1] = 5
    assert multiply(POOLS[0], "csc", A, B, epilogue, residual) is None


@pytest.mark.parametrize(
    "lengths",
    [
        [3] * 400, [30] * 90, [0, 0, 0, 1] * 100, [0, 9, 1, 2, 40] * 80, [6, 7] * 200,
        [50] * 63 + [0], [0] * 30 + [20] * 60,
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_column_is_finished_whatever_kernel_sums_it(lengths: list[int], dtype: Any) -> None:
    """Rows that are equal and short, or long, mostly empty or uneven have kernels of their own."""
    rng = np.random.default_rng(len(lengths))
    indptr = np.cumsum([0, *lengths], dtype=np.int32)
    indices = rng.integers(0, 50, indptr[-1]).astype(np.int32)
    values = rng.uniform(-1, 1, indptr[-1]).astype(dtype)
    A: Any = sp.csr_array((values, indices, indptr), shape=(len(lengths), 50))
    x, bias = rng.uniform(-1, 1, 50).astype(dtype), rng.uniform(-1, 1, len(lengths))
    residual = rng.uniform(-1, 1, len(lengths)).astype(dtype)
    close = 1e-5 if dtype == np.float32 else 1e-12
    for epilogue in (
        ps.Epilogue(bias), ps.Epilogue(0.5, "relu"), ps.Epilogue(bias, "tanh", -0.3),
        ps.Epilogue(None, "relu"), ps.Epilogue(0.0, upper=0.2), ps.Epilogue(-0.25),
        ps.Epilogue(np.nan, "relu"),
    ):  # fmt: skip
        for added in (None, residual):
            expected = ps.get_backend("scipy").spmm(A, x, epilogue, added)
            for pool in POOLS:
                for _ in range(20):  # from the ninth call on the other kernel is tried
                    found = multiply(pool, "csr", A, x, epilogue, added)
                    np.testing.assert_allclose(found, expected, rtol=close, atol=close)
