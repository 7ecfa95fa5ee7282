"""The shapes of a convolution: what arguments mean, and whether they fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, TypeAlias

import numpy as np

from portable_spdnn.arguments import checked_count, shown
from portable_spdnn.arrays import Array
from portable_spdnn.caching import cached_property
from portable_spdnn.errors import InputError
from portable_spdnn.operations.operands import host_array
from portable_spdnn.sparse_arrays import real_dtype

Extents: TypeAlias = int | Sequence[int]
MOST = (1 << 31) - 1  # of a stride, a dilation or a padding
MOST_ENTRIES = 1 << 59  # of a result: 2^62 bytes of float64
# "same": as `same_padding` says; "valid": none. In capitals too, as TensorFlow writes them.
Padding: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | Literal["same", "valid"]

IMAGE_AXES = {1: "(batch, channels, length)", 2: "(batch, channels, height, width)"}


@dataclass(frozen=True)
class ConvGeometry:
    """Shapes of a convolution, checked. Signals, of one dimension, are images one row high.

    Attributes
    ----------
    channels, height, width : int
        Of an image before the convolution.
    outputs : int
        Channels after it. Outputs g outputs / groups .. (g + 1) outputs / groups - 1 see channels
        g channels / groups .. (g + 1) channels / groups - 1, for g = 0 .. groups - 1.
    kernel, stride, dilation : tuple of int
        Vertical and horizontal.
    padding : tuple of (int, int)
        Rows of zeros above and below the image, columns of zeros left and right of it.
    groups : int
    dimensions : int
        Of what the user has: 1 for signals, 2 for images.

    Examples
    --------
    >>> geometry = conv_geometry("conv2d", (8, 56, 56), (16, 4, 3, 3), 2, 1, 1, 2)
    >>> geometry.kernel, geometry.padding, geometry.output_shape(5)
    ((3, 3), ((1, 1), (1, 1)), (5, 16, 28, 28))
    """

    channels: int
    height: int
    width: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    dilation: tuple[int, int]
    groups: int
    dimensions: int

    @property
    def group_channels(self) -> int:
        """Channels that an output sees."""
        return self.channels // self.groups

    @property
    def group_outputs(self) -> int:
        """Outputs that see the same channels."""
        return self.outputs // self.groups

    @property
    def matrix_shape(self) -> tuple[int, int, int]:
        """Shape of the weights as a matrix for each group: (groups, outputs, what one sees)."""
        seen = self.group_channels * self.kernel[0] * self.kernel[1]
        return self.groups, self.group_outputs, seen

    @property
    def padded_size(self) -> tuple[int, int]:
        """Height and width of an image with its padding."""
        (above, below), (left, right) = self.padding
        return self.height + above + below, self.width + left + right

    @cached_property
    def output_size(self) -> tuple[int, int]:
        """Height and width of a result; less than 1 where the kernel is larger than the image."""
        height, width = (
            (padded - dilation * (kernel - 1) - 1) // stride + 1
            for padded, kernel, stride, dilation in zip(
                self.padded_size, self.kernel, self.stride, self.dilation, strict=True
            )
        )
        return height, width

    def input_shape(self, batch: int) -> tuple[int, int, int, int]:
        """Return the shape of so many images."""
        return batch, self.channels, self.height, self.width

    def output_shape(self, batch: int) -> tuple[int, int, int, int]:
        """Return the shape of the results of so many images."""
        return batch, self.outputs, *self.output_size

    def lowered(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape as the user has it: without the height, where that is always 1."""
        return shape if self.dimensions == 2 else (*shape[:2], shape[3])


def conv_geometry(
    name: str,
    image: tuple[int, ...],
    weights: tuple[int, ...],
    stride: Extents,
    padding: Padding,
    dilation: Extents,
    groups: int,
    images: str = "x",
) -> ConvGeometry:
    """Return the geometry that arguments mean, or raise InputError.

    Parameters
    ----------
    name : str
        The operation, for messages.
    image : tuple of int
        (channels, height, width), or (channels, length) in one dimension.
    weights : tuple of int
        (outputs, channels / groups, vertical, horizontal), or without `vertical`.
    stride, padding, dilation, groups
        As the user gave them.
    images : str
        What the images are called, for messages.
    """
    channels, *size = image
    outputs, group_channels, *kernel = weights
    groups = checked_count(f"{name}: groups", groups)
    if min(kernel) < 1:
        raise InputError(f"{name}: weights have shape {weights}; a kernel has at least one entry")
    if channels % groups or outputs % groups:
        raise InputError(
            f"{name}: {channels} channels and {outputs} outputs do not divide into {groups} groups"
            f"{channels_last_hint(image, outputs, images)}"
        )
    seen = group_channels * groups
    if seen != channels:
        raise InputError(
            f"{name}: weights have shape {weights}, but {images} has {channels} channels, its "
            f"second dimension, in {groups} group{'s' if groups > 1 else ''}; the second dimension "
            f"of weights must be {channels // groups}{channels_last_hint(image, seen, images)}"
        )
    both = (1, 1)[len(size) :]  # in one dimension, images are one row high
    strides = _extents(f"{name}: stride", stride, len(size))
    dilations = _extents(f"{name}: dilation", dilation, len(size))
    named = padding.lower() if isinstance(padding, str) else ""
    if named == "same":
        around = same_padding(size, kernel, strides, dilations)
    else:
        zeros = 0 if named == "valid" else padding
        around = _padding(f"{name}: padding", zeros, len(size))
    geometry = ConvGeometry(
        channels,
        *_two((*both, *size)),
        outputs,
        _two((*both, *kernel)),
        _two((*both, *strides)),
        _two((*((0, 0) for _ in both), *around)),
        _two((*both, *dilations)),
        groups,
        len(size),
    )
    if min(geometry.output_size) < 1:
        reach = [d * (k - 1) + 1 for k, d in zip(geometry.kernel, geometry.dilation, strict=True)]
        raise InputError(
            f"{name}: the kernel spans {_by(reach)} entries, more than the padded image of "
            f"{_by(geometry.padded_size)}; pad more, or use a smaller kernel or dilation"
        )
    if outputs * math.prod(geometry.output_size) > MOST_ENTRIES:
        raise InputError(
            f"{name}: a result would have {outputs} channels of {_by(geometry.output_size)}, more "
            "than can be addressed; pad less, or use larger strides"
        )
    return geometry


def same_padding(
    size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return the padding of each dimension with which a result has ceil(size / stride) entries.

    That is ``SAME`` of TensorFlow, ``SAME_UPPER`` of ONNX and, for stride 1, "same" of PyTorch: as
    many zeros after a dimension as before it, or one more.

    Examples
    --------
    >>> same_padding((7, 8), (3, 3), (2, 2), (1, 1))
    ((1, 1), (0, 1))
    """
    found = []
    for entries, taps, step, apart in zip(size, kernel, stride, dilation, strict=True):
        reach = (-(-entries // step) - 1) * step + apart * (taps - 1) + 1
        zeros = max(reach - entries, 0)
        found.append((zeros // 2, zeros - zeros // 2))
    return tuple(found)


def channels_last_hint(image: Sequence[int], channels: int, images: str = "x") -> str:
    """Return what to add to an error where the channels of images seem to come last."""
    if image[-1] != channels:
        return ""
    if images != "x":  # `input_shape`, of which no transpose can be given
        return f"; {images} is {IMAGE_AXES[len(image) - 1]}"
    order = "0, 3, 1, 2" if len(image) == 3 else "0, 2, 1"
    return f"; where x has its channels last, give x.transpose({order})"


def checked_weights(name: str, weights: object, dimensions: int) -> Array:
    """Return weights in host memory, or raise InputError."""
    array = host_array(f"{name}: weights", weights)
    if array.ndim != 2 + dimensions:
        axes = "kernel length" if dimensions == 1 else "kernel height, kernel width"
        raise InputError(
            f"{name}: weights have {array.ndim} dimension(s); (outputs, channels / groups, {axes}) "
            "are expected"
        )
    real_dtype(array.dtype, f"{name}: weights")
    return array


def checked_image_shape(name: str, shape: Any, dimensions: int) -> tuple[int, ...]:
    """Return the shape of images that a handle is made for, or raise InputError."""
    given = _items(shape)
    if given is None or len(given) != 2 + dimensions:
        raise InputError(f"{name} is {shown(shape)}; {IMAGE_AXES[dimensions]} is expected")
    axes = IMAGE_AXES[dimensions].strip("()").split(", ")
    named = zip(axes, given, strict=True)
    return tuple(checked_count(f"{name}: {axis}", each, least=0) for axis, each in named)


def _by(extents: Sequence[int]) -> str:
    return " x ".join(map(str, extents))


def _two(values: tuple[Any, ...]) -> tuple[Any, Any]:
    first, second = values
    return first, second


def _extents(name: str, value: Extents, dimensions: int) -> tuple[int, ...]:
    """Return a stride or dilation for each dimension."""
    given = _items(value)
    if given is None:
        return (checked_count(name, value, most=MOST),) * dimensions
    if len(given) != dimensions:
        raise InputError(f"{name} is {shown(value)}; {_expected(dimensions)} is expected")
    return tuple(checked_count(name, each, most=MOST) for each in given)


def _padding(name: str, value: Any, dimensions: int) -> tuple[tuple[int, int], ...]:
    """Return the padding before and after each dimension."""
    given = _items(value)
    if isinstance(value, Integral):
        each = checked_count(name, value, least=0, most=MOST)
        return ((each, each),) * dimensions
    if given is None or len(given) != 2:
        more = ", ((above, below), (left, right))" if dimensions == 2 else ""
        raise InputError(
            f'{name} is {shown(value)}; a whole number, two{more}, "same" or "valid" is expected'
        )
    if dimensions == 1:
        return (_before_and_after(name, value),)
    return tuple(_before_and_after(name, each) for each in given)


def _before_and_after(name: str, value: Any) -> tuple[int, int]:
    """Return the padding of one dimension."""
    given = _items(value)
    if given is None:
        given = [value, value]
    if len(given) != 2:
        raise InputError(
            f"{name} has {shown(value)} for a dimension; a whole number or a pair is expected"
        )
    return _two(tuple(checked_count(name, each, least=0, most=MOST) for each in given))


def _expected(dimensions: int) -> str:
    return "a whole number, or a pair of them," if dimensions == 2 else "a whole number"


def _items(value: Any) -> list[Any] | None:
    """Return the items of a sequence, None of a number."""
    several = value.ndim > 0 if isinstance(value, np.ndarray) else isinstance(value, list | tuple)
    return list(value) if several else None
