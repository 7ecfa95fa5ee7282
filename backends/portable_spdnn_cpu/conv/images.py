"""Images whose channels come last in memory, brought into the order that kernels take."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, array_types, entry_point, kernel
from portable_spdnn_cpu.jit.jobs import in_order
from portable_spdnn_cpu.spmm.transposes import load_columns
from portable_spdnn_cpu.tiles.copies import TRANSPOSE_BYTES


def channels_first(images: Array) -> Array:
    """Return images in C order with aligned items: themselves if they are so, else a copy.

    Where the channels of a pixel are adjacent, and pixels equally far apart, as in a transposed
    view of (images, height, width, channels), the copy is made by squares in registers, which
    takes a fifth of the time of NumPy's.

    Parameters
    ----------
    images : ndarray, shape (images, channels, height, width)
        Of float32 or float64.
    """
    flags, item = images.flags, images.itemsize
    if flags.c_contiguous and flags.aligned:
        return images
    _, channels, _, width = images.shape
    _, channel, row, pixel = images.strides
    if not (
        flags.aligned
        and channel == item
        and pixel % item == 0
        and pixel >= channels * item >= TRANSPOSE_BYTES
        and row == width * pixel
        and images.size
    ):
        return in_order(images)
    copy = np.empty(images.shape, images.dtype)
    _transposing(images.dtype)(images, copy)
    return copy


@kernel
def transpose(images: Array, out: Array) -> None:
    """Copy images as `channels_first` says: one is a matrix of channels by pixels."""
    count, channels, height, width = images.shape
    pixels, apart = height * width, images.strides[3] // images.itemsize
    for image in range(count):
        source = images.ctypes.data + image * images.strides[0]
        target = out.ctypes.data + image * out.strides[0]
        load_columns(source, apart, target, pixels, pixels, 0, channels, pixels, images.dtype)


@functools.cache
def _transposing(dtype: np.dtype[Any]) -> Callable[[Array, Array], None]:
    """Return `transpose` for images of a type."""
    return entry_point(transpose, *array_types(dtype, 4))
