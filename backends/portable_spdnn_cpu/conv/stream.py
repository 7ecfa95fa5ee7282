"""Convolutions by the stream kernel: weights packed once, buffers kept, tasks started."""

from __future__ import annotations

import functools

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn_cpu.activations import activation_of
from portable_spdnn_cpu.conv import kernel
from portable_spdnn_cpu.conv.gathers import MAX_EDGES, masked_gather_code, whole_gather_code
from portable_spdnn_cpu.conv.image_job import ImageJob
from portable_spdnn_cpu.conv.packing import ImageLayout, PackedConv, image_layout, pack
from portable_spdnn_cpu.conv.panels import Task
from portable_spdnn_cpu.conv.tuning import TRIED, ConvSize, Cut, cuts, fastest
from portable_spdnn_cpu.jit.job_start import COUNTERS
from portable_spdnn_cpu.jit.jobs import COUNTER_PADDING, address_of
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.machine.cpu_info import CACHE_LINE
from portable_spdnn_cpu.machine.thread_pool import ALONE, ThreadPool
from portable_spdnn_cpu.spmm.stream.microkernels import last_is_halved
from portable_spdnn_cpu.spmm.stream.packing import BY_OFFSETS
from portable_spdnn_cpu.spmm.stream.row_loops import finishing_code, summing_code


class StreamConv:
    """A convolution by streamed entries.

    Parameters
    ----------
    workers : ThreadPool
    weights : ndarray, shape (outputs, channels / groups, kernel height, kernel width), C order
    geometry : ConvGeometry
    epilogue : Epilogue
    images : int
        How many images a call is going to have.
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
        self.workers = workers if cut.threads > 1 else ALONE
        matrices = weights.reshape(geometry.matrix_shape)
        self.layout = layout = image_layout(matrices, geometry)
        size = conv_size(matrices, geometry, layout, images)
        self.task = task = make_task(size, cut)
        plane, first = geometry.height * geometry.width, 0
        if layout.copied:
            plane, first = task.phase_stride * len(layout.phases), layout.first
        place = layout.number * task.phase_stride + (layout.row - first) * task.pitch
        place += layout.column
        channel = plane * np.arange(geometry.group_channels)
        sources = (channel[:, None] + place.ravel()).astype(np.int64)
        packed = pack(matrices, sources, cut.vectors, cut.block, cut.parts)
        words = self._make_words(packed, epilogue, size)
        self._job = ImageJob(kernel.JOBS[self.dtype.name], words, self.dtype)
        self._memory = self.workers.threads * int(words[kernel.WORKSPACE_BYTES])

    def __call__(self, x: Array, out: Array | None, residual: Array | None) -> Array:
        """Return the convolution of x, shape (images, channels, height, width), finished."""
        if out is None:
            out = np.empty(self.geometry.output_shape(x.shape[0]), self.dtype)
        if out.size == 0:
            return out
        arrays = x, out, residual
        self._job.run(self.workers, self._memory, arrays, [(kernel.TASK, x.shape[0])])
        return out

    def describe(self) -> str:
        """Return how the convolution is cut."""
        return f"Entries of the weights are streamed against {self.cut}"

    def _make_words(self, packed: PackedConv, epilogue: Epilogue, size: ConvSize) -> Array:
        """Return the words of a job, but for the arrays of a call."""
        task = [number for item in self.task for number in np.ravel(item)]
        threads = self.workers.threads
        words = np.zeros(kernel.TASK + len(task) + COUNTER_PADDING + threads, np.int64)
        words[kernel.TASK : kernel.TASK + len(task)] = task
        words[COUNTERS] = words.size - threads
        bias = epilogue.bias
        if bias is None:
            bias = np.zeros(self.geometry.outputs, self.dtype)
        self._kept = [self.layout.phases, *packed, bias]  # what the words have addresses of
        words[kernel.PHASES], *arrays = map(address_of, self._kept)
        words[kernel.SOURCES : kernel.BIAS + 1] = arrays
        words[kernel.PHASE_COUNT] = len(self.layout.phases)
        words[kernel.ACTIVATION], *limits = activation_of(epilogue, self.dtype)
        words[kernel.LOWER : kernel.UPPER + 1].view(np.float64)[:] = limits
        sources = packed.sources
        words[kernel.MIN_SOURCE] = sources.min(initial=0)
        words[kernel.MAX_SOURCE] = sources.max(initial=0)
        panel_items = self.cut.vectors * VECTOR_BYTES // self.dtype.itemsize
        longest = int((packed.blocks[:, 1] - packed.blocks[:, 0]).max(initial=0))
        height, width = self.geometry.kernel
        items = (
            size.copied_items(self.cut) * self.dtype.itemsize,
            longest * panel_items * self.dtype.itemsize,
            -(-self.geometry.group_outputs // self.cut.parts) * panel_items * self.dtype.itemsize,
            (height * width + height + width) * self.cut.vectors * 4,
            panel_items * 3 * 8,
            height * width * (1 + MAX_EDGES) * 8,
        )
        ends = np.cumsum([-(-count // CACHE_LINE) * CACHE_LINE for count in items])
        words[kernel.PANEL_AT : kernel.EDGES_AT + 1] = ends[:-1]
        words[kernel.WORKSPACE_BYTES] = ends[-1]
        words[kernel.PANEL_ITEMS] = panel_items
        whole, rest = divmod(size.positions, panel_items)
        # Sums are finished in registers where pixels of panels follow each other in the result.
        finishes = self.task.pitch == self.task.columns
        has_several_blocks = len(packed.blocks) >= packed.ranges.size  # for some part
        waits = has_several_blocks or not finishes
        if whole:
            self._set_panel(words, kernel.WHOLE, self.cut.vectors, panel_items, waits, finishes)
        if rest:
            vectors = -(-rest * self.dtype.itemsize // VECTOR_BYTES)
            self._set_panel(words, kernel.REST, vectors, rest, waits, finishes)
        return words

    def _set_panel(
        self, words: Array, at: int, vectors: int, positions: int, waits: bool, finishes: bool
    ) -> None:
        """Write the words, WHOLE or REST, of panels of so many vectors and positions.

        `waits` and `finishes`: whether sums wait in memory, and are finished in registers.
        """
        dtype = self.dtype
        halved = last_is_halved(positions * dtype.itemsize, vectors, VECTOR_BYTES)
        own = words[at : at + kernel.PANEL_WORDS]
        own[kernel.VECTORS] = vectors
        own[kernel.GATHER_MASKED] = masked_gather_code(vectors, dtype)
        if vectors == self.cut.vectors:
            own[kernel.GATHER_WHOLE] = whole_gather_code(vectors, dtype)
        if waits:
            own[kernel.SUM_ROWS] = summing_code(vectors, dtype, halved, VECTOR_BYTES)
        if finishes:
            finishing = finishing_code(vectors, dtype, BY_OFFSETS, False, halved, VECTOR_BYTES)
            own[kernel.FINISH_ROWS] = finishing


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
        layout.pitch, layout.copied, band_panels, layout.first, layout.last, size.phase_stride(cut),
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
