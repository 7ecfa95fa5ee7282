"""Microkernels of scattered keys against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from guard_pages import array_before_a_guard_page

from portable_spdnn_cpu.sddmm.microkernels import (
    exponentials,
    largest,
    load_row,
    score_rows,
    store_row,
)
from portable_spdnn_cpu.sddmm.register_tile import most_blocks


@numba.njit
def exponentials_of(values: Any, first: int, count: int, most: Any) -> Any:
    return exponentials(values, first, count, most)


@numba.njit
def largest_of(values: Any, first: int, count: int) -> Any:
    return largest(values, first, count)


@numba.njit
def row_moved(source: Any, first: int, count: int, row: Any, place: int, width: int) -> Any:
    return load_row(source, first, count, row, place, width)


@numba.njit
def row_scaled(row: Any, place: int, factor: Any, out: Any, first: int, count: int) -> None:
    store_row(row, place, factor, out, first, count)


@numba.njit
def scored(part: int, Q: Any, K: Any, keys: Any, count: int, S: Any, s: int, more: bool) -> None:
    score_rows(part, Q, 0, K, 0, Q.size, keys, 0, count, Q.dtype.type(0.5), S, s, more)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 6, 7, 8])
def test_scores_touch_nothing_beyond_them(count: int, dtype: Any) -> None:
    rng = np.random.default_rng(count)
    keys = rng.integers(0, 9, 8).astype(np.int32)
    S = array_before_a_guard_page(100, dtype)
    for part in range(1, most_blocks(np.dtype(dtype).itemsize) + 1):
        Q, K = (rng.standard_normal(shape).astype(dtype) for shape in (16 * part, (9, 16 * part)))
        S[:] = before = rng.standard_normal(S.size).astype(dtype)
        for more in (False, True):
            expected = 0.5 * K[keys[:count]] @ Q + (S[S.size - count :] if more else 0)
            scored(part, Q, K.ravel(), keys, count, S, S.size - count, more)
            np.testing.assert_allclose(S[S.size - count :], expected, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(S[: S.size - count], before[: S.size - count])


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 2e-7), (np.float64, 4e-16)])
def test_exponentials_are_exact_to_two_units(dtype: Any, error: float) -> None:
    least = -87.0 if dtype == np.float32 else -708.0
    rng = np.random.default_rng(0)
    values = np.concatenate([np.linspace(least, 0, 40_001), rng.uniform(-1, 0, 9999)]).astype(dtype)
    padded = np.concatenate([values, np.full(16, np.nan, dtype)])
    total = exponentials_of(padded, 0, values.size, dtype(0))
    expected = np.exp(values.astype(np.longdouble))
    np.testing.assert_array_less(abs(padded[: values.size] / expected - 1), error)
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-5)
    assert (padded[values.size : -(-values.size // 16) * 16] == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponentials_at_their_ends(dtype: Any) -> None:
    values = np.array([-np.inf, np.nan, -1e30, 0, -88.1, -710], dtype)
    padded = np.concatenate([values, np.zeros(26, dtype)])
    exponentials_of(padded, 0, 6, dtype(0))
    tiny = np.finfo(dtype).tiny
    np.testing.assert_allclose(padded[:6], [0, np.nan, 0, 1, np.exp(-88.1), 0], atol=2 * tiny)
    above = np.array([np.inf, 0.0] + [0.0] * 14, dtype)
    assert np.isnan(exponentials_of(above, 0, 2, dtype(np.inf)))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 33])
def test_largest_looks_at_its_values_alone(count: int) -> None:
    values = np.full(64, 9.0, np.float32)
    values[3 : 3 + count] = -np.arange(1.0, 1.0 + count)
    assert largest_of(values, 3, count) == (-1 if count else -np.inf)
    values[3 : 3 + count // 2] = np.nan
    if count:
        assert largest_of(values, 3, count) == -(count // 2) - 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_rows_are_moved_with_nothing_beyond_them(count: int, dtype: Any) -> None:
    source = np.arange(1.0, 61.0).astype(dtype)
    source[5 + count :] = np.nan
    row = np.full(80, 7.0, dtype)
    assert row_moved(source, 5, count, row, 8, 48) == 0
    np.testing.assert_array_equal(row[8 : 8 + count], source[5 : 5 + count])
    assert (row[8 + count : 56] == 0).all()
    assert (row[:8] == 7).all()
    assert (row[56:] == 7).all()
    out = np.full(60, 7.0, dtype)
    row_scaled(row, 8, dtype(0.5), out, 3, count)
    np.testing.assert_array_equal(out[3 : 3 + count], source[5 : 5 + count] / 2)
    assert (out[:3] == 7).all()
    assert (out[3 + count :] == 7).all()
    for flaw in (np.nan, np.inf, -np.inf):
        source[5] = flaw
        assert np.isnan(row_moved(source, 5, count, row, 8, 48))
