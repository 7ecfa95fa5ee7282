"""Activation functions: awkward values, limits, bounds, and spans of every length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exact_activations import exact

from portable_spdnn_cpu.activations import ACTIVATIONS, activate, activate_span, activation_code

MAX_ERROR = {np.float32: 5e-7, np.float64: 1e-14}  # of max(1, |z|)
LIMITS = {  # at minus infinity, and at infinity
    "none": (-np.inf, np.inf), "relu": (0, np.inf), "gelu": (0, np.inf), "gelu_tanh": (0, np.inf),
    "silu": (0, np.inf), "hardswish": (0, np.inf), "sigmoid": (0, 1), "tanh": (-1, 1),
}  # fmt: skip


def awkward_values(dtype: Any) -> Any:
    """Return values dense around 0, far out, tiny, huge, and where formulas change."""
    info = np.finfo(dtype)
    sizes = np.concatenate(
        (
            np.geomspace(info.smallest_subnormal, 1e3, 20_000, dtype=dtype),
            np.linspace(0, 120, 40_001, dtype=dtype),
            np.array([info.tiny, info.eps, 3, 6, 14, 87.34, 88.03, 104, 709, 745, 1e30], dtype),
            np.log(2) * np.arange(0.5, 130, 0.5).astype(dtype),
        )
    ).astype(dtype)
    sizes = np.concatenate((sizes, np.nextafter(sizes, 0), np.nextafter(sizes, info.max)))
    return np.concatenate((sizes, -sizes))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_errors_are_within_the_stated_bound(name: str, dtype: Any) -> None:
    place, z = ACTIVATIONS.index(name), awkward_values(dtype)
    code = activation_code(name, np.dtype(dtype))
    wide = z.astype(np.float64)
    with np.errstate(over="ignore"):
        expected = exact(name, wide)
    unit = np.maximum(1, np.abs(wide))
    span = z.copy()
    activate_span(span, 0, z.size, code, -np.inf, np.inf)
    assert span.dtype == dtype
    assert np.max(np.abs(span - expected) / unit) <= MAX_ERROR[dtype]
    some = slice(None, None, 50)
    one_by_one = np.array([activate(value, place) for value in z[some]])
    assert np.max(np.abs(one_by_one - expected[some]) / unit[some]) <= MAX_ERROR[np.float64]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_passes_and_infinities_give_the_limits(name: str, dtype: Any) -> None:
    code = activation_code(name, np.dtype(dtype))
    # More than a vector of them, and a remainder.
    z = np.tile(np.array([np.nan, -np.inf, np.inf, 0, np.finfo(dtype).max], dtype), 13)
    z[4::10] *= -1
    most = np.inf if name not in ("sigmoid", "tanh") else 1
    for bounds in ((-np.inf, np.inf), (-0.5, 0.5)):
        expected = np.array([np.nan, *LIMITS[name], 0.5 if name == "sigmoid" else 0])
        expected = np.clip(expected, *bounds)
        span = z.copy()
        activate_span(span, 0, z.size, code, *bounds)
        for k in range(4):
            np.testing.assert_array_equal(span[k::5], expected[k])
        assert (span[9::10] == min(most, bounds[1], float(np.finfo(dtype).max))).all()
    for value, limit in zip((np.nan, -np.inf, np.inf), (np.nan, *LIMITS[name]), strict=True):
        np.testing.assert_equal(activate(dtype(value), ACTIVATIONS.index(name)), float(limit))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_zero_has_no_sign_where_the_function_is_zero_there(name: str, dtype: Any) -> None:
    span = np.zeros(40, dtype)
    activate_span(span, 0, span.size, activation_code(name, span.dtype), -np.inf, np.inf)
    assert not np.signbit(span).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_value_gives_the_same_bits_wherever_it_lies(name: str, dtype: Any) -> None:
    """Neither the rest of a span that fills no vector, nor where a span begins, changes it."""
    code = activation_code(name, np.dtype(dtype))
    z = np.random.default_rng(0).normal(0, 4, 2500).astype(dtype)
    whole = z.copy()
    activate_span(whole, 0, z.size, code, -1, 3)
    for first in (0, 1, 7, 33):
        for length in (0, 1, 3, 8, 31, 64, 100, 1023, 1024, 1025, 2100):
            end = first + length
            part = z.copy()
            activate_span(part, first, end, code, -1, 3)
            np.testing.assert_array_equal(part[first:end], whole[first:end])
            np.testing.assert_array_equal(part[:first], z[:first])
            np.testing.assert_array_equal(part[end:], z[end:])
