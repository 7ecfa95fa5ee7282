"""Fused attention over what decides how it runs: threads, heads, blocks, stages, widths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from guard_pages import array_before_a_guard_page

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.attention import handle, packing
from portable_spdnn_cpu.attention.handle import (
    AttentionBuffers,
    SparseAttention,
    block_of_queries,
)
from portable_spdnn_cpu.attention.kernel import attend, attend_heads
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.sddmm import handle as sddmm
from portable_spdnn_cpu.sddmm.operands import with_contiguous_rows
from portable_spdnn_cpu.sddmm.register_tile import RegisterTile, most_blocks, register_tile


def dense_attention(mask: Any, Q: Any, K: Any, V: Any, scale: float) -> Any:
    """Softmax over a dense matrix in float64, -inf where the mask has nothing."""
    Q, K, V = (one.astype(np.float64) for one in (Q, K, V))
    scores = np.where(mask.toarray(), scale * Q @ K.transpose(0, 2, 1), -np.inf)
    most = scores.max(axis=2, keepdims=True, initial=-1e300)
    weights = np.exp(scores - most)
    totals = weights.sum(axis=2, keepdims=True)
    return np.divide(weights, totals, where=totals > 0, out=np.zeros_like(weights)) @ V


def check(mask: Any, threads: int, heads: int, d: int, d_v: int, dtype: Any = np.float32) -> None:
    rng = np.random.default_rng(1)
    Q = rng.standard_normal((heads, mask.shape[0], d)).astype(dtype)
    K = rng.standard_normal((heads, mask.shape[1], d)).astype(dtype)
    V = rng.standard_normal((heads, mask.shape[1], d_v)).astype(dtype)
    attention = SparseAttention(ThreadPool(threads), [mask], d)
    found = attention(Q, K, V, d**-0.5)
    expected = dense_attention(mask, Q, K, V, d**-0.5)
    tolerance = 2e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    assert str(mask.nnz) in attention.describe()


def placed(kind: str, array: Any) -> Any:
    """Return the numbers of an array of shape (heads, length, columns) in memory of some kind.

    What is a part of a larger array has NaN around.
    """
    heads, length, columns = array.shape
    if kind == "heads fused":  # as one product makes Q, K and V of all heads
        found = np.full((length, heads, 3, columns), np.nan, array.dtype)[:, :, 1]
        found = found.transpose(1, 0, 2)
    elif kind == "columns padded":
        found = np.full((heads, length, columns + 5), np.nan, array.dtype)[..., 2:-3]
    elif kind == "one of several":
        found = np.full((2 * heads, length + 7, columns), np.nan, array.dtype)[1::2, 4:-3]
    elif kind == "items apart":
        found = np.full((heads, length, 2 * columns), np.nan, array.dtype)[..., ::2]
    elif kind == "backwards":
        found = np.full(array.shape, np.nan, array.dtype)[::-1, ::-1]
    else:
        assert kind == "misaligned"
        raw = np.empty(array.nbytes + 1, np.uint8)[1:]
        found = raw.view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


READ_WHERE_THEY_ARE = ["heads fused", "columns padded", "one of several"]
COPIED = ["items apart", "backwards", "misaligned"]


@pytest.fixture
def mask() -> Any:
    return ps.masks.union(ps.masks.band(330, 70), ps.masks.random(330, 0.9, seed=4))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("heads", [1, 2, 5])
def test_threads_share_heads_or_blocks_of_queries(mask: Any, threads: int, heads: int) -> None:
    check(mask, threads, heads, 32, 32)


@pytest.mark.parametrize("size", [64, 256])
@pytest.mark.parametrize("block", [16, 128])
def test_stages_are_joined(
    mask: Any, size: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "block_of_queries", lambda *arguments: size)
    monkeypatch.setattr(packing, "block_of_keys", lambda keys, row_bytes: block)
    monkeypatch.setattr(packing, "ENTRIES_EACH", 0)
    monkeypatch.setattr(handle, "cache_bytes", lambda level: 1 << 12)  # stages of a block each
    check(mask, 2, 2, 16, 16)


def test_more_tiles_than_are_scored_at_once() -> None:
    check(ps.masks.band(40, 3000, keys=1000), 1, 2, 16, 16)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("d", "d_v"), [(1, 1), (48, 80), (129, 33), (64, 256)])
def test_widths_of_heads(mask: Any, d: int, d_v: int, dtype: Any) -> None:
    check(mask, 2, 1, d, d_v, dtype)


def test_register_tiles_of_shorter_vectors_give_the_same(
    mask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shorter(itemsize: int, d: int, d_v: int, in_place: bool) -> RegisterTile:
        tile, most = register_tile(itemsize, d, d_v, 32, 16, in_place), most_blocks(itemsize)
        parts = min(tile.key_part, most), min(tile.value_part, most)
        return tile._replace(key_part=parts[0], value_part=parts[1])

    monkeypatch.setattr(handle, "register_tile", shorter)
    check(mask, 1, 2, 64, 64)


def test_heads_of_other_sizes_compile_nothing(mask: Any) -> None:
    kernels: list[Any] = [attend, attend_heads]
    for heads in (1, 8):
        check(mask, 1, heads, 16, 16)
    compiled = [len(kernel.signatures) for kernel in kernels]
    few = ps.masks.random(330, 0.99, seed=1)  # whose rows may be read in place
    for heads in (1, 8):
        for d, d_v in ((100, 33), (64, 128), (17, 300)):
            check(mask, 1, heads, d, d_v)
            check(few, 1, heads, d, d_v)
    assert [len(kernel.signatures) for kernel in kernels] == compiled


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [16, 80])
@pytest.mark.parametrize("layout", ["heads first", "keys first", "shared"])
def test_rows_of_a_few_entries_are_read_in_place(
    layout: str, d: int, threads: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    keys = 480 // d // 2
    pattern = rng.random((70, keys)) < 4 / 70
    pattern[1], pattern[2, -1] = False, True
    mask = sp.csr_array(pattern.astype(np.float32))
    Q = rng.standard_normal((2, 70, d)).astype(dtype)
    rows = [array_before_a_guard_page(2 * keys * d, dtype) for _ in "KV"]
    if layout == "keys first":
        K, V = (each.reshape(keys, 2, d).transpose(1, 0, 2) for each in rows)
    else:
        K, V = (each.reshape(2, keys, d) for each in rows)
    K[...], V[...] = rng.standard_normal((2, 2, keys, d))
    if layout == "shared":
        K, V = (np.broadcast_to(each[1:], (2, keys, d)) for each in (K, V))
    for module in (handle, sddmm):
        monkeypatch.setattr(module, "worth_waking", lambda workers, multiply_adds: workers)
    monkeypatch.delattr(AttentionBuffers, "operands")
    monkeypatch.delattr(sddmm, "pack_rows")
    attention = SparseAttention(ThreadPool(threads), [mask], d)
    expected = dense_attention(mask, Q, K, V, 0.25)
    close = 2e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(attention(Q, K, V, 0.25), expected, rtol=close, atol=close)
    products = 0.25 * Q.astype(np.float64) @ K.astype(np.float64).transpose(0, 2, 1)
    for found, every in zip(
        sddmm.sampled_products(ThreadPool(threads), [mask], Q, K, 0.25), products, strict=True
    ):
        expected = np.where(pattern, every, 0)
        np.testing.assert_allclose(found.toarray(), expected, rtol=close, atol=10 * close)


@pytest.mark.parametrize("kind", [*READ_WHERE_THEY_ARE, *COPIED])
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_operands_anywhere_in_memory_give_the_same(
    mask: Any, kind: str, heads: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (handle, sddmm):
        monkeypatch.setattr(module, "worth_waking", lambda workers, multiply_adds: workers)
    rng = np.random.default_rng(7)
    Q, K, V = (rng.standard_normal((heads, 330, d)).astype(np.float32) for d in (19, 19, 33))
    V[-1, 200, 3] = 1e32  # so large that its queries are computed once more
    workers = ThreadPool(threads)
    expected = SparseAttention(workers, [mask], 19)(Q, K, V, 0.25)
    operands = [placed(kind, one) for one in (Q, K, V)]
    found = SparseAttention(workers, [mask], 19)(*operands, 0.25)
    np.testing.assert_array_equal(found, expected)
    dense = dense_attention(mask, Q, K, V, 0.25)
    np.testing.assert_allclose(found, dense, rtol=2e-5, atol=2e-5)
    assert found.max() > 1e25
    products = sddmm.sampled_products(workers, [mask], Q, K, 0.25)
    for one, other in zip(
        sddmm.sampled_products(workers, [mask], *operands[:2], 0.25), products, strict=True
    ):
        np.testing.assert_array_equal(one.data, other.data)


def test_which_rows_of_heads_are_copied() -> None:
    def is_copied(given: Any) -> bool:
        return with_contiguous_rows(given) is not given

    for heads in (1, 2):
        array = np.random.default_rng(8).standard_normal((heads, 5, 3))
        for kind in [*READ_WHERE_THEY_ARE, *COPIED]:
            assert is_copied(placed(kind, array)) == (kind in COPIED), kind
        assert not is_copied(np.broadcast_to(array[:1], (4, 5, 3)))  # one head for all
        assert is_copied(np.broadcast_to(array[:, :1], array.shape))  # one row for all


def test_nothing_behind_the_last_row_of_a_head_is_read(mask: Any) -> None:
    heads, length, d = 2, 50, 5
    part, rng = sp.csr_array(mask[:length, :length]), np.random.default_rng(9)
    operands = [rng.standard_normal((heads, length, d)).astype(np.float32) for _ in range(3)]
    ends = []
    for one in operands:
        memory = array_before_a_guard_page(length * heads * d, np.float32)
        ends.append(memory.reshape(length, heads, d).transpose(1, 0, 2))
        ends[-1][...] = one
    attention = SparseAttention(ThreadPool(1), [part], d)
    np.testing.assert_array_equal(attention(*ends, 1.0), attention(*operands, 1.0))


def test_few_queries_that_see_the_same_keys_make_no_tiles() -> None:
    pattern = np.zeros((8, 200))
    pattern[:, -32:] = 1
    attention = SparseAttention(ThreadPool(1), [sp.csr_array(pattern)], 16)
    assert "0 dense tiles" in attention.describe()
    check(sp.csr_array(pattern), 1, 2, 16, 15)  # V has to be padded
    check(sp.csr_array(np.ones((9, 200))), 1, 2, 16, 16)  # enough entries for tiles


def test_a_part_of_a_larger_array_is_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    mask = sp.csr_array((rng.random((3, 40)) < 0.3).astype(np.float32))
    Q, kept = rng.standard_normal((3, 3, 16)), rng.standard_normal((2, 5, 100, 64))
    K, V = kept[:, 1:4, 30:70, 16:32]  # some heads, keys and columns of a cache
    V[1, 7, 2] = np.inf
    expected = SparseAttention(ThreadPool(1), [mask], 16)(Q, K.copy(), V.copy(), 0.2)
    monkeypatch.delattr(AttentionBuffers, "operands")
    found = SparseAttention(ThreadPool(1), [mask], 16)(Q, K, V, 0.2)
    np.testing.assert_array_equal(found, expected)


def test_what_is_not_finite_is_the_same_in_place_and_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(5)
    mask = sp.csr_array((rng.random((6, 50)) < 0.3).astype(np.float32))
    Q, K, V = (rng.standard_normal((3, rows, 32)).astype(np.float32) for rows in (6, 50, 50))
    V[0, 7, 3], V[1, 49], K[2, 11, 0], K[0, 20, 5] = np.inf, np.nan, np.nan, -np.inf
    attention = SparseAttention(ThreadPool(1), [mask], 32)
    with monkeypatch.context() as patched:
        patched.delattr(AttentionBuffers, "operands")
        in_place = attention(Q, K, V, 0.2)
    monkeypatch.setattr(handle, "read_in_place", lambda entries, *operands: False)
    np.testing.assert_array_equal(in_place, attention(Q, K, V, 0.2))
    assert 0 < np.isfinite(in_place).all(axis=2).sum() < 18


def test_largest_scores_may_come_late_or_early() -> None:
    mask = ps.masks.union(ps.masks.band(200, 40), ps.masks.random(200, 0.8, seed=1))
    for rising in (1.0, -1.0):
        K = np.linspace(0, 500 * rising, 200)[None, :, None]
        Q, V = np.ones((1, 200, 1)), np.random.default_rng(0).standard_normal((1, 200, 3))
        found = SparseAttention(ThreadPool(1), [mask], 1)(Q, K, V, 1.0)
        np.testing.assert_allclose(found, dense_attention(mask, Q, K, V, 1.0), atol=1e-12)


def test_values_that_are_not_finite_reach_those_who_see_them(mask: Any) -> None:
    rng = np.random.default_rng(2)
    Q, K, V = rng.standard_normal((3, 3, 330, 16)).astype(np.float32)
    V[1, 17, 3], V[2, 200] = np.inf, np.nan
    seen = mask.toarray()
    for threads in (1, 2):
        found = SparseAttention(ThreadPool(threads), [mask], 16)(Q, K, V, 0.25)
        assert np.isfinite(found[0]).all()
        np.testing.assert_array_equal(np.isinf(found[1, :, 3]), seen[:, 17])
        assert np.isfinite(np.delete(found[1], 3, axis=1)).all()
        np.testing.assert_array_equal(np.isnan(found[2]).all(axis=1), seen[:, 200])
        np.testing.assert_array_equal(np.isnan(found[2]).any(axis=1), seen[:, 200])


def test_a_handle_tells_where_entries_went() -> None:
    masks = [ps.masks.causal(16), ps.masks.strided(16, 16)]
    told = SparseAttention(ThreadPool(1), masks, 64).describe().splitlines()
    assert told == [
        "Head 0: 136 entries of 16 x 16; 100 of them in 1 dense tiles of 8 queries by 16 keys, "
        "36 one by one in blocks of 16 keys.",
        "Head 1: 16 entries of 16 x 16; 0 of them in 0 dense tiles of 8 queries by 16 keys, "
        "16 one by one in blocks of 16 keys.",
    ]


def test_blocks_of_queries_are_whole_groups_and_enough_for_all_threads() -> None:
    assert block_of_queries(4096, 8, 2, 1 << 30) == 1024
    assert block_of_queries(4096, 8, 2, 1 << 10) == 256
    assert block_of_queries(1000, 1, 8, 1 << 10) == 64
    assert block_of_queries(13, 1, 1, 1 << 10) == 16


@pytest.mark.parametrize("most_packed", [1, 1 << 28])
@pytest.mark.parametrize("density", [0.05, 0.6])  # few entries for each key, and many
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_members_of_a_batch_are_read_where_they_are(
    monkeypatch: pytest.MonkeyPatch, dtype: Any, density: float, most_packed: int
) -> None:
    monkeypatch.setattr(handle, "MAX_PACKED", most_packed)
    rng = np.random.default_rng(1)
    mask = sp.csr_array((rng.random((30, 90)) < density).astype(np.float32))

    def fused(length: int) -> Any:
        """Return an array of 4 members of 3 heads, which lie side by side, row by row."""
        return rng.standard_normal((4, length, 3, 32)).astype(dtype).transpose(0, 2, 1, 3)

    for threads in (1, 2):
        prepared = SparseAttention(ThreadPool(threads), [mask], 32)
        for ordered in ((), (1, 2), (0,), (2,)):  # those of Q, K and V that are in C order
            operands = [fused(length) for length in (30, 90, 90)]
            operands[2][1, 2, 5, 7] = np.nan
            operands[2][3, 0, 8] = np.inf
            for number in ordered:
                operands[number] = operands[number].copy()
            found = prepared(*operands, 0.3)
            for member, given in enumerate(zip(*operands, strict=True)):
                np.testing.assert_allclose(
                    found[member], prepared(*given, 0.3), rtol=1e-5, atol=1e-6, err_msg=str(ordered)
                )
            for index in np.ndindex(4, 3):
                expected = oracle.attention(mask, *(one[index] for one in operands), 0.3)
                np.testing.assert_allclose(found[index], expected, rtol=2e-4, atol=2e-5)
