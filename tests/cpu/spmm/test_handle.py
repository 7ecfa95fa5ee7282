"""Which kernel runs a product: chosen when a handle is made or by a model, kept, and told."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from offsets import at_offset

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm import cost_model, costs, handle, tuning
from portable_spdnn_cpu.spmm.clustered.product import ClusteredProduct
from portable_spdnn_cpu.spmm.cost_model import ProductSize, dense_seconds, stream_seconds
from portable_spdnn_cpu.spmm.dense import DenseProduct, blas_libraries
from portable_spdnn_cpu.spmm.dense_layout import Layout, layout_of
from portable_spdnn_cpu.spmm.direct.prepared import DirectProduct
from portable_spdnn_cpu.spmm.few_columns.choice import Form
from portable_spdnn_cpu.spmm.few_columns.product import FewColumnsProduct
from portable_spdnn_cpu.spmm.few_columns.specs import RowsSpec
from portable_spdnn_cpu.spmm.handle import WeightsProduct
from portable_spdnn_cpu.spmm.stream import microkernels
from portable_spdnn_cpu.spmm.stream.microkernels import MAX_VECTORS
from portable_spdnn_cpu.spmm.stream.product import StreamProduct, StreamVariant

BARE = ps.Epilogue()


def random(shape: tuple[int, int], density: float) -> Any:
    rng = np.random.default_rng(1)
    return sp.random_array(shape, density=density, rng=rng, dtype=np.float32, format="csr")


def size(**changes: Any) -> ProductSize:
    fields = {"rows": 512, "inner": 512, "columns": 256, "entries": 26214, "itemsize": 4}
    orders = {"layout": Layout.UNALIGNED, "out_fortran": False}
    return ProductSize(**{**fields, **orders, "threads": 2, **changes})


def test_the_model_sees_what_costs() -> None:
    best = tuning.stream_variants(size())[0]
    seconds = stream_seconds(size(), best)
    assert stream_seconds(size(threads=1), best) > 1.5 * seconds
    assert stream_seconds(size(layout=Layout.FORTRAN), best) > seconds
    assert stream_seconds(size(out_fortran=True), best) > seconds
    assert stream_seconds(size(entries=2 * 26214), best) > 1.3 * seconds
    # Sparser weights have larger blocks, for they use less of each row of B that a block has.
    sparse, dense = (tuning.stream_variants(size(entries=n))[0] for n in (2621, 183501))
    assert sparse.k_block > dense.k_block
    assert dense_seconds(size()) > 3 * seconds
    assert dense_seconds(size(entries=512 * 512)) < stream_seconds(size(entries=512 * 512), best)


def test_of_b_in_fortran_order_rows_that_a_meets_are_copied() -> None:
    few, more = (
        cost_model.direct_seconds(size(inner=5000, entries=n, columns=17, layout=Layout.FORTRAN))
        for n in (600, 700)
    )
    costs_here = cost_model.COSTS
    assert more - few > costs_here.cycle * costs_here.direct.transpose * 2 * (5000 - 700)


def test_trials_of_long_products_have_fewer_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (1, 100, 256):
        assert tuning.tried_columns(size(columns=columns)) == columns
    # Many calls of some ten milliseconds would take seconds. Panels of any width stay whole.
    for long in (size(columns=40_000), size(columns=100_000), size(entries=1 << 20, columns=9000)):
        for itemsize, unit in ((4, 384), (8, 192)):
            tried = tuning.tried_columns(dataclasses.replace(long, itemsize=itemsize))
            assert tried % unit == 0
            assert unit <= tried < long.columns / 2
    monkeypatch.setattr(tuning, "TRIED_SECONDS", 0.0)
    A, B = random((30, 40), 0.2), np.random.default_rng(0).random((40, 600), np.float32)
    prepared = WeightsProduct(ThreadPool(1), A, BARE, columns=600)
    assert "in proportion to 384 columns" in prepared.describe()
    np.testing.assert_allclose(prepared.multiply(B), A @ B, rtol=1e-4)
    few = WeightsProduct(ThreadPool(1), A, BARE, columns=300)
    assert "in proportion" not in few.describe()


def test_trials_of_long_products_have_fewer_variants() -> None:
    assert len(tuning.tried_variants(size())) == tuning.TRIED
    long = size(rows=1 << 18, inner=1 << 18, entries=1 << 22, columns=300)
    assert len(tuning.tried_variants(long)) == tuning.LEAST_TRIED
    assert tuning.tried_variants(long)[0] == tuning.stream_variants(long)[0]


@pytest.mark.parametrize("entries", [5_000, 50_000, 500_000])
def test_trials_have_a_variant_with_all_of_k_as_a_block(entries: int) -> None:
    given = size(rows=2048, entries=entries)
    tried = tuning.tried_variants(given)
    assert set(tried) <= set(tuning.all_variants(given))
    assert any(variant.k_block == given.inner for variant in tried)
    assert len(set(tried)) == len(tried) == tuning.TRIED


def test_sums_that_are_read_from_beyond_the_second_level_cost_more() -> None:
    tall = size(rows=1 << 16, inner=1 << 10, entries=1 << 18, columns=64)
    blocks = [stream_seconds(tall, StreamVariant(4, 1 << bits)) for bits in (10, 6)]
    low = size(rows=1 << 8, inner=1 << 10, entries=1 << 10, columns=64)
    near = [stream_seconds(low, StreamVariant(4, 1 << bits)) for bits in (10, 6)]
    assert blocks[1] / blocks[0] > 2 * near[1] / near[0]


def test_rows_of_b_less_than_a_vector_take_no_more_of_a_cache_than_they_have() -> None:
    narrow, wide = (size(inner=1 << 15, entries=1 << 17, columns=n, threads=1) for n in (4, 16))
    assert [narrow.b_bytes, wide.b_bytes] == [1 << 19, 1 << 21]
    assert cost_model.direct_seconds(narrow) < cost_model.direct_seconds(wide)


def test_clusters_of_rows_gain_nothing_in_writes_of_c() -> None:
    tall, square = size(rows=1 << 17, inner=8, entries=1 << 17), size(entries=200_000)
    ratios = []
    for given in (tall, square):
        streamed = stream_seconds(given, tuning.stream_variants(given)[0])
        assert cost_model.clustered_seconds(given, streamed, 1.0) == pytest.approx(streamed)
        ratios.append(cost_model.clustered_seconds(given, streamed, 4.0) / streamed)
    assert 0.25 < ratios[1] < ratios[0] <= 1


def test_a_panel_beyond_the_first_level_costs_by_the_share_that_is_within() -> None:
    wide, stream = size(inner=1 << 16), cost_model.COSTS.stream
    held = int(cost_model.COSTS.l1_share * cost_model.L1) // 256  # rows of a panel of 4 vectors
    assert cost_model._load(wide, StreamVariant(4, held), True) == stream.l1
    twice = cost_model._load(wide, StreamVariant(4, 2 * held), True)
    assert twice == pytest.approx((stream.l1 + stream.l2) / 2, rel=0.01)
    assert cost_model._load(wide, StreamVariant(4, 1 << 16), True) > stream.l2


def test_rows_without_entries_in_a_block_cost_nothing() -> None:
    few = size(inner=1 << 16, entries=600, columns=64)
    blocks = [stream_seconds(few, StreamVariant(4, 1 << bits)) for bits in (8, 16)]
    assert blocks[0] < 1.2 * blocks[1]


@pytest.mark.parametrize(
    ("cpu", "vector_bytes", "expected"),
    [("znver4", 64, costs.ZEN_4), ("znver5", 64, costs.ZEN_5), ("sapphirerapids", 64, costs.INTEL),
     ("znver4", 32, costs.ZEN_3), ("haswell", 32, costs.ZEN_3)],
)  # fmt: skip
def test_constants_are_those_of_the_processor(
    cpu: str, vector_bytes: int, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "cpu_name", lambda: cpu)
    monkeypatch.setattr(costs, "VECTOR_BYTES", vector_bytes)
    assert costs.costs_here() is expected


@pytest.mark.parametrize("columns", [1, 7, 16, 49, 196, 256, 3136])
def test_variants_are_different_and_within_registers(columns: int) -> None:
    found = tuning.stream_variants(size(columns=columns))
    assert len(set(found)) == len(found)
    assert {1, 2} == {variant.parts for variant in found}
    assert all(1 <= variant.vectors <= MAX_VECTORS for variant in found)
    seconds = [stream_seconds(size(columns=columns), variant) for variant in found]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("layout", [Layout.UNALIGNED, Layout.FORTRAN])
def test_columns_of_like_cost_share_an_order(itemsize: int, layout: int) -> None:
    tuning._ordered_variants.cache_clear()
    vector, half = 64 // itemsize, 32 // itemsize
    for columns in range(1, 10 * half + 1):
        given = size(columns=columns, itemsize=itemsize, layout=layout)
        assert tuning.stream_variants(given) == tuning._ordered_variants.__wrapped__(given)
    # One for each number up to a vector; beyond, for each half what is between multiples, and one.
    assert tuning._ordered_variants.cache_info().misses == vector + 8 * 2


def test_when_panels_are_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MAX_VECTORS", 8)
    monkeypatch.setattr(tuning, "L2", 1 << 21)
    monkeypatch.setattr(cost_model, "HAS_FAST_MASKS", True)

    def widths(**changes: Any) -> set[int]:
        return {each.vectors for each in tuning.all_variants(size(**changes)) if each.in_place}

    assert widths() == widths(layout=Layout.FORTRAN) == set()
    assert widths(layout=Layout.ALIGNED) == {4, 8}
    assert widths(layout=Layout.SHIFTED) == {4, 6}  # 17 vectors in place of 16
    assert widths(layout=Layout.SHIFTED, inner=7000) == {4}
    assert widths(layout=Layout.SHIFTED, inner=9000) == set()
    for layout in (Layout.ALIGNED, Layout.SHIFTED):
        assert widths(layout=layout, entries=4 * 512 - 1) == set()
    monkeypatch.setattr(cost_model, "HAS_FAST_MASKS", False)
    assert widths(layout=Layout.SHIFTED) == set()


def test_a_single_product_packs_what_is_much_work() -> None:
    variant, packs = tuning.single_variant(size(columns=64, entries=5000))
    assert not packs
    assert variant.k_block == 512
    variant, packs = tuning.single_variant(size(columns=3136, entries=78000))
    assert packs
    assert variant in tuning.stream_variants(size(columns=3136, entries=78000))


@pytest.mark.parametrize("layout", [Layout.ALIGNED, Layout.UNALIGNED])
@pytest.mark.parametrize("inner", [700, 9_000, 60_000])
def test_variants_are_what_runs(inner: int, layout: Layout) -> None:
    for entries in (20 * 512, 200 * 512):
        given = size(inner=inner, entries=entries, layout=layout, columns=512)
        for variant in tuning.all_variants(given):
            # Blocks of columns take weights that are packed, for which a panel may be too large.
            assert variant.packs(inner) or variant.k_block >= inner
        chosen, packs = tuning.single_variant(given)
        assert chosen.packs(inner) or not packs


def test_weights_as_given_take_longer_where_that_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted = dataclasses.replace(cost_model.COSTS, given_entry=0.5, given_row=4.1)
    monkeypatch.setattr(cost_model, "COSTS", fitted)
    whole, in_place = StreamVariant(4, 512), StreamVariant(4, 512, in_place=True)
    given, wide = size(layout=Layout.ALIGNED), size(inner=9_000)
    seconds = stream_seconds(given, whole)
    assert seconds < stream_seconds(given, whole, prepared=False) < 1.5 * seconds
    assert stream_seconds(given, in_place) < stream_seconds(given, in_place, prepared=False)
    # A panel that is too large for weights to be packed.
    whole = StreamVariant(4, 9_000)
    assert stream_seconds(wide, whole) == stream_seconds(wide, whole, prepared=False)


def test_panels_too_wide_for_pairs_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "pairs", lambda vectors: vectors <= 3)
    seconds = {}
    for unpaired in (0.0, 1.0):
        fitted = dataclasses.replace(
            cost_model.COSTS, unpaired_entry=unpaired, unpaired_row=5 * unpaired
        )
        monkeypatch.setattr(cost_model, "COSTS", fitted)
        variants = [StreamVariant(vectors, 512) for vectors in (3, 4)]
        seconds[unpaired] = [stream_seconds(size(threads=1), variant) for variant in variants]
    assert seconds[1.0][0] == seconds[0.0][0]
    # 26,214 entries and 512 rows, times four panels.
    more = 4 * (26_214 + 5 * 512) * cost_model.COSTS.cycle
    assert seconds[1.0][1] - seconds[0.0][1] == pytest.approx(more)


@pytest.mark.parametrize(
    ("vectors", "together", "parts", "threads", "most"),
    [
        (49, 4, 1, 2, 25),  # six tasks, and the last of one vector
        (49, 5, 1, 2, 25),
        (13, 4, 1, 2, 8),  # two, beside one and the last
        (13, 3, 1, 2, 7),
        (14, 2, 1, 3, 6),
        (16, 2, 1, 3, 6),
        (3, 4, 1, 2, 3),  # no other thread has any
        (13, 4, 1, 1, 13),
        (13, 4, 2, 2, 13),  # of two parts
    ],
)
def test_the_share_of_the_thread_that_has_most(
    vectors: int, together: int, parts: int, threads: int, most: int
) -> None:
    share = cost_model.share_of_most(vectors, together, parts, threads)
    assert share == pytest.approx(most / (vectors * parts))


@pytest.mark.parametrize(("columns", "itemsize"), [(33, 4), (40, 4), (41, 4), (20, 8), (21, 8)])
def test_half_of_a_vector_costs_half_where_halves_are_cheap(
    columns: int, itemsize: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, seconds, far = size(columns=columns, itemsize=itemsize, threads=1), [], []
    far_panel = dataclasses.replace(given, inner=1 << 13)
    for halves in (False, True):
        monkeypatch.setattr(microkernels, "has_cheap_halves", lambda _, halves=halves: halves)
        seconds.append(stream_seconds(given, StreamVariant(3, 128)))
        seconds.append(stream_seconds(given, StreamVariant(3, 128), prepared=False))
        far.append(stream_seconds(far_panel, StreamVariant(3, 1 << 13)))
    one_vector = given.entries * cost_model.COSTS.stream.l1 * cost_model.COSTS.cycle
    saved = one_vector / 2 if columns * itemsize % 64 <= 32 else 0
    assert seconds[0] - seconds[2] == pytest.approx(saved)
    assert seconds[1] == seconds[3]
    # Of a panel that the first level holds in part, only loads from there take less.
    assert (far[0] - far[1]) / saved < 0.5 if saved else far[0] == far[1]


def test_pieces_of_rows_of_a_large_result_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = dataclasses.replace(cost_model.COSTS.stream, write=0.0)
    large = size(rows=1 << 16, threads=1)  # of 64 MiB
    seconds = {}
    for piece in (0.0, 40.0):
        fitted = dataclasses.replace(cost_model.COSTS, stream=stream, written_piece=piece, beyond=1)
        monkeypatch.setattr(cost_model, "COSTS", fitted)
        monkeypatch.setattr(costs, "COSTS", fitted)
        seconds[piece] = [stream_seconds(large, StreamVariant(vectors, 512)) for vectors in (1, 4)]
    # Rows of 16 vectors are 16 pieces, or four.
    for place, pieces in enumerate((16, 4)):
        more = pieces * (1 << 16) * 40.0 * cost_model.COSTS.cycle
        assert seconds[40.0][place] - seconds[0.0][place] == pytest.approx(more)


def test_an_operand_has_a_share_of_the_last_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = dataclasses.replace(costs.COSTS, beyond=3.0, last_share=0.25)
    monkeypatch.setattr(costs, "COSTS", fitted)
    held = costs.LAST_CACHE // 4
    assert [costs.beyond(part * held) for part in (0, 1, 2, 4)] == [1, 1, 2, 2.5]


def test_what_packing_is_priced_by(monkeypatch: pytest.MonkeyPatch) -> None:
    given, variant = size(entries=1 << 20, inner=2048), StreamVariant(4, 128)
    far = (1 << 20) * 2 * (4 + 3) - cost_model.L2
    monkeypatch.setattr(costs, "COSTS", dataclasses.replace(costs.COSTS, beyond=1.0))
    for prices, seconds in (
        ((1.0, 0, 0, 0), 1), ((0, 1.0, 0, 0), 1 << 20),
        ((0, 0, 1.0, 0), 16 * 512), ((0, 0, 0, 1.0), far),
    ):  # fmt: skip
        fitted = dataclasses.replace(cost_model.COSTS, packing=costs.PackingSeconds(*prices))
        monkeypatch.setattr(cost_model, "COSTS", fitted)
        assert cost_model.packing_seconds(given, variant) == seconds


def test_a_handle_tries_and_a_call_never_does(monkeypatch: pytest.MonkeyPatch) -> None:
    trials: list[float] = []

    def noted(runs: list[Any]) -> list[float]:
        for run in runs:
            run()
            trials.append(1.0 / (1 + len(trials)))  # each candidate is faster than the one before
        return trials[-len(runs) :]

    monkeypatch.setattr(handle, "least_seconds", noted)
    monkeypatch.setattr(cost_model, "dense_seconds", lambda size: 1.0)
    A = random((60, 80), 0.2)
    product = WeightsProduct(ThreadPool(2), A, BARE, columns=40)
    made = len(trials)
    assert made > 2
    assert product._choices[40, Layout.FORTRAN].measured == 1.0 / made
    monkeypatch.setattr(cost_model, "direct_seconds", lambda size: 1e-9)  # for 35 columns
    for columns in (40, 35, 40):
        for order in "CF":
            B = np.ones((80, columns), np.float32, order=order)
            C = product.multiply(B)
            assert C.flags.c_contiguous
            np.testing.assert_allclose(C, oracle.spmm(A, B), rtol=1e-5)
    assert len(trials) == made
    assert product._choices[35, Layout.UNALIGNED].measured is None
    text = product.describe()
    assert text.count("predicted") == 4
    assert text.count("% of the peak of multiply-adds") == 2
    assert "B of 40 columns in Fortran order: " in text
    assert text.count("; A takes ") == 4
    assert "(18.8 KiB dense); " in text
    for choice in product._choices.values():  # a value and a place of two or four bytes
        assert 6 * A.nnz <= choice.kernel.nbytes <= 8 * A.nnz + 24 * sum(A.shape) + 1024
    assert "Features of 35 inputs in C order: A is read as it is" in product.describe(layer=True)
    monkeypatch.setattr(handle, "MAX_TRIAL_BYTES", 1000)
    WeightsProduct(ThreadPool(2), A, BARE, columns=40)
    assert len(trials) == made


@pytest.mark.parametrize("columns", [1600, 1601])
def test_operands_of_a_trial_lie_as_those_of_users(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    seen: list[tuple[int, int]] = []

    def noted(runs: list[Any]) -> list[float]:
        seen.extend((layout_of(run.args[0]), run.args[0].shape[1]) for run in runs)
        return [1.0] * len(runs)

    monkeypatch.setattr(handle, "least_seconds", noted)
    monkeypatch.setattr(tuning, "TRIED_SECONDS", 1e-9)
    product = WeightsProduct(ThreadPool(1), random((60, 80), 0.2), BARE, columns=columns)
    assert {layout for layout, _ in seen} == {layout for _, layout in product._choices}
    assert {tried for _, tried in seen} == {384}


def test_a_handle_of_a_layer_says_what_a_and_b_are() -> None:
    layer = ps.get_backend("numba").layer_handle(random((60, 80), 0.2), inputs=3)
    first, *lines = layer.describe().splitlines()
    assert first == "The product of A = W^T and B = Y^T."
    assert lines
    assert all(line.startswith("Features of 3 inputs in ") for line in lines)


def kernels_tried(monkeypatch: pytest.MonkeyPatch) -> list[set[type]]:
    """Return a list that gets the types of the kernels of each trial; none of them runs."""
    tried: list[set[type]] = []

    def noted(runs: list[Any]) -> list[float]:
        tried.append({type(run.func.__self__) for run in runs})
        return [1.0] * len(runs)

    monkeypatch.setattr(handle, "least_seconds", noted)
    return tried


@pytest.mark.parametrize("columns", [3, 100])
def test_a_trial_has_a_as_it_is_where_it_may_win(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    tried = kernels_tried(monkeypatch)
    monkeypatch.setattr(handle, "predicted_seconds", lambda *_: 5e-3)  # of forms for few columns
    A, far = random((500, 500), 0.2), handle.DIRECT_DOUBTFUL * 1e-3
    for stream, direct, is_tried in (
        (1e-3, far - 1e-4, True), (1e-3, far + 1e-4, False),
        (1e-6, 1e-5, True), (1e-6, 1.2e-5, False),
    ):  # fmt: skip
        monkeypatch.setattr(cost_model, "stream_seconds", lambda *_, known=stream: known)
        monkeypatch.setattr(cost_model, "direct_seconds", lambda *_, known=direct: known)
        tried.clear()
        WeightsProduct(ThreadPool(1), A, BARE, columns=columns)
        assert tried
        assert all((DirectProduct in kernels) == is_tried for kernels in tried)


def test_a_trial_has_an_almost_empty_a_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = kernels_tried(monkeypatch)
    monkeypatch.setattr(cost_model, "direct_seconds", lambda *_: 1.0)
    for entries, is_tried in ((74, True), (75, False)):
        tried.clear()
        A = random((100, 50), entries / 5000)
        WeightsProduct(ThreadPool(1), A, BARE, columns=40)
        assert tried
        assert all((DirectProduct in kernels) == is_tried for kernels in tried)


def test_rows_that_share_nothing_are_not_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> None:
        raise AssertionError("rows that share nothing were laid out in clusters")

    monkeypatch.setattr(handle, "ClusteredProduct", refused)
    assert WeightsProduct(ThreadPool(1), random((500, 500), 0.2), BARE)._clustered is None


def test_rows_of_which_some_share_all_go_in_clusters() -> None:
    rng = np.random.default_rng(0)
    pattern = np.repeat(rng.random((200, 800)) < 0.1, 4, axis=0)
    pattern[500:] = rng.random((300, 800)) < 0.1
    clustered = WeightsProduct(ThreadPool(1), sp.csr_array(pattern.astype("f4")), BARE)._clustered
    assert clustered is not None
    assert 1.8 < clustered.shared < 2


def test_rows_that_share_too_little_do_not_go_in_clusters() -> None:
    # Of 12 entries of a row 4 are those of three others: 36 loads for 48 entries.
    pattern = np.hstack([np.ones((4, 4)), np.kron(np.eye(4), np.ones((1, 8)))])
    A = sp.csr_array(pattern.astype(np.float32))
    assert ClusteredProduct(ThreadPool(1), A, BARE).shared == 48 / 36
    assert WeightsProduct(ThreadPool(1), A, BARE)._clustered is None


def test_few_columns_have_a_kernel_of_their_own() -> None:
    A, B = random((200, 300), 0.4), np.random.default_rng(5).random((300, 9), np.float32)
    product = WeightsProduct(ThreadPool(2), A, BARE)
    for columns in (9, 1, 0, 9):
        C = product.multiply(B[:, :columns])
        np.testing.assert_allclose(C, oracle.spmm(A, B[:, :columns]), rtol=1e-4)
    assert isinstance(product._choices[9, layout_of(B)].kernel, FewColumnsProduct)
    assert "few columns, B is copied" in product.describe()
    tried = WeightsProduct(ThreadPool(2), A, BARE, columns=9)
    np.testing.assert_allclose(tried.multiply(B), oracle.spmm(A, B), rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_few_columns_end_where_a_row_of_b_is_two_cache_lines(dtype: Any) -> None:
    A, last = random((16, 16), 0.3).astype(dtype), 128 // np.dtype(dtype).itemsize
    for columns in (16, last, last + 1):
        B = np.random.default_rng(5).random((16, columns)).astype(dtype)
        product = WeightsProduct(ThreadPool(1), A, BARE)
        np.testing.assert_allclose(product.multiply(B), oracle.spmm(A, B), rtol=1e-4)
        kernel = product._choices[columns, layout_of(B)].kernel
        assert isinstance(kernel, FewColumnsProduct) == (columns <= last)


def test_all_forms_of_few_columns_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    trials: list[list[Any]] = []

    def noted(runs: list[Any]) -> list[float]:
        kernels = [run.func.__self__ for run in runs]
        trials.append([kernel for kernel in kernels if isinstance(kernel, FewColumnsProduct)])
        for run in runs:
            run()
        return [float(number != 1) for number in range(len(runs))]  # the second is the fastest

    monkeypatch.setattr(handle, "least_seconds", noted)
    monkeypatch.setattr(handle, "DOUBTFUL", 1e9)
    A, B = random((200, 300), 0.2), np.random.default_rng(5).random((300, 2), np.float32)
    product = WeightsProduct(ThreadPool(1), A, BARE, columns=2)
    assert len(trials) == 2  # B in C order, and in Fortran order
    for kernels in trials:
        described = [kernel.describe() for kernel in kernels]
        assert len(kernels) == (3 if VECTOR_BYTES == 32 else 2)
        assert sum("row by row" in each for each in described) == 1
        assert sum("permuted" in each for each in described) == (VECTOR_BYTES > 16)
        assert sum("sliced ELLPACK" in each for each in described) == (VECTOR_BYTES < 64)
    # Of what was packed the faster one is kept, and made once.
    assert product._few == {2: [trials[0][1]]}
    assert trials[0][1] is trials[1][1]
    np.testing.assert_allclose(product.multiply(B), oracle.spmm(A, B), rtol=1e-4)


def test_the_model_takes_no_blas_for_what_is_hardly_a_product() -> None:
    # NumPy takes a loop of its own where k is 1: 0.4 ms, where A as it is took 0.04. On a Zen 5 it
    # takes 13.8 microseconds as it is, and 12.7 streamed.
    A = random((1911, 1), 0.48)
    product = WeightsProduct(ThreadPool(1), A, BARE)
    C = product.multiply(B := np.ones((1, 129), np.float32))
    np.testing.assert_allclose(C, oracle.spmm(A, B), rtol=1e-6)
    choice = product._choices[129, layout_of(B)]
    assert isinstance(choice.kernel, DirectProduct | StreamProduct)
    given = size(rows=1911, inner=1, columns=129, entries=A.nnz, threads=1)
    assert choice.predicted < dense_seconds(given) / 4


def test_few_zeros_go_to_blas_but_not_with_infinities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "LEAST_SHARED", np.inf)
    # Processors differ in how many zeros are few.
    fast = dataclasses.replace(cost_model.COSTS, dense=cost_model.COSTS.stream.l1 / 2)
    monkeypatch.setattr(cost_model, "COSTS", fast)
    A, rng = random((400, 410), 0.98), np.random.default_rng(2)
    epilogue = ps.Epilogue(rng.uniform(-1, 1, 400), "gelu", upper=2.0)
    product = WeightsProduct(ThreadPool(1), A, epilogue.prepared("spmm", 400, A.dtype))
    B, residual = rng.uniform(-1, 1, (410, 320)).astype(np.float32), np.ones((400, 320), np.float32)
    sums = oracle.spmm(A, B)
    expected = oracle.finish(sums, epilogue.bias[:, None], "gelu", None, 2.0, residual)
    for order in "CF":
        C = product.multiply(np.asarray(B, order=order), residual=residual)
        np.testing.assert_allclose(C, expected, rtol=1e-4, atol=1e-5)
    assert isinstance(product._choices[320, layout_of(B)].kernel, DenseProduct)
    assert "with 2 % zeros, skipping them would cost more than it saves" in product.describe()
    empty = np.flatnonzero(A.toarray()[3] == 0)[0]
    B[empty] = np.inf
    assert np.isfinite(product.multiply(B)[3]).all()


def test_rows_that_share_columns_go_in_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "CLUSTERED_FROM", 0.0)
    monkeypatch.setattr(handle, "suited_form", lambda *arguments: None)
    # Whether weights as they are would be faster depends on the processor.
    monkeypatch.setattr(handle.tuning, "is_fitted", lambda size: False)
    alike = sp.csr_array(np.repeat(random((20, 60), 0.2).toarray(), 4, axis=0))
    product = WeightsProduct(ThreadPool(1), alike, BARE)
    B = np.random.default_rng(3).random((60, 48), np.float32)
    np.testing.assert_allclose(product.multiply(B), oracle.spmm(alike, B), rtol=1e-5)
    assert isinstance(product._choices[48, layout_of(B)].kernel, ClusteredProduct)
    assert "a load of B serves 4.0 entries" in product.describe()
    tried = WeightsProduct(ThreadPool(1), alike, BARE, columns=48)
    np.testing.assert_allclose(tried.multiply(B), oracle.spmm(alike, B), rtol=1e-5)
    scattered = WeightsProduct(ThreadPool(1), random((80, 60), 0.1), BARE)
    scattered.multiply(B)
    assert isinstance(scattered._choices[48, layout_of(B)].kernel, StreamProduct)


def test_blas_threads_are_as_before_after_calls_of_several_threads() -> None:
    A, B = random((150, 160), 0.9), np.ones((160, 200), np.float32)
    dense = DenseProduct(A, BARE)
    before = [library.num_threads for library in blas_libraries()]
    callers = [
        threading.Thread(
            target=lambda: [
                dense.multiply(B, np.empty((150, 200), np.float32), None, ThreadPool(1))
                for _ in range(50)
            ]
        )
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [library.num_threads for library in blas_libraries()] == before


def test_a_handle_forgets_old_predictions_and_packings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "MAX_PREDICTIONS", 4)

    class NeverEmpty(dict[int, list[FewColumnsProduct]]):
        """What other threads see: a list that is empty would fail them."""

        def __setitem__(self, columns: int, products: list[FewColumnsProduct]) -> None:
            assert products
            super().__setitem__(columns, products)

    product = WeightsProduct(ThreadPool(1), random((40, 50), 0.1), BARE)
    product._few = NeverEmpty()
    for columns in (1, 2, 3, 5, 7, 8, 9, 15, 16, 31, 33, 48):  # for which other tests compile too
        product.multiply(np.ones((50, columns), np.float32))
    assert len(product._choices) == handle.MAX_PREDICTIONS
    used = {id(choice.kernel) for choice in product._choices.values()}
    kept = itertools.chain(product._packed.values(), *product._few.values())
    assert {id(packed) for packed in kept} <= used
    assert all(product._few.values())


def test_rows_of_b_that_are_as_wide_share_a_packing() -> None:
    A, packed = random((40, 50), 0.4), {}
    for columns in (5, 7, 8):
        form = Form(RowsSpec(columns, 4, VECTOR_BYTES), 1e-6)
        product = FewColumnsProduct(A, columns, BARE, 1, form, packed)
        B = np.random.default_rng(columns).random((50, columns), np.float32)
        product.multiply(B, out := np.empty((40, columns), np.float32), None, ThreadPool(1))
        np.testing.assert_allclose(out, A @ B, rtol=1e-5)
    assert list(packed) == [(8, 1)]


def test_few_columns_of_huge_sparse_matrices_are_not_packed_for_them() -> None:
    A = sp.eye_array(300_000, format="csr", dtype=np.float32)
    product = WeightsProduct(ThreadPool(1), sp.csr_array(A), BARE)
    B = np.random.default_rng(6).random((300_000, 3), np.float32)
    np.testing.assert_array_equal(product.multiply(B), B)
    assert not isinstance(product._choices[3, layout_of(B)].kernel, FewColumnsProduct)


def test_a_is_taken_as_it_is_where_there_is_little_to_do() -> None:
    little, much, long = random((6, 762), 0.1), random((800, 800), 0.2), random((50, 9000), 1e-3)
    for A, columns, expected in (
        (little, 161, DirectProduct), (much, 512, StreamProduct),
        (long, 15, DirectProduct),  # to copy B would take most of the time
        (random((300, 300), 0.2), 8, FewColumnsProduct),
    ):  # fmt: skip
        product, B = WeightsProduct(ThreadPool(1), A, BARE), np.ones((A.shape[1], columns), "f4")
        np.testing.assert_allclose(product.multiply(B), A @ B, rtol=1e-5)
        assert isinstance(product._choices[columns, layout_of(B)].kernel, expected)


def test_descriptions_tell_apart_how_b_lies_in_memory() -> None:
    product = WeightsProduct(ThreadPool(1), random((40, 30), 0.3), BARE)
    wide, odd = np.ones((30, 64), np.float32), np.ones((30, 49), np.float32)
    for offset in (0, 16):
        product.multiply(at_offset(wide, offset)[0])
    for B in (odd[:, :48], odd, wide.T[:30, :16]):
        product.multiply(B)
    begins = [line.split(":")[0] for line in product.describe().split("\n")]
    assert begins == [
        "B of 64 columns in C order, rows aligned to 64 bytes",
        "B of 64 columns in C order, rows of whole 64 bytes, address not a multiple of 64",
        "B of 48 columns in C order, rows of whole 64 bytes, "
        "not contiguous or not whole 64 bytes apart",
        "B of 49 columns in C order",
        "B of 16 columns in Fortran order",
    ]
