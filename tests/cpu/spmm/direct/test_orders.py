"""Each order of B and of C: of C in Fortran order some rows at a time are computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from direct_products import POOLS, matrix, multiply

import portable_spdnn as ps
from portable_spdnn_cpu.spmm.dense_layout import meets_few_rows
from portable_spdnn_cpu.spmm.direct.prepared import DirectProduct
from portable_spdnn_cpu.spmm.transposes import NEAR_BYTES, ROWS_TURNED


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [2, 3, 4, 5, 7, 8, 9, 12, 15, 200])
# One block of rows and several: of 32 rows, of 200 columns, or more.
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 17, 31, 32, 33, 65, 3000])
def test_c_of_any_number_of_rows(rows: int, columns: int, dtype: Any) -> None:
    A, rng = matrix(rows, (rows, 6), 0.4, dtype), np.random.default_rng(columns)
    B = np.asfortranarray(rng.uniform(-1, 1, (6, columns)).astype(dtype))
    residual = rng.uniform(-1, 1, (rows, columns)).astype(dtype)
    bias = rng.uniform(-1, 1, rows)
    close = 1e-5 if dtype == np.float32 else 1e-12
    for activation in ("relu", "silu"):
        epilogue = ps.Epilogue(bias, activation)
        found = multiply(POOLS[0], "csr", A, B, epilogue, residual)
        expected = epilogue.apply(A @ B, residual, per_row=True)
        np.testing.assert_allclose(found, expected, rtol=close, atol=close)
    for keeps_order in (True, False):
        found = multiply(POOLS[0], "csr", A, B, keeps_order=keeps_order)
        np.testing.assert_allclose(found, A @ B, rtol=close, atol=close)
        assert found.flags.f_contiguous if keeps_order else found.flags.c_contiguous


@pytest.mark.parametrize("columns", [2, 5, 9])
def test_nothing_around_c_is_written(columns: int) -> None:
    A, B = matrix(1, (100, 9), 0.3), np.asfortranarray(np.ones((9, columns), np.float32))
    around = np.full((110, columns + 2), 7, np.float32, order="F")
    out = around[5:105, 1:-1]
    for operand in (B, np.ascontiguousarray(B)):
        assert DirectProduct(A, ps.Epilogue()).multiply(operand, out, None, POOLS[0])
        np.testing.assert_allclose(out, A @ B, rtol=1e-5)
        out[...] = 7
        assert (around == 7).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [2, 4, 7, 16, 33, 130])
@pytest.mark.parametrize("entries", [0, 40, 600])  # fewer than rows, few and many in each
def test_csc_takes_and_gives_either_order(entries: int, columns: int, dtype: Any) -> None:
    A = matrix(entries, (150, 40), entries / 6000, dtype).tocsc()
    rng = np.random.default_rng(columns)
    B = np.asfortranarray(rng.uniform(-1, 1, (40, columns)).astype(dtype))
    residual = rng.uniform(-1, 1, (150, columns)).astype(dtype)
    epilogue = ps.Epilogue(rng.uniform(-1, 1, 150), "silu")
    close = 1e-5 if dtype == np.float32 else 1e-12
    for finish in ((None, None), (epilogue, None), (epilogue, residual)):
        expected = ps.get_backend("scipy").spmm(A, B, *finish)
        for keeps_order in (True, False):
            found = multiply(POOLS[0], "csc", A, B, *finish, keeps_order)
            np.testing.assert_allclose(found, expected, rtol=close, atol=close)
            assert found.flags.f_contiguous if keeps_order else found.flags.c_contiguous


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
# A cache line of float32 has 16 columns; more than 64 are turned some at a time on no processor.
@pytest.mark.parametrize("columns", [3, 16, 17, 24, 33, 64, 65])
def test_many_rows_of_b_are_turned_some_at_a_time(columns: int, dtype: Any) -> None:
    least = NEAR_BYTES // (columns * np.dtype(dtype).itemsize) + 1
    for k in (least, least + ROWS_TURNED - 1 - least % ROWS_TURNED):
        A = sp.csr_array(sp.eye_array(k, dtype=dtype))
        B = np.asfortranarray(np.arange(k * columns, dtype=dtype).reshape(k, columns))
        np.testing.assert_array_equal(multiply(POOLS[0], "csr", A, B, keeps_order=False), B)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", ["csr", "csc", "csc converted"])
def test_of_b_in_fortran_order_few_rows_may_be_met(form: str, dtype: Any, index: Any) -> None:
    k, entries, rng = 700, 60, np.random.default_rng(0)
    assert meets_few_rows(entries, k)
    parts = rng.uniform(-1, 1, entries), (rng.integers(0, 9, entries), rng.integers(0, k, entries))
    A: Any = sp.coo_array(parts, shape=(9, k)).astype(dtype).asformat(form[:3])
    A.indices, A.indptr = A.indices.astype(index), A.indptr.astype(index)
    for columns in (2, 5, 16, 17, 33, 100, 129, 200):
        B = np.array(rng.uniform(-1, 1, (k, columns)), dtype, order="F")
        B[~np.isin(np.arange(k), A.tocoo().col)] = np.nan  # rows that no entry meets
        expected = A.toarray() @ np.nan_to_num(B)
        found = multiply(POOLS[0], form, A, B)
        np.testing.assert_allclose(found, expected, atol=1e-4)
        assert found.flags.f_contiguous
        for entry in (0, 31, A.nnz - 1):
            for wrong in (k, -1):
                kept, A.indices[entry] = A.indices[entry], wrong
                assert multiply(POOLS[0], form, A, B) is None
                A.indices[entry] = kept
