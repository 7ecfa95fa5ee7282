"""The contract of convolutions, for backends that have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import portable_spdnn as ps
from portable_spdnn.epilogue import ACTIVATIONS
from portable_spdnn.testing import oracle
from portable_spdnn.testing.convolution_cases import (
    CASES,
    NONE,
    SAME,
    assert_sums,
    images,
    named,
    pruned,
)
from portable_spdnn.testing.operands import DTYPES, host, refused


@pytest.fixture(autouse=True)
def have_convolutions(backend: ps.Backend) -> None:
    if "conv2d" not in backend.optional_operations:
        pytest.skip(f"backend {backend.name} has no convolutions")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("density", [0.15, 1.0])
@pytest.mark.parametrize("case", CASES, ids=named)
def test_conv2d(backend: ps.Backend, case: Any, density: float, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    x_shape, w_shape, stride, padding, dilation, groups = case
    x, weights = images(rng, x_shape, dtype), pruned(rng, w_shape, density, dtype)
    expected = oracle.conv2d(x, weights, stride, padding, dilation, groups)
    asked: dict[str, Any] = {
        "stride": stride, "padding": padding, "dilation": dilation, "groups": groups
    }  # fmt: skip
    assert_sums(host(backend, backend.conv2d(x, weights, **asked)), expected, dtype)
    handle = backend.conv2d_handle(weights, x_shape, **asked)
    assert handle.describe()
    out = backend.upload(np.full(expected.shape, np.nan, dtype))
    for _ in range(2):
        assert_sums(host(backend, handle.apply(x)), expected, dtype)
        assert handle.apply(x, out) is out
        assert_sums(host(backend, out), expected, dtype)
    if w_shape[1] == 1 and groups == x_shape[1]:
        del asked["groups"]
        found = backend.depthwise_conv2d(x, weights, **asked)
        assert_sums(host(backend, found), expected, dtype)
        handle = backend.depthwise_conv2d_handle(weights, x_shape, **asked)
        assert_sums(host(backend, handle.apply(x)), expected, dtype)


@pytest.mark.parametrize("density", [0.2, 1.0])
def test_conv2d_of_every_width(backend: ps.Backend, density: float) -> None:
    rng = np.random.default_rng(2)
    sparse = pruned(rng, (3, 2, 3, 3), density, np.float32)
    depthwise = pruned(rng, (2, 1, 3, 3), density, np.float32)
    for width in range(1, 41):
        x = images(rng, (1, 2, 3, width), np.float32)
        for stride in (1, 2):
            for weights, groups in ((sparse, 1), (depthwise, 2)):
                found = host(backend, backend.conv2d(x, weights, stride, 1, 1, groups))
                steps = stride, stride
                expected = oracle.conv2d(x, weights, steps, SAME, (1, 1), groups)
                assert_sums(found, expected, np.float32)


def test_conv2d_handle_takes_any_number_of_images(backend: ps.Backend) -> None:
    rng = np.random.default_rng(3)
    weights = pruned(rng, (6, 4, 3, 3), 0.3, np.float32)
    handle = backend.conv2d_handle(weights, (2, 4, 9, 10), padding="same")
    for batch in (3, 0, 1, 5):
        x = images(rng, (batch, 4, 9, 10), np.float32)
        expected = oracle.conv2d(x, weights, (1, 1), SAME, (1, 1))
        assert_sums(host(backend, handle.apply(x)), expected, np.float32)


def test_conv1d(backend: ps.Backend) -> None:
    rng = np.random.default_rng(4)
    for length, kernel, stride, padding, dilation, groups in (
        (1, 1, 1, (0, 0), 1, 1), (37, 3, 1, (1, 1), 1, 1), (40, 4, 3, (2, 0), 2, 2),
        (5, 9, 1, (4, 4), 1, 1), (50, 5, 2, (0, 3), 1, 4),
    ):  # fmt: skip
        x = images(rng, (2, 4, length), np.float32)
        weights = pruned(rng, (8, 4 // groups, kernel), 0.4, np.float32)
        residual = images(rng, (2, 8, 1), np.float32)
        expected = oracle.conv2d(
            x[:, :, None], weights[:, :, None],
            (1, stride), ((0, 0), padding), (1, dilation), groups,
        )[:, :, 0]  # fmt: skip
        asked: dict[str, Any] = {
            "stride": stride, "padding": padding, "dilation": dilation, "groups": groups
        }  # fmt: skip
        assert_sums(host(backend, backend.conv1d(x, weights, **asked)), expected, np.float32)
        handle = backend.conv1d_handle(weights, x.shape, **asked)
        out = backend.upload(np.full(expected.shape, np.nan, np.float32))
        wide = np.broadcast_to(residual, expected.shape)
        assert handle.apply(x, out, wide) is out
        assert_sums(host(backend, out), expected + wide, np.float32)


def test_conv2d_takes_any_layout_and_type_and_leaves_operands_alone(backend: ps.Backend) -> None:
    rng = np.random.default_rng(5)
    weights = pruned(rng, (4, 3, 3, 3), 0.4, np.float32)
    large = images(rng, (4, 24, 24, 6), np.float32)
    channels_last = large[:, :, :, :3].transpose(0, 3, 1, 2)
    shifted = np.empty(2 * 3 * 7 * 9 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(2, 3, 7, 9)
    shifted[...] = images(rng, shifted.shape, np.float32)
    views = [
        channels_last,
        channels_last[::-2, ::-1, 3:, ::3],
        np.broadcast_to(channels_last[:1, :1], (2, 3, 24, 24)),
        shifted,
        channels_last[:1].astype(np.float64),
        np.asfortranarray(channels_last[:1]),
    ]
    turned = np.asfortranarray(weights)
    for x in views:
        kept, kept_weights = x.copy(), weights.copy()
        expected = oracle.conv2d(x, weights, (1, 1), SAME, (1, 1))
        found = backend.conv2d(x, turned, padding=1)
        assert_sums(host(backend, found), expected, x.dtype)
        handle = backend.conv2d_handle(weights.astype(x.dtype), x.shape, padding=1)
        assert_sums(host(backend, handle.apply(x)), expected, x.dtype)
        np.testing.assert_array_equal(x, kept)
        np.testing.assert_array_equal(weights, kept_weights)
    integers = rng.integers(-3, 4, (1, 3, 5, 5)).astype(np.int8)
    found = host(backend, backend.conv2d(integers, weights))
    expected = oracle.conv2d(integers, weights, (1, 1), NONE, (1, 1))
    assert_sums(found, expected, np.float32)


def test_conv_handles_keep_their_weights(backend: ps.Backend) -> None:
    weights = np.ones((1, 1, 1, 1), np.float32)
    handle = backend.conv2d_handle(weights, (1, 1, 2, 2))
    weights[:] = 5
    x = np.ones((1, 1, 2, 2), np.float32)
    np.testing.assert_array_equal(host(backend, handle.apply(x)), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_conv2d_epilogue(backend: ps.Backend, activation: str, dtype: Any) -> None:
    rng = np.random.default_rng(6)
    x = 3 * images(rng, (2, 4, 6, 11), dtype)
    many, few = pruned(rng, (6, 4, 3, 3), 0.3, dtype), images(rng, (4, 1, 3, 3), dtype)
    bias = rng.uniform(-1, 1, 6)
    for weights, groups in ((many, 1), (pruned(rng, (6, 4, 1, 1), 0.6, dtype), 1), (few, 4)):
        padding = weights.shape[2] // 2
        around = ((padding, padding),) * 2
        sums = oracle.conv2d(x, weights, (1, 1), around, (1, 1), groups)
        residual, own = images(rng, sums.shape, dtype), bias[: sums.shape[1]]
        flat, wide = sums.reshape(2, -1), np.tile(np.repeat(own, 66), (2, 1))
        for lower, upper in ((None, None), (-0.25, 1.5), (None, 6.0)):
            epilogue = ps.Epilogue(own, activation, lower, upper)
            handle = backend.conv2d_handle(
                weights, x.shape, padding=padding, groups=groups, epilogue=epilogue
            )
            for added in (None, residual):
                more = None if added is None else added.reshape(2, -1)
                finished = oracle.finish(flat, wide, activation, lower, upper, more)
                expected = finished.reshape(sums.shape)
                found = backend.conv2d(x, weights, 1, padding, 1, groups, epilogue, added)
                assert_sums(host(backend, found), expected, dtype)
                out = backend.upload(np.full(sums.shape, np.nan, dtype))
                assert handle.apply(x, out, added) is out
                assert_sums(host(backend, out), expected, dtype)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("density", [0.3, 0.95, 1.0])
def test_conv2d_propagates_nan_and_infinity_through_weights_that_are_not_0(
    backend: ps.Backend, density: float, kernel: int, groups: int
) -> None:
    rng = np.random.default_rng(7)
    weights = pruned(rng, (6, 3 // groups, kernel, kernel), density, np.float32)
    padding = kernel // 2
    around = ((padding, padding),) * 2
    asked: dict[str, Any] = {"padding": padding, "groups": groups}
    for value in (np.nan, np.inf, -np.inf):
        x = images(rng, (1, 3, 9, 21), np.float32)
        x[0, 1, 0, 4] = x[0, 2, 8, 20] = x[0, 0, 3, 0] = value
        expected = oracle.conv2d(x, weights, (1, 1), around, (1, 1), groups)
        handle = backend.conv2d_handle(weights, x.shape, **asked)
        for found in (backend.conv2d(x, weights, **asked), handle.apply(x)):
            assert_sums(host(backend, found), expected, np.float32)
    weights[0] = np.inf  # and the padding, which is 0, times infinity is NaN
    weights[2] = np.nan
    x = images(rng, (1, 3, 9, 21), np.float32)
    with np.errstate(invalid="ignore"):
        expected = oracle.conv2d(x, weights, (1, 1), around, (1, 1), groups)
    assert_sums(host(backend, backend.conv2d(x, weights, **asked)), expected, np.float32)


def test_convolutions_name_what_does_not_fit(backend: ps.Backend) -> None:
    x, weights = np.zeros((2, 4, 5, 6), np.float32), np.zeros((8, 4, 3, 3), np.float32)
    with refused("conv2d", "x", "3 dimension", "batch, channels, height, width"):
        backend.conv2d(x[0], weights)
    with refused("conv2d", "weights", "3 dimension", "outputs, channels / groups"):
        backend.conv2d(x, weights[0])
    with refused("conv2d", "(8, 4, 3, 3)", "3 channels"):
        backend.conv2d(x[:, :3], weights)
    with refused("conv2d", "4 channels", "8 outputs", "3 groups"):
        backend.conv2d(x, weights, groups=3)
    with refused("conv2d", "weights", "2 groups", "must be 2"):
        backend.conv2d(x, weights, groups=2)
    with refused("conv2d", "5 x 5", "3 x 6", "pad"):
        backend.conv2d(x[:, :, :3], weights, dilation=2)
    with refused("conv2d", "weights", "(8, 4, 0, 3)"):
        backend.conv2d(x, weights[:, :, :0])
    wrong: Any
    for wrong in (0, -1, 1.5, True, "1", (1, 0), (1, 1, 1), ()):
        for name in ("stride", "dilation"):
            with refused("conv2d", name):
                backend.conv2d(x, weights, **{name: wrong})
    for wrong in (-1, 0.5, "1", (1,), (1, 2, 3), ((1, 1),), ((1, 1), (1, -1))):
        with refused("conv2d", "padding"):
            backend.conv2d(x, weights, padding=wrong)
    with refused("conv2d", "groups", 0):
        backend.conv2d(x, weights, groups=0)
    with refused("conv2d", "complex128"):
        backend.conv2d(x.astype(complex), weights)
    with refused("conv2d", "weights", "complex128"):
        backend.conv2d(x, weights.astype(complex))
    with refused("conv2d", "residual", "(2, 8, 3, 3)", "(2, 8, 3, 4)"):
        backend.conv2d(x, weights, residual=np.zeros((2, 8, 3, 3)))
    with refused("conv2d", "bias", "(4,)", "(8,)"):
        backend.conv2d(x, weights, epilogue=ps.Epilogue(bias=np.zeros(4)))
    with refused("conv2d", "epilogue", "str"):
        backend.conv2d(x, weights, epilogue="relu")  # type: ignore[arg-type]
    with refused("conv1d", "x", "4 dimension", "batch, channels, length"):
        backend.conv1d(x, weights[:, :, 0])
    with refused("conv1d", "stride", "(1, 1)", "a whole number"):
        backend.conv1d(x[:, :, 0], weights[:, :, 0], stride=(1, 1))  # type: ignore[arg-type]
    with refused("depthwise_conv2d", "(8, 4, 3, 3)", "4 groups", "must be 1"):
        backend.depthwise_conv2d(x, weights)
    with refused("conv2d", "input_shape", "(4, 5, 6)"):
        backend.conv2d_handle(weights, (4, 5, 6))
    with refused("conv2d", "input_shape", -4):
        backend.conv2d_handle(weights, (2, -4, 5, 6))


def test_conv_handles_name_what_does_not_fit(backend: ps.Backend) -> None:
    x, weights = np.zeros((2, 4, 5, 6), np.float32), np.ones((8, 4, 3, 3), np.float32)
    handle = backend.conv2d_handle(weights, x.shape)
    with refused("conv2d", "x", "(2, 4, 6, 6)", "(batch, 4, 5, 6)"):
        handle.apply(np.zeros((2, 4, 6, 6), np.float32))
    with refused("conv2d", "x", "float64", "float32"):
        handle.apply(x.astype(np.float64))
    with refused("conv2d", "residual", "(2, 8, 3, 3)"):
        handle.apply(x, residual=np.zeros((2, 8, 3, 3), np.float32))
    for wrong in (np.zeros((2, 8, 3, 5), np.float32), np.zeros((2, 8, 3, 4))):
        with refused("conv2d", "out", "(2, 8, 3, 4)", "C order"):
            handle.apply(x, backend.upload(wrong))
    same = backend.conv2d_handle(np.ones((4, 4, 1, 1), np.float32), x.shape)
    both = backend.upload(x)
    with refused("conv2d", "out", "overlaps"):
        same.apply(both, both)
