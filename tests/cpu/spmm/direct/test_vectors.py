"""Rows of CSR whose ends are predicted, columns of CSC of any length, and almost empty matrices."""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
import pytest
import scipy.sparse as sp
from direct_products import POOLS, multiply

import portable_spdnn as ps
from portable_spdnn_cpu.jit.compilation import job_kernel
from portable_spdnn_cpu.jit.jobs import Job
from portable_spdnn_cpu.spmm.direct import code_table, start
from portable_spdnn_cpu.spmm.direct.added_columns import (
    BLOCK_ENTRIES,
    CHECKED,
    LEAST_LONG,
    MOST_OF_EIGHT,
    MOST_OF_SIXTEEN,
    MOST_SHORT,
    add_columns,
)
from portable_spdnn_cpu.spmm.direct.choice import MOSTLY_EMPTY
from portable_spdnn_cpu.spmm.direct.columns import COLUMNS_FOR_ENTRY
from portable_spdnn_cpu.spmm.direct.entry_points import compiled
from portable_spdnn_cpu.spmm.direct.finish import begin_rows
from portable_spdnn_cpu.spmm.direct.job_words import COUNTERS, INDPTR, REFUSED, ROWS, K
from portable_spdnn_cpu.spmm.direct.unrolled import MOST_EQUAL
from portable_spdnn_cpu.spmm.direct.vectors import (
    RUN,
    SAMPLE,
    SAMPLES,
    are_even,
    has_runs,
    multiply_rows,
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


@job_kernel
def rows_by_branches(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    words[REFUSED] = not multiply_rows(words, 0, words[ROWS], True, 1, dtype, index_dtype)


@job_kernel
def rows_in_blocks(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    words[REFUSED] = not multiply_rows(words, 0, words[ROWS], False, 1, dtype, index_dtype)


@job_kernel
def columns_by_branches(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    begin_rows(words, dtype)
    words[REFUSED] = not add_columns(words, 0, words[K], True, dtype, index_dtype)


@job_kernel
def columns_together(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    begin_rows(words, dtype)
    words[REFUSED] = not add_columns(words, 0, words[K], False, dtype, index_dtype)


BOTH_FORMS = {
    "csr": (start.BY_ROWS, rows_by_branches, rows_in_blocks),
    "csc": (start.BY_COLUMNS, columns_by_branches, columns_together),
}


@functools.cache
def table_of(kernel: Any, dtype: np.dtype[Any], index: np.dtype[Any]) -> np.ndarray:
    """Return a table that names a kernel as the job."""
    table = np.zeros(code_table.TABLE_WORDS, np.int64)
    table[code_table.JOB] = Job(kernel, dtype.type, index.type).address
    return table


def products_of_both_forms(A: Any, x: np.ndarray) -> list[Any]:
    """Return A times x by both kernels of which products choose; None where A is refused."""
    taken, *kernels = BOTH_FORMS[A.format]
    points, products = compiled(A.dtype, A.indices.dtype, 1), []
    for kernel in kernels:
        address = table_of(kernel, A.dtype, A.indices.dtype).ctypes.data
        out = np.full(A.shape[0], np.nan, A.dtype)
        done = points.run_alone(address, A.indptr, A.indices, A.data, x, out, taken, False)
        products.append(out if done else None)
    return products


def check_both_forms(A: Any, x: np.ndarray, entries: list[int]) -> None:
    """Check that sums are the same to the bit, and that wrong indices of entries are refused."""
    found, (first, second) = multiply(POOLS[0], A.format, A, x), products_of_both_forms(A, x)
    np.testing.assert_allclose(found, A @ x, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(first, found)
    np.testing.assert_array_equal(second, found)
    beyond = A.shape[1] if A.format == "csr" else A.shape[0]
    for entry in entries:
        for wrong in (beyond, -1):
            kept, A.indices[entry] = A.indices[entry], wrong
            assert products_of_both_forms(A, x) == [None, None]
            assert multiply(POOLS[0], A.format, A, x) is None
            A.indices[entry] = kept


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("others", "least", "most"),
    [
        ([0, 0, 0, 1] * 4000, 0, 1 / MOSTLY_EMPTY),
        ([0, 2, 1] * 1000, 1 / MOSTLY_EMPTY, MOST_OF_EIGHT),
        ([3, 7] * 500, MOST_OF_EIGHT, LEAST_LONG),
        ([10, 9] * 1500, LEAST_LONG, MOST_OF_SIXTEEN),
        ([12, 17] * 300, MOST_OF_SIXTEEN, MOST_SHORT),
        ([20, 30] * 300, MOST_SHORT, 1000),
        ([2] * 4000, MOST_OF_EIGHT, LEAST_LONG),  # and one that alone is checked at once
    ],
)
def test_a_vector_meets_columns_of_any_length(
    others: list[int], least: float, most: float, dtype: Any, index: Any
) -> None:
    longest = [2 * CHECKED] if len(set(others)) == 1 else []
    rows = CHECKED * 2 + 1 if longest else 2 * BLOCK_ENTRIES
    A = columns_of(LENGTHS + others + longest + LENGTHS[::-1], rows, dtype, index)
    assert least * A.shape[1] <= A.nnz <= most * A.shape[1]
    rng = np.random.default_rng(1)
    x, added = rng.uniform(-1, 1, A.shape[1]), rng.uniform(-1, 1, A.shape[0])
    x, added = x.astype(dtype), added.astype(dtype)
    places = {0, CHECKED - 1, CHECKED, A.nnz // 2, A.nnz - 9, A.nnz - 1, *range(20, A.nnz, 997)}
    check_both_forms(A, x, [entry for entry in places if entry < A.nnz])
    epilogue = ps.Epilogue(rng.uniform(-1, 1, A.shape[0]), "silu", upper=0.5)
    for finish in ((epilogue, None), (epilogue, added), (None, added)):
        expected = ps.get_backend("scipy").spmm(A, x, *finish)
        found = multiply(POOLS[0], "csc", A, x, *finish)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        for _ in range(12):  # the other form is tried after eight products, if they settle
            again = multiply(POOLS[0], "csc", A, x, *finish)
            np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("others", [[1, 2] * 700, [0, 1, 0, 1, 1] * 900, [3] * 200, [0] * 4000])
def test_rows_have_the_same_sums_by_branches_and_in_blocks(
    others: list[int], dtype: Any, index: Any
) -> None:
    lengths = [*range(42), *LENGTHS, *others] if others[0] else [*range(42), *others]
    A = columns_of(lengths, 2 * BLOCK_ENTRIES, dtype, index).T
    assert (A.nnz < A.shape[0]) == (not others[0])
    x = np.random.default_rng(1).uniform(-1, 1, A.shape[1]).astype(dtype)
    wrong = np.flatnonzero(np.isin(lengths[:42], [7, 8, 9, 24, 41]))
    check_both_forms(A, x, [n for row in wrong for n in range(A.indptr[row], A.indptr[row + 1])])
    shared = multiply(POOLS[1], "csr", A, x)
    np.testing.assert_array_equal(shared, multiply(POOLS[0], "csr", A, x))
    A.data[:40], x[:] = np.inf, np.abs(x)  # entries that are not finite
    check_both_forms(A, x, [])


def test_a_product_of_any_number_has_the_same_sums() -> None:
    A = columns_of([*LENGTHS, *[0, 3, 1, 6] * 200], 2 * BLOCK_ENTRIES, np.float32)
    for each in (A, A.T):
        x = np.random.default_rng(1).uniform(-1, 1, each.shape[1]).astype(np.float32)
        found = multiply(POOLS[0], each.format, each, x)
        for _ in range(200):
            np.testing.assert_array_equal(multiply(POOLS[0], each.format, each, x), found)


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


@numba.njit
def with_runs(words: np.ndarray, extent: int) -> bool:
    return has_runs(words, extent, np.int32)


def asked(question: Any, lengths: Any, *others: int) -> bool:
    """Ask of rows of these lengths."""
    words = np.zeros(COUNTERS + 1, np.int64)
    indptr = np.append(0, np.cumsum(lengths)).astype(np.int32)
    words[INDPTR] = indptr.ctypes.data
    return bool(question(words, len(lengths), *others))


def test_runs_of_rows_of_one_length_are_found() -> None:
    assert asked(with_runs, [3] * RUN)
    assert asked(with_runs, [1] * RUN + [5] * RUN + [7])
    assert asked(with_runs, [4, 5] * RUN + [0] * RUN)
    assert asked(with_runs, [2] * 5)  # all of a small matrix
    assert not asked(with_runs, [4, 5] * RUN + [3])
    assert not asked(with_runs, [1, 2, 2])
    assert not asked(with_runs, [MOST_EQUAL + 1] * RUN)


def test_rows_that_are_as_long_as_their_neighbours_are_even() -> None:
    assert asked(even, [4, 5] * 40, 1)
    assert asked(even, [0, 1, 2, 3, 2, 1] * 9, 1)
    assert not asked(even, [3, 5] * 40, 1)
    assert asked(even, [2] * 40 + [4] * 8 + [2] * 40, 1)
    assert not asked(even, [2] * 4 + [4] * 3, 1)
    assert not asked(even, [4, 5] * 40, 0)
    assert asked(even, [4] * 40 + [5] * 40, 0)
    many = 5 * SAMPLES * SAMPLE
    assert asked(even, [4] * many, 0)
    for uneven in ([4, 9, 1], [4, 4, 9], [4, 9], [4, 4, 4, 9, 9]):
        assert not asked(even, uneven * many, 0)


@pytest.mark.parametrize("place", [0, 700, -1])
@pytest.mark.parametrize("value", [-1, 1 << 20])
def test_an_index_beyond_the_rows_is_refused(place: int, value: int) -> None:
    A = columns_of(LENGTHS + [1] * 500, 1 << 10, np.float32)
    x = np.ones(A.shape[1], np.float32)
    for form in (A, A[:, :-490]):
        assert multiply(POOLS[0], "csc", form, x[: form.shape[1]]) is not None
        form.indices[place] = value
        for _ in range(2):
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
    assert MOSTLY_EMPTY * lengths.sum() < lengths.size
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
@pytest.mark.parametrize("columns", [1, 2, 3, 16, 17, 20, 130])
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
