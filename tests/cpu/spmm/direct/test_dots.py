"""Products with a single column: rows of one length, in blocks, four together, and one by one."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import scipy.sparse as sp
from direct_products import POOLS, multiply
from hypothesis import given, settings
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.spmm.direct.dot_blocks import BLOCK_ENTRIES, BLOCK_ROWS
from portable_spdnn_cpu.spmm.direct.job_words import COUNTERS, INDPTR
from portable_spdnn_cpu.spmm.direct.unrolled import MOST_EQUAL
from portable_spdnn_cpu.spmm.direct.vectors import are_equal

K = 1000


def rows_of(lengths: list[int], dtype: Any, index: Any, seed: int = 1) -> Any:
    """Return a matrix whose rows have so many entries each."""
    rng = np.random.default_rng(seed)
    indptr = np.cumsum([0, *lengths]).astype(index)
    columns = [np.sort(rng.choice(K, length, replace=False)) for length in lengths]
    indices = np.concatenate([*columns, np.zeros(0)]).astype(index)
    values = rng.uniform(-1, 1, indices.size).astype(dtype)
    A = sp.csr_array((values, indices, indptr), shape=(len(lengths), K))
    assert A.indices.dtype == index
    return A


lengths = st.one_of(
    st.lists(st.integers(0, most), min_size=1, max_size=3 * BLOCK_ROWS + 3)
    for most in (1, 2, 5, 9, 17, 26, 38, 60)
)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "counts",
    [
        [20] * (2 * BLOCK_ROWS + 2), [24] * BLOCK_ROWS, [24] * (BLOCK_ROWS - 1) + [25],
        [16] * BLOCK_ROWS + [24] * 3, [24] * BLOCK_ROWS + [0] * BLOCK_ROWS, [24] * 4 + [1000] * 60,
        [0, 1] * BLOCK_ROWS, [1] * 20 + [40] + [0, 1] * 21 + [3, 0],
        [0] * 63 + [5] + [0, 0, 1] * 30,
    ],
)  # fmt: skip
def test_blocks_of_rows_that_are_all_short(counts: list[int], dtype: Any, index: Any) -> None:
    A = rows_of(counts, dtype, index)
    x = np.random.default_rng(3).uniform(-1, 1, K).astype(dtype)
    close = 1e-4 if dtype == np.float32 else 1e-12
    for pool in POOLS:
        found = multiply(pool, "csr", A, x, ps.Epilogue(), None)
        np.testing.assert_allclose(found, oracle.spmm(A, x[:, None])[:, 0], rtol=close, atol=close)


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("counts", [[9] * 20_000, [4, 8, 15] * 7000, [40] * 5000, [60, 1] * 4000])
@pytest.mark.parametrize("columns", [1, 3])
def test_matrices_larger_than_the_second_level_cache(
    form: str, counts: list[int], columns: int
) -> None:
    rng = np.random.default_rng(6)
    indices, indptr = rng.integers(0, K, sum(counts)), np.cumsum([0, *counts])
    parts = rng.uniform(-1, 1, indices.size), indices, indptr
    A: Any = sp.csr_array(parts, (len(counts), K)) if form == "csr" else None
    A = A if form == "csr" else sp.csc_array(parts, (K, len(counts)))
    assert A.data.nbytes + A.indices.nbytes > cache_bytes(2)
    B = rng.uniform(-1, 1, (A.shape[1], columns))
    B = B[:, 0].copy() if columns == 1 else B
    found = multiply(POOLS[0], form, A, B)
    np.testing.assert_allclose(found, A @ B, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_column_larger_than_the_first_level_cache(dtype: Any) -> None:
    k, rng = 2 * cache_bytes(1), np.random.default_rng(4)
    A: Any = sp.random_array((150, k), density=7 / k, rng=rng, dtype=dtype, format="csr")
    x = rng.uniform(-1, 1, k).astype(dtype)
    close = 1e-5 if dtype == np.float32 else 1e-12
    for pool in POOLS:
        found = multiply(pool, "csr", A, x)
        np.testing.assert_allclose(found, oracle.spmm(A, x[:, None])[:, 0], rtol=close, atol=close)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_all_have_as_many_entries_sum_as_they_do_elsewhere(
    dtype: Any, index: Any
) -> None:
    x = np.random.default_rng(5).uniform(-1, 1, K).astype(dtype)
    close = 1e-5 if dtype == np.float32 else 1e-12
    for count in range(MOST_EQUAL + 2):
        A = rows_of([count] * 21, dtype, index, seed=count)
        others = sp.csr_array(sp.vstack([A, rows_of([count + 1], dtype, index)]))
        others.indices, others.indptr = others.indices.astype(index), others.indptr.astype(index)
        expected = multiply(POOLS[0], "csr", others, x)[:-1]
        np.testing.assert_allclose(expected, oracle.spmm(A, x[:, None])[:, 0], close, close)
        for pool in POOLS:
            np.testing.assert_array_equal(multiply(pool, "csr", A, x), expected)


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize(
    "counts",
    [
        [3] * 40 + [4] * 40, [2] * 31 + [3] * 33 + [1], [5] * 64 + [1, 9, 5] + [5] * 100,
        [0] * 40 + [7] * 32 + [0] * 64, [1, 2] * 40 + [6] * 70 + [40] * 3, [33] * 40 + [32] * 40,
    ],
)  # fmt: skip
def test_runs_of_rows_and_columns_of_one_length(form: str, counts: list[int]) -> None:
    A, rng = rows_of(counts, np.float64, np.int32), np.random.default_rng(8)
    A = A if form == "csr" else sp.csc_array(A.T)
    x = rng.uniform(-1, 1, A.shape[1])
    expected = oracle.spmm(A, x[:, None])[:, 0]
    for pool in POOLS:
        np.testing.assert_allclose(multiply(pool, form, A, x), expected, rtol=1e-12, atol=1e-12)
    A.indices[-1] = A.shape[form == "csr"]
    assert multiply(POOLS[0], form, A, x) is None


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_rows_are_equal_where_all_have_as_many_entries(index: Any) -> None:
    @numba.njit
    def equal(words: Any, begin: int, end: int) -> bool:
        return are_equal(words, begin, end, index)

    for counts, begin, end, expected in (
        ([3] * 70, 0, 70, True), ([3] * 70, 64, 70, True), ([0] * 5, 0, 5, True),
        ([3, 2, 4] * 20, 0, 60, False), ([3] * 69 + [4], 0, 70, False),
        ([4] + [3] * 9, 1, 10, True),
        ([MOST_EQUAL] * 9, 0, 9, True), ([MOST_EQUAL + 1] * 9, 0, 9, False), ([], 0, 0, False),
    ):  # fmt: skip
        words, indptr = np.zeros(COUNTERS, np.int64), np.cumsum([0, *counts]).astype(index)
        words[INDPTR] = indptr.ctypes.data
        assert equal(words, begin, end) == expected


def test_no_rows_times_a_column() -> None:
    for pool in POOLS:
        found = multiply(pool, "csr", sp.csr_array((0, 4)), np.ones(4))
        assert np.shape(found) == (0,)


@pytest.mark.parametrize("counts", [[4] * 9, [8] * 64, [4, 8, 8, 16, 3] * 20, [40] * 5])
def test_a_sum_of_negative_zeros_is_zero_as_it_is_in_scipy(counts: list[int]) -> None:
    A = rows_of(counts, np.float64, np.int32)
    A.data[:] = -1
    assert not np.signbit(multiply(POOLS[0], "csr", A, np.zeros(K))).any()
    assert not np.signbit(A @ np.zeros(K)).any()


@settings(max_examples=150, deadline=None)
@given(
    lengths, st.sampled_from([np.float32, np.float64]), st.sampled_from([np.int32, np.int64]),
    st.booleans(), st.booleans(), st.integers(0, 1000),
)  # fmt: skip
def test_rows_of_any_lengths(
    lengths: list[int], dtype: Any, index: Any, finished: bool, added: bool, seed: int
) -> None:
    A, rng = rows_of(lengths, dtype, index, seed), np.random.default_rng(seed)
    x, residual = rng.uniform(-1, 1, K).astype(dtype), None
    epilogue = ps.Epilogue(rng.uniform(-1, 1, len(lengths)), "relu", upper=0.5)
    epilogue = epilogue if finished else ps.Epilogue()
    if added:
        residual = rng.uniform(-1, 1, len(lengths)).astype(dtype)
    expected = oracle.spmm(A, x[:, None])[:, 0] + (residual if added else 0)
    if finished:
        expected = np.clip(expected + epilogue.bias, 0, 0.5)
    close = 1e-5 if dtype == np.float32 else 1e-12
    for pool in POOLS:
        found = multiply(pool, "csr", A, x, epilogue, residual)
        np.testing.assert_allclose(found, expected, rtol=close, atol=close)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("most", [3, 8, 16, 25, 30, 36])
def test_the_sum_of_a_row_does_not_depend_on_what_is_around(dtype: Any, most: int) -> None:
    rng = np.random.default_rng(most)
    A = rows_of(rng.integers(0, most + 1, 150).tolist(), dtype, np.int32)
    x = rng.uniform(-1, 1, K).astype(dtype)
    whole = multiply(POOLS[0], "csr", A, x)
    for first, end in ((1, 150), (2, 100), (3, 7), (70, 150), (149, 150)):
        np.testing.assert_array_equal(multiply(POOLS[0], "csr", A[first:end], x), whole[first:end])
    long = sp.csr_array(sp.vstack([rows_of([K, K], dtype, np.int32), A]))
    assert long.indptr[BLOCK_ROWS] > BLOCK_ENTRIES  # so that a block's rows go one by one
    np.testing.assert_array_equal(multiply(POOLS[0], "csr", long, x)[2:], whole)


def test_what_is_not_of_a_row_is_left_out() -> None:
    A = rows_of([3, 1, 0, 2, 5, 16, 9, 4, 0], np.float32, np.int32)
    A.data[A.indptr[1] : A.indptr[2]] = np.nan
    A.data[A.indptr[5] : A.indptr[6]] = np.inf
    found = multiply(POOLS[0], "csr", A, np.ones(K, np.float32))
    assert np.isnan(found).tolist() == [False, True] + 7 * [False]
    assert np.isinf(found).tolist() == 5 * [False] + [True] + 3 * [False]


def test_an_index_beyond_is_refused_wherever_it_is() -> None:
    x = np.ones(K, np.float32)
    equal = ([count] * 5 for count in range(1, MOST_EQUAL + 2))
    for counts in (np.random.default_rng(2).integers(0, 12, 130).tolist(), *equal):
        A = rows_of(counts, np.float32, np.int64)
        for entry in {*range(12), A.nnz // 2, *range(A.nnz - 40, A.nnz)} & {*range(A.nnz)}:
            for wrong in (K, -1, 1 << 32):
                changed = A.copy()
                changed.indices[entry] = wrong
                assert multiply(POOLS[0], "csr", changed, x) is None
