"""Single products: A as it is given, right for any structure and refused for what is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from direct_products import FORMS, POOLS, matrix, multiply
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_lengths import needs_avx512, needs_sse2, output_with_vectors

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.machine.cpu_info import LARGE_BYTES
from portable_spdnn_cpu.spmm import cost_model, tuning
from portable_spdnn_cpu.spmm.dense_layout import Layout
from portable_spdnn_cpu.spmm.direct import choice, entry_points, product, start

# Both sides of the width of each kernel of float32; of float64 they are half as wide.
COLUMNS = (
    1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 49, 64, 65, 80, 81, 96, 97, 112, 113, 128,
    129, 200,
)  # fmt: skip


def check(form: str, A: Any, B: Any) -> None:
    expected = oracle.spmm(sp.csr_array(A), B if B.ndim == 2 else B[:, None]).reshape(
        A.shape[0], *B.shape[1:]
    )
    close = 1e-4 if A.dtype == B.dtype == np.float32 else 1e-11
    for pool in POOLS:
        found = multiply(pool, form, A, B)
        np.testing.assert_allclose(found, expected, rtol=close, atol=close)
        assert found.dtype == np.result_type(A.dtype, B.dtype)


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 1000), st.integers(1, 60), st.integers(1, 90), st.sampled_from([0, *COLUMNS]),
    st.sampled_from([0.0, 0.03, 0.3, 1.0]), st.sampled_from([np.float32, np.float64]),
    st.sampled_from([np.int32, np.int64]), st.sampled_from(sorted(FORMS)), st.sampled_from("CFR"),
)  # fmt: skip
def test_a_product(
    seed: int, rows: int, k: int, columns: int, density: float, dtype: Any, index: Any, form: str,
    order: str,
) -> None:  # fmt: skip
    A = FORMS[form](matrix(seed, (rows, k), density, dtype))
    A.indices, A.indptr = A.indices.astype(index), A.indptr.astype(index)
    rng = np.random.default_rng(seed)
    B = rng.uniform(-1, 1, (k, columns + 3) if columns else k).astype(dtype)
    if columns:  # in C order, Fortran's, or rows that lie apart
        B = B[:, 1:-2] if order == "R" else np.array(B[:, 1:-2], order=order)
    check(form, A, B)


@pytest.mark.parametrize("form", ["csr", "csc"])
def test_types_and_alignment(form: str) -> None:
    A = FORMS[form](matrix(1, (20, 30), 0.3))
    rng = np.random.default_rng(1)
    for dtype in (np.float64, np.int32, np.int64, np.uint8, np.bool_, np.float16, ">f4"):
        B = rng.integers(0, 2, (30, 5)).astype(dtype)
        expected = A.astype(np.float64) @ B.astype(np.float64)
        found = product.multiply_as_given(POOLS[0], A, B, None, None)
        assert found is not None
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert found.dtype == (np.float64 if B.itemsize == 8 else np.float32)
    # At odd addresses: values may lie anywhere, what is gathered and indices may not.
    raw = np.zeros(4 * A.nnz + 1, np.uint8)[1:].view(np.float32)
    raw[:] = A.data
    B = np.zeros(4 * 30 + 1, np.uint8)[1:].view(np.float32)
    B[:] = rng.random(30)
    A.data = raw
    assert multiply(POOLS[0], form, A, B) is None
    check(form, A, B.copy()[::-1])
    check(form, A, np.repeat(B, 3).reshape(30, 3))
    A.indices = np.repeat(A.indices, 2)[::2]
    assert multiply(POOLS[0], form, A, B.copy()) is None


def test_what_is_refused_here_is_done_another_way() -> None:
    backend = ps.get_backend("numba")
    A, rng = matrix(4, (40, 50), 0.3), np.random.default_rng(4)
    strided, unsigned = A.copy(), A.copy()
    strided.data = np.repeat(A.data, 2)[::2]
    unsigned.indices = A.indices.astype(np.uint32)
    unsigned.indptr = A.indptr.astype(np.uint32)
    raw = np.zeros(4 * A.nnz + 1, np.uint8)[1:].view(np.int32)
    raw[:] = A.indices
    odd = A.copy()
    odd.indices = raw
    for columns in (0, 1, 3, 16, 64, 512):
        B = rng.uniform(-1, 1, (50, columns) if columns else 50).astype(np.float32)
        for other in (strided, unsigned, odd):
            found = backend.spmm(other, B, ps.Epilogue(activation="tanh"))
            np.testing.assert_allclose(found, np.tanh(A @ B), atol=1e-5)


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("columns", [0, 1, 5])
def test_small_products_with_a_residual_take_the_short_path(
    form: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    A, rng = FORMS[form](matrix(1, (20, 30), 0.3)), np.random.default_rng(1)
    B = rng.uniform(-1, 1, (30, columns) if columns else 30).astype(np.float32)
    wide = rng.uniform(-1, 1, (40, 2 * columns) if columns else 40).astype(np.float32)
    part = wide[::2, ::2] if columns else wide[::2]
    monkeypatch.setattr(product, "multiply", lambda *_: None)  # the longer path
    for residual in (part.copy(), part.copy("F"), part, part[::-1]):
        before = residual.copy()
        found = product.multiply_as_given(POOLS[0], A, B, None, residual)
        assert found is not None
        np.testing.assert_allclose(found, A @ B + before, atol=1e-5)
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(residual, before)
        assert not np.shares_memory(found, residual)


def test_columns_that_are_not_sorted_or_are_there_twice_count_as_in_scipy() -> None:
    parts = np.array([1, 2, 3, 4, 5], np.float32), np.array([2, 0, 2, 1, 1]), np.array([0, 3, 5])
    A, B = sp.csr_array(parts, shape=(2, 3)), np.array([[1.0], [10], [100]], np.float32)
    assert multiply(POOLS[0], "csr", A, B).tolist() == [[402], [90]]
    assert ps.get_backend("numba").spmm(A, B).tolist() == [[402], [90]]


@pytest.mark.parametrize("columns", [0, *COLUMNS])
@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize(
    ("part", "place", "value"),
    [
        ("indices", 0, -1), ("indices", -1, 1 << 30), ("indices", 20, "extent"),
        ("indices", 33, -(1 << 31)), ("indptr", 0, 1), ("indptr", 0, -1), ("indptr", 3, -5),
        ("indptr", 3, 1 << 30), ("indptr", -1, "nnz"), ("indptr", 2, 1000),
    ],
)  # fmt: skip
def test_invalid_structure_is_refused(
    form: str, columns: int, part: str, place: int, value: Any
) -> None:
    A = FORMS[form](matrix(2, (40, 41), 0.2))
    extent = A.shape[0] if form == "csc" else A.shape[1]
    getattr(A, part)[place] = {"extent": extent, "nnz": A.nnz + 1}.get(value, value)
    B = np.ones((41, columns) if columns else 41, np.float32)
    for index in (np.int32, np.int64):
        A.indices, A.indptr = A.indices.astype(index), A.indptr.astype(index)
        for pool in POOLS:
            assert multiply(pool, form, A, B) is None
    for residual in (None, np.ones((40, *B.shape[1:]), np.float32)):
        with pytest.raises(ps.InputError, match="spmm: A: "):
            ps.get_backend("numba").spmm(A, B, residual=residual)


@pytest.mark.parametrize("wrong", [-1, 3000, 1 << 30])
@pytest.mark.parametrize("place", [0, 15, 16, 1023, 1024, 1025, 2047, 2990, 2999])
def test_an_index_anywhere_among_columns_or_rows_of_few_entries(place: int, wrong: int) -> None:
    x = np.ones(3000, np.float32)
    rng = np.random.default_rng(place)
    for lengths in ([1] * 3000, [2, 4] * 500, [0, 1, 2] * 1000):
        indptr = np.cumsum([0, *lengths], dtype=np.int32)
        indices = rng.integers(0, 3000, 3000).astype(np.int32)
        indices[place] = wrong
        parts = np.ones(3000, np.float32), indices, indptr
        for form, kind in (("csr", sp.csr_array), ("csc", sp.csc_array)):
            shape = (len(lengths), 3000)
            A = kind(shape if form == "csr" else shape[::-1], dtype=np.float32)
            A.data, A.indices, A.indptr = parts
            for pool in POOLS:
                for _ in range(3):  # as it is predicted, and before
                    assert multiply(pool, form, A, x[: A.shape[1]]) is None


@pytest.mark.parametrize("wrong", [1 << 32, (1 << 32) + 1, 1 << 61, -(1 << 63)])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_wide_indices_are_compared_whole(form: str, wrong: int) -> None:
    A = FORMS[form](matrix(2, (40, 41), 0.2))
    for part, place in (("indices", 7), ("indptr", 3)):
        long = A.copy()
        long.indices, long.indptr = A.indices.astype(np.int64), A.indptr.astype(np.int64)
        getattr(long, part)[place] = wrong
        for columns in (1, 4, 16, 100):
            for pool in POOLS:
                assert multiply(pool, form, long, np.ones((41, columns), np.float32)) is None


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("columns", [1, 3, 200])
def test_offsets_that_are_not_one_more_than_rows_or_columns_are_refused(
    form: str, columns: int
) -> None:
    B = np.ones((41, columns), np.float32)
    for change in (lambda indptr: indptr[:-1], lambda indptr: np.append(indptr, indptr[-1])):
        A = FORMS[form](matrix(2, (40, 41), 0.2))
        A.indptr = change(A.indptr)
        for pool in POOLS:
            assert multiply(pool, form, A, B) is None
            assert product.multiply_as_given(pool, A, B, None, None) is None
        with pytest.raises(ps.InputError, match="spmm: A: "):
            ps.get_backend("numba").spmm(A, B)


def test_one_compilation_starts_products_in_csr_and_csc() -> None:
    A, B = matrix(3, (10, 12), 0.5), np.ones((12, 3), np.float32)
    starts: list[Any] = [start.run_alone, start.run_alone_with_epilogue]
    for epilogue in (None, ps.Epilogue(1.0)):
        multiply(POOLS[0], "csr", A, B, epilogue)
    compiled = [len(kernel.signatures) for kernel in starts]
    for form in ("csc", "csc converted"):
        for epilogue in (None, ps.Epilogue(1.0)):
            multiply(POOLS[0], form, FORMS[form](A), B, epilogue)
    assert [len(kernel.signatures) for kernel in starts] == compiled


@pytest.mark.parametrize("epilogue", [None, ps.Epilogue(1.0, "relu")])
def test_an_invalid_index_is_refused_where_a_is_converted(epilogue: Any) -> None:
    A, B = sp.csc_array(matrix(3, (10, 12), 0.5)), np.ones((12, 3), np.float32)
    assert multiply(POOLS[0], "csc converted", A, B, epilogue) is not None
    for index in (-1, 10, 1 << 30):
        A.indices[5] = index
        for pool in POOLS:
            assert multiply(pool, "csc converted", A, B, epilogue) is None


def test_a_product_takes_the_same_path_again() -> None:
    """B in Fortran order, of A in CSC with few entries, by which another way is found faster."""
    A = sp.random_array(
        (100, 100), density=0.01, format="csc", dtype=np.float32, rng=np.random.default_rng(1)
    )
    B = np.asfortranarray(np.random.default_rng(2).uniform(-1, 1, (100, 299)).astype(np.float32))
    first, *others = (product.multiply_as_given(POOLS[0], A, B, None, None) for _ in range(3))
    assert first is not None
    small = product._multiply_small("csc", A.shape, A.indptr, A.indices, A.data, B, None)
    for C in (*others, small):
        assert C is not None
        np.testing.assert_array_equal(C, first)


@pytest.mark.parametrize("taken", [start.BY_ROWS, start.BY_COLUMNS, start.CONVERTED])
def test_columns_are_refused_until_there_is_code_for_them(taken: int) -> None:
    A, columns = matrix(3, (10, 12), 0.5), 6
    rows = np.random.default_rng(1).uniform(-1, 1, (12, columns)).astype(np.float32)
    expected, out = A @ rows, np.empty((10, columns), np.float32)
    points = entry_points.EntryPoints(A.dtype, A.indices.dtype, 2)
    given = A if taken == start.BY_ROWS else sp.csc_array(A)
    table = points.table(taken, columns)
    for B in (np.asfortranarray(rows), rows):
        for C in (out, np.asfortranarray(out)):
            operands = given.indptr, given.indices, given.data, B, C, taken, False
            is_plain = B is rows and C is out
            assert points.run_alone(table, *operands) == is_plain
    assert points.table(taken, columns, turns=True) == table
    for B in (np.asfortranarray(rows), rows):
        for C in (out, np.asfortranarray(out)):
            C[...] = np.nan
            operands = given.indptr, given.indices, given.data, B, C, taken, False
            assert points.run_alone(table, *operands)
            np.testing.assert_allclose(C, expected, atol=1e-5)


def test_arrays_that_do_not_fit_are_refused() -> None:
    A, B = matrix(3, (10, 12), 0.5), np.ones((12, 3), np.float32)
    backend = ps.get_backend("numba")
    for change in (
        {"data": A.data[:-1]}, {"indices": A.indices[:-1]}, {"indptr": A.indptr[:-1]},
        {"indptr": A.indptr.astype(np.int64)}, {"data": A.data.astype(np.complex64)},
    ):  # fmt: skip
        wrong = A.copy()
        for name, array in change.items():
            setattr(wrong, name, array)
        assert multiply(POOLS[0], "csr", wrong, B) is None
    for wrong_B in (B[:-1], B.astype(np.complex64), B[None], np.ma.masked_array(B, B > 0)):
        with pytest.raises(ps.InputError, match="spmm"):
            backend.spmm(A, wrong_B)
    with pytest.raises(ps.InputError, match="bias has shape"):
        backend.spmm(A, B, ps.Epilogue([1.0, 2.0]))
    with pytest.raises(ps.InputError, match="residual has shape"):
        backend.spmm(A, B, None, np.ones((3, 10), np.float32))
    for kind in (sp.csr_array, sp.csc_array, sp.coo_array, sp.dia_array):
        for part in ("data", "indices", "indptr", "offsets"):
            masked: Any = kind(A)
            if hasattr(masked, part):
                setattr(masked, part, np.ma.masked_array(getattr(masked, part)))
                with pytest.raises(ps.InputError, match="spmm: A has a masked array"):
                    backend.spmm(masked, B)
    pairs: Any = sp.coo_array(A)
    pairs.coords = (np.ma.masked_array(pairs.coords[0]), pairs.coords[1])
    with pytest.raises(ps.InputError, match="spmm: A has a masked array"):
        backend.spmm(pairs, B)
    pairs.coords = tuple(each.tolist() for each in sp.coo_array(A).coords)
    with pytest.raises(ps.InputError, match="are not all arrays of NumPy"):
        backend.spmm(pairs, B)
    for kind in (sp.dok_array, sp.lil_array, sp.dia_array):
        np.testing.assert_allclose(backend.spmm(kind(A), B), A @ B, rtol=1e-5)
    lists = A.copy()
    lists.data = A.data.tolist()
    with pytest.raises(ps.InputError, match="are not all arrays of NumPy"):
        backend.spmm(lists, B)
    with pytest.raises(ps.InputError, match="epilogue is str"):
        backend.spmm(A, B, "relu")  # type: ignore[arg-type]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_not_finite_numbers_stay_with_the_entries_that_meet_them(form: str) -> None:
    A = FORMS[form](np.array([[1.0, 0, 2], [0, 3, 0], [0, 0, 0]], np.float32))
    for columns in COLUMNS:
        B = np.ones((3, columns), np.float32)
        B[0, 0], B[1, -1] = np.inf, np.nan
        expected = np.ones((3, columns)) * [[3], [3], [0]]
        expected[0, 0], expected[1, -1] = np.inf, np.nan
        for pool in POOLS:
            np.testing.assert_array_equal(multiply(pool, form, A, B), expected)


@pytest.mark.parametrize("form", ["csr", "csc converted"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_without_entries_stay_zeros_where_few_rows_have_all(
    form: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for least in ("SAMPLED_BYTES", "COUNTED_BYTES"):
        monkeypatch.setattr(choice, least, 0)
    begun: list[str] = []
    for name in ("zeros", "empty"):
        make = getattr(np, name)
        monkeypatch.setattr(
            product, name, lambda *of, make=make, name=name: begun.append(name) or make(*of)
        )
    A = matrix(5, (300, 40), 0.1, dtype)
    few = sp.csr_array(sp.vstack([A[:100], sp.csr_array((200, 40), dtype=dtype)]))
    A, few = FORMS[form](A), FORMS[form](few)
    for columns in (2, 17, 150):
        B = np.random.default_rng(5).uniform(-1, 1, (40, columns)).astype(dtype)
        begun.clear()
        check(form, few, B)
        assert set(begun) == {"zeros"}
        begun.clear()
        check(form, A, B)
        assert "zeros" not in begun


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_a_single_column_takes_no_entries_of_other_rows(dtype: Any, index: Any) -> None:
    # Vectors of entries reach into the next rows, and to what follows the last one.
    for longest in (3, 7, 21):
        counts = np.array([0, 1, longest, 0, 2, longest, 3, 1, 0])
        indptr = np.append(0, np.cumsum(counts)).astype(index)
        indices = np.concatenate([np.arange(count) for count in counts]).astype(index)
        values = np.ones(indices.size, dtype)
        values[indptr[:-1][counts > 0]] = np.inf
        rows = np.repeat(np.arange(counts.size), counts)
        expected = np.where(counts > 0, np.inf, 0).astype(dtype)
        odd = rows % 2 == 1
        values[odd] = 2
        expected[1::2] = 2 * counts[1::2]
        for spare in (0, 9):  # entries that no row has, with indices that are none
            parts = (
                indptr,
                np.append(indices, np.full(spare, -1, index)),
                np.append(values, np.full(spare, np.nan, dtype)),
            )
            C = product.multiply(POOLS[0], "csr", (counts.size, 21), parts, np.ones(21, dtype))
            np.testing.assert_array_equal(C, expected)


@pytest.mark.parametrize("form", ["csr", "csc"])
def test_scratch_memory_in_large_pages(form: str) -> None:
    assert LARGE_BYTES < 70_000 * 9 * 8  # of B, which is copied to it
    A, B = matrix(9, (40, 70_000), 1e-4).asformat(form), np.ones((70_000, 9), order="F")
    B *= np.arange(1, 10)
    A.data = np.round(8 * A.data)  # sums are exact
    found = ps.get_backend("numba").spmm(A, B)
    np.testing.assert_array_equal(found, A.sum(axis=1)[:, None] * np.arange(1, 10))


def test_what_is_much_work_goes_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    A, wide = matrix(8, (30, 20), 0.4), np.ones((20, 200), np.float32)
    monkeypatch.setattr(choice, "SMALL", 0)
    monkeypatch.setattr(choice, "SMALL_WORK", 0)
    monkeypatch.setattr(product, "SMALL_BYTES", {"csr": 0})
    monkeypatch.setattr(choice, "MAX_WORK", 1000)
    monkeypatch.setattr(product, "direct_is_faster", lambda *arguments: False)
    as_given = product.multiply_as_given
    assert as_given(POOLS[0], A, wide, None, None) is None
    assert as_given(POOLS[0], A, wide[:, :16], None, None) is not None
    monkeypatch.setattr(choice, "MAX_FORTRAN_WORK", 50)
    assert as_given(POOLS[0], A, np.asfortranarray(wide[:, :16]), None, None) is None
    assert as_given(POOLS[0], A, wide[:, :16], None, None) is not None
    np.testing.assert_allclose(ps.get_backend("numba").spmm(A, wide), A @ wide, rtol=1e-5)


@pytest.mark.parametrize("rows", [2, 400])
def test_what_is_not_sorted_is_taken_as_it_is(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first rows tell, or the first row where that has all the entries that are looked at."""
    monkeypatch.setattr(product, "direct_is_faster", lambda size, is_sorted: not is_sorted)
    k, each = 9000, 12_000 // rows
    assert (each > product.SAMPLED_ENTRIES) == (rows == 2)
    rng = np.random.default_rng(rows)
    indices = np.concatenate([rng.choice(k, each, replace=False) for _ in range(rows)])
    parts = rng.uniform(-1, 1, indices.size), indices, np.arange(rows + 1) * each
    A, B = sp.csr_array(parts, shape=(rows, k)), rng.uniform(-1, 1, (k, 600))
    C = A.toarray() @ B
    A.indices, A.indptr = A.indices.astype(np.int32), A.indptr.astype(np.int32)
    as_given = product.multiply_as_given
    found = as_given(POOLS[0], A, B, None, None)
    assert found is not None
    np.testing.assert_allclose(found, C, atol=1e-10)
    ordered = A.sorted_indices()
    assert as_given(POOLS[0], ordered, B, None, None) is None
    ordered.indices[-2:] = ordered.indices[-2:][::-1]  # beyond those that are looked at
    assert as_given(POOLS[0], ordered, B, None, None) is None
    for wrong in (k, -1):
        A.indices[5] = wrong
        assert as_given(POOLS[0], A, B, None, None) is None
    with pytest.raises(ps.InputError, match="spmm: A: "):
        ps.get_backend("numba").spmm(A, B)


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("dtype", [">f4", ">f8", np.longdouble, object])
def test_types_that_are_not_computed_in_and_much_work(form: str, dtype: Any) -> None:
    A = sp.random_array((3000, 2000), density=0.01, rng=3, format=form)
    A.data = A.data.astype(dtype)
    B, backend = np.ones((2000, 320)).astype(dtype), ps.get_backend("numba", threads=1)
    if dtype is object:
        with pytest.raises(ps.InputError):
            backend.spmm(A, B)
        return
    expected = A.astype(np.float64).sum(axis=1)[:, None]
    np.testing.assert_allclose(backend.spmm(A, B), np.tile(expected, 320), rtol=1e-4)
    np.testing.assert_allclose(backend.layer(A.T, B.T), np.tile(expected, 320).T, rtol=1e-4)


def test_to_sort_counts_in_the_choice() -> None:
    size = cost_model.ProductSize(3000, 4000, 512, 240_000, 4, Layout.ALIGNED, False, 1)
    streamed = cost_model.stream_seconds(size, tuning.single_variant(size)[0])
    for seconds, expected in ((streamed, (True, True)), (2 * streamed, (False, True))):
        tuning.direct_is_faster.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tuning, "direct_seconds", lambda size, seconds=seconds: seconds)
            found = tuning.direct_is_faster(size), tuning.direct_is_faster(size, is_sorted=False)
            assert found == expected
    tuning.direct_is_faster.cache_clear()
    assert not tuning.is_fitted(replace(size, columns=8192))


@needs_avx512
def test_a_single_column_with_gathers(tmp_path: Path) -> None:
    script = Path(__file__).with_name("products_by_environment.py")
    assert output_with_vectors(64, script, tmp_path, "float32", 1) == ["True", "64", "4"]


@needs_avx512
def test_without_avx512_and_gathers(tmp_path: Path) -> None:
    script = Path(__file__).with_name("products_by_environment.py")
    assert output_with_vectors(32, script, tmp_path, "float32,float64", *COLUMNS) == [
        "False", "32", "216"
    ]  # fmt: skip


@needs_sse2
def test_without_avx(tmp_path: Path) -> None:
    script = Path(__file__).with_name("products_by_environment.py")
    columns = COLUMNS[1:]  # those of one are other kernels
    assert output_with_vectors(16, script, tmp_path, "float32", *columns) == [
        "False", "16", "104"
    ]  # fmt: skip
