"""Fused segments: consecutive layers in one launch of the persistent kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from portable_spdnn.errors import InputError
from portable_spdnn_gpu.compile.catalog import Kernel, persistent_layers
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.features import StepOperands
from portable_spdnn_gpu.device.interface import Argument, Array, Device, DeviceArray
from portable_spdnn_gpu.persistent.packing import (
    BEGIN,
    HEADER,
    LINE,
    MAY_STOP,
    NEXT,
    NEXT_LINES,
    UNIT,
    Layout,
    empty_group,
    pack_layer,
)

ALIGNMENT = 256  # bytes: headers and data begin at multiples of it
TALLIES = 3  # numbers that the kernel counts for each layer: the fields of LayerCounts


@dataclass(frozen=True)
class SegmentLayer:
    """A layer of a fused segment.

    Attributes
    ----------
    A : csr_array, canonical, shape (neurons_out, neurons_in)
        The transposed weights.
    bias : ndarray, shape (neurons_out,)
    keeps_inactive : bool
        Whether an input that is inactive before the layer is inactive after it.
    """

    A: sp.csr_array
    bias: Array
    keeps_inactive: bool


@dataclass(eq=False)
class PackedSegment:
    """Consecutive layers in the form of `persistent_layers`, as one piece of host memory.

    Attributes
    ----------
    kernel : Kernel
        The configuration of the kernel that reads them.
    layout : Layout
        What the form depends on beside the layers.
    layers, neurons_in, neurons_out : int
        How many layers there are, and the neurons before the first and after the last.
    nnz : ndarray of int64, shape (layers,)
        The entries of each layer.
    loads : int
        How many features all layers read for each input.
    memory : ndarray of uint8
        The headers, then the data of all groups; empty once the host's copy has been released.
    data : int
        The offset of the data in the memory.
    """

    kernel: Kernel
    layout: Layout
    layers: int
    neurons_in: int
    neurons_out: int
    nnz: Array
    loads: int
    memory: Array
    data: int


def pack_segment(
    layers: Sequence[SegmentLayer], precision: Precision, shared_limit: int
) -> PackedSegment:
    """Pack consecutive layers.

    Parameters
    ----------
    layers : sequence of SegmentLayer
    precision : Precision
        Float64 does not fit: its sums would take twice the registers that there are.
    shared_limit : int
        The bytes of shared memory that a block may ask for: `Device.shared_limit`.

    Raises
    ------
    InputError
        If there is no layer, one does not follow from the other, they do not fit, or a weight
        is beyond what half precision holds.
    """
    if not layers:
        raise InputError("a fused segment has no layers; it needs one at least")
    widths = [layers[0].A.shape[1], *(layer.A.shape[0] for layer in layers)]
    for number, layer in enumerate(layers):
        if layer.A.shape[1] != widths[number]:
            raise InputError(
                f"fused segment: layer {number + 1} takes {layer.A.shape[1]} neurons and the "
                f"layer before it gives {widths[number]}"
            )
    kernel = persistent_layers(precision, max(widths), shared_limit)
    if kernel is None:
        raise InputError(
            f"fused segment: {max(widths)} neurons in {precision.storage} do not fit a block with "
            f"{shared_limit >> 10} KiB of shared memory; launch layer by layer"
        )
    layout = Layout.of(kernel, precision, max(widths))
    parts = [empty_group(layout)]
    headers = np.zeros((len(layers), layout.groups, HEADER), np.int32)
    begins, loads = [parts[0].size], 0
    for number, layer in enumerate(layers):
        packed = pack_layer(layer.A, layer.bias, layout)
        packed.headers[:, BEGIN] += begins[-1] // UNIT
        headers[number, : len(packed.headers)] = packed.headers
        parts.append(packed.data)
        begins.append(begins[-1] + packed.data.size)
        loads += packed.loads
    headers[:-1, :, NEXT] = np.array(begins[1:-1])[:, None] // UNIT
    headers[:-1, :, NEXT_LINES] = np.diff(begins)[1:, None] // LINE
    # A tile without active inputs stops after a layer when no later one activates any.
    keeps = [layer.keeps_inactive for layer in layers[1:]] + [True]
    headers[:, :, MAY_STOP] = np.logical_and.accumulate(keeps[::-1])[::-1, None]
    gap = np.zeros(-headers.nbytes % ALIGNMENT, np.uint8)
    return PackedSegment(
        kernel, layout, len(layers), widths[0], widths[-1],
        np.array([layer.A.nnz for layer in layers], np.int64), loads,
        np.concatenate([headers.reshape(-1).view(np.uint8), gap, *parts]),
        headers.nbytes + gap.size,
    )  # fmt: skip


class LayerCounts(NamedTuple):
    """What was counted in consecutive layers: arrays in host memory, shape (layers,).

    Attributes
    ----------
    active : ndarray
        The inputs that are active after each layer.
    computed : ndarray
        The inputs that each layer computed.
    unusable : ndarray
        Whether a feature became NaN, or in half precision infinite.
    """

    active: Array
    computed: Array
    unusable: Array


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
        shape = (packed.layers, packed.layout.groups, HEADER)
        self._headers = device.view(memory, 0, shape, np.int32)
        size = memory.size - packed.data
        self._data = device.view(memory, packed.data, (size,), np.uint8)
        self._counts = device.empty((1 + TALLIES * packed.layers,), np.int32)

    def launch(self, operands: StepOperands, y_max: float | None) -> None:
        """Start all layers; the launch may be captured in a graph.

        Parameters
        ----------
        operands : StepOperands
            The features before the first layer and after the last. `nans` of the state is set
            where any layer makes a feature unusable.
        y_max : float or None
            The upper bound of the activation; None for none.
        """
        packed = self.packed
        tiles = -(-operands.pitch // packed.layout.tile)
        blocks = min(tiles, self.device.resident_blocks(packed.kernel))
        limit = packed.layout.precision.sums.type(np.inf if y_max is None else y_max)
        sizes = (packed.layers, packed.neurons_in, packed.neurons_out, packed.layout.zero_row)
        self.device.clear(self._counts)
        arguments: list[Argument] = [self._headers, self._data, *map(np.int32, sizes)]
        arguments += [*operands.arguments(), limit, self._counts]
        self.device.launch(packed.kernel, (blocks, 1), arguments)

    def counts(self) -> LayerCounts:
        """Wait for the last launch; return what it counted."""
        counts = self.device.download(self._counts)[1:]  # behind the tiles that were taken
        return LayerCounts(*counts.reshape(-1, TALLIES).T)
