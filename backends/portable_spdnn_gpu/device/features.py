"""Features of a batch on a device: two buffers, and lists of the active inputs."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn_gpu.compile.catalog import (
    FEATURE_THREADS,
    LAYOUT_KERNELS,
    TRANSPOSE_TILE,
    UNPACK_BYTES,
    Kernel,
    feature_layout,
    list_active,
)
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.interface import Argument, Device, DeviceArray
from portable_spdnn_gpu.device.matrices import upload_csr

PITCH = 64  # inputs; the features of every neuron begin with a cache line
# Policies of a list of inputs, and the absence of one; see input_lists.cuh.
KEEP, DROP, ALWAYS, NO_LIST = map(np.int32, range(4))
STATE = 5  # integers of an InputState, in this order
COUNT, GATHERS, ACTIVE, OVERFLOWED, ENDED = range(STATE)
MARKS = 8  # of inputs, that are read and cleared together


def input_state(inputs: int, gathers: bool = False) -> npt.NDArray[np.int32]:
    """Return the `InputState` (common.cuh) of a step's inputs before it runs."""
    return np.array([inputs, gathers, inputs, 0, 0], np.int32)


@dataclass(frozen=True)
class InputList:
    """The list of the inputs that go on behind a step, which its last block makes.

    Attributes
    ----------
    ids : device array of int32
        Which inputs of the batch the columns are.
    source : device array of int32
        Where the next step reads its columns, if any leave. It is not the step's own.
    after : device array of int32, shape (STATE,)
        The InputState of the next step, which is written.
    policy : KEEP, DROP or ALWAYS
        Whether inactive inputs stay, leave once they are enough, or leave in any case.
    """

    ids: DeviceArray
    source: DeviceArray
    after: DeviceArray
    policy: np.int32

    def arguments(self) -> list[Argument]:
        """Return the parts in the order in which kernels take them."""
        return [self.ids, self.source, self.after, self.policy]


@dataclass(frozen=True)
class StepOperands:
    """What the kernels of a step read and write: the same for SpMM and for fused segments.

    Attributes
    ----------
    from_, to : device arrays of the stored type
        The features before and after the step; those of a neuron begin at `neuron * pitch`.
    pitch : int
        The distance between the features of two neurons, counted in features.
    state : device array of int32, shape (STATE,)
        The `InputState` of common.cuh: how many columns there are, and whether they gather.
    source : device array of int32
        Where the columns lie in `from_`, if they gather.
    active : device array of uint8
        The kernels set it to 1 for each column that is not zero after the activation.
    listing : InputList, optional
        The list that the step ends with; `active` is whole vectors of MARKS then.
    """

    from_: DeviceArray
    to: DeviceArray
    pitch: int
    state: DeviceArray
    source: DeviceArray
    active: DeviceArray
    listing: InputList | None = None

    def arguments(self, ends: bool = True) -> list[Argument]:
        """Return the operands in the order in which kernels take them.

        `ends` tells the last launch of the step, which makes the list.
        """
        listing = self.listing
        if listing is None or not ends:  # others stand in for what is not used
            listing = InputList(self.state, self.state, self.state, NO_LIST)
        operands = self.from_, self.to, np.int32(self.pitch), self.state, self.source, self.active
        return [*operands, *listing.arguments()]


def bytes_for_input(widest: int, precision: Precision) -> int:
    """Return the bytes of device memory that an input takes, from its features to its scores."""
    buffers = 2 * widest * precision.storage.itemsize
    rows = widest * precision.sums.itemsize  # of features on their way in, or scores out
    return int(buffers + rows) + 4 * np.dtype(np.int32).itemsize


def pitch_of(capacity: int) -> int:
    """Return the distance between two neurons' features, for batches of `capacity` inputs at most.

    That is whole cache lines, except of a few inputs.
    """
    return -(-capacity // PITCH) * PITCH if capacity > PITCH else max(capacity, 1)


def capacity_within(free: int, wanted: int, input_bytes: int) -> int:
    """Return how many of the wanted inputs fit so many bytes of device memory; may be 0."""
    fitting = free // input_bytes
    capacity = min(wanted, fitting)
    return capacity if pitch_of(capacity) <= fitting else capacity // PITCH * PITCH


class DeviceFeatures:
    """Two buffers of features, [neuron][input], and which inputs their columns are.

    The steps of a batch read one buffer and write the other by turns. Plans that do not run at
    the same time share one object.

    Parameters
    ----------
    device : Device
    widest : int
        The most neurons before or after a layer.
    capacity : int
        The most inputs of a batch.
    precision : Precision

    Attributes
    ----------
    buffers : list of two device arrays
        The features before and after a step.
    ids : device array of int32
        Which inputs of the batch the columns are, after the latest list.
    sources : list of two device arrays of int32
        Where the columns lie in the features before a step, if they gather; lists write them by
        turns.
    active : device array of uint8
        The marks of the inputs that are active after a step.
    one_at_a_time : threading.Lock
        It is held while a batch runs.
    """

    def __init__(self, device: Device, widest: int, capacity: int, precision: Precision) -> None:
        self.device, self.widest, self.precision = device, widest, precision
        self.pitch = pitch_of(capacity)
        self.capacity, self.one_at_a_time = capacity, threading.Lock()
        size = max(widest, 1) * self.pitch
        self.buffers = [device.empty((size,), precision.storage) for _ in range(2)]
        self.ids = device.empty((self.pitch,), np.int32)
        self.sources = [device.empty((self.pitch,), np.int32) for _ in range(2)]
        self.active = device.empty((-(-self.pitch // MARKS) * MARKS,), np.uint8)

    def kernels(self) -> list[Kernel]:
        """Return the kernels that bring features in, list the active inputs and collect scores."""
        return [list_active(), *(feature_layout(name, self.precision) for name in LAYOUT_KERNELS)]

    def load(self, features: Features) -> None:
        """Bring features of the host into the first buffer, and mark the active inputs.

        Parameters
        ----------
        features : PackedFeatures, ndarray or csr_array, shape (inputs, neurons)
            Features in host memory, of no more inputs than the capacity.
        """
        device, precision, given = self.device, self.precision, list[Argument]()
        inputs, neurons = features.shape
        count = np.int32(inputs)
        device.clear(self.active)
        grid = -(-inputs // FEATURE_THREADS), 1
        device.launch(feature_layout("number_inputs", precision), grid, [self.ids, count])
        if isinstance(features, PackedFeatures):
            row_bytes = features.bits.shape[1]
            name, grid = "unpack_bits", (grid[0], -(-row_bytes // UNPACK_BYTES))
            given = [device.upload(features.bits), np.int32(row_bytes), np.int32(neurons)]
        elif sp.issparse(features):
            device.clear(self.buffers[0])
            csr = upload_csr(device, features.astype(precision.sums, copy=False))
            name, grid = "spread_csr", (-(-inputs // (FEATURE_THREADS // 32)), 1)
            given = [csr.indptr, csr.indices, csr.data]
        else:
            name, grid = "turn_rows", (-(-inputs // TRANSPOSE_TILE), -(-neurons // TRANSPOSE_TILE))
            rows = device.upload(np.ascontiguousarray(features, precision.sums))
            given = [rows, np.int32(neurons)]
        to: list[Argument] = [count, self.buffers[0], np.int32(self.pitch), self.active]
        device.launch(feature_layout(name, precision), grid, [*given, *to])

    def operands(self, number: int, state: DeviceArray, listing: InputList) -> StepOperands:
        """Return the operands of a step, from its number, counted from 0, and its InputState."""
        parity = number % 2
        before, after = self.buffers[parity], self.buffers[1 - parity]
        source = self.sources[parity]
        return StepOperands(before, after, self.pitch, state, source, self.active, listing)

    def listing(self, number: int, after: DeviceArray, policy: np.int32) -> InputList:
        """Return the list before a step, from its number, counted from 0, and its InputState."""
        return InputList(self.ids, self.sources[number % 2], after, policy)

    def list_active(self, before: DeviceArray, listing: InputList) -> None:
        """Start to list inputs without a step; `before` is the InputState of the last one."""
        self.device.launch(list_active(), (1, 1), [before, self.active, *listing.arguments()])

    def collect(self, steps: int, state: DeviceArray, inputs: int, neurons: int) -> DeviceArray:
        """Return the features of the inputs in a buffer as a device array (inputs, neurons).

        Parameters
        ----------
        steps : int
            How many steps wrote features in this batch.
        state : device array of int32, shape (STATE,)
            The InputState behind the last step.
        inputs : int
            How many inputs it counts.
        neurons : int
            How many features each of them has.
        """
        rows = self.device.empty((inputs, neurons), self.precision.sums)
        self.device.launch(
            feature_layout("collect_rows", self.precision),
            (-(-inputs // TRANSPOSE_TILE), -(-neurons // TRANSPOSE_TILE)),
            [
                self.buffers[steps % 2], np.int32(self.pitch), state, self.sources[steps % 2],
                np.int32(neurons), rows,
            ],
        )  # fmt: skip
        return rows
