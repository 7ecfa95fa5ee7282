"""The kernel of depthwise convolutions: planes, one after the other.

A worker takes some planes, of an image and a channel each, at a time. Activations that bounds do
not express, and residuals, follow in a second pass over the plane of the result, while it is in a
cache.

Weights that are 0 are multiplied like others. Where that would show, because the plane holds NaN or
infinity, it is computed by plain loops that leave them out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from portable_spdnn_cpu.activations import RELU, activate_span
from portable_spdnn_cpu.conv.depthwise.finite import all_finite
from portable_spdnn_cpu.conv.spans import finish_span
from portable_spdnn_cpu.jit.compilation import Array, job_kernel, kernel_part
from portable_spdnn_cpu.jit.job_start import COUNTERS, FIRST_OWN, INPUT, OUT, RESIDUAL, WORKERS
from portable_spdnn_cpu.jit.jobs import LENGTH, Job, array_at, call_code, float_of, next_task
from portable_spdnn_cpu.layout.canonical import VALUE_TYPES

# Words of a job after those of `jit.job_start`: addresses of `zero_row` and `masks` of
# `convolve_plane`, of weights, of shape (channels x multiplier, kernel height, kernel width), of
# whether each of these kernels holds a 0, and of biases; the code of `Activation` and the bits of
# its bounds; the address that `microkernels.plane_code` returned; then the numbers of `Planes`.
# Images are of shape (images, channels, height, width), results (images, channels x multiplier,
# rows, row_length).
(
    ZERO_ROW, MASKS, WEIGHTS, HOLDS_ZEROS, BIAS, ACTIVATION, LOWER, UPPER, PLANE_CODE, PLANES,
) = range(FIRST_OWN, FIRST_OWN + 10)  # fmt: skip
SHARE = 12  # the place of `share` among the numbers of `Planes`; `total` follows


class Planes(NamedTuple):
    """Shapes of a depthwise convolution.

    Attributes
    ----------
    channels, multiplier : int
        Outputs c multiplier .. (c + 1) multiplier - 1 are those of channel c.
    sizes : tuple of int
        Height and width of an image, rows of a result and their length.
    strides, padding : tuple of int
        Vertical and horizontal; the padding above and left of the image.
    extent, dilation : int
        Of the square kernel, and the distance in the image of what neighbouring weights see.
    share, total : int
        Planes that a worker takes at a time, and of all images.
    """

    channels: int
    multiplier: int
    sizes: tuple[int, int, int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]
    extent: int
    dilation: int
    share: int
    total: int


@job_kernel
def convolve_planes(worker: int, words: Any, dtype: Any) -> None:
    """Compute planes until none is left."""
    n = PLANES
    planes = Planes(
        words[n], words[n + 1], (words[n + 2], words[n + 3], words[n + 4], words[n + 5]),
        (words[n + 6], words[n + 7]), (words[n + 8], words[n + 9]), words[n + 10], words[n + 11],
        words[n + 12], words[n + 13],
    )  # fmt: skip
    images = array_at(words[INPUT], LENGTH, dtype)
    weights = array_at(words[WEIGHTS], LENGTH, dtype)
    holds_zeros = array_at(words[HOLDS_ZEROS], LENGTH, np.uint8)
    bias = array_at(words[BIAS], LENGTH, dtype)
    residual = array_at(words[RESIDUAL], LENGTH, dtype)
    out = array_at(words[OUT], LENGTH, dtype)
    code, lower, upper = words[ACTIVATION], float_of(words[LOWER]), float_of(words[UPPER])
    low, high = (lower, upper) if code <= RELU else (-np.inf, np.inf)
    first_low, first_high = (-np.inf, np.inf) if words[RESIDUAL] else (low, high)  # it precedes
    height, width, rows, row_length = planes.sizes
    image_size, size = height * width, rows * row_length
    kernel_size = planes.extent * planes.extent
    shares = -(-planes.total // planes.share)
    while True:
        number = next_task(words, words[COUNTERS], worker, words[WORKERS], shares)
        if number < 0:
            break
        begin = number * planes.share
        channel = begin % planes.channels
        for plane in range(begin, min(begin + planes.share, planes.total)):
            first = plane * image_size
            for which in range(planes.multiplier):
                output = channel * planes.multiplier + which
                to = (plane * planes.multiplier + which) * size
                if holds_zeros[output] and not all_finite(images, first, image_size):
                    sum_nonzero(
                        planes, images, first, weights, output * kernel_size, out, to,
                        bias[output], dtype(first_low), dtype(first_high),
                    )  # fmt: skip
                else:
                    image = words[INPUT] + first * out.itemsize
                    target = words[OUT] + to * out.itemsize
                    given = (
                        height, width, rows, row_length, *planes.padding, image,
                        words[ZERO_ROW], words[MASKS], words[WEIGHTS], output * kernel_size,
                        target, float(bias[output]), first_low, first_high,
                    )  # fmt: skip
                    call_code(words[PLANE_CODE], given)
                if words[RESIDUAL]:
                    finish_span(
                        out, to, out, to, size, dtype(0), residual, 1, dtype(low), dtype(high)
                    )
                if code > RELU:
                    activate_span(out, to, to + size, code, lower, upper)
            channel = channel + 1 if channel + 1 < planes.channels else 0


@kernel_part
def sum_nonzero(
    planes: Planes,
    images: Array,
    first: int,
    weights: Array,
    first_weight: int,
    out: Array,
    to: int,
    bias: Any,
    lower: Any,
    upper: Any,
) -> None:
    """Convolve one plane as `convolve_plane` does, leaving out weights that are 0."""
    height, width, rows, row_length = planes.sizes
    extent, dilation = planes.extent, planes.dilation
    for row in range(rows):
        for column in range(row_length):
            total = bias
            for u in range(extent):
                for v in range(extent):
                    weight = weights[first_weight + u * extent + v]
                    if weight == 0:
                        continue
                    i = row * planes.strides[0] + u * dilation - planes.padding[0]
                    j = column * planes.strides[1] + v * dilation - planes.padding[1]
                    inside = i >= 0 and i < height and j >= 0 and j < width
                    if inside:
                        total += weight * images[first + i * width + j]
                    else:
                        total += weight - weight  # 0, or NaN as infinity times 0
            if total < lower:
                total = lower
            if total > upper:
                total = upper
            out[to + row * row_length + column] = total


TILE_ROWS, EXTENTS, STRIDES, MOST_DILATION = (4, 7), (3, 5, 7), (1, 2), 8
JOBS = {dtype.name: Job(convolve_planes, dtype.type) for dtype in VALUE_TYPES}
