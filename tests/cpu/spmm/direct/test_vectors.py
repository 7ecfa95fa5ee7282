"""Rows of CSR whose ends are predicted, columns of CSC of any length, and almost empty matrices."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import scipy.sparse as sp
from direct_products import POOLS, multiply

import portable_spdnn as ps
from portable_spdnn_cpu.spmm.direct.added_columns import (
    BLOCK_ENTRIES,
    CHECKED,
    LEAST_LONG,
    LEAST_SHORT,
    MOST_OF_EIGHT,
    MOST_OF_SIXTEEN,
    MOST_SHORT,
)
from portable_spdnn_cpu.spmm.direct.copies import COLUMNS_FOR_ENTRY
from portable_spdnn_cpu.spmm.direct.job_words import COUNTERS, INDPTR
from portable_spdnn_cpu.spmm.direct.unrolled import MOST_EQUAL
from portable_spdnn_cpu.spmm.direct.vectors import RUN, SAMPLE, SAMPLES, are_even

AGAIN = 40  # products after which both forms of a kernel have been used: `measured_form`
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
        ([0, 2, 1] * 1000, 1 / LEAST_SHORT, MOST_OF_EIGHT),
        ([3, 7] * 500, MOST_OF_EIGHT, MOST_OF_SIXTEEN),
        ([12, 17] * 300, MOST_OF_SIXTEEN, MOST_SHORT),
        ([20, 30] * 300, MOST_SHORT, 1000),
    ],
)
def test_a_vector_meets_columns_of_any_length(
    others: list[int], least: float, most: int, dtype: Any, index: Any
) -> None:
    A = columns_of(LENGTHS + others + LENGTHS[::-1], 2 * BLOCK_ENTRIES, dtype, index)
    assert least * A.shape[1] < A.nnz <= most * A.shape[1]
    assert not is_even(np.diff(A.indptr))
    rng = np.random.default_rng(1)
    x, added = rng.uniform(-1, 1, A.shape[1]), rng.uniform(-1, 1, A.shape[0])
    x, added = x.astype(dtype), added.astype(dtype)
    epilogue = ps.Epilogue(rng.uniform(-1, 1, A.shape[0]), "silu", upper=0.5)
    for finish in ((None, None), (epilogue, None), (epilogue, added), (None, added)):
        expected = ps.get_backend("scipy").spmm(A, x, *finish)
        found = multiply(POOLS[0], "csc", A, x, *finish)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        for _ in range(AGAIN):
            np.testing.assert_array_equal(multiply(POOLS[0], "csc", A, x, *finish), found)
    refuse_wrong_indices("csc", A, x, [0, CHECKED - 1, CHECKED, A.nnz // 2, A.nnz - 1])


def refuse_wrong_indices(form: str, A: Any, x: np.ndarray, entries: list[int]) -> None:
    """Check that A is refused where the index of one of these entries is not within the array."""
    beyond = A.shape[1] if form == "csr" else A.shape[0]
    for entry in entries:
        if entry < A.nnz:
            for wrong in (beyond, -1):
                kept, A.indices[entry] = A.indices[entry], wrong
                assert multiply(POOLS[0], form, A, x) is None
                A.indices[entry] = kept


def mostly(usual: int, others: list[int]) -> list[int]:
    """Return lengths of which most are the usual one, but no RUN of them, so that they are even."""
    return [length for other in others for length in (*[usual] * (RUN // 2), other)]


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_whose_ends_are_predicted_have_the_same_sums(dtype: Any, index: Any) -> None:
    # The first are taken by branches at once, the second in blocks first.
    for lengths in (mostly(3, [*range(42), *LENGTHS]), [*range(42), *LENGTHS, *[1, 2] * 700]):
        A = columns_of(lengths, 2 * BLOCK_ENTRIES, dtype, index).T
        x = np.random.default_rng(1).uniform(-1, 1, A.shape[1]).astype(dtype)
        for _ in range(2):
            found = multiply(POOLS[0], "csr", A, x)
            np.testing.assert_allclose(found, A @ x, rtol=1e-5, atol=1e-5)
            for _ in range(AGAIN):
                np.testing.assert_array_equal(multiply(POOLS[0], "csr", A, x), found)
            shared = multiply(POOLS[1], "csr", A, x)
            np.testing.assert_array_equal(shared, found)
            A.data[:40], x[:] = np.inf, np.abs(x)  # the same again with entries that are not finite
        A = A.copy()  # at another address: no product of it was timed
        for row in np.flatnonzero(np.isin(lengths, [7, 8, 9, 24, 41])):
            refuse_wrong_indices("csr", A, x, list(range(A.indptr[row], A.indptr[row + 1])))


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("usual", "is_long"), [(1, False), (2, False), (13, True)])
def test_columns_whose_ends_are_predicted(
    usual: int, is_long: bool, dtype: Any, index: Any
) -> None:
    lengths = mostly(usual, [*range(26), *LENGTHS[:9], 2 * CHECKED // 3] * 2)
    A = columns_of(lengths, CHECKED, dtype, index)
    if not is_long:  # without the longest
        A = A[:, np.diff(A.indptr) < 30]
        A.indices, A.indptr = A.indices.astype(index), A.indptr.astype(index)
    assert is_even(np.diff(A.indptr))
    assert (A.nnz >= LEAST_LONG * A.shape[1]) == is_long
    x = np.random.default_rng(1).uniform(-1, 1, A.shape[1]).astype(dtype)
    found = multiply(POOLS[0], "csc", A, x)
    np.testing.assert_allclose(found, A @ x, rtol=1e-5, atol=1e-5)
    places = range(0, A.nnz, 1 + A.nnz // 100)
    refuse_wrong_indices("csc", A.copy(), x, [*range(40), *places, A.nnz - 1])
    for _ in range(AGAIN):
        np.testing.assert_array_equal(multiply(POOLS[0], "csc", A, x), found)


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


@numba.njit
def even(words: np.ndarray, extent: int, tolerance: int) -> bool:
    return are_even(words, extent, tolerance, np.int32)


def is_even(lengths: Any, tolerance: int = 1) -> bool:
    """Whether columns of these lengths are even, as a processor is taken to predict them."""
    words = np.zeros(COUNTERS + 1, np.int64)
    indptr = np.append(0, np.cumsum(lengths)).astype(np.int32)
    words[INDPTR] = indptr.ctypes.data
    return bool(even(words, len(lengths), tolerance))


def test_rows_that_are_as_long_as_their_neighbours_are_even() -> None:
    assert is_even([4, 5] * 40)
    assert is_even([0, 1, 2, 3, 2, 1] * 9)
    assert not is_even([3, 5] * 40)
    assert is_even([2] * 40 + [4] * 8 + [2] * 40)
    assert not is_even([2] * 4 + [4] * 3)
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
