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
        down, stride = geometry.stride
        place, phase = np.divmod(np.arange(extent) - left, stride)
        zeros, beyond = max(0, -int(place.min())), max(0, int(place.max()))
        pitch = max(geometry.output_size[1] + beyond, -(-geometry.width // stride) + zeros)
        rows = down * (kernel.BAND - 1) + extent
        lanes = VECTOR_BYTES // self.dtype.itemsize
        items = zeros + rows * pitch + lanes  # the last vectors of a phase end beyond its last row
        columns = (zeros + place + phase * items).astype(np.int64)
        planes = Planes(
            geometry.channels, geometry.group_outputs, geometry.height, geometry.width,
            *geometry.output_size, geometry.stride, (top, left), zeros, pitch, items, 1, 0,
        )  # fmt: skip
        numbers = [number for item in planes for number in np.ravel(item)]
        bias = epilogue.bias
        if bias is None:
            bias = np.zeros(geometry.outputs, self.dtype)
        holds_zeros = (weights == 0).any(axis=(1, 2, 3))
        self._kept = columns, weights, holds_zeros, bias  # what the words have addresses of
        end = kernel.PLANES + len(numbers)
        words = np.zeros(end + COUNTER_PADDING + self.most, np.int64)
        words[kernel.COUNTERS] = words.size - self.most
        words[kernel.COLUMNS : kernel.RESIDUAL] = [address_of(array) for array in self._kept]
        words[kernel.ACTIVATION], *limits = activation_of(epilogue)
        words[kernel.LOWER : kernel.UPPER + 1].view(np.float64)[:] = limits
        self.phase_bytes = -(-stride * items * self.dtype.itemsize // CACHE_LINE) * CACHE_LINE
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
