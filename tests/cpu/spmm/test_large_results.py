"""Results that caches do not hold: lines are prefetched, or stores are non-temporal."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytest
import scipy.sparse as sp
from llvmlite import ir

import portable_spdnn as ps
from portable_spdnn.epilogue import Epilogue
from portable_spdnn_cpu.jit.compilation import kernel
from portable_spdnn_cpu.layout import large_results
from portable_spdnn_cpu.layout.large_results import (
    NONTEMPORAL_BYTES,
    PREFETCH_BYTES,
    store_nontemporal,
)
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.machine.thread_pool import ALONE, ThreadPool
from portable_spdnn_cpu.spmm.clustered.product import ClusteredProduct
from portable_spdnn_cpu.spmm.dense_layout import empty_result
from portable_spdnn_cpu.spmm.direct import by_rows, job_words
from portable_spdnn_cpu.spmm.direct.prepared import DirectProduct
from portable_spdnn_cpu.spmm.stream.job_words import SHIFTED
from portable_spdnn_cpu.spmm.stream.product import StreamProduct, StreamVariant
from portable_spdnn_cpu.tiles.layer import ways_to_write

LARGE_BYTES = min(NONTEMPORAL_BYTES, 1 << 25)  # there is no such limit but on x86
INNER = 40
POOL = ThreadPool(2)
VARIANTS = (
    StreamVariant(8, INNER), StreamVariant(3, 16, 2), StreamVariant(4, INNER, 1, 2, in_place=True),
)  # fmt: skip
# Whole vectors in a row, and whole panels; a row that ends within a vector; few vectors.
SIZES = [
    (LARGE_BYTES, 1024, np.float32), (LARGE_BYTES, 1040, np.float32),
    (LARGE_BYTES, 520, np.float64), (LARGE_BYTES, 1030, np.float32), (LARGE_BYTES, 256, np.float32),
    (LARGE_BYTES, 40, np.float32), (PREFETCH_BYTES, 256, np.float32),
    (PREFETCH_BYTES, 129, np.float64), (PREFETCH_BYTES, 64, np.float32),
]  # fmt: skip


def operands(size: int, columns: int, dtype: Any) -> tuple[Any, Any, Any]:
    """Return A, B and A B, of a little more bytes than `size`; rows of A have 0 to 4 entries."""
    rows = size // (columns * np.dtype(dtype).itemsize) + 3
    rng = np.random.default_rng(columns)
    lengths = rng.integers(0, 5, rows)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    indices = rng.integers(0, INNER, indptr[-1]).astype(np.int32)
    A = sp.csr_array((rng.uniform(-1, 1, indices.size).astype(dtype), indices, indptr),
                     shape=(rows, INNER))  # fmt: skip
    A.sum_duplicates()
    B = rng.uniform(-1, 1, (INNER, columns)).astype(dtype)
    return A, B, A @ B


def aligned(B: Any) -> Any:
    """Return a copy of B whose first item lies on a cache line."""
    copy = empty_result(B.shape, B.dtype)
    copy[...] = B
    return copy


def places_for(shape: tuple[int, ...], dtype: Any, fortran: bool = False) -> Iterator[Any]:
    """Yield arrays of NaN that begin on a cache line, or within one; nothing beside is written."""
    item = np.dtype(dtype).itemsize
    size = int(np.prod(shape))
    for offset in (0, item, 16, BLOCK_BYTES - item):
        raw = empty_result((size + 2 * (BLOCK_BYTES // item),), np.dtype(dtype))
        raw[...] = np.nan
        begin = offset // item
        inside = raw[begin : begin + size]
        yield inside.reshape(shape[::-1]).T if fortran else inside.reshape(shape)
        assert np.isnan(raw[:begin]).all()
        assert np.isnan(raw[begin + size :]).all()


def compare(found: Any, expected: Any) -> None:
    """Fail where results differ by more than rounding."""
    assert found.shape == expected.shape
    close = 1e-5 if found.dtype == np.float32 else 1e-13
    assert np.abs(found - expected).max() <= close


@pytest.mark.parametrize(("size", "columns", "dtype"), SIZES)
def test_streamed_products(size: int, columns: int, dtype: Any) -> None:
    A, B, expected = operands(size, columns, dtype)
    B = aligned(B)
    for variant in VARIANTS:
        product = StreamProduct(A, Epilogue(), variant)
        for out in places_for(expected.shape, dtype):
            for pool in (ALONE, POOL):
                out[...] = np.nan
                product.multiply(B, out, None, pool)
                compare(out, expected)


@pytest.mark.parametrize(("size", "columns", "dtype"), SIZES)
def test_products_of_a_matrix_as_it_is(size: int, columns: int, dtype: Any) -> None:
    A, B, expected = operands(size, columns, dtype)
    product = DirectProduct(A, Epilogue())
    for out in places_for(expected.shape, dtype):
        for pool in (ALONE, POOL):
            out[...] = np.nan
            product.multiply(B, out, None, pool)
            compare(out, expected)
    compare(ps.get_backend("numba", threads=1).spmm(A, B), expected)


@pytest.mark.skipif(NONTEMPORAL_BYTES > LARGE_BYTES, reason="x86 has non-temporal stores")
@pytest.mark.parametrize(("columns", "settings", "expected"), [
    (1024, {}, True), (256, {}, True), (240, {}, False), (1030, {}, False),
    (256, {"activation": "relu"}, True), (256, {"activation": "silu"}, False),
    (256, {"size": LARGE_BYTES // 2}, False), (768, {"size": LARGE_BYTES // 2}, True),
    (752, {"size": LARGE_BYTES // 2}, False), (768, {"activation": "silu"}, True),
    (1024, {"fortran": True}, False), (1024, {"variant": VARIANTS[2]}, False),
])  # fmt: skip
def test_panels_begin_where_cache_lines_of_wide_results_do(
    columns: int, settings: dict[str, Any], expected: bool
) -> None:
    A, B, product = operands(settings.get("size", LARGE_BYTES), columns, np.float32)
    epilogue = Epilogue(activation=settings.get("activation", "none"))
    epilogue = epilogue.prepared("spmm", A.shape[0], np.dtype(np.float32))
    variant = settings.get("variant", VARIANTS[0])
    stream = StreamProduct(A, epilogue, variant)
    fortran = settings.get("fortran", False)
    out = empty_result(product.shape, product.dtype, fortran, offset=16)
    stream.multiply(aligned(B), out, None, ALONE)
    [call] = stream._unused
    assert bool(call.words[SHIFTED]) == expected


@pytest.mark.parametrize("first", [0, 4])
@pytest.mark.parametrize("columns", [1024, 1030])  # of 1,040: the rows of C have gaps
def test_streamed_products_with_gaps(columns: int, first: int) -> None:
    A, B, expected = operands(LARGE_BYTES, columns, np.float32)
    end = first + columns
    for variant in VARIANTS[:2]:
        wide = empty_result((len(expected), 1040), np.dtype(np.float32))
        wide[...] = 7
        StreamProduct(A, Epilogue(), variant).multiply(B, wide[:, first:end], None, ALONE)
        compare(wide[:, first:end], expected)
        assert (wide[:, :first] == 7).all()
        assert (wide[:, end:] == 7).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_panels_that_the_second_level_keeps(threads: int) -> None:
    columns, inner = 300, cache_bytes(2) // 640
    A = sp.random_array((150, inner), density=0.6, format="csr", rng=np.random.default_rng(4))
    B = np.random.default_rng(5).uniform(-1, 1, (inner, columns)).astype(np.float32)
    A = A.astype(np.float32)
    expected = A.astype(np.float64) @ B.astype(np.float64)
    for activation in ("none", "silu"):
        epilogue = Epilogue(activation=activation).prepared("spmm", 150, np.dtype(np.float32))
        out = empty_result(expected.shape, np.dtype(np.float32))
        DirectProduct(A, epilogue).multiply(aligned(B), out, None, ThreadPool(threads))
        finished = expected if activation == "none" else expected / (1 + np.exp(-expected))
        np.testing.assert_allclose(out, finished, rtol=1e-4, atol=1e-3)


def test_an_index_that_is_refused_after_a_block() -> None:
    A, B, _ = operands(LARGE_BYTES, 1024, np.float32)
    A.indices[-1] = INNER
    with pytest.raises(ps.InputError, match=r"column index 40 is outside 0 \.\. 39"):
        ps.get_backend("numba", threads=1).spmm(A, B)


@pytest.mark.parametrize("columns", [1024, 1030])  # with non-temporal stores, and without
def test_an_index_that_is_refused_among_rows_on_cache_lines(columns: int) -> None:
    A, B, _ = operands(LARGE_BYTES, columns, np.float32)
    product = DirectProduct(A, Epilogue())
    out = empty_result((A.shape[0], columns), B.dtype)
    assert product.multiply(B, out, None, ALONE)
    A.indices[-1] = INNER
    assert not product.multiply(B, out, None, ALONE)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("channels", "kernel"), [(3, 3), (8, 1)])
def test_convolutions(channels: int, kernel: int, threads: int) -> None:
    rng = np.random.default_rng(6)
    shape = 12, channels, kernel, kernel
    weights = np.where(rng.random(shape) < 0.3, rng.uniform(-1, 1, shape), 0)
    images = PREFETCH_BYTES // (12 * 30 * 30 * 8) + 2
    x = rng.uniform(-1, 1, (images, channels, 30, 30))
    found = ps.get_backend("numba", threads=threads).conv2d(x, weights, padding=kernel // 2)
    assert found.nbytes > PREFETCH_BYTES
    compare(found, ps.get_backend("scipy").conv2d(x, weights, padding=kernel // 2))


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("columns", [1, 32, 64, 100, 128, 272, 1040])
def test_a_small_result_that_is_one_of_many(columns: int, form: str, activation: str) -> None:
    A, B, _ = operands(1 << 16, columns, np.float32)
    epilogue = Epilogue(np.arange(A.shape[0]) / A.shape[0], activation, upper=1.5)
    expected = ps.get_backend("scipy").spmm(A, B, epilogue)
    epilogue = epilogue.prepared("spmm", A.shape[0], B.dtype)
    products = DirectProduct(A.asformat(form), epilogue), StreamProduct(A, epilogue, VARIANTS[0])
    for product in products:
        for pool in (ALONE, POOL):
            out = empty_result((A.shape[0], columns), B.dtype)
            assert product.multiply(B, out, None, pool, LARGE_BYTES) in (True, None)
            np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("zeros", [0.6, 0.97])
@pytest.mark.parametrize("width", [32, 30])  # rows of whole lines, and not
def test_convolutions_of_many_images_on_cache_lines(width: int, zeros: float, threads: int) -> None:
    rng = np.random.default_rng(width)
    weights = rng.uniform(-1, 1, (24, 40, 1, 1)).astype(np.float32)
    weights[rng.random(weights.shape) < zeros] = 0
    images = LARGE_BYTES // (24 * 16 * width * 4) + 1
    x = rng.uniform(-1, 1, (images, 40, 16, width)).astype(np.float32)
    residual = rng.uniform(-1, 1, (images, 24, 16, width)).astype(np.float32)
    out = empty_result((images * 24, 16 * width), x.dtype).reshape(residual.shape)
    expected = np.einsum("oi,nihw->nohw", weights[:, :, 0, 0].astype(float), x, optimize=True)
    backend = ps.get_backend("numba", threads=threads)
    for handle in (
        backend.conv2d_handle(weights, x.shape), backend.conv2d_handle(weights, (0, *x.shape[1:]))
    ):  # fmt: skip
        for added in (None, residual):
            out[...] = np.nan
            assert handle.apply(x, out=out, residual=added) is out
            np.testing.assert_allclose(out, expected + (0 if added is None else added), atol=1e-5)


def test_limits_are_those_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    for zen, vector_bytes in ((True, 32), (True, 64), (False, 64)):
        monkeypatch.setattr(large_results, "is_zen", lambda zen=zen: zen)
        monkeypatch.setattr(large_results, "VECTOR_BYTES", vector_bytes)
        limits.append(large_results.limits_here())
    prefetched, written = zip(*limits, strict=True)
    assert prefetched == (4 << 20, 8 << 20, cache_bytes(2) // 2)
    assert written[0] == 12 << 20
    assert written[1] == written[2] >= 32 << 20


def test_how_clusters_write() -> None:
    dst = empty_result((4, 64), np.dtype(np.float32))
    ways = ways_to_write.py_func
    assert ways(dst, 0, 0, False) == (False, False)
    assert ways(dst, 0, PREFETCH_BYTES + 1, False) == (True, False)
    assert ways(dst, 16, NONTEMPORAL_BYTES, False) == (False, True)
    assert ways(dst, 0, NONTEMPORAL_BYTES, True) == (True, False)  # an activation follows
    assert ways(dst, 8, NONTEMPORAL_BYTES, False) == (True, False)  # not on cache lines
    parts_of_lines = empty_result((4, 60), np.dtype(np.float32))
    assert ways(parts_of_lines, 0, NONTEMPORAL_BYTES, False) == (True, False)


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize(
    ("size", "more"), [(PREFETCH_BYTES, 48), (LARGE_BYTES, 48), (LARGE_BYTES, 49)]
)
def test_clusters_of_rows(size: int, more: int, activation: Any, fortran: bool) -> None:
    rng = np.random.default_rng(2)
    dense = np.zeros((64, INNER), np.float32)
    for first in range(0, 56, 8):  # eight rows have four columns in common, the last have none
        dense[first : first + 8, rng.choice(INNER, 4, replace=False)] = rng.uniform(-1, 1, (8, 4))
    dense[57, 3] = 2.0
    epilogue = Epilogue(rng.uniform(-1, 1, 64).astype(np.float32), activation)
    prepared = epilogue.prepared("spmm", 64, np.dtype(np.float32))
    product = ClusteredProduct(POOL, sp.csr_array(dense), prepared)
    residual = rng.uniform(-1, 1, (64, 1)).astype(np.float32)
    columns = size // 256 // 16 * 16 + more
    B = rng.uniform(-1, 1, (INNER, columns)).astype(np.float32)
    sums = dense @ B + np.asarray(epilogue.bias)[:, None]
    expected = np.maximum(sums, 0) if activation == "relu" else sums / (1 + np.exp(-sums))
    out = empty_result(sums.shape, np.dtype(np.float32), fortran)
    for given in (np.ascontiguousarray(B), aligned(B), np.asfortranarray(B)):
        out[...] = np.nan
        product.multiply(given, out, None, POOL)
        compare(out, expected.astype(np.float32))
    added = np.broadcast_to(residual, sums.shape)
    product.multiply(B, out, added, POOL)
    sums = sums + added
    expected = np.maximum(sums, 0) if activation == "relu" else sums / (1 + np.exp(-sums))
    compare(out, expected.astype(np.float32))


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_epilogues(activation: Any) -> None:
    A, B, sums = operands(LARGE_BYTES, 1024, np.float32)
    rng = np.random.default_rng(1)
    bias = rng.uniform(-1, 1, A.shape[0]).astype(np.float32)
    residual = rng.uniform(-1, 1, sums.shape).astype(np.float32)
    expected = sums + bias[:, None] + residual
    if activation == "relu":
        expected = np.minimum(np.maximum(expected, 0), 1.5)
    else:
        expected = np.minimum(expected / (1 + np.exp(-expected)), 1.5)
    epilogue = Epilogue(bias, activation, upper=1.5)
    prepared = epilogue.prepared("spmm", A.shape[0], np.dtype(np.float32))
    products: list[Any] = [StreamProduct(A, prepared, VARIANTS[0]), DirectProduct(A, prepared)]
    for product in products:
        for out in places_for(sums.shape, np.float32):
            product.multiply(B, out, residual, ALONE)
            compare(out, expected)
    backend = ps.get_backend("numba", threads=1)
    compare(backend.spmm(A, B, epilogue=epilogue, residual=residual), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [8192, 8200, 8195])  # whole lines in a column, or not
def test_results_in_fortran_order(rows: int, dtype: Any) -> None:
    item = np.dtype(dtype).itemsize
    A, _, _ = operands(rows * 64 * item, 64, dtype)
    A = A[:rows]
    B = np.random.default_rng(3).uniform(-1, 1, (INNER, LARGE_BYTES // (rows * item) + 5))
    B = np.asfortranarray(B.astype(dtype))
    expected = A @ B
    products = StreamProduct(A, Epilogue(), VARIANTS[1]), DirectProduct(A, Epilogue())
    for product in products:
        for out in places_for(expected.shape, dtype, fortran=True):
            product.multiply(B, out, None, ALONE)
            compare(out, expected)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="looks for x86's names")
def test_stores_are_nontemporal() -> None:
    @numba.extending.intrinsic  # type: ignore[misc]
    def store(typingctx: Any, array: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            data = context.make_array(sig.args[0])(context, builder, args[0]).data
            vector = ir.VectorType(ir.FloatType(), BLOCK_BYTES // 4)
            ones = ir.Constant(vector, [1.0] * vector.count)
            store_nontemporal(builder, ones, builder.bitcast(data, vector.as_pointer()))
            return context.get_dummy_value()

        return numba.types.void(array), codegen

    @numba.njit  # type: ignore[untyped-decorator]
    def fill(array: Any) -> None:
        store(array)

    array = empty_result((1, BLOCK_BYTES // 4), np.dtype(np.float32))[0]
    fill(array)
    np.testing.assert_array_equal(array, 1)
    assert "movntps" in "".join(fill.inspect_asm().values())


@kernel
def rows_together(words: Any, is_finished: bool) -> Any:
    return by_rows.rows_of_block(words, is_finished)


def test_rows_of_a_large_c_meet_all_panels_of_b_before_the_next() -> None:
    row = 2 * by_rows.PANEL_BYTES
    far = -(-by_rows.FAR_C // row)  # rows of C, as the next
    near = far - 1
    held, larger = 3 * by_rows.L2 // 4 // row, 3 * by_rows.L2 // 2 // row  # rows of B
    by_held, by_larger = by_rows.BLOCK_IF_B_IS_NEAR // row, by_rows.BLOCK_OF_C // row

    def together(rows: int, k: int, entries: int, tasks: int = 1, is_finished: bool = False) -> int:
        words = np.zeros(job_words.COUNTERS, np.int64)
        for word, value in (
            (job_words.ROWS, rows), (job_words.K, k), (job_words.COLUMNS, row // 4),
            (job_words.ENTRIES, entries), (job_words.TASKS, tasks), (job_words.OUT_ROW, row),
            (job_words.ITEM, 4), (job_words.B_ROW, row + 64),  # not a power of two
        ):  # fmt: skip
            words[word] = value
        return int(rows_together(words, is_finished))

    for k, block in ((held, by_held), (larger, by_larger)):
        assert together(near, k, 4 * k) == near
        assert together(near, k, 4 * k - 1) == together(near, k, 4 * k, tasks=2) == block
    assert together(far, held, 100 * far) == by_larger
    assert together(far, larger, 8 * far) == far
    assert together(far, larger, 8 * far - 1) == by_larger
    # What an activation goes through again stays in the second-level cache.
    for k in (held, larger):
        assert together(near, k, 4 * k - 1, is_finished=True) == by_larger
