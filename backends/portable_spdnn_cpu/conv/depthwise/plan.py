"""Depthwise convolutions: whether the kernel fits, and its arguments."""

from __future__ import annotations

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn_cpu.activations import activation_of
from portable_spdnn_cpu.conv.depthwise import kernel
from portable_spdnn_cpu.conv.depthwise.kernel import Planes
from portable_spdnn_cpu.conv.depthwise.microkernels import ROWS
from portable_spdnn_cpu.jit.jobs import COUNTER_PADDING, address_of, in_order
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.machine.buffers import WORKSPACES
from portable_spdnn_cpu.machine.cpu_info import CACHE_LINE
from portable_spdnn_cpu.machine.thread_pool import ALONE, ThreadPool

MAX_STRIDE = 4  # horizontal: columns of as many phases are copied
SHARES_EACH = 8  # so often a thread asks for planes
LEAST_WORK = 1 << 16  # multiply-adds for a thread: fewer do not outweigh waking it


def fits(geometry: ConvGeometry) -> bool:
    """Whether a convolution is one that this kernel computes."""
    return (
        geometry.group_channels == 1
        and geometry.dilation == (1, 1)
        and geometry.kernel[0] == geometry.kernel[1]
        and geometry.stride[1] <= MAX_STRIDE
        and (geometry.kernel[0], geometry.stride[0], "float32") in kernel.JOBS
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
        self.workers = {1: ALONE, workers.threads: workers}
        self.most, self.taps = workers.threads, weights[:1].size
        extent, (top, _), (left, _) = geometry.kernel[0], *geometry.padding
        stride = geometry.stride[1]
        phase_columns = 0 if stride == 1 else -(-geometry.width // stride)
        place, phase = np.divmod(np.arange(extent) - left, stride)
        first = -place  # of the result's columns, that sees the image
        last = first + -(-(geometry.width - phase) // stride)
        columns = (place + phase * phase_columns).astype(np.int64)
        masks = column_masks(first, last, geometry.output_size[1], self.dtype.itemsize)
        planes = Planes(
            geometry.channels, geometry.group_outputs, geometry.height, geometry.width,
            *geometry.output_size, geometry.stride, (top, left), phase_columns, 1, 0,
        )  # fmt: skip
        numbers = [number for item in planes for number in np.ravel(item)]
        bias = epilogue.bias
        if bias is None:
            bias = np.zeros(geometry.outputs, self.dtype)
        zeros = (weights == 0).any(axis=(1, 2, 3))
        self._kept = columns, masks, weights, zeros, bias  # what the words have addresses of
        end = kernel.PLANES + len(numbers)
        words = np.zeros(end + COUNTER_PADDING + self.most, np.int64)
        words[kernel.COUNTERS] = words.size - self.most
        words[kernel.COLUMNS : kernel.RESIDUAL] = [address_of(array) for array in self._kept]
        words[kernel.ACTIVATION], *limits = activation_of(epilogue)
        words[kernel.LOWER : kernel.UPPER + 1].view(np.float64)[:] = limits
        rows = geometry.stride[0] * (kernel.BAND - 1) + extent
        bytes_of_phases = rows * stride * phase_columns * self.dtype.itemsize
        self.phase_bytes = -(-bytes_of_phases // CACHE_LINE) * CACHE_LINE
        words[kernel.WORKSPACE_BYTES] = self.phase_bytes
        words[kernel.PLANES : end] = numbers
        self._words = words
        self.job = kernel.JOBS[extent, geometry.stride[0], self.dtype.name]

    def __call__(self, x: Array, out: Array | None, residual: Array | None) -> Array:
        """Return the convolution of x, shape (images, channels, height, width), finished."""
        if out is None:
            out = np.empty(self.geometry.output_shape(x.shape[0]), self.dtype)
        if out.size == 0:
            return out
        images, words = in_order(x), self._words.copy()
        added = None if residual is None else in_order(residual)
        threads = self.most if out.size * self.taps >= LEAST_WORK * self.most else 1
        count = x.shape[0] * self.geometry.channels
        share = kernel.PLANES + kernel.SHARE
        words[share : share + 2] = -(-count // (threads * SHARES_EACH)), count
        words[kernel.WORKERS] = threads
        words[kernel.IMAGES], words[kernel.OUT] = address_of(images), address_of(out)
        words[kernel.RESIDUAL] = 0 if added is None else address_of(added)
        workspace = WORKSPACES.take()
        words[kernel.WORKSPACE] = workspace.of_bytes(threads * self.phase_bytes)
        self.workers[threads].run_job(self.job, words)
        WORKSPACES.give_back(workspace)
        return out

    def describe(self) -> str:
        """Return what computes the convolution."""
        height, width = self.geometry.kernel
        return (
            f"Each channel by itself, in register tiles of {ROWS} rows by a vector, for "
            f"kernels of {height} x {width}"
        )


def column_masks(first: Array, last: Array, row_length: int, itemsize: int) -> Array:
    """Return which lanes of the vectors of a row are columns first[n] .. last[n] - 1, as bits.

    Returns
    -------
    ndarray of uint16, shape (vectors, size of `first`)
    """
    lanes = VECTOR_BYTES // itemsize
    begins = lanes * np.arange(-(-row_length // lanes))[:, None]
    low, high = (np.clip(bound - begins, 0, lanes) for bound in (first, last))
    return ((1 << np.maximum(low, high)) - (1 << low)).astype(np.uint16)
