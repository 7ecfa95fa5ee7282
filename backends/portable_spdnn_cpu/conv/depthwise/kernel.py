"""The kernel of depthwise convolutions: planes, one after the other.

A worker takes some planes, of an image and a channel each, from a shared counter. Where the
horizontal stride is not 1, it first copies the plane row by row, columns of one phase (those whose
numbers leave the same remainder) after those of another: what neighbouring pixels see are neighbours
then. Activations that bounds do not express, and residuals, follow in a second pass over the plane
of the result, while it is in a cache.

Weights that are 0 are multiplied like others. Where that would show, because the plane holds NaN or
infinity, it is computed by plain loops that leave them out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from portable_spdnn_cpu.activations import RELU, Activation, activate_span
from portable_spdnn_cpu.conv.depthwise.microkernels import convolve_plane
from portable_spdnn_cpu.conv.spans import finish_span, pick_span
from portable_spdnn_cpu.jit.compilation import Array, kernel, kernel_part
from portable_spdnn_cpu.jit.intrinsics import fetch_add


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
    phase_columns : int
        Columns of a phase where phases are copied, else 0.
    share : int
        Planes that a worker takes at a time.
    """

    channels: int
    multiplier: int
    height: int
    width: int
    rows: int
    row_length: int
    strides: tuple[int, int]
    padding: tuple[int, int]
    phase_columns: int
    share: int


@kernel
def convolve_planes(
    tile: tuple[int, ...],
    height: tuple[int, ...],
    width: tuple[int, ...],
    step: tuple[int, ...],
    counter: Array,
    planes: Planes,
    images: Array,
    columns: Array,
    weights: Array,
    holds_zeros: Array,
    bias: Array,
    bounds: Array,
    residual: Array,
    activation: Activation,
    phases: Array,
    out: Array,
) -> None:
    """Compute planes until none is left.

    Parameters
    ----------
    tile, height, width, step : tuple
        See `convolve_plane`, as for `columns`.
    counter : ndarray of int64, shape (1,)
    planes : Planes
    images : ndarray of one dimension
        Shape (images, channels, height, width) in C order.
    columns : ndarray of int64
    weights : ndarray of one dimension
        Shape (channels x multiplier, kernel height, kernel width) in C order.
    holds_zeros : ndarray of bool, shape (channels x multiplier,)
    bias : ndarray, shape (channels x multiplier,)
    bounds : ndarray, shape (2,)
        What results are clamped to where bounds express the activation, else infinite.
    residual : ndarray of one dimension
        Of the result's size, or empty where there is none.
    activation : Activation
    phases : ndarray of one dimension
        Takes the phases of a plane.
    out : ndarray of one dimension
        Shape (images, channels x multiplier, rows, row_length) in C order.
    """
    image_size, size = planes.height * planes.width, planes.rows * planes.row_length
    kernel_size = len(height) * len(width)
    count = images.size // image_size
    infinite = bounds.dtype.type(np.inf)
    later = residual.size > 0 or activation.code > RELU
    lower, upper = (-infinite, infinite) if later else (bounds[0], bounds[1])
    sizes = planes.height, planes.rows, planes.row_length, planes.padding[0]
    while True:
        begin = fetch_add(counter, 0, planes.share)
        if begin >= count:
            break
        for plane in range(begin, min(begin + planes.share, count)):
            first = plane * image_size
            if planes.phase_columns:
                copy_phases(planes, images, first, phases)
            for number in range(planes.multiplier):
                output = plane % planes.channels * planes.multiplier + number
                to = (plane * planes.multiplier + number) * size
                if holds_zeros[output] and not all_finite(images, first, image_size):
                    sum_nonzero(
                        planes, len(height), len(width), images, first, weights,
                        output * kernel_size, out, to, bias[output], lower, upper,
                    )  # fmt: skip
                elif planes.phase_columns:
                    convolve_plane(
                        tile, height, width, step, sizes, phases, 0,
                        planes.phase_columns * planes.strides[1], columns, weights,
                        output * kernel_size, out, to, bias[output], lower, upper,
                    )  # fmt: skip
                else:
                    convolve_plane(
                        tile, height, width, step, sizes, images, first, planes.width, columns,
                        weights, output * kernel_size, out, to, bias[output], lower, upper,
                    )  # fmt: skip
                if residual.size > 0:
                    finish_span(
                        out, to, out, to, size, bounds.dtype.type(0), residual, 1, bounds[0],
                        bounds[1],
                    )  # fmt: skip
                if activation.code > RELU:
                    activate_span(
                        out, to, to + size, activation.code, activation.lower, activation.upper
                    )


@kernel_part
def copy_phases(planes: Planes, images: Array, first: int, phases: Array) -> None:
    """Copy a plane, the columns of each row by phases."""
    stride, length = planes.strides[1], planes.phase_columns
    for row in range(planes.height):
        for phase in range(stride):
            start = first + row * planes.width + phase
            to = (row * stride + phase) * length
            count = (planes.width - phase + stride - 1) // stride
            if stride == 2:
                pick_span(phases, to, images, start, count)
            else:
                for column in range(count):
                    phases[to + column] = images[start + column * stride]


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
    height: int,
    width: int,
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
            for u in range(height):
                for v in range(width):
                    weight = weights[first_weight + u * width + v]
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
