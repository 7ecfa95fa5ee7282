"""Rows of CSR whose ends are predicted, columns of CSC of any length, and almost empty matrices."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import scipy.sparse as sp
from direct_products import POOLS, multiply

import portable_spdnn as ps
from portable_spdnn_cpu.spmm.direct.copies import COLUMNS_FOR_ENTRY
from portable_spdnn_cpu.spmm.direct.history import COLUMN, REMEMBERED, multiplied_since
from portable_spdnn_cpu.spmm.direct.job_words import COUNTERS, INDPTR
from portable_spdnn_cpu.spmm.direct.unrolled import MOST_EQUAL
from portable_spdnn_cpu.spmm.direct.vectors import (
    BLOCK_ENTRIES,
    LEAST_SHORT,
    MOST_OF_EIGHT,
    MOST_OF_SIXTEEN,
    MOST_PREDICTED,
    MOST_SHORT,
    SAMPLE,
    SAMPLES,
    are_even,
)

LENGTHS = [0, 1, 2, 3, 4, 5, 9, 0, 0, BLOCK_ENTRIES - 1, 0, 1, BLOCK_ENTRIES, 2]
LENGTHS += [BLOCK_ENTRIES + 1, 1, 26, 7, 8, 9, 23, 24, 25]


def columns_of(lengths: list[int], rows: int, dtype: Any, index: Any = np.int32) -> sp.csc_array:
    """Return a matrix whose columns have so many entries."""
    rng = np.random.default_rng(len(lengths))
    found = [np.sort(rng.choice(rows, length, replace=False)) for length in lengths]
    indices = np.concatenate(found).astype(index)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    return sp.csc_array(
        (rng.uniform(-1, 1, indices.size).astype(dtype), indices, indptr), (rows, len(lengths))
    )


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("others", "least", "most"),
    [
        ([1] * 2000, 0, MOST_OF_EIGHT),
        ([5] * 1000, MOST_OF_EIGHT, MOST_OF_SIXTEEN),
        ([14, 13] * 300, MOST_OF_SIXTEEN, MOST_SHORT),
        ([20], MOST_SHORT, 1000),
    ],
)
def test_a_vector_meets_columns_of_any_length(
    others: list[int], least: int, most: int, dtype: Any, index: Any
) -> None:
    A = columns_of(LENGTHS + others + LENGTHS[::-1], 2 * BLOCK_ENTRIES, dtype, index)
    assert least * A.shape[1] < A.nnz <= most * A.shape[1]
    rng = np.random.default_rng(1)
    x, added = rng.uniform(-1, 1, A.shape[1]), rng.uniform(-1, 1, A.shape[0])
    x, added = x.astype(dtype), added.astype(dtype)
    epilogue = ps.Epilogue(rng.uniform(-1, 1, A.shape[0]), "silu", upper=0.5)
    for finish in ((None, None), (epilogue, None), (epilogue, added), (None, added)):
        expected = ps.get_backend("scipy").spmm(A, x, *finish)
        forget()
        found = multiply(POOLS[0], "csc", A, x, *finish)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        # Ends of its columns are predicted now, if it is small.
        again = multiply(POOLS[0], "csc", A, x, *finish)
        np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_whose_ends_are_predicted_have_the_same_sums(dtype: Any, index: Any) -> None:
    lengths = [*range(42), *LENGTHS, *range(42), *[1, 2] * 700]
    assert not MOST_PREDICTED or sum(lengths) <= MOST_PREDICTED * len(lengths)
    A = columns_of(lengths + [3] * 200, 2 * BLOCK_ENTRIES, dtype, index).T
    x = np.random.default_rng(1).uniform(-1, 1, A.shape[1]).astype(dtype)
    for _ in range(2):
        forget()
        found = multiply(POOLS[0], "csr", A, x)
        np.testing.assert_allclose(found, A @ x, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(multiply(POOLS[0], "csr", A, x), found)
        A.data[:40], x[:] = np.inf, np.abs(x)  # the same again with entries that are not finite
    for row in (7, 8, 9, 24, 41):
        for entry in range(A.indptr[row], A.indptr[row + 1]):
            for wrong in (A.shape[1], -1):
                kept, A.indices[entry] = A.indices[entry], wrong
                assert multiply(POOLS[0], "csr", A, x) is None
                A.indices[entry] = kept


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_that_all_have_as_many_entries(dtype: Any, index: Any) -> None:
    rng = np.random.default_rng(2)
    x, bias = rng.uniform(-1, 1, 21).astype(dtype), rng.uniform(-1, 1, 40)
    added, close = rng.uniform(-1, 1, 40).astype(dtype), 1e-5 if dtype == np.float32 else 1e-12
    for count in range(MOST_EQUAL + 2):
        A = columns_of([count] * 21, 40, dtype, index)
        if count > 2:
            A.indices[: 2 * count] = 3  # one row again and again
        for finish in ((None, None), (ps.Epilogue(bias, "relu"), added), (None, added)):
            expected = ps.get_backend("scipy").spmm(A, x, *finish)
            found = multiply(POOLS[0], "csc", A, x, *finish)
            np.testing.assert_allclose(found, expected, rtol=close, atol=close)
        others = columns_of([*[count] * 21, count + 1], 40, dtype, index)
        others.indices[: A.nnz], others.data[: A.nnz] = A.indices, A.data
        same = multiply(POOLS[0], "csc", others, np.append(x, x.dtype.type(0)))
        np.testing.assert_array_equal(multiply(POOLS[0], "csc", A, x), same)
        for entry in {*range(count), *range(A.nnz - count, A.nnz)}:
            for wrong in (40, -1):
                changed = A.copy()
                changed.indices[entry] = wrong
                assert multiply(POOLS[0], "csc", changed, x) is None


def forget() -> None:
    """Multiply so much that no processor predicts where rows or columns of others end."""
    for dtype in (np.float32, np.float64):
        for index in (np.int32, np.int64):
            indptr, x = np.arange(REMEMBERED + 1, dtype=index), np.ones(REMEMBERED, dtype)
            A = sp.csc_array((x, np.zeros(REMEMBERED, index), indptr), (10, REMEMBERED))
            assert multiply(POOLS[0], "csc", A, x)[0] == REMEMBERED
            assert multiply(POOLS[0], "csr", A.T, x[:10])[0] == 1


def test_columns_are_predicted_of_matrices_that_come_again_soon() -> None:
    few, many = 10, REMEMBERED // (COLUMN + 1)

    @numba.njit
    def predicted(indptr: int, columns: int, entries: int) -> bool:
        return bool(multiplied_since(indptr, columns, entries) <= REMEMBERED)

    assert not predicted(64, few, few)
    assert predicted(64, few, few)
    assert not predicted(128, few, few)
    assert predicted(64, few, few)
    assert predicted(128, few, few)
    assert not predicted(4096, many, many)
    assert not predicted(64, few, few)  # long ago
    assert not predicted(4096, many + 1, many)  # too many, though nothing else came
    assert not predicted(4096, many + 1, many)
    # As of so many small matrices, of which a few may share slots of the table.
    several = 64 * np.random.default_rng(0).choice(range(65, 1 << 20), 200, replace=False)
    assert not any(predicted(indptr, few, few) for indptr in several)
    assert sum(predicted(indptr, few, few) for indptr in several) > 180


def test_rows_that_are_as_long_as_their_neighbours_are_even() -> None:
    @numba.njit
    def even(words: np.ndarray, begin: int, end: int, tolerance: int) -> bool:
        return are_even(words, begin, end, tolerance, np.int32)

    def is_even(lengths: list[int], begin: int = 0, tolerance: int = 1) -> bool:
        words = np.zeros(COUNTERS + 1, np.int64)
        indptr = np.append(0, np.cumsum(lengths)).astype(np.int32)
        words[INDPTR] = indptr.ctypes.data
        return bool(even(words, begin, len(lengths), tolerance))

    assert is_even([4, 5] * 40)
    assert is_even([0, 1, 2, 3, 2, 1] * 9)
    assert not is_even([3, 5] * 40)
    assert is_even([2] * 40 + [4] * 8 + [2] * 40)
    assert not is_even([2] * 4 + [4] * 3)
    assert is_even([9, 1, 7] + [4] * 16, begin=3)
    assert not is_even([4, 5] * 40, tolerance=0)
    assert is_even([4] * 40 + [5] * 40, tolerance=0)
    many = 5 * SAMPLES * SAMPLE
    assert is_even([4] * many, tolerance=0)
    for uneven in ([4, 9, 1], [4, 4, 9], [4, 9], [4, 4, 4, 9, 9]):
        assert not is_even(uneven * many, tolerance=0)


@pytest.mark.parametrize("place", [0, 700, -1])
@pytest.mark.parametrize("value", [-1, 1 << 20])
def test_an_index_beyond_the_rows_is_refused(place: int, value: int) -> None:
    A = columns_of(LENGTHS + [1] * 500, 1 << 10, np.float32)
    x = np.ones(A.shape[1], np.float32)
    for form in (A, A[:, :-490]):
        assert multiply(POOLS[0], "csc", form, x[: form.shape[1]]) is not None
        form.indices[place] = value
        for _ in range(2):  # the second time columns are predicted
            assert multiply(POOLS[0], "csc", form, x[: form.shape[1]]) is None


@pytest.mark.parametrize("form", ["csr", "csc", "csc converted"])
@pytest.mark.parametrize("columns", [1, 2, 3, 5, 16, 20, 33, 130])
def test_rows_without_an_entry_are_zero(columns: int, form: str) -> None:
    dense = np.zeros((90, 30), np.float32)
    dense[3, 4], dense[3, 5], dense[70, 4], dense[89, 29] = 1, 2, 3, 4
    A = sp.csr_array(dense) if form == "csr" else sp.csc_array(dense)
    B = np.random.default_rng(columns).uniform(-1, 1, (30, columns)).astype(np.float32)
    for operand in (B, np.asfortranarray(B)):
        for keeps_order in (False, True):
            found = multiply(POOLS[0], form, A, operand, keeps_order=keeps_order)
            np.testing.assert_allclose(found, dense @ B, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_and_columns_of_which_most_have_no_entry(dtype: Any, index: Any) -> None:
    lengths = np.zeros(331, int)
    lengths[[0, 1, 63, 64, 127, 200, 255, 256, 321, 330]] = [1, 2, 9, 1, 3, 41, 8, 1, 16, 2]
    assert LEAST_SHORT * lengths.sum() < lengths.size
    x = np.random.default_rng(3).uniform(-1, 1, 50).astype(dtype)
    for count in (64, 65, 127, 331):
        columns = columns_of(list(lengths[:count]), 50, dtype, index)
        rows = columns.T
        # The same rows among others that have entries: sums are the same, bit for bit.
        filled = sp.vstack([rows, np.ones((count, 50), dtype)], format="csr")
        filled = sp.csr_array(
            (filled.data, filled.indices.astype(index), filled.indptr.astype(index)), filled.shape
        )
        x[:2] = 0.5, -0.0
        for last in (0.25, np.inf):
            x[-1] = last
            found = multiply(POOLS[0], "csr", rows, x)
            np.testing.assert_array_equal(found, multiply(POOLS[0], "csr", filled, x)[:count])
            np.testing.assert_allclose(found, rows @ x, rtol=1e-5, atol=1e-5)
            assert not np.signbit(found[lengths[:count] == 0]).any()
        across = np.random.default_rng(4).uniform(-1, 1, count).astype(dtype)
        found = multiply(POOLS[0], "csc", columns, across)
        np.testing.assert_allclose(found, columns @ across, rtol=1e-5, atol=1e-5)
        shared = multiply(POOLS[1], "csr", rows, x)
        np.testing.assert_array_equal(shared, multiply(POOLS[0], "csr", rows, x))
        for entry in range(rows.nnz):
            for wrong in (50, -1):
                kept, rows.indices[entry] = rows.indices[entry], wrong
                assert multiply(POOLS[0], "csr", rows, x) is None
                assert multiply(POOLS[0], "csc", rows.T, across) is None
                rows.indices[entry] = kept


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("columns", [1, 2, 3, 16, 20, 130])
@pytest.mark.parametrize("k", [200, 203])
def test_columns_without_an_entry_are_passed_over(k: int, columns: int, index: Any) -> None:
    for filled in ([0], [k - 1], [0, 7, 8, 9, k - 1], [15, 16], [191, 192, 199]):
        assert COLUMNS_FOR_ENTRY * 2 * len(filled) < k
        lengths = [2 * (number in filled) for number in range(k)]
        A = columns_of(lengths, 5, np.float64, index)
        B = np.random.default_rng(k).uniform(-1, 1, (k, columns))
        np.testing.assert_allclose(multiply(POOLS[0], "csc", A, B), A.toarray() @ B, atol=1e-12)
        for entry in range(A.nnz):
            wrong = A.copy()
            wrong.indices[entry] = 5
            assert multiply(POOLS[0], "csc", wrong, B) is None
