"""The convolutions that benchmarks measure, and their operands."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class ConvShape(NamedTuple):
    """A convolution of one image, as wide as it is high, padded so that its size stays.

    Attributes
    ----------
    channels, outputs, size, kernel, stride : int
    depthwise : bool
        Whether each channel is convolved by itself.
    """

    channels: int
    outputs: int
    size: int
    kernel: int = 3
    stride: int = 1
    depthwise: bool = False

    def __str__(self) -> str:
        extent = f"{self.channels}x{self.size}x{self.size}"
        if self.depthwise:
            return f"depthwise {extent} stride {self.stride}"
        name = f"{extent} to {self.outputs}, {self.kernel}x{self.kernel}"
        return name if self.stride == 1 else f"{name} stride {self.stride}"

    @property
    def arguments(self) -> dict[str, int]:
        """Stride, padding and groups."""
        groups = self.channels if self.depthwise else 1
        return {"stride": self.stride, "padding": self.kernel // 2, "groups": groups}

    def operands(self, zeros: float) -> tuple[Any, Any]:
        """Return an image and weights of which a share is 0, random, in float32."""
        rng = np.random.default_rng(0)
        image = (1, self.channels, self.size, self.size)
        seen = 1 if self.depthwise else self.channels
        shape = self.outputs, seen, self.kernel, self.kernel
        weights = rng.standard_normal(shape, np.float32)
        return rng.standard_normal(image, np.float32), weights * (rng.random(shape) >= zeros)

    def multiply_adds(self, weights: Any) -> int:
        """Return those of the weights that are not 0, at each pixel of the result."""
        return int(np.count_nonzero(weights)) * (-(-self.size // self.stride)) ** 2


# K. He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.
RESNET_50 = tuple(
    ConvShape(channels, channels, size)
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7))
)
RESNET_50_POINTWISE = (ConvShape(256, 64, 56, 1), ConvShape(1024, 256, 14, 1))
RESNET_50_STRIDED = (ConvShape(128, 128, 56, 3, 2), ConvShape(512, 512, 14, 3, 2))
# A. Howard et al., "MobileNets", arXiv:1704.04861 (2017).
MOBILENET_V1 = tuple(
    ConvShape(channels, channels, size, 3, stride, True)
    for channels, size, stride in (
        (32, 112, 1), (64, 112, 2), (128, 56, 1), (128, 56, 2), (256, 28, 1), (256, 28, 2),
        (512, 14, 1), (512, 14, 2), (1024, 7, 1),
    )
)  # fmt: skip
