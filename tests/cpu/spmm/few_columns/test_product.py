"""Products of few columns, in all forms and for vectors of all lengths, against plain loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from concurrent_calls import check_calls_at_a_time
from few_columns_products import (
    LENGTHS,
    assert_near,
    multiplied,
    product_of,
    random_rows,
    sums_by_loops,
)
from guard_pages import array_before_a_guard_page
from hypothesis import given
from hypothesis import strategies as st

from portable_spdnn.epilogue import ACTIVATIONS, Epilogue
from portable_spdnn_cpu.jit import target
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.few_columns import choice, costs, lanes, product, row_kernels, rows
from portable_spdnn_cpu.spmm.few_columns.choice import forms
from portable_spdnn_cpu.spmm.few_columns.costs import LAST_LEVEL, MEMORY, SECOND_LEVEL
from portable_spdnn_cpu.spmm.few_columns.lanes import LanesLayout
from portable_spdnn_cpu.spmm.few_columns.operands import TABLE
from portable_spdnn_cpu.spmm.few_columns.product import FewColumnsProduct
from portable_spdnn_cpu.spmm.few_columns.sliced import MAX_PLACES, SlicedLayout, place_bytes
from portable_spdnn_cpu.spmm.few_columns.specs import LanesSpec, RowsSpec, SlicedSpec

FORMS = ["lanes", "sliced", "rows"]
FORMS_AND_COLUMNS = [
    ("lanes", 1), ("lanes", 3), ("lanes", 4), ("lanes", 8), ("sliced", 1), ("sliced", 2),
    ("rows", 6), ("rows", 15), ("rows", 16), ("rows", 32),
]  # fmt: skip


@given(
    st.sampled_from(
        [
            ("lanes", 1),
            ("lanes", 2),
            ("lanes", 5),
            ("sliced", 1),
            ("sliced", 2),
            ("rows", 3),
            ("rows", 8),
            ("rows", 15),
            ("rows", 29),
        ]
    ),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 70),
    st.integers(0, 150),
    st.sampled_from([0.02, 0.1, 0.3, 1.0]),
    st.sampled_from("CF"),
    st.sampled_from("CF"),
    st.integers(0, 1000),
)
def test_random_patterns(form, dtype, height, depth, density, order, out_order, seed):
    rng = np.random.default_rng(seed)
    A = random_rows(rng, height, depth, density, dtype)
    B = np.asarray(rng.standard_normal((depth, form[1])), dtype, order=order)
    found = multiplied(product_of(A, form[1], form[0]), A, B, order=out_order)
    assert_near(found, sums_by_loops(A, B), A)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("form", "columns"), FORMS_AND_COLUMNS)
def test_vectors_of_every_length(form, columns, dtype, length):
    rng = np.random.default_rng(columns)
    for height, depth in ((37, 200), (16, 31), (1, 300), (90, 1), (5, 7)):
        A = random_rows(rng, height, depth, 0.2, dtype)
        prepared = product_of(A, columns, form, length)
        for order in "CF":
            B = np.asarray(rng.standard_normal((depth, columns)), dtype, order=order)
            assert_near(multiplied(prepared, A, B, order=order), sums_by_loops(A, B), A)


@pytest.mark.parametrize(
    ("form", "columns", "wide", "dtype"),
    [
        ("lanes", 1, False, np.float32), ("lanes", 1, True, np.float64),
        ("lanes", 2, True, np.float64), ("lanes", 3, True, np.float32),
        ("lanes", 4, True, np.float32), ("lanes", 4, True, np.float64),
        ("lanes", 5, False, np.float32), ("sliced", 1, False, np.float32),
        ("sliced", 2, False, np.float32), ("sliced", 2, False, np.float64),
        ("rows", 6, False, np.float64), ("rows", 6, False, np.float32),
    ],
)  # fmt: skip
def test_prefetches_and_wide_windows_change_no_sum(form, columns, wide, dtype):
    rng = np.random.default_rng(columns)
    for height, depth in ((37, 200), (90, 1), (5, 700)):
        A = random_rows(rng, height, depth, 0.2, dtype)
        B = rng.standard_normal((depth, columns)).astype(dtype)
        prepared = product_of(A, columns, form, prefetches=True, wide=wide)
        assert_near(multiplied(prepared, A, B), sums_by_loops(A, B), A)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("columns", "dtype"), [(3, np.float32), (8, np.float32), (2, np.float64)])
def test_long_rows_have_further_sums(columns, dtype, length):
    spec = RowsSpec(columns, np.dtype(dtype).itemsize, length)
    assert spec.further_chains == (spec.chains if spec.row_bytes <= min(32, length) else 0)
    rng, depth = np.random.default_rng(columns), 2 * row_kernels.LONG_ROW
    counts = [0, *range(row_kernels.LONG_ROW - 9, row_kernels.LONG_ROW + 10), depth]
    dense = np.zeros((len(counts), depth), dtype)
    for row, count in zip(dense, counts, strict=True):
        row[rng.choice(depth, count, replace=False)] = rng.standard_normal(count)
    A, B = sp.csr_array(dense), rng.standard_normal((depth, columns)).astype(dtype)
    prepared = product_of(A, columns, "rows", length)
    assert_near(multiplied(prepared, A, B), sums_by_loops(A, B), A)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("form", "columns"), FORMS_AND_COLUMNS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_with_the_rows_that_have_it(form, columns, value, length):
    """Idle lanes and padding never meet an entry of B, and stored zeros do."""
    rng = np.random.default_rng(5)
    A = random_rows(rng, 40, 100, 0.15, np.float32)
    A.data[::7] = 0  # stored: 0 x inf is NaN
    prepared = product_of(A, columns, form, length)
    for place in (0, 30, 31, 62, 63, 64, 99):
        B = rng.standard_normal((100, columns)).astype(np.float32)
        B[place, columns // 2] = value
        assert_near(multiplied(prepared, A, B), sums_by_loops(A, B), A)
    everywhere = np.full((100, columns), value, np.float32)
    assert_near(multiplied(prepared, A, everywhere), sums_by_loops(A, everywhere), A)
    # And what a call left behind does not reach the next.
    B = rng.standard_normal((100, columns)).astype(np.float32)
    assert np.isfinite(multiplied(prepared, A, B)).all()


def strided(B: Any) -> dict[str, Any]:
    """Return views of the values of B in memory of all kinds."""
    K, N = B.shape
    apart = np.empty((2 * K, 3 * N), B.dtype)
    apart[::2, ::3] = B
    rows_apart = np.full((K, N + 3), np.nan, B.dtype)
    rows_apart[:, :N] = B
    raw = np.empty(B.nbytes + 1, np.uint8)
    unaligned = raw[1:].view(B.dtype).reshape(K, N)
    unaligned[:] = B
    unaligned_columns = raw.copy()[1:].view(B.dtype).reshape(N, K).T
    unaligned_columns[:] = B
    frozen = B.copy()
    frozen.flags.writeable = False
    return {
        "apart": apart[::2, ::3],
        "rows apart": rows_apart[:, :N],
        "backwards": B[::-1, ::-1].copy()[::-1, ::-1],
        "rows backwards": B[::-1].copy()[::-1],
        "unaligned": unaligned,
        "unaligned columns": unaligned_columns,
        "read-only": frozen,
        "one row for all": np.broadcast_to(B[:1], B.shape),
        "one column for all": np.broadcast_to(B[:, :1], B.shape),
    }


@pytest.mark.parametrize(
    ("form", "columns"),
    [("lanes", 1), ("lanes", 3), ("sliced", 1), ("sliced", 2), ("rows", 4), ("rows", 8)],
)
def test_views_of_any_strides(form, columns):
    rng = np.random.default_rng(6)
    A = random_rows(rng, 45, 130, 0.2, np.float32)
    prepared = product_of(A, columns, form)
    B = rng.standard_normal((130, columns)).astype(np.float32)
    residual = rng.standard_normal((45, columns)).astype(np.float32)
    for name, view in strided(B).items():
        before = view.copy()
        expected = sums_by_loops(A, before)
        assert_near(multiplied(prepared, A, view), expected, A)
        np.testing.assert_array_equal(view, before, name)
    expected = sums_by_loops(A, B)
    for name, view in strided(residual).items():
        before = view.copy()
        assert_near(multiplied(prepared, A, B, residual=view), expected + before, A)
        np.testing.assert_array_equal(view, before, name)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("form", "columns"),
    [("lanes", 2), ("lanes", 3), ("lanes", 6), ("lanes", 8), ("sliced", 1), ("sliced", 2),
     ("rows", 3), ("rows", 4), ("rows", 8)],
)  # fmt: skip
def test_rows_with_gaps_and_without(form, columns, dtype, length):
    """There are NaN between rows, and memory ends with the last one."""
    rng = np.random.default_rng(columns)
    for depth, gap in ((50, 1), (33, 4), (32, 3), (8, 1), (7, 2), (1, 1), (37, 0), (3, 0)):
        A = random_rows(rng, 37, depth, 0.3, dtype)
        memory = array_before_a_guard_page(depth * (columns + gap), dtype)
        memory[:] = np.nan
        B = memory.reshape(depth, columns + gap)[:, gap:]
        B[...] = rng.standard_normal(B.shape)
        for wide in (False, True)[: 1 + (length == 64 and form == "lanes")]:
            prepared = product_of(A, columns, form, length, wide=wide)
            assert_near(multiplied(prepared, A, B), sums_by_loops(A, B), A)


@pytest.mark.parametrize(("form", "columns"), [("lanes", 3), ("sliced", 2), ("rows", 3)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_epilogues(form, columns, activation):
    rng = np.random.default_rng(7)
    A = random_rows(rng, 50, 60, 0.2, np.float64)
    A.data[:5] = np.nan
    bias = rng.standard_normal(50)
    epilogue = Epilogue(bias, activation, lower=-0.3, upper=1.5)
    B, residual = rng.standard_normal((60, columns)), rng.standard_normal((50, columns))
    for order in "CF":
        for added in (None, residual):
            prepared = product_of(A, columns, form, epilogue=epilogue)
            found = multiplied(prepared, A, B, added, order)
            expected = epilogue.apply(sums_by_loops(A, B), added, per_row=True)
            assert_near(found, expected, A)
            assert np.isnan(found).any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (3, 4)])
def test_nothing_stored(form, shape):
    A = sp.csr_array(shape, dtype=np.float32)
    B = np.full((shape[1], 2), np.inf, np.float32)
    epilogue = Epilogue(bias=0.5)
    found = multiplied(product_of(A, 2, form, epilogue=epilogue), A, B)
    np.testing.assert_array_equal(found, np.full((shape[0], 2), np.float32(0.5)))


@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("form", "bytes_of_a_number"),
    [
        ("lanes", {}),
        ("lanes", {"window_bytes": 4}),
        ("sliced", {}),
        ("sliced", {"place_bytes": 4}),
        ("rows", {}),
    ],
)
def test_more_columns_of_a_than_sixteen_bits_count(form, bytes_of_a_number, index_type):
    rng = np.random.default_rng(8)
    depth = 70_001
    A = random_rows(rng, 20, depth, 0.002, np.float32)
    A.indices, A.indptr = A.indices.astype(index_type), A.indptr.astype(index_type)
    B = rng.standard_normal((depth, 2)).astype(np.float32)
    found = multiplied(product_of(A, 2, form, **bytes_of_a_number), A, B)
    expected = A.astype(np.float64) @ B.astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-3)


def test_windows_and_places_are_numbered_in_as_few_bytes_as_fit():
    # Where a window may begin in an aligned one, and entries of B that one holds.
    for wide, vector_bytes, begins, held in (
        (True, 64, 4, 63),
        (False, 64, 2, 31),
        (False, 32, 8, 7),
    ):
        spec = lanes.LanesSpec(1, 4, vector_bytes, wide=wide)
        most = (lanes.MAX_WINDOWS // begins - 1) * held
        assert [lanes.window_bytes(depth, spec) for depth in (1, most - 1, most)] == [2, 2, 4]
    # A row of zeros is numbered too.
    assert [place_bytes(depth) for depth in (1, MAX_PLACES - 1, MAX_PLACES)] == [2, 2, 4]


@pytest.mark.parametrize("columns", [3, 8, 15])
def test_no_block_of_columns_is_empty(columns, monkeypatch):
    # Eight blocks of nine columns of A would have two each, and the last three none.
    monkeypatch.setattr(rows, "column_blocks", lambda A, spec: 8)
    rng = np.random.default_rng(3)
    A = random_rows(rng, 20, 9, 0.5, np.float32)
    B = np.asfortranarray(rng.standard_normal((9, columns)).astype(np.float32))
    prepared = product_of(A, columns, "rows")
    assert dict(zip(TABLE, prepared._packed.table, strict=True))["blocks"] == 5
    assert_near(multiplied(prepared, A, B), sums_by_loops(A, B), A)


@pytest.mark.parametrize(
    ("form", "columns"),
    [("lanes", 1), ("lanes", 3), ("lanes", 6), ("sliced", 1), ("sliced", 2), ("rows", 3),
     ("rows", 6)],
)  # fmt: skip
def test_blocks_of_columns_and_parts_of_rows_give_the_same_bits_on_all_threads(
    form, columns, monkeypatch
):
    monkeypatch.setattr(rows, "L1", 300)  # bytes of B in a block
    monkeypatch.setattr(rows, "MOST_BLOCK_BYTES", 300)
    rng = np.random.default_rng(9)
    A = random_rows(rng, 400, 700, 0.1, np.float32)  # slices of lanes for four parts
    B = rng.standard_normal((700, columns)).astype(np.float32)
    residual = rng.standard_normal((400, columns)).astype(np.float32)
    monkeypatch.setattr(product, "SHARING", 0.0)
    epilogue = Epilogue(activation="gelu")
    whole = multiplied(product_of(A, columns, form, epilogue=epilogue), A, B, residual)
    expected = epilogue.apply(sums_by_loops(A, B) + residual, None, per_row=True)
    assert_near(whole, expected, A)

    prepared = product_of(A, columns, form, threads=4, epilogue=epilogue)
    assert prepared._packed.parts == 4
    prepared.seconds = 1.0  # worth all threads
    for threads in (1, 2, 3, 5):
        for order in "CF":
            found = multiplied(prepared, A, B, residual, order, pool=ThreadPool(threads))
            np.testing.assert_array_equal(found, whole)


def test_the_model_chooses_parts_and_threads():
    rng = np.random.default_rng(10)
    large = sp.random_array((3000, 3000), density=0.1, format="csr", rng=rng, dtype=np.float32)
    large.sort_indices()
    B = rng.standard_normal((3000, 15)).astype(np.float32)
    prepared = FewColumnsProduct(large, 15, Epilogue(), 3, forms(large, 15)[0])
    assert prepared._packed.parts == 3
    assert prepared.threads_used(3, 1) == 3
    found = multiplied(prepared, large, B, pool=ThreadPool(3))
    np.testing.assert_allclose(found, large @ B, rtol=1e-3, atol=1e-3)
    small = FewColumnsProduct(large[:40], 1, Epilogue(), 3, forms(large[:40], 1)[0])
    assert small._packed.parts == 1
    assert small.threads_used(3, 1) == 1
    assert "few columns, B is copied" in small.describe()


def test_forms_are_those_that_may_be_the_fastest():
    rng = np.random.default_rng(12)
    A = sp.random_array((400, 600), density=0.2, format="csr", rng=rng, dtype=np.float32)
    A.sort_indices()
    every = forms(A, 2, 1e9)
    kinds = {LanesLayout, RowsSpec} if VECTOR_BYTES > 16 else {RowsSpec}
    kinds |= {SlicedLayout} if choice.MAX_SLICED_COLUMNS >= 2 else set()
    assert {type(form.layout) for form in every} == kinds
    seconds = [form.seconds for form in every]
    assert seconds[0] > 0
    assert seconds == sorted(seconds)
    between = seconds[1] / seconds[0]
    assert [form.seconds for form in forms(A, 2, 1.01 * between)][:2] == seconds[:2]
    for doubtful in (1.0, max(1.0, 0.99 * between)):
        assert [form.seconds for form in forms(A, 2, doubtful)] == seconds[:1]
    assert SlicedLayout in {type(form.layout) for form in forms(A, 1, 1e9)}
    assert SlicedLayout not in {type(form.layout) for form in forms(A, 3, 1e9)}
    assert [type(form.layout) for form in forms(A, 9, 1e9)] == [RowsSpec]  # no lanes beyond 8
    for empty in ((0, 5), (5, 0), (0, 0), (7, 9)):  # a form, though all take no time
        assert forms(sp.csr_array(empty, dtype=np.float32), 2, 2.0)


def test_the_memory_that_keeps_a_decides_what_is_prefetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    A = sp.random_array((400, 600), density=0.2, format="csr", rng=np.random.default_rng(1))
    A = A.astype(np.float32)
    asked: list[int] = []

    def noted(form: type, columns: int, level: int) -> bool:
        asked.append(level)
        return level == LAST_LEVEL

    def found(columns: int) -> tuple[int, bool]:
        asked.clear()
        specs = [getattr(form.layout, "spec", form.layout) for form in forms(A, columns, 1e9)]
        for spec in specs:
            if isinstance(spec, LanesSpec):
                assert spec.wide == choice.is_wide(columns, asked[0])
        ahead = {spec.prefetches for spec in specs}
        assert len(set(asked)) == len(ahead) == 1
        return asked[0], *ahead

    monkeypatch.setattr(choice, "prefetches", noted)
    monkeypatch.setattr(costs, "L2", 1 << 20)
    monkeypatch.setattr(costs, "LAST_CACHE", 1 << 30)
    before = forms(A, 15)[0].seconds
    assert [found(columns) for columns in (1, 3, 15)] == [(SECOND_LEVEL, False)] * 3
    monkeypatch.setattr(costs, "FAR_FROM", 0.1)
    assert [found(columns) for columns in (1, 3, 15)] == [(LAST_LEVEL, True)] * 3
    monkeypatch.setattr(costs, "LAST_CACHE", A.nnz)
    assert [found(columns) for columns in (1, 3, 15)] == [(MEMORY, False)] * 3
    monkeypatch.setattr(costs, "MEMORY_BYTE", 1.0)
    assert forms(A, 15)[0].seconds > 1e6 * before


def test_operands_beyond_the_first_level_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = rows.L1 // 2 // 32 - 1, 2 * rows.L1 // 32  # columns of A, for rows of 32 bytes
    lanes_spec, rows_spec = LanesSpec(8, 4, 64), RowsSpec(8, 4, VECTOR_BYTES)
    matrices = [
        sp.random_array((20, k), density=4 / k, format="csr", dtype=np.float32, rng=rng)
        for k, rng in ((few, np.random.default_rng(1)), (many, np.random.default_rng(2)))
    ]

    def seconds(processor: costs.FewColumnsCosts) -> list[float]:
        monkeypatch.setattr(rows, "COSTS", processor)
        monkeypatch.setattr(choice, "COSTS", costs.ZEN_5)  # of lanes with windows of two vectors
        of_lanes = [choice._lanes_seconds(A, lanes_spec, 50.0) for A in matrices]
        return [*of_lanes, *(rows.rows_seconds(A, rows_spec) for A in matrices)]

    with_far = seconds(costs.COSTS)
    without = seconds(replace(costs.COSTS, l2_byte_of_b=0.0))
    assert [a > b for a, b in zip(with_far, without, strict=True)] == [False, True, False, True]
    assert with_far[::2] == without[::2]


def test_operands_beyond_the_second_level_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    A = sp.random_array((3000, 4000), density=2e-3, format="csr", dtype=np.float32, rng=rng)
    A.sort_indices()
    spec, lanes_spec = RowsSpec(8, 4, VECTOR_BYTES), LanesSpec(8, 4, 64)
    monkeypatch.setattr(choice, "COSTS", costs.ZEN_5)  # of lanes with windows of two vectors
    monkeypatch.setattr(rows, "L1", 1 << 15)
    monkeypatch.setattr(rows, "MOST_BLOCK_BYTES", 1 << 19)

    def seconds(second_level: int) -> list[float]:
        monkeypatch.setattr(costs, "L2", second_level)
        by_blocks = rows._seconds_by_blocks(A, spec)
        lanes_alone = choice._lanes_seconds(A, lanes_spec, 500.0)
        return [*by_blocks.values(), lanes_alone, product.copying_seconds(A, 8)]

    near, far = seconds(1 << 24), seconds(1 << 14)
    assert len(near) > 4
    assert all(b > 1.1 * a for a, b in zip(near, far, strict=True))


@pytest.mark.parametrize(
    ("shape", "density"), [((40, 300), 0.1), ((1, 50), 0.5), ((60, 7), 1e-9), ((0, 9), 0.5)]
)
def test_visits_are_counted(shape: tuple[int, int], density: float) -> None:
    rng = np.random.default_rng(4)
    A = random_rows(rng, *shape, density, np.float32)
    for blocks in (1, 2, 3, 7, 300):
        block_rows = max(1, -(-shape[1] // blocks))
        last = max(0, (shape[1] - 1) // block_rows)  # a block beyond it would be empty
        visits = between = slots = 0
        for row in range(shape[0]):
            columns = A.indices[A.indptr[row] : A.indptr[row + 1]]
            for block in range(last + 1):
                count = int(np.count_nonzero(columns // block_rows == block))
                if count or block in (0, last):
                    visits, between = visits + 1, between + (block > 0)
                slots += -(-count // 4) * 4
        assert rows.RowSample(A).visits(blocks) == (visits, between, slots)


@pytest.mark.parametrize("longest", [None, 0, 1500])
def test_a_sample_of_rows_tells_of_all(
    longest: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = sp.random_array((3000, 500), density=0.02, rng=np.random.default_rng(5)).tolil()
    if longest is not None:
        A[longest] = 1.0
    A = A.tocsr()
    exact = rows.RowSample(A).visits(10)
    monkeypatch.setattr(rows, "SAMPLED", 3000)
    assert rows.RowSample(A).visits(10) == pytest.approx(exact, rel=0.1)
    three = random_rows(np.random.default_rng(6), 3, 9000, 0.9, np.float32)
    assert rows.RowSample(three).visits(2).slots == pytest.approx(three.nnz, rel=0.01)


def test_a_sample_of_rows_whose_lengths_repeat() -> None:
    counts = np.tile([0, 30], 20_000)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    columns = np.tile(np.arange(0, 3000, 100), 20_000)
    A = sp.csr_array((np.ones(600_000), columns, indptr), (40_000, 3000))
    # In 6 blocks of 500 columns a row with entries has 5 in each: two words.
    expected = rows.Visits(160_000, 120_000, 20_000 * 6 * 8)
    assert rows.RowSample(A).visits(6) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("longest", [0, 20, 40])
def test_a_row_of_most_entries_is_not_looked_at_as_a_whole(longest: int) -> None:
    counts = np.full(41, 2)
    counts[longest] = 1_000_000
    indptr = np.concatenate([[0], np.cumsum(counts)])
    columns = np.concatenate([np.arange(count) for count in counts])
    A = sp.csr_array((np.ones(columns.size, np.float32), columns, indptr), (41, 1_000_000))
    sample = rows.RowSample(A)
    assert sample._columns.size <= 2 * rows.SAMPLED
    assert sample.visits(100).slots == pytest.approx(A.nnz, rel=0.01)


@pytest.mark.parametrize(
    ("cpu", "vector_bytes", "expected"),
    [
        ("znver4", 64, costs.ZEN_4), ("znver5", 64, costs.ZEN_5), ("znver4", 32, costs.ZEN_3),
        ("sapphirerapids", 64, costs.INTEL), ("znver3", 32, costs.ZEN_3),
    ],
)  # fmt: skip
def test_constants_are_those_of_the_processor(
    cpu: str, vector_bytes: int, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "cpu_name", lambda: cpu)
    for module in (target, costs):
        monkeypatch.setattr(module, "VECTOR_BYTES", vector_bytes)
    assert costs.few_columns_costs_here() is expected


@pytest.mark.parametrize(
    ("cpu", "vector_bytes", "most"),
    [("znver4", 64, [1, 1, 4]), ("znver5", 64, [1, 3, 4]), ("icelake-server", 64, [1, 3, 4]),
     ("znver4", 32, [0, 0, 0])],
)  # fmt: skip
def test_how_wide_windows_are_by_processor_and_memory(
    cpu: str, vector_bytes: int, most: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "cpu_name", lambda: cpu)
    for module in (target, choice):
        monkeypatch.setattr(module, "VECTOR_BYTES", vector_bytes)
    for level, columns in zip((SECOND_LEVEL, LAST_LEVEL, MEMORY), most, strict=True):
        wide = [choice.is_wide(number, level) for number in range(1, 9)]
        assert wide == [number <= columns for number in range(1, 9)]


def test_what_is_prefetched_by_processor_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = SECOND_LEVEL, LAST_LEVEL, MEMORY
    kinds = (LanesSpec, 1), (LanesSpec, 2), (SlicedSpec, 1), (RowsSpec, 8)
    expected = {
        "znver4": [[False] * 3, [False] * 3, [False] * 3, [False, False, True]],
        "znver5": [[False, True, True], [True] * 3, [False, True, True], [False, True, True]],
    }
    expected["icelake-server"] = expected["znver5"]
    monkeypatch.setattr(target, "VECTOR_BYTES", 64)
    for name, wanted in expected.items():
        monkeypatch.setattr(target, "cpu_name", lambda name=name: name)
        assert [[choice.prefetches(*kind, level) for level in levels] for kind in kinds] == wanted


@pytest.mark.parametrize("form", FORMS)
def test_calls_at_a_time_have_memory_of_their_own(form):
    rng = np.random.default_rng(11)
    A = random_rows(rng, 200, 300, 0.2, np.float32)
    prepared = product_of(A, 2, form)
    operands = [rng.standard_normal((300, 2)).astype(np.float32) for _ in range(4)]
    check_calls_at_a_time(lambda B: multiplied(prepared, A, B), operands)
