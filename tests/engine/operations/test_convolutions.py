"""Geometry and handles of convolutions, apart from any backend's sums."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.operations.convolutions.geometry import conv_geometry


def test_signals_are_images_one_row_high() -> None:
    geometry = conv_geometry("conv1d", (6, 40), (8, 3, 5), 2, (1, 3), 2, 2)
    assert (geometry.height, geometry.width) == (1, 40)
    assert (geometry.kernel, geometry.stride, geometry.dilation) == ((1, 5), (1, 2), (1, 2))
    assert geometry.padding == ((0, 0), (1, 3))
    assert geometry.padded_size == (1, 44)
    assert geometry.output_shape(7) == (7, 8, 1, 18)
    assert geometry.lowered(geometry.output_shape(7)) == (7, 8, 18)
    assert geometry.matrix_shape == (2, 4, 15)


def test_padding_may_differ_on_every_side() -> None:
    for asked, expected in (
        (2, ((2, 2), (2, 2))),
        ((1, 2), ((1, 1), (2, 2))),
        (((1, 2), (3, 4)), ((1, 2), (3, 4))),
        (np.array([[1, 2], [3, 4]]), ((1, 2), (3, 4))),
        ("same", ((1, 1), (1, 1))),
        ("SAME", ((1, 1), (1, 1))),
        ("valid", ((0, 0), (0, 0))),
    ):
        geometry = conv_geometry("conv2d", (1, 9, 9), (1, 1, 3, 3), 1, asked, 1, 1)
        assert geometry.padding == expected


@given(*[st.integers(1, 9)] * 4)
def test_same_padding_is_the_least_that_covers_the_image(
    size: int, kernel: int, stride: int, dilation: int
) -> None:
    image, weights = (1, size), (1, 1, kernel)
    geometry = conv_geometry("conv1d", image, weights, stride, "same", dilation, 1)
    before, after = geometry.padding[1]
    assert geometry.output_size[1] == -(-size // stride)
    assert after - before in (0, 1)
    last = (geometry.output_size[1] - 1) * stride + dilation * (kernel - 1)
    assert last == size + before + after - 1 if before + after else last < size


def test_padding_of_a_dimension_is_named() -> None:
    image, weights = np.ones((1, 1, 5, 5)), np.ones((1, 1, 3, 3))
    for wrong, said in ((("same", 1), "'same'; it must be a whole"), (((1, 2, 3), 1), "a whole")):
        with pytest.raises(ps.InputError, match=f"conv2d: padding (is|has) .*{said}"):
            ps.get_backend("scipy").conv2d(image, weights, padding=wrong)


def test_where_channels_come_last_errors_name_a_transpose() -> None:
    backend, weights = ps.get_backend("scipy"), np.ones((4, 3, 3, 3))
    last = np.ones((2, 8, 9, 3))
    with pytest.raises(ps.InputError, match=r"must be 8; .* give x.transpose\(0, 3, 1, 2\)"):
        backend.conv2d(last, weights)
    handle = backend.conv2d_handle(weights, (2, 3, 8, 9), padding="same")
    with pytest.raises(ps.InputError, match=r"give x.transpose\(0, 3, 1, 2\)"):
        handle.apply(last)
    assert handle.apply(last.transpose(0, 3, 1, 2)).shape == (2, 4, 8, 9)
    with pytest.raises(ps.InputError, match=r"8 groups; .* give x.transpose\(0, 3, 1, 2\)"):
        backend.depthwise_conv2d(last, np.ones((3, 1, 3, 3)))
    signals = backend.conv1d_handle(np.ones((4, 3, 3)), (2, 3, 8))
    with pytest.raises(ps.InputError, match=r"give x.transpose\(0, 2, 1\)"):
        signals.apply(np.ones((2, 8, 3)))
    asked = (
        r"but input_shape has 8 channels, .* must be 8; input_shape is \(batch, channels, height"
    )
    with pytest.raises(ps.InputError, match=asked):
        backend.conv2d_handle(weights, (2, 8, 9, 3))


@pytest.mark.parametrize("height", [9.5, -9, "9", None])
def test_the_axis_of_a_shape_that_is_wrong_is_named(height: Any) -> None:
    shown = r"conv2d: input_shape: height is .*; it must be a whole number, at least 0"
    with pytest.raises(ps.InputError, match=shown):
        ps.get_backend("scipy").conv2d_handle(np.ones((4, 3, 3, 3)), (2, 3, height, 8))


def test_handles_stay_in_their_process() -> None:
    handle = ps.get_backend("scipy").conv1d_handle(np.ones((1, 1, 2)), (1, 1, 4))
    with pytest.raises(TypeError, match="pickle the weights"):
        pickle.dumps(handle)
    assert handle.describe() == "nothing was prepared"
    assert repr(handle) == "<ConvHandle of conv1d, float64 images of 1 x 4>"


@pytest.mark.parametrize(
    "shape",
    [
        {"stride": 1 << 62}, {"padding": 1 << 40}, {"stride": {1, 2}}, {"padding": b"ab"},
        {"dilation": {"a": 1, "b": 2}}, {"stride": np.array(2)}, {"padding": "full"},
    ],
)  # fmt: skip
def test_extents_that_are_none_are_named(shape: Any) -> None:
    [name] = shape
    with pytest.raises(ps.InputError, match=f"conv2d: {name} is .* whole number"):
        ps.get_backend("scipy").conv2d(np.ones((1, 2, 6, 6)), np.ones((2, 2, 3, 3)), **shape)


def test_a_result_beyond_all_memory_is_refused() -> None:
    backend = ps.get_backend("scipy")
    with pytest.raises(ps.InputError, match="4 channels of 4294967297 x 4294967297, more than can"):
        backend.conv2d(np.ones((1, 3, 5, 5)), np.ones((4, 3, 3, 3)), padding=(1 << 31) - 1)
