"""The kernel of depthwise convolutions: planes, one after the other.

A worker takes some planes, of an image and a channel each, at a time. It copies them, some rows at
a time, with zeros around them; where the horizontal stride is not 1, columns of one phase (those
whose numbers leave the same remainder) apart from those of another: what neighbouring pixels see
are neighbours then. The copy stays in the first-level cache. Activations that bounds do not
express, and residuals, follow in a second pass over the plane of the result, while it is in a
cache.

Weights that are 0 are multiplied like others. Where that would show, because the plane holds NaN or
infinity, it is computed by plain loops that leave them out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from portable_spdnn_cpu.activations import RELU, activate_span
from portable_spdnn_cpu.conv.depthwise.microkernels import ROWS, convolve_plane
from portable_spdnn_cpu.conv.panels import copy_phase
from portable_spdnn_cpu.conv.spans import copy_rows, finish_span
from portable_spdnn_cpu.jit.compilation import Array, kernel_part
from portable_spdnn_cpu.jit.jobs import Job, array_at, float_of, next_task
from portable_spdnn_cpu.layout.canonical import VALUE_TYPES

# Words of a job: how many workers there are, and where among the words the counters of `next_task`
# are; addresses of images, of shape (images, channels, height, width), of `columns` of
# `convolve_plane`, of weights, of shape (channels x multiplier, kernel height, kernel width), of
# whether each of these kernels holds a 0, of biases, of a residual or 0, and of the result, of
# shape (images, channels x multiplier, rows, row_length); the activation's code and the bits of its
# bounds; where workers' memory for phases begins, and how much of it each has; then the numbers of
# `Planes`.
(
    WORKERS, COUNTERS, IMAGES, COLUMNS, WEIGHTS, HOLDS_ZEROS, BIAS, RESIDUAL, OUT,
    ACTIVATION, LOWER, UPPER, WORKSPACE, WORKSPACE_BYTES, PLANES,
) = range(15)  # fmt: skip
BAND = 16  # rows of a result for which phases are copied at a time
SHARE = 13  # the place of `share` in `Planes`, with its tuples opened; `total` follows
LENGTH = 1 << 40  # what addresses lead to is as long as it needs to be


class Planes(NamedTuple):
    """Shapes of a depthwise convolution.

    Attributes
    ----------
    channels, multiplier : int
        Outputs c multiplier .. (c + 1) multiplier - 1 are those of channel c.
    height, width : int
        Of an image.
    rows, row_length : int
        Of a result.
    strides, padding : tuple of int
        Vertical and horizontal; the padding above and left of the image.
    zeros, pitch, phase : int
        Of a copied phase: zeros before its first row, items from row to row, with the zeros that
        end one row and precede the next, and items from one phase to the next.
    share, total : int
        Planes that a worker takes at a time, and of all images.
    """

    channels: int
    multiplier: int
    height: int
    width: int
    rows: int
    row_length: int
    strides: tuple[int, int]
    padding: tuple[int, int]
    zeros: int
    pitch: int
    phase: int
    share: int
    total: int


@kernel_part
def convolve_planes(
    worker: int, words: Any, extent: tuple[int, ...], step: tuple[int, ...], dtype: Any
) -> None:
    """Compute planes until none is left, with square kernels of len(extent) x len(extent).

    The vertical stride is len(step).
    """
    n = PLANES
    planes = Planes(
        words[n], words[n + 1], words[n + 2], words[n + 3], words[n + 4], words[n + 5],
        (words[n + 6], words[n + 7]), (words[n + 8], words[n + 9]), words[n + 10], words[n + 11],
        words[n + 12], words[n + 13], words[n + 14],
    )  # fmt: skip
    images = array_at(words[IMAGES], LENGTH, dtype)
    columns = array_at(words[COLUMNS], LENGTH, np.int64)
    weights = array_at(words[WEIGHTS], LENGTH, dtype)
    holds_zeros = array_at(words[HOLDS_ZEROS], LENGTH, np.uint8)
    bias = array_at(words[BIAS], LENGTH, dtype)
    residual = array_at(words[RESIDUAL], LENGTH, dtype)
    out = array_at(words[OUT], LENGTH, dtype)
    phases = array_at(words[WORKSPACE] + worker * words[WORKSPACE_BYTES], LENGTH, dtype)
    code, lower, upper = words[ACTIVATION], float_of(words[LOWER]), float_of(words[UPPER])
    low, high = (lower, upper) if code <= RELU else (-np.inf, np.inf)
    first_low, first_high = (-np.inf, np.inf) if words[RESIDUAL] else (low, high)  # it precedes
    image_size, size = planes.height * planes.width, planes.rows * planes.row_length
    kernel_size = len(extent) * len(extent)
    shares = -(-planes.total // planes.share)
    while True:
        number = next_task(words, words[COUNTERS], worker, words[WORKERS], shares)
        if number < 0:
            break
        begin = number * planes.share
        for plane in range(begin, min(begin + planes.share, planes.total)):
            first = plane * image_size
            for copy in range(planes.multiplier):
                output = plane % planes.channels * planes.multiplier + copy
                to = (plane * planes.multiplier + copy) * size
                if holds_zeros[output] and not all_finite(images, first, image_size):
                    sum_nonzero(
                        planes, len(extent), images, first, weights, output * kernel_size, out,
                        to, bias[output], dtype(first_low), dtype(first_high),
                    )  # fmt: skip
                else:
                    for row in range(0, planes.rows, BAND):
                        rows = min(BAND, planes.rows - row)
                        copy_band(planes, len(extent), images, first, row, rows, phases)
                        convolve_plane(
                            extent, step, (rows, planes.row_length), phases, planes.pitch, columns,
                            weights, output * kernel_size, out, to + row * planes.row_length,
                            to + size, bias[output], dtype(first_low), dtype(first_high),
                        )  # fmt: skip
                if words[RESIDUAL]:
                    finish_span(
                        out, to, out, to, size, dtype(0), residual, 1, dtype(low), dtype(high)
                    )
                if code > RELU:
                    activate_span(out, to, to + size, code, lower, upper)


@kernel_part
def copy_band(
    planes: Planes, extent: int, images: Array, first: int, row: int, rows: int, phases: Array
) -> None:
    """Copy what tiles of rows row .. row + rows - 1 of the result see of a plane, by phases."""
    down, stride = planes.strides
    seen = row * down - planes.padding[0]
    count = down * (-(-rows // ROWS) * ROWS - 1) + extent
    above = min(max(0, -seen), count)
    inside = min(max(0, planes.height - seen), count) - above
    for phase in range(stride):
        columns = max(0, (planes.width - phase + stride - 1) // stride)
        to = phase * planes.phase
        begin = to + planes.zeros + above * planes.pitch
        end = begin + inside * planes.pitch
        copy_rows((0,), phases, to, begin - to, images, 0, 0, 1, 0)  # zeros
        start = first + (seen + above) * planes.width + phase
        copy_phase(
            stride, phases, begin, planes.pitch, images, start, planes.width, inside, columns
        )
        copy_rows((0,), phases, end, (count - above - inside) * planes.pitch, images, 0, 0, 1, 0)


@kernel_part
def all_finite(values: Array, first: int, count: int) -> bool:
    """Whether there is no NaN and no infinity among some values."""
    different = 0
    for place in range(first, first + count):
        different += values[place] - values[place] != 0
    return different == 0


@kernel_part
def sum_nonzero(
    planes: Planes,
    extent: int,
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
    for row in range(planes.rows):
        for column in range(planes.row_length):
            total = bias
            for u in range(extent):
                for v in range(extent):
                    weight = weights[first_weight + u * extent + v]
                    if weight == 0:
                        continue
                    i = row * planes.strides[0] + u - planes.padding[0]
                    j = column * planes.strides[1] + v - planes.padding[1]
                    inside = i >= 0 and i < planes.height and j >= 0 and j < planes.width
                    if inside:
                        total += weight * images[first + i * planes.width + j]
                    else:
                        total += weight - weight  # 0, or NaN as infinity times 0
            if total < lower:
                total = lower
            if total > upper:
                total = upper
            out[to + row * planes.row_length + column] = total


# By extent of the kernel, vertical stride, and type.
JOBS = {
    (extent, step, dtype.name): Job(convolve_planes, (0,) * extent, (0,) * step, dtype.type)
    for extent in (3, 5, 7)
    for step in (1, 2)
    for dtype in VALUE_TYPES
}
