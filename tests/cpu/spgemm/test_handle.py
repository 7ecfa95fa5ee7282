"""SpGEMM on a handle: every accumulator, both phases, 64-bit offsets."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from spgemm_settings import forced, matrix, same_bits

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.spgemm import operands, row_bins
from portable_spdnn_cpu.spgemm.gustavson import add_rows, count_products_of_rows


def scipy_product(A: Any, B: Any) -> Any:
    """Return A B by SciPy, whose memory grows with the columns: empty ones are left out."""
    columns, places = np.unique(B.indices, return_inverse=True)
    narrow = sp.csr_array((B.data, places, B.indptr), shape=(B.shape[0], columns.size))
    C = (A @ narrow).sorted_indices()
    return sp.csr_array((C.data, columns[C.indices], C.indptr), shape=(A.shape[0], B.shape[1]))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_accumulator_finds_the_columns_and_sums_of_the_oracle(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    m, k = data.draw(st.tuples(st.integers(0, 12), st.integers(0, 12)))
    n = data.draw(st.sampled_from([0, 1, 5, 63, 64, 65, 300]))
    density = data.draw(st.sampled_from([0.02, 0.2, 0.9]))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    wild = data.draw(st.booleans())
    A, B = matrix(rng, (m, k), density, dtype, wild), matrix(rng, (k, n), density, dtype, wild)
    with np.errstate(invalid="ignore"):
        expected, pattern = oracle.spgemm(A, B)
    threads = data.draw(st.sampled_from([1, 2]))
    results = []
    for accumulator in ("bitmap", "dense", "hash", "sorted", "mixed"):
        with forced(accumulator):
            handle = ps.get_backend("numba", threads).spgemm_handle(A, B)
            offsets = handle.symbolic()
            counts = np.bincount([i for i, _ in pattern], minlength=m)[:m]
            np.testing.assert_array_equal(offsets, np.concatenate(([0], np.cumsum(counts))))
            # The third is made from known columns.
            results += [handle.numeric() for _ in range(3)]
    for C in results:
        assert C.dtype == dtype
        assert {(i, j) for i, j, _ in oracle.entries(C)} == pattern
        columns = np.split(C.indices, C.indptr[1:-1]) if m else []
        assert all((np.diff(row) > 0).all() for row in columns)
        np.testing.assert_allclose(C.toarray(), expected, rtol=1e-4, atol=1e-5)
        same_bits(C, results[0])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_rows_of_all_lengths_agree_with_scipy_and_with_new_values(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    columns = data.draw(st.sampled_from([100, 5_000, 65_536, 10**6, 10**8, (1 << 31) + 5]))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    inner, spread = 40, data.draw(st.sampled_from([60, columns]))
    lengths = np.minimum(rng.pareto(1.0, inner) * 8, 400).astype(int)
    rows = np.repeat(np.arange(inner), lengths)
    # Those of a stride of 2^k share the low bits, as challenge layers do.
    stride = data.draw(st.sampled_from([1, 16])) if spread < columns // 16 else 1
    places = rng.integers(0, min(spread, columns), rows.size) * stride
    B = sp.csr_array(
        (rng.integers(1, 5, rows.size).astype(dtype), (rows, places)), shape=(inner, columns)
    )
    A = matrix(rng, (30, inner), data.draw(st.sampled_from([0.03, 0.3])), dtype)
    A.data[:] = rng.integers(1, 5, A.nnz)
    new = rng.integers(1, 5, B.nnz).astype(dtype)
    # Sums of small integers are exact; none is zero, for SciPy would not store it.
    first = scipy_product(A, B)
    second = scipy_product(A, sp.csr_array((new, B.indices, B.indptr), shape=B.shape))
    for accumulator in (
        "hash",
        "sorted",
        "chosen",
        *(("dense", "mixed") if columns <= 10**6 else ()),
    ):
        backend = ps.get_backend("numba", data.draw(st.sampled_from([1, 2])))
        if accumulator == "chosen":
            handle = backend.spgemm_handle(A, B)
        else:
            with forced(accumulator):
                handle = backend.spgemm_handle(A, B)
                handle.describe()  # puts the rows into bins
        for expected, values in ((first, None), (second, new), (first, None), (second, new)):
            C = handle.numeric(B_data=values)
            np.testing.assert_array_equal(C.indptr, expected.indptr)
            np.testing.assert_array_equal(C.indices, expected.indices)
            np.testing.assert_array_equal(C.data, expected.data)


def test_probing_goes_on_past_the_last_slot() -> None:
    """Two columns in four slots: of 10,000 rows some hundreds collide in the last."""
    rng = np.random.default_rng(0)
    columns = np.sort(rng.choice(1 << 26, 20_000, replace=False))
    rows = np.repeat(np.arange(10_000), 2)
    B = sp.csr_array((np.ones(20_000), (rows, columns)), shape=(10_000, 1 << 26))
    A = sp.csr_array(sp.eye_array(10_000))
    with forced("hash"):
        for _ in range(3):
            C = ps.get_backend("numba", 1).spgemm(A, B)
            np.testing.assert_array_equal(C.indices, B.indices)


def test_hypersparse_products_take_memory_for_their_entries_alone() -> None:
    rng = np.random.default_rng(0)
    columns = 10**8
    rows = np.repeat(np.arange(1000), 5)
    B = sp.csr_array(
        (rng.random(5000), (rows, rng.integers(0, columns, 5000))), shape=(1000, columns)
    )
    A = sp.random_array((2000, 1000), density=0.01, rng=rng, format="csr")
    backend = ps.get_backend("numba", threads=2)
    for _ in range(2):  # the first time compiles
        tracemalloc.start()
        handle = backend.spgemm_handle(A, B)
        C = handle.numeric()
        again = [handle.numeric() for _ in range(3)]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert C.nnz > 90_000
    # A bit for each column would take 12 MB, a sum 800 MB.
    assert peak < 100 * C.nnz < columns / 8
    for one in (C, *again):
        np.testing.assert_allclose(one.data, scipy_product(A, B).data)
    assert "dense" not in handle.describe()


@pytest.mark.parametrize("accumulator", ["bitmap", "dense", "hash", "sorted"])
def test_more_than_2_31_entries(accumulator: str) -> None:
    """The last chunk alone is filled: pages before it are never touched."""
    rows, columns = 50_000, 50_000
    A = sp.csr_array(np.arange(1, rows + 1, dtype=np.float32)[:, None])
    B = sp.csr_array(np.arange(1, columns + 1, dtype=np.float32)[None] / 64)
    with pytest.MonkeyPatch.context() as patch, forced(accumulator):
        patch.setattr(row_bins, "CHUNKS", 1 << 12)
        handle: Any = ps.get_backend("numba", threads=1).spgemm_handle(A, B)
        indptr = handle.symbolic()
        np.testing.assert_array_equal(indptr, columns * np.arange(rows + 1, dtype=np.int64))
        nnz = int(indptr[-1])
        assert nnz > 1 << 31
        ((code, row_bin),) = handle._numeric_bins().items()
        try:
            indices, data = np.empty(nnz, np.uint64), np.empty(nnz, np.float32)
        except MemoryError:
            pytest.skip(f"the system does not reserve {12 * nnz / 1e9:.0f} GB of address space")
        counters = {code: np.array([row_bin.capacities.size - 1])}
        product = operands.Product(*handle._operands, handle._entries)
        handle._fill(counters, {code: row_bin}, product, indices, data)
    first = int(row_bin.chunk_offsets[-2])
    assert 0 < rows - first < 100
    assert indptr[first] > 1 << 31
    for row in range(first, rows):
        entries = slice(int(indptr[row]), int(indptr[row + 1]))
        np.testing.assert_array_equal(indices[entries], np.arange(columns))
        np.testing.assert_array_equal(data[entries], A.data[row] * B.data)


def test_a_handle_says_what_it_chose() -> None:
    rng = np.random.default_rng(0)
    backend = ps.get_backend("numba", threads=2)
    columns = 1 << 16
    lengths = np.array([0, 3, 40_000])
    rows = np.repeat(np.arange(3), lengths)
    places = np.concatenate([rng.choice(columns, n, replace=False) for n in lengths])
    B = sp.csr_array((np.ones(rows.size), (rows, places)), shape=(3, columns))
    few = sp.csr_array(np.eye(3)[[0, 1, 1, 2]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operands, "MAX_BITMAP_BYTES", 0)
        said = backend.spgemm_handle(few, B).describe()
    assert said == "rows: 1 dense, 2 sorted, 1 empty; 4e+04 multiply-adds in 2 chunks"
    dense = sp.csr_array(np.ones((4, 4)))
    said = backend.spgemm_handle(dense, dense).describe()
    assert said == "rows: 4 bitmap; 64 multiply-adds in 1 chunk"
    nothing = backend.spgemm_handle(sp.csr_array((0, 4)), dense)
    assert nothing.describe() == "rows: none; 0 multiply-adds in 0 chunks"
    assert (
        ps.get_backend("scipy").spgemm_handle(dense, dense).describe()
        == "all rows are computed in the same way"
    )


def test_what_is_done_to_one_product_does_not_reach_the_next() -> None:
    rng = np.random.default_rng(0)
    A = sp.random_array((20, 20), density=0.3, rng=rng, format="csr")
    handle = ps.get_backend("numba").spgemm_handle(A, A)
    expected = (A @ A).toarray()
    for _ in range(3):
        C = handle.numeric()
        np.testing.assert_allclose(C.toarray(), expected)
        C.data[:] = -1
        C.indices[:] = 0
    with pytest.raises(ValueError, match="read-only"):
        handle.symbolic()[:] = 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [1, 63, 64, 65, 200])
def test_spgemm_by_bitmaps_agrees_with_spgemm_without(
    columns: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dense rows of B have bitmaps; that the same columns are found without is the check."""
    rng = np.random.default_rng(columns)
    A = sp.random_array((90, 40), density=0.2, rng=rng, format="csr", dtype=dtype)
    B = sp.random_array((40, columns), density=0.5, rng=rng, format="csr", dtype=dtype)
    B.data[::7] = 0  # stored zeros are entries
    backend = ps.get_backend("numba", threads=2)
    with_bitmaps = backend.spgemm_handle(A, B)
    monkeypatch.setattr(operands, "MAX_BITMAP_BYTES", 0)
    without = backend.spgemm_handle(A, B)
    assert with_bitmaps._has_bitmaps
    assert not without._has_bitmaps
    np.testing.assert_array_equal(with_bitmaps.symbolic(), without.symbolic())
    for _ in range(3):
        one, other = with_bitmaps.numeric(), without.numeric()
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_array_equal(one.indptr, other.indptr)
        np.testing.assert_allclose(one.data, other.data, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(one.toarray(), oracle.spmm(A, B.toarray()), rtol=1e-5, atol=1e-6)


def test_strided_and_misaligned_operands_are_not_compiled_for() -> None:
    backend, rng = ps.get_backend("numba"), np.random.default_rng(1)
    A, B = (matrix(rng, (9, 9), 0.4, np.float32, False) for _ in range(2))
    expected, layer = backend.spgemm(A, B), backend.layer(B, A)
    kernels = count_products_of_rows, add_rows
    compiled = [len(kernel.signatures) for kernel in kernels]
    assert all(compiled)
    for strides in (True, False):
        odd = A.copy()
        for name in ("data", "indices", "indptr"):
            items = getattr(A, name)
            if strides:
                other = np.zeros(2 * items.size, items.dtype)[::2]
            else:
                other = np.zeros(items.nbytes + 1, np.uint8)[1:].view(items.dtype)
            other[:] = items
            setattr(odd, name, other)
        np.testing.assert_array_equal(backend.spgemm(odd, B).toarray(), expected.toarray())
        np.testing.assert_array_equal(backend.layer(B, odd).toarray(), layer.toarray())
    assert [len(kernel.signatures) for kernel in kernels] == compiled
