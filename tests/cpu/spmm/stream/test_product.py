"""The stream kernel: every variant against plain loops, over shapes that hurt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from guard_pages import array_before_a_guard_page, array_behind_a_guard_page
from hypothesis import given, settings
from hypothesis import strategies as st
from noted_calls import noted_calls
from offsets import at_offset
from vector_lengths import needs_avx2, needs_avx512, needs_sse2, output_with_vectors

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.jit.target import has_slow_word_loads
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import aligned_empty
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.stream import kernel, microkernels
from portable_spdnn_cpu.spmm.stream import product as stream_product
from portable_spdnn_cpu.spmm.stream.entries import PADDING
from portable_spdnn_cpu.spmm.stream.microkernels import LONG_ROW, MAX_VECTORS, pairs
from portable_spdnn_cpu.spmm.stream.packing import BY_OFFSETS, PAIR, WINDOW, StreamPart, pack_rows
from portable_spdnn_cpu.spmm.stream.panels import FAR_B_BYTES
from portable_spdnn_cpu.spmm.stream.product import StreamProduct, StreamVariant

POOLS = ThreadPool(1), ThreadPool(3)
BARE = Epilogue()


def matrix(seed: int, shape: tuple[int, int], density: float, dtype: Any) -> Any:
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random(shape) < density, rng.uniform(-1, 1, shape), 0)
    return sp.csr_array(dense.astype(dtype))


def check(product: StreamProduct, A: Any, B: Any, **finish: Any) -> None:
    """Multiply in all orders of B and C, and compare with the oracle."""
    sums = oracle.spmm(A, B)
    expected = oracle.finish(sums, **{"bias": np.zeros(1), **finish})
    residual = finish.get("residual")
    for order_of_B in "CF":
        for order_of_C in "CF":
            for pool in POOLS:
                out = np.full(sums.shape, np.nan, A.dtype, order=order_of_C)
                product.multiply(np.asarray(B, order=order_of_B), out, residual, pool)
                close = 2e-5 if A.dtype == np.float32 else 1e-12
                np.testing.assert_allclose(out, expected, rtol=close, atol=close)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1000), st.integers(1, 40), st.integers(1, 90), st.integers(1, 140),
    st.sampled_from([0.0, 0.05, 0.3, 1.0]), st.sampled_from([np.float32, np.float64]),
    st.integers(1, 8), st.integers(1, 100), st.integers(1, 3), st.booleans(),
)  # fmt: skip
def test_a_product(
    seed: int, rows: int, inner: int, columns: int, density: float, dtype: Any,
    vectors: int, k_block: int, parts: int, pack: bool,
) -> None:  # fmt: skip
    A = matrix(seed, (rows, inner), density, dtype)
    B = np.random.default_rng(seed).uniform(-1, 1, (inner, columns)).astype(dtype)
    variant = StreamVariant(vectors, k_block, parts)
    check(StreamProduct(A, BARE, variant, pack), A, B)


def test_code_that_transposes_is_asked_for_where_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    for name in ("loading_code", "storing_code"):
        given = getattr(stream_product, name)

        def noted(dtype: Any, name: str = name, given: Any = given) -> int:
            asked.append(name)
            return int(given(dtype))

        monkeypatch.setattr(stream_product, name, noted)
    A, B = matrix(3, (20, 30), 0.3, np.float32), np.ones((30, 40), np.float32)
    expected = {"CC": set(), "FC": {"loading_code"}, "CF": {"loading_code", "storing_code"}}
    for orders, wanted in expected.items():
        asked.clear()
        out = np.empty((20, 40), np.float32, order=orders[1])
        product = StreamProduct(A, BARE, StreamVariant(2, 16))
        product.multiply(np.asarray(B, order=orders[0]), out, None, POOLS[0])
        assert set(asked) == wanted
        np.testing.assert_allclose(out, A @ B, rtol=1e-5)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "tanh"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_epilogue_comes_with_the_last_block(activation: str, dtype: Any) -> None:
    rng = np.random.default_rng(4)
    A, B = matrix(4, (19, 50), 0.3, dtype), rng.uniform(-2, 2, (50, 37)).astype(dtype)
    bias, residual = rng.uniform(-1, 1, 19).astype(dtype), rng.uniform(-1, 1, (19, 37))
    for lower, upper in ((None, None), (-0.2, 0.7)):
        epilogue = Epilogue(bias, activation, lower, upper).prepared("spmm", 19, np.dtype(dtype))
        for variant in (
            StreamVariant(2, 16), StreamVariant(3, 50, 2), StreamVariant(1, 16, 2),
        ):  # fmt: skip
            for added in (None, residual.astype(dtype)):
                check(
                    StreamProduct(A, epilogue, variant), A, B, bias=bias[:, None],
                    activation=activation, lower=lower, upper=upper, residual=added,
                )  # fmt: skip


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_aligned_operands_are_read_in_place(dtype: Any, pack: bool) -> None:
    A = matrix(8, (37, 53), 0.2, dtype)
    for columns in (16, 80, 144, 400):
        B = aligned_empty((53, columns), dtype)
        B[...] = np.random.default_rng(8).uniform(-1, 1, B.shape)
        bias = np.linspace(-1, 1, 37).astype(dtype)
        epilogue = Epilogue(bias, "relu").prepared("spmm", 37, np.dtype(dtype))
        for panels in (1, 2, 30):
            for parts in (1, 2):
                variant = StreamVariant(3, 53, parts, panels, in_place=True)
                product = StreamProduct(A, epilogue, variant, pack)
                check(product, A, B, bias=bias[:, None], activation="relu")


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("variant", [
    StreamVariant(3, 53, 1, 2, in_place=True), StreamVariant(8, 53, 2, 1, in_place=True),
    StreamVariant(1, 20, 1, 30, in_place=True), StreamVariant(5, 20, 2), StreamVariant(8, 53),
])  # fmt: skip
def test_panels_that_begin_before_the_first_column(
    variant: StreamVariant, dtype: Any, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Last vectors may be halved.
    monkeypatch.setattr(microkernels, "has_cheap_halves", lambda _: True)
    item, rng = np.dtype(dtype).itemsize, np.random.default_rng(11)
    A, bias = matrix(11, (19, 53), 0.2, dtype), np.linspace(-1, 1, 19).astype(dtype)
    epilogue = Epilogue(bias, activation, -0.5).prepared("spmm", 19, np.dtype(dtype))
    product = StreamProduct(A, epilogue, variant)
    for columns in (16, 96, 112, 3136 // item):  # panels that are copied begin so in the last alone
        B = rng.uniform(-1, 1, (53, columns)).astype(dtype)
        for residual in (None, rng.uniform(-1, 1, (19, columns)).astype(dtype)):
            expected = oracle.finish(
                oracle.spmm(A, B), bias=bias[:, None], activation=activation, lower=-0.5,
                residual=residual,
            )  # fmt: skip
            for offset in (0, item, 16, 64 - item):
                operand, _ = at_offset(B, offset)
                for out_offset in {offset, 16}:
                    for turned in (operand, np.asfortranarray(B)):
                        out, whole = at_offset(np.zeros(expected.shape, dtype), out_offset, 7.0)
                        product.multiply(turned, out, residual, POOLS[offset == 16])
                        close = 2e-5 if dtype == np.float32 else 1e-12
                        np.testing.assert_allclose(out, expected, rtol=close, atol=close)
                        out[...] = 7.0
                        assert (whole == 7.0).all()  # nothing beside was written


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("vectors", [1, 4])
def test_rows_are_activated_some_at_a_time(vectors: int, pack: bool) -> None:
    A, rng = matrix(4, (151, 40), 0.2, np.float32), np.random.default_rng(4)
    bias = rng.uniform(-1, 1, 151).astype(np.float32)
    epilogue = Epilogue(bias, "gelu", upper=0.5).prepared("spmm", 151, np.dtype(np.float32))
    B = rng.uniform(-1, 1, (40, 70)).astype(np.float32)
    for k_block in (17, 40):
        product = StreamProduct(A, epilogue, StreamVariant(vectors, k_block), pack)
        check(product, A, B, bias=bias[:, None], activation="gelu", upper=0.5)


def test_sums_that_the_second_level_hardly_holds() -> None:
    rows = kernel.FAR_SUMS // 64 + 70
    A = matrix(6, (rows, 20), 0.3, np.float32)
    B = np.random.default_rng(6).uniform(-1, 1, (20, 16)).astype(np.float32)
    check(StreamProduct(A, BARE, StreamVariant(1, 7)), A, B)


def test_a_product_may_be_used_with_one_layout_after_another() -> None:
    A = matrix(9, (20, 33), 0.3, np.float32)
    product = StreamProduct(A, BARE, StreamVariant(2, 33, 1, 2, in_place=True))
    wide = np.random.default_rng(9).uniform(-1, 1, (33, 96)).astype(np.float32)
    aligned = aligned_empty((33, 96), np.float32)
    aligned[...] = wide
    for B in (
        aligned,
        wide[:, :96:3],
        aligned[:, :64],
        aligned[:, 16:80],
        aligned[:, 3:83],
        wide[:, 1:50],
        aligned,
        np.asfortranarray(wide),
    ):
        for pool in POOLS:
            out = np.full((20, B.shape[1]), np.nan, np.float32)
            product.multiply(B, out, None, pool)
            np.testing.assert_allclose(out, oracle.spmm(A, B), rtol=2e-5, atol=2e-5)


def test_axes_of_length_one_have_any_stride() -> None:
    row, column = np.arange(1.0, 8), sp.csr_array(np.arange(1.0, 5)[:, None])
    operands = (row[None, :], np.broadcast_to(row, (1, 7)), row[::2][None, :])
    for B in operands:
        out = np.empty((4, B.shape[1]))
        StreamProduct(column, BARE, StreamVariant(1, 1)).multiply(B, out, None, POOLS[1])
        np.testing.assert_array_equal(out, column @ B)
    across = sp.csr_array(np.ones((3, 7)))
    for B in (row[:, None], np.broadcast_to(row[:, None], (7, 1)), np.full((7, 7), 2.0)[:, 3:4]):
        out = np.empty((3, 1))
        StreamProduct(across, BARE, StreamVariant(1, 4)).multiply(B, out, None, POOLS[1])
        np.testing.assert_array_equal(out, across @ B)


def test_strided_and_unaligned_operands() -> None:
    A = matrix(5, (20, 33), 0.3, np.float32)
    wide = np.random.default_rng(5).uniform(-1, 1, (66, 101)).astype(np.float32)
    product = StreamProduct(A, BARE, StreamVariant(2, 20))
    for B in (wide[:33, 1:50], wide[::2, 3:52], wide[:33, ::2], wide[32::-1, :49], wide.T[1:34]):
        out = np.empty((20, B.shape[1]), np.float32)
        product.multiply(B, out, None, POOLS[0])
        np.testing.assert_allclose(out, oracle.spmm(A, B), rtol=2e-5, atol=2e-5)
    raw = np.zeros(33 * 40 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(33, 40)
    raw[:] = wide[:33, :40]
    out = np.empty((20, 40), np.float32)
    product.multiply(raw, out, None, POOLS[0])
    np.testing.assert_allclose(out, oracle.spmm(A, raw), rtol=2e-5, atol=2e-5)


def test_nothing_beside_the_result_is_written() -> None:
    A, B = matrix(6, (5, 8), 0.5, np.float32), np.ones((8, 19), np.float32)
    around = np.full((7, 19), 7, np.float32)
    StreamProduct(A, BARE, StreamVariant(4, 8)).multiply(B, around[1:6], None, POOLS[0])
    assert (around[[0, 6]] == 7).all()
    np.testing.assert_allclose(around[1:6], oracle.spmm(A, B), rtol=1e-5, atol=1e-5)


def test_only_stored_entries_meet_infinity() -> None:
    A = sp.csr_array(np.array([[1.0, 0, 2], [0, 0, 3], [0, 0, 0]], np.float32))
    B = np.ones((3, 17), np.float32)
    B[1], B[0, 3] = np.nan, np.inf
    out = np.empty((3, 17), np.float32)
    StreamProduct(A, BARE, StreamVariant(2, 2)).multiply(B, out, None, POOLS[0])
    assert out[0, 3] == np.inf
    out[0, 3] = 3
    np.testing.assert_array_equal(out, np.repeat([[3.0], [3], [0]], 17, axis=1))


@pytest.mark.parametrize(
    ("dtype", "variant"),
    [(np.float32, StreamVariant(3, 8)), (np.float64, StreamVariant(6, 16, 2))],
)
def test_a_b_so_large_that_its_rows_are_prefetched(dtype: Any, variant: StreamVariant) -> None:
    if FAR_B_BYTES > 1 << 26:
        pytest.skip("on this processor B would take more than 64 MiB")
    A = matrix(3, (9, 20), 0.3, dtype)
    columns = FAR_B_BYTES // (20 * A.dtype.itemsize) + 7
    B = np.random.default_rng(4).uniform(-1, 1, (20, columns)).astype(dtype)
    expected = A @ B
    for pool in POOLS:
        out = np.full(expected.shape, np.nan, dtype)
        StreamProduct(A, BARE, variant).multiply(B, out, None, pool)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_wide_matrices() -> None:
    A = sp.csr_array(([1.0, 2, 3], [0, 69_999, 70_000], [0, 2, 3]), shape=(2, 70_001))
    B = np.arange(70_001 * 3, dtype=np.float64).reshape(-1, 3)
    variants = (
        StreamVariant(1, 70_001), StreamVariant(8, 69_000), StreamVariant(8, 512),
        StreamVariant(1, 70_001, in_place=True),
    )  # fmt: skip
    for variant in variants:
        out = np.empty((2, 3))
        StreamProduct(A, BARE, variant).multiply(B, out, None, POOLS[0])
        np.testing.assert_array_equal(out, A @ B)


@pytest.mark.parametrize(("vectors", "paired"), [(1, True), (3, True), (8, False)])
@pytest.mark.parametrize(
    ("k_block", "density"), [(64, 0.1), (64, 0.5), (7, 0.02), (1, 0.05), (200, 0.1), (200, 0.0)]
)
def test_rows_of_a_block_are_ordered_by_count_and_none_is_lost(
    k_block: int, density: float, vectors: int, paired: bool
) -> None:
    A = matrix(7, (200, 200), density, np.float32)
    begin, end, blocks = 10, 195, -(-200 // k_block)
    part = pack_rows(A, begin, end, k_block, vectors * 8, paired)
    assert part.offsets.dtype == np.uint16
    # Numbers that are loaded together may reach beyond the last entry.
    assert part.offsets.size == part.values.size == part.first_entry[-1] + PADDING
    assert part.first_visit.size == blocks + 1
    found = np.zeros(A.shape)
    for block in range(blocks):
        visits = part.visits[part.first_visit[block] : part.first_visit[block + 1]]
        rows, counts = visits[:, 0], visits[:, 1] & ~PAIR
        # Rows of as many entries stay in their order; of one block, so many rows at a time.
        window = WINDOW if blocks == 1 else rows.size
        for start in range(0, rows.size, window):
            order = list(zip(counts, rows, strict=True))[start : start + window]
            assert order == sorted(order)
            if blocks == 1:
                numbers = range(begin + start, min(begin + start + window, end))
                assert sorted(rows[start : start + window]) == list(numbers)
        if block in (0, blocks - 1):
            assert sorted(rows) == list(range(begin, end))
        else:
            assert (counts > 0).all()
        entry, place = part.first_entry[block], 0
        while place < rows.size:
            count, together = counts[place], 1
            if paired and place + 1 < rows.size and counts[place + 1] == count:
                together = 2
            assert (visits[place, 1] >= PAIR) == (together == 2)
            for number in range(together):
                mine = slice(entry + number, entry + together * count, together)
                columns, left = np.divmod(part.offsets[mine], vectors * 8)
                assert not left.any()
                columns = columns + k_block * block
                assert (columns < k_block * (block + 1)).all()
                found[rows[place + number], columns] = part.values[mine]
            entry += together * count
            place += together
        assert entry == part.first_entry[block + 1]
    np.testing.assert_array_equal(found[begin:end], A.toarray()[begin:end])


def test_wide_blocks_are_not_packed() -> None:
    assert StreamVariant(1, 8192).packs(10_000)
    assert not StreamVariant(1, 8193).packs(10_000)
    assert StreamVariant(4, 10, in_place=True).packs(1 << 16)
    assert not StreamVariant(4, 70_000, in_place=True).packs((1 << 16) + 1)
    A = sp.csr_array(np.eye(2, 10_000))
    product = StreamProduct(A, BARE, StreamVariant(1, 9_000))
    assert product.blocks == 1
    assert "1 block of 10000 rows" in product.describe()


@pytest.mark.parametrize("variant", [StreamVariant(1, 9000), StreamVariant(4, 64, in_place=True)])
def test_a_prepared_matrix_is_a_copy(variant: StreamVariant) -> None:
    A, B = sp.csr_array(np.eye(2, 10_000)), np.ones((10_000, 64))
    product, out = StreamProduct(A, BARE, variant), np.empty((2, 64))
    A.data[:] = A.indices[:] = A.indptr[:] = 0
    product.multiply(B, out, None, POOLS[0])
    np.testing.assert_array_equal(out, 1)


def test_kernels_of_other_widths_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = noted_calls(monkeypatch, stream_product, "finishing_code")
    A = matrix(3, (20, 30), 0.3, np.float32)
    product, out = StreamProduct(A, BARE, StreamVariant(2, 16)), np.empty((20, 100), np.float32)
    for columns, vectors in ((64, [2]), (32, [2]), (15, [1]), (73, [2, 1]), (73, [])):
        asked.clear()
        product.multiply(
            np.ones((30, columns), np.float32), out[:, :columns].copy(), None, POOLS[0]
        )
        assert [key[0] for key in asked] == vectors


@pytest.mark.parametrize("activation", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_half_of_the_last_vector_is_computed_where_that_suffices(
    dtype: Any, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = noted_calls(monkeypatch, stream_product, "finishing_code")
    monkeypatch.setattr(microkernels, "has_cheap_halves", lambda _: True)
    rng, lanes = np.random.default_rng(7), BLOCK_BYTES // np.dtype(dtype).itemsize
    A, bias = matrix(7, (19, 50), 0.3, dtype), rng.uniform(-1, 1, 19).astype(dtype)
    finish = {"bias": bias[:, None], "lower": -0.2, "upper": 0.7, "activation": activation}
    epilogue = Epilogue(bias, activation, -0.2, 0.7).prepared("spmm", 19, np.dtype(dtype))
    for vectors in (1, 3):
        for last, halved in ((1, True), (lanes // 2, True), (lanes // 2 + 1, False)):
            columns = (vectors - 1) * lanes + last
            B = rng.uniform(-2, 2, (50, columns)).astype(dtype)
            asked.clear()
            for added in (None, rng.uniform(-1, 1, (19, columns)).astype(dtype)):
                product = StreamProduct(A, epilogue, StreamVariant(vectors, 16))
                check(product, A, B, residual=added, **finish)
            assert set(asked) == {(vectors, np.dtype(dtype), BY_OFFSETS, False, halved)}
    asked.clear()
    check(StreamProduct(A, BARE, StreamVariant(1, 50), pack=False), A, np.ones((50, 1), dtype))
    assert asked
    assert not any(halved for *_, halved in asked)


def test_a_call_is_prepared_once_for_all_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Any] = []
    prepare = StreamProduct._call_for

    def counted(self: StreamProduct, *arguments: Any) -> Any:
        prepared.append(arguments)
        return prepare(self, *arguments)

    monkeypatch.setattr(StreamProduct, "_call_for", counted)
    A = matrix(1, (20, 30), 0.3, np.float32)
    product, out = StreamProduct(A, BARE, StreamVariant(2, 16, 1)), np.empty((20, 24), np.float32)
    wide = np.random.default_rng(1).uniform(-1, 1, (30, 48)).astype(np.float32)
    whole = wide[:, :24].copy()
    # Rows of other lengths, columns, and what is copied as its rows are not in one piece.
    operands = [wide[:, :24], whole, np.asfortranarray(whole), wide[:, ::2], wide[::-1, :24]]
    for B in operands * 2:
        product.multiply(B, out, None, POOLS[0])
        np.testing.assert_allclose(out, A @ B, atol=1e-5)
    assert len(prepared) == 1


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("columns", [1, 24, 40])
def test_residuals_are_read_where_they_are(order: str, columns: int) -> None:
    rng = np.random.default_rng(3)
    A = matrix(1, (20, 30), 0.3, np.float32)
    B = np.asarray(rng.uniform(-1, 1, (30, columns)), np.float32, order=order)
    product = StreamProduct(A, BARE, StreamVariant(2, 16, 1))
    wide = np.full((45, 90), np.nan, np.float32)
    part = wide[5:25, 3 : 3 + columns]
    part[...] = rng.uniform(-1, 1, part.shape)
    turned = np.asfortranarray(wide)[5:25, 3 : 3 + columns]  # of the same numbers
    row, column = (part[:1], part[:, :1]) if order == "C" else (turned[:, :1], turned[:1])
    shared = np.broadcast_to(row, part.shape)  # one row for all, or one column
    apart = np.broadcast_to(column, part.shape)
    for residual, is_copied in (
        (part, order == "F"), (turned, order == "C" and columns > 1),
        (part.copy(order), False), (part[::-1, ::-1], columns > 1 or order == "F"),
        (part[::-1], order == "F"), (turned[:, ::-1], order == "C" and columns > 1),
        (shared, False), (apart, columns > 1 or order == "F"),
    ):  # fmt: skip
        found, stride = stream_product._with_stride(residual, order == "F")
        assert np.shares_memory(found, residual) != is_copied
        assert stride * 4 == found.strides[order == "F"]
        out = np.empty((20, columns), np.float32, order=order)
        product.multiply(B, out, residual, POOLS[0])
        np.testing.assert_allclose(out, A @ B + residual, atol=1e-5)


def output_of_products(size: int, folder: Path, wide: str = "skylake-avx512") -> str:
    script = Path(__file__).with_name("products_by_environment.py")
    return " ".join(output_with_vectors(size, script, folder, wide=wide))


# What is printed: whether loads of words are slow, the most vectors, and sums of one to so many.
@needs_avx512
def test_code_without_avx512(tmp_path: Path) -> None:
    assert output_of_products(32, tmp_path) == "False 6 4 2 2 1 1 1"


@needs_sse2
def test_code_without_avx(tmp_path: Path) -> None:
    assert output_of_products(16, tmp_path) == "False 3 2 1 1"


@needs_avx512
def test_code_for_a_zen_4_computes_half_of_a_vector(tmp_path: Path) -> None:
    script = Path(__file__).with_name("halved_kernel.py")
    assert output_with_vectors(64, script, tmp_path, wide="znver4") == ["True", "ymm", "zmm"]
    (tmp_path / "other").mkdir()
    found = output_with_vectors(64, script, tmp_path / "other", wide="znver5")
    assert found == ["False", "zmm"]


@needs_avx2
def test_code_for_avx2_computes_one_of_two_registers(tmp_path: Path) -> None:
    script = Path(__file__).with_name("halved_kernel.py")
    assert output_with_vectors(32, script, tmp_path) == ["True", "ymm", "True"]


@needs_avx512
def test_code_with_other_loads_than_here(tmp_path: Path) -> None:
    slow = not has_slow_word_loads()
    wide = "znver5" if slow else "skylake-avx512"
    assert output_of_products(64, tmp_path, wide) == f"{slow} 8 4 4 2 2 2 2 2 2"


@pytest.mark.parametrize("vectors", [2, MAX_VECTORS])
@pytest.mark.parametrize("in_place", [False, True])
def test_nothing_is_read_behind_the_padding(vectors: int, in_place: bool, monkeypatch: Any) -> None:
    def guarded(*arguments: Any) -> StreamPart:
        part = pack_rows(*arguments)
        copies = [array_before_a_guard_page(array.size, array.dtype) for array in part[3:]]
        for copy, array in zip(copies, part[3:], strict=True):
            copy[:] = array
        return StreamPart(*part[:3], *copies)

    monkeypatch.setattr(stream_product, "pack_rows", guarded)
    rng = np.random.default_rng(0)
    B = aligned_empty((64, 16 * vectors), np.float32)
    B[:] = rng.integers(-4, 5, B.shape)
    for count in (0, 1, 3, LONG_ROW - 1, LONG_ROW, LONG_ROW + 1, LONG_ROW + 7, LONG_ROW + 8):
        for rows in (1, 2):  # the last two are a pair
            dense = np.zeros((3 * rows, 64), np.float32)
            dense[-rows:, :count] = rng.integers(1, 5, (rows, count))
            product = StreamProduct(
                sp.csr_array(dense), BARE, StreamVariant(vectors, 64, in_place=in_place)
            )
            out = aligned_empty((3 * rows, B.shape[1]), np.float32)
            product.multiply(B, out, None, POOLS[0])
            np.testing.assert_array_equal(out, dense @ B)


@pytest.mark.parametrize("missing", [1, 7, 8, 9, 15])
@pytest.mark.parametrize("array", [array_before_a_guard_page, array_behind_a_guard_page])
def test_nothing_is_read_beside_operands(
    array: Any, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Last vectors may be halved.
    monkeypatch.setattr(microkernels, "has_cheap_halves", lambda _: True)
    rng, columns = np.random.default_rng(1), 48 - missing
    A = matrix(1, (19, 20), 0.3, np.float32)
    B, residual, out = (
        array(rows * columns, np.float32).reshape(rows, columns) for rows in (20, 19, 19)
    )
    for operand in (B, residual):
        operand[:] = rng.uniform(-1, 1, operand.shape)
    for vectors in (1, 3):
        product = StreamProduct(A, BARE, StreamVariant(vectors, 16))
        product.multiply(B, out, residual, POOLS[0])
        np.testing.assert_allclose(out, A @ B + residual, atol=1e-5)


@pytest.mark.parametrize("vectors", [1, MAX_VECTORS])
def test_rows_with_as_many_entries_are_paired(vectors: int, monkeypatch: Any) -> None:
    packed: list[Any] = []

    def noted(*arguments: Any) -> Any:
        packed.append(pack_rows(*arguments))
        return packed[-1]

    monkeypatch.setattr(stream_product, "pack_rows", noted)
    A = sp.csr_array(np.eye(7, 20, dtype=np.float32))
    StreamProduct(A, BARE, StreamVariant(vectors, 20))
    counts = [1 + PAIR, 1, 1 + PAIR, 1, 1 + PAIR, 1, 1] if pairs(vectors) else [1] * 7
    assert packed[0].visits[:7, 1].tolist() == counts
