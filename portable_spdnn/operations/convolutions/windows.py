"""What each pixel of a convolution's result sees, for backends that write it as a product."""

from __future__ import annotations

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.operations.convolutions.geometry import ConvGeometry


def seen_windows(x: Array, geometry: ConvGeometry) -> Array:
    """Return what each result sees of an image, as a view of the padded images.

    Parameters
    ----------
    x : ndarray, shape (batch, channels, height, width)
    geometry : ConvGeometry

    Returns
    -------
    ndarray, shape (batch, groups, channels / groups, kernel height, kernel width, height', width')
        Entry [n, g, c, u, v, i, j] is P[n, g, c, i s0 + u d0, j s1 + v d1], with P in padding.
    """
    padded = np.pad(x, ((0, 0), (0, 0), *geometry.padding))
    batch, row, column = padded.strides[0], padded.strides[2], padded.strides[3]
    shape = (
        *(len(x), geometry.groups, geometry.group_channels),
        *geometry.kernel,
        *geometry.output_size,
    )
    channel = padded.strides[1]
    strides = (
        *(batch, geometry.group_channels * channel, channel),
        *(row * geometry.dilation[0], column * geometry.dilation[1]),
        *(row * geometry.stride[0], column * geometry.stride[1]),
    )
    return np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)
