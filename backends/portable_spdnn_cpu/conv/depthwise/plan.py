"""Depthwise convolutions: whether the kernel fits, and its arguments."""

from __future__ import annotations

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn_cpu.activations import activation_of
from portable_spdnn_cpu.conv.depthwise import kernel
from portable_spdnn_cpu.conv.depthwise.kernel import Planes
from portable_spdnn_cpu.conv.depthwise.microkernels import plane_code
from portable_spdnn_cpu.conv.depthwise.narrow import is_narrow, masks_of
from portable_spdnn_cpu.conv.image_job import ImageJob
from portable_spdnn_cpu.jit.job_start import COUNTERS
from portable_spdnn_cpu.jit.jobs import COUNTER_PADDING, address_of
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.machine.thread_pool import ALONE, ThreadPool

SMALL_PLANE = 1 << 12  # bytes
SHARES_EACH = 8  # so often a thread asks for planes
LEAST_WORK = 1 << 16  # multiply-adds for a thread: fewer do not outweigh waking it


def fits(geometry: ConvGeometry) -> bool:
    """Whether a convolution is one that this kernel computes."""
    return (
        geometry.group_channels == 1
        and geometry.dilation[0] == geometry.dilation[1] <= kernel.MOST_DILATION
        and (geometry.dilation == (1, 1) or geometry.stride[1] == 1)
        and geometry.kernel[0] == geometry.kernel[1]
        and geometry.kernel[0] in kernel.EXTENTS
        and set(geometry.stride) <= set(kernel.STRIDES)
    )


def _rows_of_tile(geometry: ConvGeometry, itemsize: int) -> int:
    """Return how many rows a register tile has: 0 for narrow planes.

    Seven need 32 registers, and divide the planes of most networks; in larger planes four were
    measured to be faster.
    """
    if is_narrow(geometry, itemsize):
        return 0
    is_small = geometry.height * geometry.width * itemsize <= SMALL_PLANE
    return kernel.TILE_ROWS[VECTOR_BYTES == 64 and is_small]


class DepthwiseConv:
    """A depthwise convolution whose weights are as they are.

    Parameters
    ----------
    workers : ThreadPool
    weights : ndarray, shape (channels x multiplier, 1, kernel height, kernel width), C order
    geometry : ConvGeometry
        One that `fits`.
    epilogue : Epilogue
    """

    def __init__(
        self, workers: ThreadPool, weights: Array, geometry: ConvGeometry, epilogue: Epilogue
    ) -> None:
        self.geometry, self.dtype = geometry, weights.dtype
        self.workers = {1: ALONE, workers.threads: workers}
        self.most, self.taps = workers.threads, weights[:1].size
        (top, _), (left, _) = geometry.padding
        sizes = geometry.height, geometry.width, *geometry.output_size
        extent, dilation = geometry.kernel[0], geometry.dilation[0]
        planes = Planes(
            geometry.channels, geometry.group_outputs, sizes, geometry.stride, (top, left), extent,
            dilation, 1, 0,
        )  # fmt: skip
        numbers = [number for item in planes for number in np.ravel(item)]
        bias = epilogue.bias
        if bias is None:
            bias = np.zeros(geometry.outputs, self.dtype)
        holds_zeros = (weights == 0).any(axis=(1, 2, 3))
        zero_row = np.zeros(geometry.width + VECTOR_BYTES // self.dtype.itemsize, self.dtype)
        self.rows = _rows_of_tile(geometry, self.dtype.itemsize)
        masks = np.empty(0, np.uint16) if self.rows else masks_of(geometry, self.dtype.itemsize)
        self._kept = zero_row, masks, weights, holds_zeros, bias  # whose addresses the words have
        end = kernel.PLANES + len(numbers)
        words = np.zeros(end + COUNTER_PADDING + self.most, np.int64)
        words[COUNTERS] = words.size - self.most
        words[kernel.ZERO_ROW : kernel.BIAS + 1] = [address_of(array) for array in self._kept]
        words[kernel.ACTIVATION], *limits = activation_of(epilogue, self.dtype)
        words[kernel.LOWER : kernel.UPPER + 1].view(np.float64)[:] = limits
        words[kernel.PLANES : end] = numbers
        words[kernel.PLANE_CODE] = plane_code(
            self.rows, extent, geometry.stride, dilation, self.dtype
        )
        self._job = ImageJob(kernel.JOBS[self.dtype.name], words, self.dtype)

    def __call__(self, x: Array, out: Array | None, residual: Array | None) -> Array:
        """Return the convolution of x, shape (images, channels, height, width), finished."""
        if out is None:
            out = np.empty(self.geometry.output_shape(x.shape[0]), self.dtype)
        if out.size == 0:
            return out
        threads = self.most if out.size * self.taps >= LEAST_WORK * self.most else 1
        count = x.shape[0] * self.geometry.channels
        share = kernel.PLANES + kernel.SHARE
        updates = (share, -(-count // (threads * SHARES_EACH))), (share + 1, count)
        self._job.run(self.workers[threads], 0, (x, out, residual), updates)
        return out

    def describe(self) -> str:
        """Return what computes the convolution."""
        height, width = self.geometry.kernel
        how = "in vectors of several rows"
        if self.rows:
            how = f"in register tiles of {self.rows} rows by a vector"
        return f"Each channel by itself, {how}, for kernels of {height} x {width}"
