"""Convolutions by the stream kernel: weights packed once, buffers kept, tasks started."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn_cpu.conv.finish import Finish
from portable_spdnn_cpu.conv.kernel import Buffers, convolve
from portable_spdnn_cpu.conv.packing import ImageLayout, image_layout, pack
from portable_spdnn_cpu.conv.panels import Task
from portable_spdnn_cpu.conv.tuning import TRIED, ConvSize, Cut, cuts
from portable_spdnn_cpu.jit.compilation import read_only
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.machine.cpu_info import aligned_empty
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.machine.timing import seconds_of

REPEATS = 3


class StreamConv:
    """A convolution by streamed entries.

    Parameters
    ----------
    workers : ThreadPool
    weights : ndarray, shape (outputs, channels / groups, kernel height, kernel width), C order
    geometry : ConvGeometry
    epilogue : Epilogue
    images : int
        How many calls are going to have.
    cut : Cut
    """

    def __init__(
        self,
        workers: ThreadPool,
        weights: Array,
        geometry: ConvGeometry,
        epilogue: Epilogue,
        images: int,
        cut: Cut,
    ) -> None:
        self.geometry, self.dtype, self.cut = geometry, weights.dtype, cut
        self.workers = workers if cut.threads > 1 else ThreadPool(1)
        self.finish = Finish(epilogue, geometry.outputs, self.dtype)
        matrices = weights.reshape(geometry.matrix_shape)
        self.layout = layout = image_layout(matrices, geometry)
        size = conv_size(matrices, geometry, layout, images)
        self.task = task = make_task(size, cut)
        self.items = size.copied_items(cut)
        plane, first = geometry.height * geometry.width, 0
        if layout.copied:
            plane, first = task.band_rows * task.pitch * len(layout.phases), layout.first
        place = layout.number * task.band_rows + layout.row - first
        place = place * task.pitch + layout.column
        channel = plane * np.arange(geometry.group_channels)
        sources = (channel[:, None] + place.ravel()).astype(np.int64)
        self.packed = pack(matrices, sources, cut.vectors, cut.block, cut.parts)
        self._spare: list[list[Buffers]] = []

    def __call__(self, x: Array, out: Array | None, residual: Array | None) -> Array:
        """Return the convolution of x, shape (images, channels, height, width), finished."""
        if out is None:
            out = np.empty(self.geometry.output_shape(x.shape[0]), self.dtype)
        if out.size == 0:
            return out
        images = read_only(np.ascontiguousarray(x).reshape(-1))
        if residual is None:
            residual = np.empty(0, self.dtype)
        added = read_only(np.ascontiguousarray(residual).reshape(-1))
        counter = np.zeros(1, np.int64)
        task, target, finish = self.task._replace(images=x.shape[0]), out.reshape(-1), self.finish
        with self._buffers() as buffers:
            self.workers.run(
                lambda worker: convolve(
                    (0,) * self.cut.vectors, counter, task, self.layout.phases, self.packed,
                    images, finish.bias, finish.bounds, added, finish.activation, buffers[worker],
                    target,
                )
            )  # fmt: skip
        return out

    def describe(self) -> str:
        """Return how the convolution is cut."""
        return f"Entries of the weights are streamed against {self.cut}"

    @contextmanager
    def _buffers(self) -> Iterator[list[Buffers]]:
        """Lend buffers that an earlier call left; concurrent calls each get their own."""
        try:
            buffers = self._spare.pop()
        except IndexError:
            buffers = [self._make_buffers() for _ in range(self.workers.threads)]
        yield buffers
        self._spare[:] = [buffers]

    def _make_buffers(self) -> Buffers:
        lanes = VECTOR_BYTES // self.dtype.itemsize
        size = self.cut.vectors * lanes
        blocks = self.packed.blocks
        longest = int((blocks[:, 1] - blocks[:, 0]).max(initial=0))
        rows = -(-self.geometry.group_outputs // self.cut.parts)
        items = self.items, max(longest, 1) * size, rows * size
        phases, panel, sums = (aligned_empty((count,), self.dtype) for count in items)
        height, width = self.geometry.kernel
        masks = np.zeros((height * width + height + width) * self.cut.vectors, np.uint16)
        return Buffers(phases, panel, sums, masks, np.zeros((size, 3), np.int64))


def conv_size(
    matrices: Array, geometry: ConvGeometry, layout: ImageLayout, images: int
) -> ConvSize:
    """Return what the choice of a cut depends on."""
    nonzeros = int(np.count_nonzero(matrices))
    return ConvSize(geometry, layout, max(images, 1), nonzeros, matrices.itemsize)


def make_task(size: ConvSize, cut: Cut) -> Task:
    """Return the shapes of a cut, in the form of the kernel."""
    geometry, panels = size.geometry, size.panels(cut)
    band_panels = -(-panels // cut.bands)
    (top, _), (left, _) = geometry.padding
    layout = size.layout
    return Task(
        size.images, geometry.groups, cut.parts, -(-panels // band_panels),
        geometry.group_channels, geometry.group_outputs, geometry.height, geometry.width,
        geometry.kernel, geometry.stride, geometry.dilation, (top, left), *geometry.output_size,
        layout.pitch, layout.copied, band_panels, layout.first, layout.last, size.band_rows(cut),
    )  # fmt: skip


def best_stream(
    workers: ThreadPool,
    weights: Array,
    geometry: ConvGeometry,
    epilogue: Epilogue,
    images: int,
    trial: Array | None,
) -> StreamConv:
    """Return the convolution cut best: by the model, or by a trial on images.

    Parameters
    ----------
    workers, weights, geometry, epilogue, images
        As of `StreamConv`.
    trial : ndarray of images, or None
        What the best few by the model are tried on.
    """
    matrices = weights.reshape(geometry.matrix_shape)
    size = conv_size(matrices, geometry, image_layout(matrices, geometry), images)
    make = functools.partial(StreamConv, workers, weights, geometry, epilogue, images)
    choices = cuts(size, workers.threads)
    if trial is None:
        return make(choices[0])
    return fastest([make(cut) for cut in choices[:TRIED]], trial)


def fastest(choices: list[StreamConv], x: Array) -> StreamConv:
    """Return the fastest of some convolutions of x."""
    out = choices[0](x, None, None)
    for choice in choices:
        choice(x, out, None)  # compiles, or loads from the cache, and touches pages
    return min(
        choices,
        key=lambda choice: min(seconds_of(lambda: choice(x, out, None)) for _ in range(REPEATS)),
    )
