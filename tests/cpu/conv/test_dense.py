"""Convolutions by BLAS: against loops, in bands, and what is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import portable_spdnn as ps
from portable_spdnn.operations.convolutions.geometry import conv_geometry
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.conv import dense, handle
from portable_spdnn_cpu.conv.dense import DenseConv, dense_is_faster
from portable_spdnn_cpu.machine.thread_pool import ThreadPool

SHAPES = [  # channels, outputs, height, width, kernel, stride, padding, dilation, groups
    (4, 6, 9, 11, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    (4, 6, 9, 12, (3, 2), (2, 1), ((0, 3), (2, 0)), (1, 2), 2),
    (6, 6, 1, 20, (1, 5), (1, 3), ((0, 0), (4, 4)), (1, 1), 3),
    (2, 1, 7, 7, (7, 7), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    (3, 5, 5, 4, (1, 1), (2, 2), ((5, 0), (0, 6)), (1, 1), 1),
]


def operands(shape: Any, dtype: Any) -> tuple[Any, Any, Any]:
    channels, outputs, height, width, kernel, stride, padding, dilation, groups = shape
    rng = np.random.default_rng(3)
    weights = rng.uniform(-1, 1, (outputs, channels // groups, *kernel)).astype(dtype)
    weights[rng.random(weights.shape) < 0.2] = 0
    x = rng.uniform(-1, 1, (2, channels, height, width)).astype(dtype)
    geometry = conv_geometry(
        "conv2d", x.shape[1:], weights.shape, stride, padding, dilation, groups
    )
    return x, weights, geometry


def never() -> Any:
    raise AssertionError("finite images need no streamed weights")


@pytest.mark.parametrize("band_bytes", [1, 2000, dense.BAND_BYTES])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_band_gives_the_sums_of_loops(
    shape: Any, dtype: Any, band_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "BAND_BYTES", band_bytes)
    x, weights, geometry = operands(shape, dtype)
    sums = oracle.conv2d(x, weights, *shape[5:])
    bias = np.linspace(-1, 1, geometry.outputs)
    residual = np.random.default_rng(4).uniform(-1, 1, sums.shape).astype(dtype)
    for activation in ("none", "relu", "gelu"):
        asked = ps.Epilogue(bias, activation, -0.4, 0.9)
        epilogue = asked.prepared("conv2d", geometry.outputs, np.dtype(dtype))
        convolution = DenseConv(ThreadPool(2), weights, geometry, epilogue, never)
        pixels = sums[0, 0].size
        for added in (None, residual):
            expected = oracle.finish(
                sums.reshape(2, -1), np.tile(np.repeat(bias, pixels), (2, 1)), activation,
                -0.4, 0.9, None if added is None else added.reshape(2, -1),
            )  # fmt: skip
            for out in (None, np.full(sums.shape, np.nan, dtype)):
                found = convolution(x, out, added)
                assert out is None or found is out
                close = 1e-5 if dtype == np.float32 else 1e-12
                np.testing.assert_allclose(found.reshape(2, -1), expected, atol=close)


def test_zeros_do_not_meet_infinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "LEAST_NONZERO", 0.0)
    monkeypatch.setattr(handle, "fastest", lambda choices, trial: choices[1])
    monkeypatch.setattr(handle, "dense_is_faster", lambda *_: True)
    x, weights, _ = operands(SHAPES[0], np.float32)
    backend = ps.get_backend("numba", threads=2)
    prepared = backend.conv2d_handle(weights, x.shape, padding=1)
    assert "Dense products" in prepared.describe()
    for value in (0.5, np.inf, np.nan):
        x[1, 2, 3, 4] = value
        expected = oracle.conv2d(x, weights, *SHAPES[0][5:])
        for found in (prepared.apply(x), backend.conv2d(x, weights, padding=1)):
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_single_convolution_goes_to_blas_where_packing_would_take_longer() -> None:
    geometry = conv_geometry("conv2d", (64, 14, 14), (64, 64, 3, 3), 1, 1, 1, 1)
    full = np.ones((64, 64, 3, 3), np.float32)
    assert dense_is_faster(full, geometry, 1, 1)
    sparse = np.zeros_like(full)
    sparse[::8, ::8] = 1
    assert not dense_is_faster(sparse, geometry, 32, 1)
    full[0, 0, 0, 0] = np.inf  # times the zeros of the padding
    assert not dense_is_faster(full, geometry, 1, 1)
