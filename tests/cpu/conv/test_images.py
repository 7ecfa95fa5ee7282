"""Images whose channels come last, and others that are not in C order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.conv import images as module
from portable_spdnn_cpu.conv.images import channels_first
from portable_spdnn_cpu.machine.thread_pool import ThreadPool

SHAPES = [
    (1, 8, 3, 5),
    (2, 9, 1, 1),
    (3, 16, 7, 7),
    (2, 3, 5, 4),
    (1, 33, 2, 9),
    (1, 50, 3, 4),
    (2, 8, 1, 7),
]


def channels_last(images: Any) -> Any:
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [*SHAPES, (0, 8, 3, 3), (2, 0, 3, 3), (2, 8, 0, 3)])
@pytest.mark.parametrize("threads", [1, 3])
def test_images_come_into_order_whatever_their_strides(
    shape: Any, dtype: Any, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARED_BYTES", 0)
    pool = ThreadPool(threads)
    images = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    assert channels_first(images, pool) is images
    wide = np.concatenate([images, images + 1], axis=1)
    misaligned = np.empty(images.nbytes + 1, np.uint8)[1:].view(dtype).reshape(shape)
    misaligned[...] = images
    last = channels_last(images)
    for given in (
        last, channels_last(wide)[:, : shape[1]], last[::-1][::-1], misaligned,
        channels_last(wide)[:, ::2][:, : shape[1]],  # channels apart
    ):  # fmt: skip
        found = channels_first(given, pool)
        np.testing.assert_array_equal(found, given)
        assert found.flags.c_contiguous
        assert found.flags.aligned
    for given in (last[:, :, ::-1], last[..., ::-1], last[:, ::-1], last[:, :, :, :1], last[::2]):
        np.testing.assert_array_equal(channels_first(given, pool), given)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", ["streamed", "depthwise", "product", "dense"])
def test_every_variant_takes_channels_last(case: str, threads: int) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, 16, 9, 11)).astype(np.float32)
    extent, groups, zeros = {
        "streamed": (3, 1, 0.8), "depthwise": (3, 16, 0.0), "product": (1, 1, 0.7),
        "dense": (3, 1, 0.0),
    }[case]  # fmt: skip
    weights = rng.standard_normal((16, 16 // groups, extent, extent)).astype(np.float32)
    weights[rng.random(weights.shape) < zeros] = 0
    padding = extent // 2
    handle = ps.get_backend("numba", threads=threads).conv2d_handle(
        weights, x.shape, padding=padding, groups=groups
    )
    residual = rng.standard_normal(x.shape).astype(np.float32)
    around = ((padding, padding), (padding, padding))
    expected = oracle.conv2d(x, weights, (1, 1), around, (1, 1), groups) + residual
    for image in (x, channels_last(x)):
        for added in (residual, channels_last(residual)):
            found = handle.apply(image, residual=added)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
