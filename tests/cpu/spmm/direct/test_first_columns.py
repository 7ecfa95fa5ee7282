"""Rows of B that begin within a cache line: the first panel begins before column 0."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from direct_products import POOLS, matrix
from offsets import at_offset

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS
from portable_spdnn_cpu.layout.large_results import NONTEMPORAL_BYTES
from portable_spdnn_cpu.spmm import cost_model
from portable_spdnn_cpu.spmm.dense_layout import Layout, copied_if_reused, is_reused
from portable_spdnn_cpu.spmm.direct import job_words
from portable_spdnn_cpu.spmm.direct.by_rows import columns_before
from portable_spdnn_cpu.spmm.direct.prepared import DirectProduct

ROWS, INNER = 23, 31
SENTINEL = 7.0  # around results


@pytest.mark.parametrize("columns", [48, 64, 80, 112, 128, 144, 256, 272, 400])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products(dtype: Any, columns: int) -> None:
    item, rng = np.dtype(dtype).itemsize, np.random.default_rng(columns)
    A = matrix(3, (ROWS, INNER), 0.2, dtype)
    B = rng.uniform(-1, 1, (INNER, columns)).astype(dtype)
    added = rng.uniform(-1, 1, (ROWS, columns)).astype(dtype)
    bias, close = np.linspace(-1, 1, ROWS), 2e-5 if dtype == np.float32 else 1e-12
    finishes: list[dict[str, Any]] = [
        {}, {"bias": bias, "upper": 0.5}, {"bias": bias, "activation": "silu"}
    ]  # fmt: skip
    for finish, residual in itertools.product(finishes, (None, added)):
        product = DirectProduct(A, ps.Epilogue(**finish).prepared("", ROWS, A.dtype))
        shown = {**finish, "bias": bias[:, None]} if finish else {"bias": np.zeros(1)}
        expected = oracle.finish(oracle.spmm(A, B), residual=residual, **shown)
        for offset, out_offset in itertools.product((item, 16, 48, 64 - item), (0, 16)):
            operand, _ = at_offset(B, offset)
            out, whole = at_offset(np.zeros((ROWS, columns), dtype), out_offset, SENTINEL)
            for pool in POOLS:
                out[...] = np.nan
                assert product.multiply(operand, out, residual, pool)
                np.testing.assert_allclose(out, expected, rtol=close, atol=close)
            out[...] = SENTINEL
            assert (whole == SENTINEL).all()  # nothing beside was written


def test_rows_with_gaps_and_items_that_are_not_aligned() -> None:
    A, rng = matrix(4, (ROWS, INNER), 0.2), np.random.default_rng(4)
    wide, _ = at_offset(rng.uniform(-1, 1, (INNER, 160)).astype(np.float32), 16)
    raw = np.zeros(INNER * 128 * 4 + 65, np.uint8)
    askew = raw[(1 - raw.ctypes.data) % 64 :][: INNER * 128 * 4].view(np.float32)
    askew = askew.reshape(INNER, 128)
    askew[...] = rng.uniform(-1, 1, askew.shape)
    backend = ps.get_backend("numba", threads=1)
    for B in (wide[:, :128], wide[:, 3:131], wide[:, 16:96], wide[::-1, :64], askew):
        expected = oracle.spmm(A, B)
        for C in (backend.spmm(A, B), backend.spmm_handle(A).multiply(B)):
            np.testing.assert_allclose(C, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.skipif(not HAS_FAST_MASKS, reason="B is read in lines where masks are fast")
def test_b_that_is_read_in_lines_is_copied_later() -> None:
    sizes = 1000, 128, 4
    assert is_reused(6000, *sizes)
    assert not is_reused(6000, *sizes, Layout.SHIFTED)
    assert not is_reused(39_999, *sizes, Layout.SHIFTED)  # five entries for each of eight vectors
    assert is_reused(40_000, *sizes, Layout.SHIFTED)
    assert is_reused(10_000, 1000, 32, 4, Layout.SHIFTED)  # of two vectors
    B, _ = at_offset(np.ones((1000, 128), np.float32), 16)
    assert copied_if_reused(B, 6000) is B
    copy = copied_if_reused(B, 40_000)
    assert copy is not B
    assert copy.ctypes.data % 64 == 0
    aligned, _ = at_offset(B, 0)
    assert copied_if_reused(aligned, 40_000) is aligned
    of_layouts = [
        cost_model.direct_seconds(cost_model.ProductSize(3000, 1000, 128, 5000, 4, each, False, 1))
        for each in (Layout.ALIGNED, Layout.SHIFTED, Layout.UNALIGNED)
    ]
    assert of_layouts == sorted(set(of_layouts))


@pytest.mark.parametrize(("columns", "offset", "expected"), [
    (64, 16, 4), (64, 0, 0), (128, 60, 15), (48, 16, 0), (72, 16, 0), (64, 18, 0),
])  # fmt: skip
def test_how_many_columns_come_before_the_first(columns: int, offset: int, expected: int) -> None:
    words = np.zeros(job_words.COUNTERS, np.int64)
    words[job_words.COLUMNS], words[job_words.B_ROW] = columns, 4 * columns
    words[job_words.B], words[job_words.ITEM] = 4096 + offset, 4
    words[job_words.OUT_BYTES], words[job_words.OUT] = 400 * columns, 64
    before: Any = columns_before
    assert before.py_func(words) == (expected if HAS_FAST_MASKS else 0)
    words[job_words.OUT_BYTES] = NONTEMPORAL_BYTES  # stores to lines of C are worth more
    assert before.py_func(words) == 0
