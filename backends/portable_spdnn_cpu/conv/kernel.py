"""The kernel of convolutions with pruned weights: panels of pixels against streamed entries.

Pixels of a result are cut into panels of a few vectors, and panels into bands. A worker takes the
next task from a shared counter: a band of one image, for one group of channels and a part of its
outputs. Where strides are not 1 it copies the phases that the band sees. Then, for each panel and
each block of what kernels see, it gathers a panel into the first-level cache and streams the
block's entries against it. Sums wait in a tile; when they are complete, bias, residual and
activation follow on their way to the result. Where a panel's pixels see what is outside of the
image, masks put zeros: there is no padded copy.

Bound: that of `microkernels`; besides, each entry that kernels see costs a copy to the panel, shared
by all outputs, and each output a copy of its sums to the result.
"""

from __future__ import annotations

from typing import NamedTuple

from portable_spdnn_cpu.activations import RELU, Activation, activate_span
from portable_spdnn_cpu.conv.microkernels import accumulate
from portable_spdnn_cpu.conv.packing import (
    FIRST_ENTRY,
    FIRST_OUTPUT,
    FIRST_RUN,
    FIRST_SOURCE,
    LAST_RUN,
    LAST_SOURCE,
    PackedConv,
)
from portable_spdnn_cpu.conv.panels import Task, copy_band, cut_rows, mask_panel
from portable_spdnn_cpu.conv.spans import finish_span, gather_panel
from portable_spdnn_cpu.jit.compilation import Array, kernel
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.jit.target import VECTOR_BYTES


class Buffers(NamedTuple):
    """A worker's memory: phases of a band, a panel, sums, masks, and spans of a panel's pixels."""

    phases: Array
    panel: Array
    sums: Array
    masks: Array
    spans: Array


@kernel
def convolve(
    width: tuple[int, ...],
    counter: Array,
    task: Task,
    phases: Array,
    packed: PackedConv,
    images: Array,
    bias: Array,
    bounds: Array,
    residual: Array,
    activation: Activation,
    buffers: Buffers,
    out: Array,
) -> None:
    """Compute tasks until none is left.

    Parameters
    ----------
    width : tuple
        As long as there are vectors in a panel.
    counter : ndarray of int64, shape (1,)
    task : Task
    phases : ndarray of int64
        Of `ImageLayout`.
    packed : PackedConv
    images : ndarray of one dimension
        Shape (images, groups, channels, height, width) in C order.
    bias : ndarray, shape (groups x outputs,)
    bounds : ndarray, shape (2,)
        What results are clamped to where bounds express the activation, else infinite.
    residual : ndarray of one dimension
        Of the result's size, or empty where there is none.
    activation : Activation
    buffers : Buffers
    out : ndarray of one dimension
        Shape (images, groups, outputs, rows, columns) in C order.
    """
    size = len(width) * (VECTOR_BYTES // out.itemsize)
    positions = (task.rows - 1) * task.pitch + task.columns
    tasks = task.images * task.groups * task.bands * task.parts
    while True:
        number = fetch_add(counter, 0, 1)
        if number >= tasks:
            break
        number, part = divmod(number, task.parts)
        number, band = divmod(number, task.bands)
        image, group = divmod(number, task.groups)
        channel = (image * task.groups + group) * task.channels
        begin = band * task.band_panels * size
        end = min(begin + task.band_panels * size, positions)
        first_row = begin // task.pitch
        if task.copied:
            last_row = (end - 1) // task.pitch
            copy_band(task, phases, images, channel, first_row, last_row, buffers.phases)
        for position in range(begin, end, size):
            count = min(size, end - position)
            mask_panel(task, position, len(width), size // len(width), buffers.masks)
            first = packed.ranges[group * task.parts + part]
            for block in range(first, packed.ranges[group * task.parts + part + 1]):
                one = packed.blocks[block]
                if task.copied:
                    gather_panel(
                        width, buffers.panel, buffers.phases, position - first_row * task.pitch,
                        packed.sources, packed.kernel_entries, one[FIRST_SOURCE],
                        one[LAST_SOURCE], buffers.masks,
                    )  # fmt: skip
                else:
                    gather_panel(
                        width, buffers.panel, images,
                        channel * task.height * task.width + position,
                        packed.sources, packed.kernel_entries, one[FIRST_SOURCE],
                        one[LAST_SOURCE], buffers.masks,
                    )  # fmt: skip
                accumulate(
                    width, buffers.panel, buffers.sums, 1 if block == first else 0, packed.runs,
                    one[FIRST_RUN], one[LAST_RUN], packed.outputs, one[FIRST_OUTPUT],
                    packed.offsets, packed.weights, one[FIRST_ENTRY],
                )  # fmt: skip
            spans = cut_rows(task, position, count, buffers.spans)
            for row, output in enumerate(range(part, task.outputs, task.parts)):
                output += group * task.outputs
                target = (image * task.groups * task.outputs + output) * task.rows * task.columns
                for n in range(spans):
                    start, to, length = (
                        buffers.spans[n, 0],
                        buffers.spans[n, 1],
                        buffers.spans[n, 2],
                    )
                    finish_span(
                        out, target + to, buffers.sums, row * size + start, length, bias[output],
                        residual, residual.size, bounds[0], bounds[1],
                    )  # fmt: skip
                    if activation.code > RELU:
                        activate_span(
                            out, target + to, target + to + length, activation.code,
                            activation.lower, activation.upper,
                        )  # fmt: skip
