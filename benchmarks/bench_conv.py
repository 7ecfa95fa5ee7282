"""Convolutions with pruned weights, prepared, of one image.

Kernels of 3 x 3 of ResNet-50 with 90 % and 95 % zeros, one with a stride of 2, one of 1 x 1, and
two depthwise layers of MobileNetV1, which are dense. Weights and images are random: time depends
on which weights are 0 alone.
"""

from __future__ import annotations

import numpy as np
import pytest

from portable_spdnn_cpu.machine.cpu_info import aligned_empty

from .conv_shapes import MOBILENET_V1, RESNET_50, RESNET_50_POINTWISE, RESNET_50_STRIDED

PRUNED = (*RESNET_50, RESNET_50_STRIDED[0], RESNET_50_POINTWISE[1])
DENSE = (MOBILENET_V1[2], MOBILENET_V1[6])
CASES = {
    **{f"{shape}, {zeros} % zeros": (shape, zeros) for shape in PRUNED for zeros in (90, 95)},
    **{str(shape): (shape, 0) for shape in DENSE},
}


@pytest.mark.cases(*CASES, one_thread=tuple(CASES))
def test_conv(case, backend, reference, prepared, measure):
    shape, zeros = CASES[case]

    def build():
        x, weights = shape.operands(zeros / 100)
        placed = aligned_empty(x.shape, x.dtype)
        placed[...] = x
        return placed, weights, reference.conv2d(x, weights, **shape.arguments)

    x, weights, expected = prepared(build)
    handle = backend.conv2d_handle(weights, x.shape, **shape.arguments)
    out = aligned_empty(expected.shape, expected.dtype)
    scale = float(np.abs(expected).max())

    def check(result):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5 * scale)

    measure(
        lambda: handle.apply(x, out),
        check,
        edges=shape.multiply_adds(weights),
        weights=f"random, {zeros} % zeros",
        inputs="random",
    )
