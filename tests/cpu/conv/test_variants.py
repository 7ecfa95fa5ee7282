"""Which variant computes a convolution, and that all give the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import portable_spdnn as ps
from portable_spdnn.operations.convolutions.geometry import conv_geometry
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.conv import pointwise
from portable_spdnn_cpu.conv.pointwise import PointwiseProduct, is_product
from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS
from portable_spdnn_cpu.machine.thread_pool import ThreadPool

RNG = np.random.default_rng(0)


def described(weights: Any, shape: Any, **asked: Any) -> str:
    return ps.get_backend("numba").conv2d_handle(weights, shape, **asked).describe()


def test_handles_say_what_they_chose() -> None:
    pruned = np.where(RNG.random((8, 6, 3, 3)) < 0.2, 1, 0).astype(np.float32)
    told = described(pruned, (1, 6, 12, 12), padding=1)
    assert "streamed against panels" in told
    assert "trial" in told
    assert "by a model" in described(pruned, (0, 6, 12, 12), padding=1)
    single = np.ones((6, 1, 3, 3), np.float32)
    assert "Each channel by itself" in described(single, (1, 6, 12, 12), groups=6)
    assert "Each channel by itself" in described(single, (1, 6, 12, 12), groups=6, dilation=2)
    for asked in ({"dilation": (1, 2)}, {"dilation": 2, "stride": 2}):
        assert "streamed" in described(single, (1, 6, 12, 12), groups=6, **asked)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_products_of_matrices(activation: str) -> None:
    weights = np.where(RNG.random((5, 7, 1, 1)) < 0.7, 1.5, 0).astype(np.float32)
    x = RNG.uniform(-1, 1, (2, 7, 4, 9)).astype(np.float32)
    geometry = conv_geometry("conv2d", x.shape[1:], weights.shape, 1, 0, 1, 1)
    assert is_product(geometry)
    bias = RNG.uniform(-1, 1, 5)
    epilogue = ps.Epilogue(bias, activation, upper=1.2).prepared("conv2d", 5, x.dtype)
    residual = RNG.uniform(-1, 1, (2, 5, 4, 9)).astype(np.float32)
    products = [
        PointwiseProduct(ThreadPool(2), weights, geometry, epilogue, tried)
        for tried in (False, True)
    ]
    for value in (0.5, np.nan, np.inf):
        x[1, 2, 3, 4] = value
        sums = oracle.conv2d(x, weights, (1, 1), ((0, 0), (0, 0)), (1, 1))
        wide = np.tile(np.repeat(bias, 36), (2, 1))
        for added in (None, residual):
            more = None if added is None else added.reshape(2, -1)
            expected = oracle.finish(sums.reshape(2, -1), wide, activation, None, 1.2, more)
            out = np.full(residual.shape, np.nan, np.float32)
            for convolution in products:
                for place in (None, out):
                    found = convolution(x, place, added).reshape(2, -1)
                    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_products_copy_no_slices_of_batches_and_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.where(RNG.random((5, 7, 1, 1)) < 0.7, 1.5, 0).astype(np.float32)
    many = RNG.uniform(-1, 1, (6, 9, 4, 9)).astype(np.float32)
    geometry = conv_geometry("conv2d", (7, 4, 9), weights.shape, 1, 0, 1, 1)
    epilogue = ps.Epilogue().prepared("conv2d", 5, many.dtype)
    convolution = PointwiseProduct(ThreadPool(1), weights, geometry, epilogue, False)
    residual = RNG.uniform(-1, 1, (3, 8, 4, 9)).astype(np.float32)[:, 2:7]
    raw = np.empty(3 * 5 * 4 * 9 * 4 + 1, np.uint8)
    misaligned = raw[1:].view(np.float32).reshape(3, 5, 4, 9)

    def check(x: Any) -> None:
        sums = oracle.conv2d(x, weights, (1, 1), ((0, 0), (0, 0)), (1, 1))
        for out in (None, np.empty((3, 5, 4, 9), np.float32), misaligned):
            found = convolution(x, out, residual)
            assert found is out or out is None
            np.testing.assert_allclose(found, sums + residual, atol=1e-5)

    with monkeypatch.context() as patched:
        patched.setattr(pointwise, "channels_first", None)
        check(many[:3, 1:8])
        check(many[::-2, 1:8])
    check(many[:3, 1:8, ::-1])


def depthwise(x: Any, weights: Any, stride: Any, padding: Any, dilation: int) -> Any:
    """Add up what lies beneath each weight that is not 0; the oracle's loops take seconds here."""
    around = ((padding, padding),) * 2 if isinstance(padding, int) else padding
    P = np.pad(x, ((0, 0), (0, 0), *around)).astype(np.float64)
    P = np.repeat(P, len(weights) // x.shape[1], axis=1)
    extent = weights.shape[2]
    height, width = (
        (size - dilation * (extent - 1) - 1) // step + 1
        for size, step in zip(P.shape[2:], stride, strict=True)
    )
    z = np.zeros((*P.shape[:2], height, width))
    for u, v in np.ndindex(extent, extent):
        seen = P[:, :, u * dilation :: stride[0], v * dilation :: stride[1]][:, :, :height, :width]
        used = weights[:, 0, u, v] != 0
        z[:, used] += weights[used, 0, u, v, None, None].astype(np.float64) * seen[:, used]
    return z


@pytest.mark.parametrize("extent", [3, 5, 7])
@pytest.mark.parametrize(
    ("stride", "dilation"),
    [((1, 1), 1), ((2, 2), 1), ((2, 1), 1), ((1, 2), 1), ((2, 3), 1), ((1, 1), 2), ((2, 1), 3)],
)
def test_depthwise_kernels(extent: int, stride: tuple[int, int], dilation: int) -> None:
    shapes = (
        (1, 1, 3), (9, 16, 1), (13, 35, 2), (8, 7, 0), (20, 5, 6), (7, 7, 1), (15, 80, 1),
        (40, 37, 1), (33, 70, 3), (3, 500, 0), (500, 3, 2),
    )  # fmt: skip
    for height, width, padding in shapes:
        if min(height, width) + 2 * padding <= dilation * (extent - 1):
            continue
        x = RNG.uniform(-1, 1, (2, 3, height, width)).astype(np.float32)
        weights = RNG.uniform(-1, 1, (6, 1, extent, extent)).astype(np.float32)
        expected = depthwise(x, weights, stride, padding, dilation)
        found = ps.get_backend("numba").depthwise_conv2d(x, weights, stride, padding, dilation)
        np.testing.assert_allclose(found, expected, atol=2e-5)
        if height * width < 200:  # plain loops leave zeros out
            x[1, 1, height // 2, width // 2], weights[:, 0, 0, 1] = np.inf, 0
            expected = depthwise(x, weights, stride, padding, dilation)
            found = ps.get_backend("numba").depthwise_conv2d(x, weights, stride, padding, dilation)
            np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("extent", [3, 5, 7])
@pytest.mark.parametrize("width", range(1, 10))
def test_depthwise_kernels_on_narrow_planes(width: int, extent: int, dtype: Any) -> None:
    backend = ps.get_backend("numba")
    for height, dilation, left, top, below in (
        (1, 1, extent // 2, 3, 3), (2, 1, 0, 3, 4), (7, 1, extent // 2, 1, 2), (7, 2, 3, 4, 6),
        (9, 1, extent - 1, 5, 0), (20, 3, 5, 8, 9), (65, 1, 1, 0, 0), (200, 1, 1, 2, 0),
    ):  # fmt: skip
        if height + top + below <= dilation * (extent - 1):
            continue
        padding = (top, below), (left, dilation * (extent - 1) - left)  # results as wide as images
        x = RNG.uniform(-1, 1, (2, 3, height, width)).astype(dtype)
        weights = RNG.uniform(-1, 1, (6, 1, extent, extent)).astype(dtype)
        expected = depthwise(x, weights, (1, 1), padding, dilation)
        found = backend.depthwise_conv2d(x, weights, 1, padding, dilation)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=2e-5 if dtype == np.float32 else 1e-13)


@pytest.mark.skipif(not HAS_FAST_MASKS, reason="narrow planes are tiles like others there")
def test_handles_say_where_planes_are_narrow() -> None:
    kernels = np.ones((6, 1, 3, 3), np.float32)
    for shape, words in (
        ((6, 7, 7), "vectors of several rows"), ((6, 8, 8), "vectors of several rows"),
        ((6, 9, 9), "tiles of 7 rows"), ((6, 200, 7), "tiles of 4 rows"),
    ):  # fmt: skip
        assert words in described(kernels, (1, *shape), padding=1, groups=6)
    assert "tiles of 7 rows" in described(kernels, (1, 6, 7, 7), groups=6)  # results are narrower
    assert "tiles of 7 rows" in described(kernels.astype(float), (1, 6, 7, 7), padding=1, groups=6)


@pytest.mark.parametrize("groups", [1, 16])
def test_copies_of_operands_live_until_all_threads_are_done(groups: int) -> None:
    backend = ps.get_backend("numba", threads=2)
    x, residual = (RNG.uniform(-1, 1, (40, 40, 16)).astype(np.float32).T[None] for _ in range(2))
    weights = RNG.uniform(-1, 1, (16, 16 // groups, 3, 3)).astype(np.float32)
    weights[RNG.random(weights.shape) < 0.5] = 0
    around = ((1, 1), (1, 1))
    expected = oracle.conv2d(x, weights, (1, 1), around, (1, 1), groups) + residual
    handle = backend.conv2d_handle(weights, x.shape, padding=1, groups=groups)
    for _ in range(10):
        found = handle.apply(x, residual=residual)
        # What would take the memory of copies that nothing holds.
        junk = [np.full(x.shape, np.nan, np.float32) for _ in range(4)]
        np.testing.assert_allclose(found, expected, atol=2e-5)
        del junk


@pytest.mark.parametrize("channels", [1, 2])
def test_extents_beyond_the_image_take_no_memory(channels: int) -> None:
    far = 10**9
    backend = ps.get_backend("numba")
    x = RNG.uniform(-1, 1, (1, channels, 3, 4)).astype(np.float32)
    weights = np.ones((1, channels, 3, 3), np.float32)
    total = x.sum(axis=1)[0]
    found = backend.conv2d(x, weights, stride=(far, far), padding=1)
    np.testing.assert_allclose(found[0, 0], total[:2, :2].sum(), rtol=1e-5)
    found = backend.conv2d(x, weights, padding=far, dilation=far)
    np.testing.assert_allclose(found[0, 0], total, rtol=1e-5)
