"""Depthwise convolutions: whether the kernel fits, and its arguments."""

from __future__ import annotations

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn_cpu.conv.depthwise.kernel import Planes, convolve_planes
from portable_spdnn_cpu.conv.finish import Finish
from portable_spdnn_cpu.jit.compilation import read_only
from portable_spdnn_cpu.machine.cpu_info import aligned_empty
from portable_spdnn_cpu.machine.thread_pool import ThreadPool

MAX_EXTENT = 7  # of a kernel whose code is emitted
MAX_STEP = 3  # vertical stride
TILE_ROWS = 4
SHARES_EACH = 8  # so often a thread asks for planes
LEAST_WORK = 1 << 18  # multiply-adds for a thread: fewer do not outweigh waking it


def fits(geometry: ConvGeometry) -> bool:
    """Whether a convolution is one that this kernel computes."""
    return (
        geometry.group_channels == 1
        and max(geometry.kernel) <= MAX_EXTENT
        and geometry.dilation == (1, 1)
        and geometry.stride[0] <= MAX_STEP
    )


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
        self.workers = {1: ThreadPool(1), workers.threads: workers}
        self.most = workers.threads
        self.weights = read_only(weights.reshape(-1))
        self.holds_zeros = read_only((weights == 0).any(axis=(1, 2, 3)))
        self.finish = Finish(epilogue, geometry.outputs, self.dtype)
        height, width = geometry.kernel
        rows, row_length = geometry.output_size
        (top, _), (left, _) = geometry.padding
        stride = geometry.stride[1]
        phase_columns = 0 if stride == 1 else -(-geometry.width // stride)
        place, phase = np.divmod(np.arange(width) - left, stride)
        first = -place  # of the result's columns, that sees the image
        last = first + -(-(geometry.width - phase) // stride)
        columns = np.stack([place + phase * phase_columns, first, last], axis=1)
        self.columns = read_only(columns.astype(np.int64))
        self.planes = Planes(
            geometry.channels, geometry.group_outputs, geometry.height, geometry.width, rows,
            row_length, geometry.stride, (top, left), phase_columns, 1,
        )  # fmt: skip
        tile = TILE_ROWS if rows > 1 else 1
        self.extents = tuple((0,) * n for n in (tile, height, width, geometry.stride[0]))

    def __call__(self, x: Array, out: Array | None, residual: Array | None) -> Array:
        """Return the convolution of x, shape (images, channels, height, width), finished."""
        shape = self.geometry.output_shape(x.shape[0])
        if out is None:
            out = np.empty(shape, self.dtype)
        if out.size == 0:
            return out
        images = read_only(np.ascontiguousarray(x).reshape(-1))
        added = np.empty(0, self.dtype) if residual is None else np.ascontiguousarray(residual)
        added, target = read_only(added.reshape(-1)), out.reshape(-1)
        work = out.size * self.weights.size // max(1, self.geometry.outputs)
        threads = self.most if work >= LEAST_WORK * self.most else 1
        count = x.shape[0] * self.geometry.channels
        planes = self.planes._replace(share=-(-count // (threads * SHARES_EACH)))
        counter, finish = np.zeros(1, np.int64), self.finish
        items = planes.height * planes.strides[1] * planes.phase_columns

        def work_on(worker: int) -> None:
            convolve_planes(
                *self.extents, counter, planes, images, self.columns, self.weights,
                self.holds_zeros, finish.bias, finish.bounds, added, finish.activation,
                aligned_empty((items,), self.dtype), target,
            )  # fmt: skip

        self.workers[threads].run(work_on)
        return out

    def describe(self) -> str:
        """Return what computes the convolution."""
        height, width = self.geometry.kernel
        return (
            f"Each channel by itself, in register tiles of {len(self.extents[0])} rows by a vector, "
            f"for kernels of {height} x {width}"
        )
