"""Runs of layers in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.errors import InputError
from portable_spdnn_gpu.compile.catalog import Kernel, resident_layers
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.persistent.packing import (
    BEGIN,
    HEADER,
    LINE,
    MAY_STOP,
    NEXT,
    NEXT_LINES,
    UNIT,
    Form,
    lay_out,
    nothing,
)

Array = npt.NDArray[Any]

ALIGNMENT = 256  # bytes: of the headers and of the data
# What the kernel counts of a layer; before them, the tiles that blocks have taken.
ALIVE, COMPUTED, UNUSABLE, TALLIES = range(4)


@dataclass(frozen=True)
class RunLayer:
    """A layer of a run.

    Attributes
    ----------
    A : csr_array, canonical, shape (neurons_out, neurons_in)
        W transposed.
    bias : ndarray, shape (neurons_out,)
    keeps_dead : bool
        Whether an input that is dead before it is dead after it.
    """

    A: Any
    bias: Array
    keeps_dead: bool


@dataclass(eq=False)
class PackedRun:
    """Consecutive layers in the form of `resident_layers`, as one piece of host memory.

    Attributes
    ----------
    kernel : Kernel
    form : Form
    layers, neurons_in, neurons_out : int
    nnz : ndarray of int64, shape (layers,)
    loads : int
        Features that are read for each input, of all layers.
    memory : ndarray of uint8
        Headers, then the data of all groups; nothing once it is let go.
    data : int
        Where these begin.
    """

    kernel: Kernel
    form: Form
    layers: int
    neurons_in: int
    neurons_out: int
    nnz: Array
    loads: int
    memory: Array
    data: int

    @property
    def edges(self) -> int:
        """Entries of all layers."""
        return int(self.nnz.sum())

    def let_go(self) -> None:
        """Forget the host's copy."""
        self.memory = np.empty(0, np.uint8)

    def describe(self) -> str:
        """Say what is launched."""
        return (
            f"resident_layers on {self.layers} layers in one launch, {self.form.tile} inputs a "
            f"block in {self.kernel.dynamic_shared / 1024:.0f} KiB of shared memory"
        )


def fits(widths: Sequence[int], precision: Precision, shared_limit: int) -> bool:
    """Whether layers can run together.

    Parameters
    ----------
    widths : sequence of int
        Neurons before the first layer and after each.
    precision : Precision
        In double precision nothing fits: sums take all registers in single precision.
    shared_limit : int
        Bytes of shared memory that a block may ask for: `Device.shared_limit`.
    """
    return resident_layers(precision, max(widths), shared_limit) is not None


def pack_run(layers: Sequence[RunLayer], precision: Precision, shared_limit: int) -> PackedRun:
    """Pack consecutive layers.

    Parameters
    ----------
    layers : sequence of RunLayer
    precision : Precision
    shared_limit : int
        See `fits`.

    Raises
    ------
    InputError
        If there is no layer, one does not follow from the other, they do not fit, or a weight
        is beyond what half precision holds.
    """
    if not layers:
        raise InputError("resident_layers: a run has one layer at least")
    widths = [layers[0].A.shape[1], *(layer.A.shape[0] for layer in layers)]
    for number, layer in enumerate(layers):
        if layer.A.shape[1] != widths[number]:
            raise InputError(
                f"resident_layers: layer {number + 1} of the run takes {layer.A.shape[1]} neurons "
                f"and the layer before it gives {widths[number]}"
            )
    kernel = resident_layers(precision, max(widths), shared_limit)
    if kernel is None:
        raise InputError(
            f"resident_layers: {max(widths)} neurons in {precision.storage} do not fit a block "
            f"with {shared_limit >> 10} KiB of shared memory; launch layer by layer"
        )
    form = Form.of(kernel, precision, max(widths))
    parts = [nothing(form)]
    headers = np.zeros((len(layers), form.groups, HEADER), np.int32)
    begins, loads = [parts[0].size], 0
    for number, layer in enumerate(layers):
        laid_out = lay_out(layer.A, layer.bias, form)
        laid_out.headers[:, BEGIN] += begins[-1] // UNIT
        headers[number, : len(laid_out.headers)] = laid_out.headers
        parts.append(laid_out.data)
        begins.append(begins[-1] + laid_out.data.size)
        loads += laid_out.loads
    headers[:-1, :, NEXT] = np.array(begins[1:-1])[:, None] // UNIT
    headers[:-1, :, NEXT_LINES] = np.diff(begins)[1:, None] // LINE
    # A tile may stop after a layer when none of the later ones revives the dead.
    keeps = [layer.keeps_dead for layer in layers[1:]] + [True]
    headers[:, :, MAY_STOP] = np.logical_and.accumulate(keeps[::-1])[::-1, None]
    gap = np.zeros(-headers.nbytes % ALIGNMENT, np.uint8)
    return PackedRun(
        kernel, form, len(layers), widths[0], widths[-1],
        np.array([layer.A.nnz for layer in layers], np.int64), loads,
        np.concatenate([headers.reshape(-1).view(np.uint8), gap, *parts]),
        headers.nbytes + gap.size,
    )  # fmt: skip


class ResidentRun:
    """A packed run in device memory: to its caller, one very deep fused layer.

    Parameters
    ----------
    device : Device
    packed : PackedRun
    memory : device array of uint8
        Holds, or will hold, the packed run.
    """

    def __init__(self, device: Device, packed: PackedRun, memory: Any) -> None:
        self.device, self.packed = device, packed
        shape = (packed.layers, packed.form.groups, HEADER)
        self._headers = device.view(memory, 0, shape, np.int32)
        size = memory.size - packed.data
        self._data = device.view(memory, packed.data, (size,), np.uint8)

    def new_counts(self) -> Any:
        """Return device memory for what `launch` counts: int32."""
        return self.device.empty((1 + TALLIES * self.packed.layers,), np.int32)

    def launch(
        self,
        from_: Any,
        to: Any,
        pitch: int,
        state: Any,
        source: Any,
        alive: Any,
        y_max: float | None,
        counts: Any,
    ) -> None:
        """Start all layers; may be captured.

        Parameters
        ----------
        from_, to : device arrays of the stored type
            Features before the first layer and after the last: row `neuron` begins at
            `neuron * pitch`. Column `i` of `to` is the input that `state` and `source` put at `i`.
        pitch : int
        state : device array of int32, shape (4,)
            The InputState before the first layer; `nans` is set where any layer makes one.
        source : device array of int32
            Where the inputs lie, if apart.
        alive : device array of uint8
            Set to 1 for columns that are not zero after the last layer.
        y_max : float or None
        counts : device array of int32
            Of `new_counts`; `read_counts` takes it apart.
        """
        packed = self.packed
        tiles = -(-pitch // packed.form.tile)
        blocks = min(tiles, self.device.resident_blocks(packed.kernel))
        limit = packed.form.precision.sums.type(np.inf if y_max is None else y_max)
        self.device.clear(counts)
        self.device.launch(
            packed.kernel,
            (blocks, 1),
            [
                self._headers, self._data, np.int32(packed.layers), np.int32(packed.neurons_in),
                np.int32(packed.neurons_out), np.int32(packed.form.zero_row), from_, to,
                np.int32(pitch), state, source, alive, limit, counts,
            ],
        )  # fmt: skip


def read_counts(counts: Array) -> Array:
    """Return what was counted, in host memory: int32, shape (layers, TALLIES).

    Of each layer the inputs alive after it (ALIVE), the inputs that were computed (COMPUTED), and
    whether a feature became of no use, NaN (UNUSABLE).
    """
    return counts[1:].reshape(-1, TALLIES)
