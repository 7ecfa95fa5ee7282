"""Few columns of B times A with few entries: each entry is added to C by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from direct_products import POOLS, multiply

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.direct import product
from portable_spdnn_cpu.spmm.direct.by_rows import MOST_ADDED
from portable_spdnn_cpu.spmm.direct.choice import SAMPLED_BYTES, begins_as_zeros
from portable_spdnn_cpu.spmm.direct.each_entry import AT_ONCE, LINES, MOST_NUMBERS
from portable_spdnn_cpu.spmm.direct.prepared import DirectProduct
from portable_spdnn_cpu.spmm.row_ends import (
    PREDICTED_ROWS,
    adds_each_entry,
    lengths_vary,
    may_add_each_entry,
)

pytestmark = pytest.mark.usefixtures("shared")
K = 41  # columns of A in CSR, rows in CSC


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads share any product."""
    monkeypatch.setattr(product, "WAKING_WORK", 0)


def lengths_of(kind: str, lines: int) -> np.ndarray:
    """Return how many entries rows of A have, or columns in CSC."""
    rng = np.random.default_rng(lines)
    lengths = rng.poisson({"empty": 0.0, "few": 0.2}.get(kind, 0.9), lines)
    if kind == "single":
        lengths[:] = 1
    elif kind == "uneven":
        lengths[:] = 0
        lengths[:: 2 * AT_ONCE] = AT_ONCE + np.arange(lengths[:: 2 * AT_ONCE].size) % 3 - 1
    elif kind == "longer":  # than those whose sums wait for each other, in some blocks
        lengths[:] = 0
        lengths[:: 4 * MOST_ADDED] = MOST_ADDED
        lengths[:LINES] *= 2
    elif kind == "long":  # one of a block with room for its numbers, one of a block without
        lengths[lines // 2 :] = 0
        lengths[3], lengths[LINES + 5] = MOST_NUMBERS // 2, MOST_NUMBERS + 1
    return lengths


def matrix_of(form: str, kind: str, lines: int, dtype: Any, index: Any = np.int32) -> Any:
    """Return A of so many rows, or columns in CSC; entries may lie in one place."""
    lengths = lengths_of(kind, lines)
    rng = np.random.default_rng(lines + 1)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    indices = rng.integers(0, K, indptr[-1]).astype(index)
    values = rng.uniform(-1, 1, indices.size).astype(dtype)
    shape = (lines, K) if form == "csr" else (K, lines)
    A = {"csr": sp.csr_array, "csc": sp.csc_array}[form]((values, indices, indptr), shape=shape)
    A.indices, A.indptr = indices, indptr  # SciPy would narrow them
    return A


def widths(dtype: Any) -> list[int]:
    """Return numbers of columns on both sides of each kernel's width."""
    whole = [size // np.dtype(dtype).itemsize for size in (16, 32, 64, 96, 2 * BLOCK_BYTES)]
    return sorted({number + more for number in whole for more in (-1, 0, 1)} - {1})


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("empty", 3), ("few", LINES - 1), ("few", LINES), ("few", 3 * LINES + 70), ("single", 1),
        ("one", 2 * LINES + 1), ("one", LINES + 63), ("uneven", 2 * LINES), ("long", 6 * LINES),
        ("longer", 3 * LINES + 9),
    ],
)  # fmt: skip
def test_products(form: str, kind: str, lines: int, dtype: Any, index: Any) -> None:
    A = matrix_of(form, kind, lines, dtype, index)
    close = 1e-4 if dtype == np.float32 else 1e-11
    for columns in widths(dtype):
        row = columns * A.dtype.itemsize
        most = 2 * BLOCK_BYTES if 2 * A.nnz <= lines else BLOCK_BYTES
        assert adds_each_entry(A.nnz, lines, row) == (row <= most)
        B = np.random.default_rng(columns).uniform(-1, 1, (A.shape[1], columns)).astype(dtype)
        expected = oracle.spmm(sp.csr_array(A), B)
        for order in "CF":
            given = np.array(B, order=order)
            for pool in POOLS:
                found = multiply(pool, form, A, given)
                np.testing.assert_allclose(found, expected, rtol=close, atol=close)
                assert not np.signbit(found[expected == 0]).any()


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("kind", ["few", "one", "long"])
def test_wrong_indices_are_refused(form: str, kind: str) -> None:
    A = matrix_of(form, kind, 6 * LINES, np.float32)
    B = np.ones((A.shape[1], 3), np.float32)
    for entry in {0, 1, 2, 3, 4, A.nnz // 2, A.nnz - 1, *range(0, A.nnz, 37)}:
        for wrong in (K, -1, 1 << 30):
            kept, A.indices[entry] = A.indices[entry], wrong
            assert all(multiply(pool, form, A, B) is None for pool in POOLS)
            A.indices[entry] = kept


@pytest.mark.parametrize("columns", [2, 3, 16, 17, 32])
@pytest.mark.parametrize("kind", ["few", "one"])
def test_pages_that_the_system_makes_as_zeros(kind: str, columns: int) -> None:
    lines = SAMPLED_BYTES // (4 * columns) + 100
    A = matrix_of("csr", kind, lines, np.float32)
    assert begins_as_zeros(A.nnz, lines, 4 * columns) == (kind == "few")
    B = np.random.default_rng(columns).uniform(-1, 1, (K, columns)).astype(np.float32)
    for pool in POOLS:
        np.testing.assert_allclose(multiply(pool, "csr", A, B), A @ B, atol=1e-5)


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("columns", [2, 5, 16])
def test_epilogues_and_given_results(form: str, columns: int) -> None:
    backend, rng = ps.get_backend("numba"), np.random.default_rng(columns)
    for kind in ("few", "one"):
        A = matrix_of(form, kind, 700, np.float32)
        B = rng.uniform(-1, 1, (A.shape[1], columns)).astype(np.float32)
        bias = rng.uniform(-1, 1, A.shape[0])
        residual = rng.uniform(-1, 1, (A.shape[0], columns)).astype(np.float32)
        found = backend.spmm(A, B, ps.Epilogue(bias=bias, activation="relu"), residual=residual)
        expected = np.maximum(A @ B + bias[:, None] + residual, 0)
        np.testing.assert_allclose(found, expected, atol=1e-4)
        out = np.full((A.shape[0], columns), np.nan, np.float32)
        for pool in POOLS:
            assert DirectProduct(A, ps.Epilogue()).multiply(B, out, None, pool)
            np.testing.assert_allclose(out, A @ B, atol=1e-4)
            out[:] = np.nan


@pytest.mark.parametrize(
    ("lengths", "vary"),
    [([2] * 400, False), ([3, 1] * 200, True), ([0, 0, 0, 1] * 100, True), ([5], False),
     ([], False), ([2] * 390 + [7] * 10, False)],
)  # fmt: skip
def test_whether_lengths_vary(lengths: list[int], vary: bool) -> None:
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    assert lengths_vary(indptr, 0, len(lengths)) == vary


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("vary", [True, False])
def test_more_entries_where_ends_of_rows_are_not_predicted(vary: bool, dtype: Any) -> None:
    lines = PREDICTED_ROWS + 37
    rng = np.random.default_rng(3)
    lengths = rng.poisson(1.9, lines) if vary else np.full(lines, 2)
    lengths[5], lengths[6 : 6 + MOST_NUMBERS] = MOST_NUMBERS + 3, 0  # in panels
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    indices = rng.integers(0, K, indptr[-1]).astype(np.int32)
    A = sp.csr_array((rng.uniform(-1, 1, indices.size).astype(dtype), indices, indptr), (lines, K))
    close = 1e-4 if dtype == np.float32 else 1e-11
    for columns in (2, 4, 5, 8, 9):
        row = columns * A.dtype.itemsize
        assert not adds_each_entry(A.nnz, lines, row)
        assert may_add_each_entry(A.nnz, lines, row) == (row <= 32)
        assert not may_add_each_entry(A.nnz, PREDICTED_ROWS, row)
        B = rng.uniform(-1, 1, (K, columns)).astype(dtype)
        for order in "CF":
            for pool in POOLS:
                found = multiply(pool, "csr", A, np.array(B, order=order))
                np.testing.assert_allclose(found, A @ B, rtol=close, atol=close)
        A.indices[A.nnz - 1] = K
        assert all(multiply(pool, "csr", A, B) is None for pool in POOLS)
        A.indices[A.nnz - 1] = 0


def test_entries_of_a_row_that_may_be_added_one_by_one() -> None:
    rows = 2 * PREDICTED_ROWS
    assert may_add_each_entry(3 * rows, rows, 16)
    assert not may_add_each_entry(3 * rows, rows, 20)
    assert may_add_each_entry(2 * rows, rows, 32)
    assert not may_add_each_entry(2 * rows, rows, 33)
