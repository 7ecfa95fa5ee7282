"""SpGEMM and the sparse layer: every way to add up a row, balanced chunks, 64-bit offsets."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.spgemm import bitmaps as masked_rows
from portable_spdnn_cpu.spgemm import row_bins as row_shares
from portable_spdnn_cpu.spgemm.row_bins import DENSE, HASH, SORTED

WAYS = {"dense": DENSE, "hash": HASH, "sorted": SORTED}


@contextmanager
def forced(way: str) -> Iterator[None]:
    """Add up rows by masks, in one of WAYS, or "mixed": each row by chance."""
    with pytest.MonkeyPatch.context() as patch:
        if way == "masked":
            patch.setattr(masked_rows, "WORDS_PER_ENTRY", 1 << 40)
        else:
            patch.setattr(masked_rows, "MOST_MASK_BYTES", -1)

            def kinds(products: Any, columns: int, entries: Any = None) -> Any:
                if way == "mixed":
                    return np.random.default_rng(0).integers(0, 3, products.size)
                return np.full(products.size, WAYS[way])

            patch.setattr(row_shares, "adding_kinds", kinds)
            patch.setattr(row_shares, "counting_kinds", lambda *rows: np.minimum(kinds(*rows), 1))
        # Small chunks: several, of whatever size the matrices are.
        patch.setattr(row_shares, "LEAST_PRODUCTS", 16)
        yield


def same_bits(one: Any, other: Any) -> None:
    """Assert that two results are the same, signs of zeros included; a NaN is a NaN."""
    np.testing.assert_array_equal(one.indptr, other.indptr)
    np.testing.assert_array_equal(one.indices, other.indices)
    np.testing.assert_array_equal(one.data, other.data)
    real = ~np.isnan(one.data)
    np.testing.assert_array_equal(np.signbit(one.data[real]), np.signbit(other.data[real]))


def matrix(
    rng: np.random.Generator, shape: tuple[int, int], density: float, dtype: Any, wild: bool = False
) -> Any:
    """Return a csr_array with negative entries and stored zeros; wild ones with NaN and infinity.

    At low density rows are empty; where `wild`, row 0 is full.
    """
    present = rng.random(shape) < density
    present[:1] |= wild
    rows, columns = np.nonzero(present)
    values = rng.uniform(-1, 1, rows.size)
    values[::5] = -0.0
    if wild:
        values[1::7], values[3::11] = np.nan, np.inf
    return sp.csr_array((values.astype(dtype), (rows, columns)), shape=shape)


def scipy_product(A: Any, B: Any) -> Any:
    """Return A B by SciPy, whose memory grows with the columns: empty ones are left out."""
    columns, places = np.unique(B.indices, return_inverse=True)
    narrow = sp.csr_array((B.data, places, B.indptr), shape=(B.shape[0], columns.size))
    C = (A @ narrow).sorted_indices()
    return sp.csr_array((C.data, columns[C.indices], C.indptr), shape=(A.shape[0], B.shape[1]))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_way_finds_the_columns_and_sums_of_the_oracle(data: st.DataObject) -> None:
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
    for way in ("masked", "dense", "hash", "sorted", "mixed"):
        with forced(way):
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
    for way in ("hash", "sorted", "chosen", *(("dense", "mixed") if columns <= 10**6 else ())):
        backend = ps.get_backend("numba", data.draw(st.sampled_from([1, 2])))
        if way == "chosen":
            handle = backend.spgemm_handle(A, B)
        else:
            with forced(way):
                handle = backend.spgemm_handle(A, B)
                handle.describe()  # shares the rows out
        for expected, values in ((first, None), (second, new), (first, None), (second, new)):
            C = handle.numeric(B_data=values)
            np.testing.assert_array_equal(C.indptr, expected.indptr)
            np.testing.assert_array_equal(C.indices, expected.indices)
            np.testing.assert_array_equal(C.data, expected.data)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_sparse_layer_is_the_same_in_every_way(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    m, k = data.draw(st.tuples(st.integers(0, 12), st.integers(0, 12)))
    n = data.draw(st.sampled_from([0, 1, 64, 65, 300]))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    wild = data.draw(st.booleans())
    Y, W = matrix(rng, (m, k), 0.4, dtype, wild), matrix(rng, (k, n), 0.4, dtype)
    bias = rng.uniform(-0.3, 0, n).astype(dtype)
    y_max = data.draw(st.sampled_from([None, 0.4]))
    with np.errstate(invalid="ignore"):
        # What is stored counts: the rest of a row is zero, even if another entry is NaN.
        Z = oracle.spgemm(Y, W)[0] + bias
    expected = np.where(Z <= 0, 0, Z)
    if y_max is not None:
        expected[expected > y_max] = y_max
    results = []
    for way in ("dense", "hash", "sorted", "mixed"):
        for threads in (1, 2):
            with forced(way):
                results.append(ps.get_backend("numba", threads).layer(W, Y, bias, y_max))
    for out in results:
        assert (out.data != 0).all()
        np.testing.assert_allclose(out.toarray(), expected, rtol=1e-4, atol=1e-5)
        same_bits(out, results[0])


def test_buffers_of_the_layer_grow() -> None:
    """One row after the other asks for more than all before it."""
    W = sp.csr_array(np.ones((1, 30_000), np.float32))
    Y = sp.csr_array(np.arange(9, dtype=np.float32)[:, None])
    for way in ("dense", "hash", "sorted"):
        with forced(way):
            out = ps.get_backend("numba", 2).layer(W, Y, -0.5)
        np.testing.assert_array_equal(
            out.toarray(), np.repeat(np.maximum(np.arange(9) - 0.5, 0)[:, None], 30_000, 1)
        )


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


@pytest.mark.parametrize("way", ["masked", "dense", "hash", "sorted"])
def test_more_than_2_31_entries(way: str) -> None:
    """The last chunk alone is filled: pages before it are never touched."""
    rows, columns = 50_000, 50_000
    A = sp.csr_array(np.arange(1, rows + 1, dtype=np.float32)[:, None])
    B = sp.csr_array(np.arange(1, columns + 1, dtype=np.float32)[None] / 64)
    with pytest.MonkeyPatch.context() as patch, forced(way):
        patch.setattr(row_shares, "CHUNKS", 1 << 12)
        handle: Any = ps.get_backend("numba", threads=1).spgemm_handle(A, B)
        indptr = handle.symbolic()
        np.testing.assert_array_equal(indptr, columns * np.arange(rows + 1, dtype=np.int64))
        nnz = int(indptr[-1])
        assert nnz > 1 << 31
        ((kind, share),) = handle._numeric_shares().items()
        try:
            indices, data = np.empty(nnz, np.uint64), np.empty(nnz, np.float32)
        except MemoryError:
            pytest.skip(f"the system does not reserve {12 * nnz / 1e9:.0f} GB of address space")
        counters = {kind: np.array([share.rooms.size - 1])}
        weight = np.float32(np.nan)
        handle._fill(counters, {kind: share}, *handle._rows, weight, indices, data)
    first = int(share.edges[-2])
    assert 0 < rows - first < 100
    assert indptr[first] > 1 << 31
    for row in range(first, rows):
        entries = slice(int(indptr[row]), int(indptr[row + 1]))
        np.testing.assert_array_equal(indices[entries], np.arange(columns))
        np.testing.assert_array_equal(data[entries], A.data[row] * B.data)


def test_chunks_have_about_equal_work_and_no_row_without() -> None:
    rng = np.random.default_rng(0)
    products = rng.integers(0, 50, 5000) * (rng.random(5000) < 0.5)
    products[[17, 4000]] = 10**6
    kinds = rng.integers(0, 3, products.size)
    bounds = np.minimum(products, 30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_shares, "LEAST_PRODUCTS", 100)
        shares = row_shares.share_out(products, kinds, bounds, threads=2)
    rows = np.concatenate([share.rows for share in shares.values()])
    np.testing.assert_array_equal(np.sort(rows), np.flatnonzero(products))
    target = products.sum() // (2 * row_shares.CHUNKS)
    for kind, share in shares.items():
        assert (kinds[share.rows] == kind).all()
        assert share.edges[0] == 0
        assert share.edges[-1] == share.rows.size
        assert (np.diff(share.edges) > 0).all()
        for chunk, room in enumerate(share.rooms):
            members = share.rows[share.edges[chunk] : share.edges[chunk + 1]]
            assert room == bounds[members].sum()
            # A gigantic row is alone and comes first; other chunks overshoot by a row at most.
            assert products[members].sum() <= target + 50 or members.size == 1
    for row in (17, 4000):
        share = shares[int(kinds[row])]
        place = int(np.flatnonzero(share.rows == row)[0])
        assert {place, place + 1} <= set(share.edges.tolist())
        assert place < 2


@pytest.mark.parametrize(
    ("products", "columns", "entries", "kind"),
    [
        (1, 32, None, DENSE), (64, 10**6, None, SORTED), (65, 10**6, None, HASH),
        (10**4, 10**6, None, DENSE), (10**4, 10**6, 10**4, SORTED), (10**5, 10**6, 10**5, DENSE),
        (1024, 65536, 64, HASH), (1024, 65536, 400, DENSE), (1024, 65536, 1024, SORTED),
        (1 << 22, 1 << 60, None, DENSE),
    ],
)  # fmt: skip
def test_the_way_follows_from_products_columns_and_entries(
    products: int, columns: int, entries: int | None, kind: int
) -> None:
    known = None if entries is None else np.array([entries])
    assert row_shares.adding_kinds(np.array([products]), columns, known).tolist() == [kind]


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
        patch.setattr(masked_rows, "MOST_MASK_BYTES", 0)
        said = backend.spgemm_handle(few, B).describe()
    assert said == "rows: 1 dense, 2 sorted, 1 empty; 4e+04 multiply-adds in 2 chunks"
    dense = sp.csr_array(np.ones((4, 4)))
    said = backend.spgemm_handle(dense, dense).describe()
    assert said == "rows: 4 masked; 64 multiply-adds in 1 chunk"
    nothing = backend.spgemm_handle(sp.csr_array((0, 4)), dense)
    assert nothing.describe() == "rows: none; 0 multiply-adds in 0 chunks"
    assert ps.get_backend("scipy").spgemm_handle(dense, dense).describe() == "all rows alike"


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
def test_spgemm_by_masks_agrees_with_spgemm_without(
    columns: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dense rows of B take the masks; that both ways find the same columns is the check."""
    from portable_spdnn_cpu.spgemm import bitmaps as masked_rows

    rng = np.random.default_rng(columns)
    A = sp.random_array((90, 40), density=0.2, rng=rng, format="csr", dtype=dtype)
    B = sp.random_array((40, columns), density=0.5, rng=rng, format="csr", dtype=dtype)
    B.data[::7] = 0  # stored zeros are entries
    backend = ps.get_backend("numba", threads=2)
    with_masks = backend.spgemm_handle(A, B)
    monkeypatch.setattr(masked_rows, "MOST_MASK_BYTES", 0)
    without = backend.spgemm_handle(A, B)
    assert with_masks._masks is not None
    assert without._masks is None
    np.testing.assert_array_equal(with_masks.symbolic(), without.symbolic())
    for _ in range(3):
        one, other = with_masks.numeric(), without.numeric()
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_array_equal(one.indptr, other.indptr)
        np.testing.assert_allclose(one.data, other.data, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(one.toarray(), oracle.spmm(A, B.toarray()), rtol=1e-5, atol=1e-6)
