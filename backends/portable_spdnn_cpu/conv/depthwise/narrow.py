"""Narrow planes: which they are, and the masks under which they are loaded."""

from __future__ import annotations

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn_cpu.conv.depthwise.microkernels import NARROW_VECTORS
from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS, VECTOR_BYTES

MOST_BYTES = 1 << 12  # of a result, for which masks are made


def is_narrow(geometry: ConvGeometry, itemsize: int) -> bool:
    """Whether two rows or more lie in a vector, strides are 1, and results as wide as images."""
    rows, width = geometry.output_size
    return (
        HAS_FAST_MASKS
        and geometry.stride == (1, 1)
        and geometry.width == width <= VECTOR_BYTES // itemsize // 2
        and rows * width * itemsize <= MOST_BYTES
    )


def masks_of(geometry: ConvGeometry, itemsize: int) -> Array:
    """Return which items of the image there are, for each item of the kernel and of the result.

    Returns
    -------
    ndarray of uint16, shape (groups of vectors, kernel height, kernel width, NARROW_VECTORS)
        A bit for each lane of a vector.
    """
    lanes = VECTOR_BYTES // itemsize
    rows, width = geometry.output_size
    (top, _), (left, _) = geometry.padding
    groups = -(-rows * width // (NARROW_VECTORS * lanes))
    place = np.arange(groups * NARROW_VECTORS * lanes)
    place = place.reshape(groups, 1, 1, NARROW_VECTORS, lanes)
    down, across = (
        step * np.arange(extent)
        for step, extent in zip(geometry.dilation, geometry.kernel, strict=True)
    )
    row = place // width - top + down[:, None, None, None]
    column = place % width - left + across[:, None, None]
    there = (place < rows * width) & (row >= 0) & (row < geometry.height)
    there = there & (column >= 0) & (column < width)
    masks: Array = (there << np.arange(lanes)).sum(axis=-1).astype(np.uint16)
    return masks
