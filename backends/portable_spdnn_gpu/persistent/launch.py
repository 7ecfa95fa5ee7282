"""Fused segments: consecutive layers in one launch of the persistent kernel."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from portable_spdnn_gpu.device.features import StepOperands
from portable_spdnn_gpu.device.interface import Argument, Array, Device, DeviceArray
from portable_spdnn_gpu.persistent.layout import HEADER
from portable_spdnn_gpu.persistent.packing import PackedSegment

TALLIES = 3  # numbers that the kernel counts for each layer: the fields of LayerCounts


class LayerCounts(NamedTuple):
    """What was counted in consecutive layers: arrays in host memory, shape (layers,).

    Attributes
    ----------
    active : ndarray
        The inputs that are active after each layer.
    computed : ndarray
        The inputs that each layer computed.
    overflowed : ndarray
        Whether a feature became NaN, or in half precision infinite.
    """

    active: Array
    computed: Array
    overflowed: Array


class DeviceSegment:
    """A fused segment in device memory: to its caller, one very deep fused layer.

    Parameters
    ----------
    device : Device
    packed : PackedSegment
        The packed segment; its host memory may have been released.
    memory : device array of uint8
        The device memory that holds the segment, or will hold it when the kernel runs.
    """

    def __init__(self, device: Device, packed: PackedSegment, memory: DeviceArray) -> None:
        self.device, self.packed = device, packed
        shape = (packed.nnz.size, packed.layout.groups, HEADER)
        self._headers = device.view(memory, 0, shape, np.int32)
        size = memory.size - packed.data
        self._data = device.view(memory, packed.data, (size,), np.uint8)
        self._counts = device.empty((1 + TALLIES * packed.nnz.size,), np.int32)

    def launch(self, operands: StepOperands, y_max: float | None) -> None:
        """Start all layers; the launch may be captured in a graph.

        Parameters
        ----------
        operands : StepOperands
            The features before the first layer and after the last. `overflowed` of the state is
            set where a feature of any layer overflowed.
        y_max : float or None
            The upper bound of the activation; None for none.
        """
        packed = self.packed
        tiles = -(-operands.pitch // packed.layout.tile)
        blocks = min(tiles, self.device.resident_blocks(packed.kernel))
        limit = packed.layout.precision.sums.type(np.inf if y_max is None else y_max)
        sizes = (packed.nnz.size, packed.neurons_in, packed.neurons_out, packed.layout.zero_row)
        self.device.clear(self._counts)
        arguments: list[Argument] = [self._headers, self._data, *map(np.int32, sizes)]
        arguments += [*operands.arguments(), limit, self._counts]
        self.device.launch(packed.kernel, (blocks, 1), arguments)

    def counts(self) -> LayerCounts:
        """Wait for the last launch; return what it counted."""
        counts = self.device.download(self._counts)[1:]  # behind the tiles that were taken
        return LayerCounts(*counts.reshape(-1, TALLIES).T)
