"""Features of a batch on a device: two buffers, and lists of the active inputs.

Features come in part by part: as bits, CSR or rows into the second buffer, which nothing else
needs before the first step, and from there into the first one, where kernels spread them out. So
no form of the features but the buffers takes memory for a whole batch. Rows that wait on the
device, to be compared or fetched, do, and are counted.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn_gpu.compile.catalog import (
    COMPARE_KERNELS,
    FEATURE_THREADS,
    LAYOUT_KERNELS,
    TRANSPOSE_TILE,
    UNPACK_BYTES,
    Kernel,
    compared_rows,
    feature_layout,
    list_active,
)
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.compared_rows import DeviceRows, RowMemory, empty_rows, uploaded_rows
from portable_spdnn_gpu.device.interface import Argument, Array, Device, DeviceArray
from portable_spdnn_gpu.device.upload import (
    ChunkedUpload,
    Part,
    Start,
    host_rows,
    parts_of_csr,
    parts_of_rows,
    row_bytes,
)

PITCH = 64  # inputs; the features of every neuron begin with a cache line
# There is memory for as many inputs and neurons at least, so that the parts of an upload fit.
LEAST_INPUTS, LEAST_NEURONS = 16, 32
# Policies of a list of inputs, and the absence of one; see input_lists.cuh.
KEEP, ALWAYS, NO_LIST = map(np.int32, range(3))
LARGEST_SHARE = 16  # inputs leave once one of so many is inactive, or of more
# What reading its features through a list adds to the time of a layer: on an H200 a third to a half
# of it where few inputs are left.
LIST_COST = 1 / 2
STATE = 5  # integers of an InputState, in this order
COUNT, GATHERS, ACTIVE, OVERFLOWED, ENDED = range(STATE)
STATE_WORDS = 8  # integers from one InputState to the next; each begins a sector of 32 bytes
STATE_BYTES = STATE_WORDS * np.dtype(np.int32).itemsize
MARKS = 8  # of inputs, that are read and cleared together


def drop_before(layers: int) -> np.int32:
    """Return the policy before so many layers: inactive inputs leave once that saves time.

    The next layer reads its features through the list, which costs LIST_COST of its time; each of
    them is spared the part of the inputs that is inactive. A sixteenth is always enough.
    """
    return np.int32(max(LARGEST_SHARE, round(layers / LIST_COST)))


def input_state(inputs: int, gathers: bool = False) -> npt.NDArray[np.int32]:
    """Return the `InputState` (common.cuh) of a step's inputs before it runs."""
    return np.array([inputs, gathers, inputs, 0, 0], np.int32)


def input_states(first: int, number: int) -> npt.NDArray[np.int32]:
    """Return the `input_state` of `first`, first + 1, ... inputs, shape (number, STATE_WORDS)."""
    states = np.zeros((number, STATE_WORDS), np.int32)
    states[:, COUNT] = states[:, ACTIVE] = first + np.arange(number)
    return states


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
    policy : KEEP, ALWAYS or what `drop_before` returns
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
    """Return the bytes of device memory that an input takes: its features, twice, and marks."""
    return int(2 * widest * precision.storage.itemsize) + 4 * np.dtype(np.int32).itemsize


def pitch_of(capacity: int) -> int:
    """Return the distance between two neurons' features, for batches of `capacity` inputs at most.

    That is whole cache lines, except of a few inputs.
    """
    return -(-capacity // PITCH) * PITCH if capacity > PITCH else max(capacity, LEAST_INPUTS)


def capacity_within(free: int, wanted: int, input_bytes: int) -> int:
    """Return how many of the wanted inputs fit so many bytes of device memory; may be 0."""
    fitting = max(free, 0) // input_bytes
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
    nbytes : int
        The bytes of device memory that it takes.
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
        self.nbytes = self.pitch * bytes_for_input(widest, precision)
        self.capacity, self.one_at_a_time = capacity, threading.Lock()
        size = max(widest, LEAST_NEURONS) * self.pitch
        nbytes = size * precision.storage.itemsize
        self._memory = [device.empty((nbytes,), np.uint8) for _ in range(2)]
        self.buffers = [device.view(m, 0, (size,), precision.storage) for m in self._memory]
        self._upload = ChunkedUpload(device, self._memory[1], row_bytes(widest, precision.sums))
        self._ids_memory = device.empty((4 * self.pitch,), np.uint8)
        self.ids = device.view(self._ids_memory, 0, (self.pitch,), np.int32)
        self.sources = [device.empty((self.pitch,), np.int32) for _ in range(2)]
        self.active = device.empty((-(-self.pitch // MARKS) * MARKS,), np.uint8)
        self._waiting: weakref.WeakSet[RowMemory] = weakref.WeakSet()

    def kernels(self) -> list[Kernel]:
        """Return the kernels that bring features in, list the active inputs and collect scores."""
        return [
            list_active(),
            *(feature_layout(name, self.precision) for name in LAYOUT_KERNELS),
            *(compared_rows(name, self.precision.sums) for name in COMPARE_KERNELS),
        ]

    def load(self, features: Features | DeviceRows) -> None:
        """Bring features into the first buffer, and mark the active inputs.

        Parameters
        ----------
        features : PackedFeatures, ndarray or csr_array in host memory, or DeviceRows
            Features of no more inputs than the capacity, shape (inputs, neurons). Rows on the
            device are let go of.
        """
        device, precision, limit = self.device, self.precision, self._upload.limit
        (inputs, neurons), chosen = features.shape, self.ids
        device.clear(self.active)
        number = feature_layout("number_inputs", precision)
        device.launch(number, (-(-inputs // FEATURE_THREADS), 1), [self.ids, np.int32(inputs)])
        if isinstance(features, DeviceRows):
            held = features.held
            chosen = chosen if features.chosen is None else device.upload(features.chosen)
            start = self._rows_starter(held.packed, held.row_bytes, neurons, chosen)
            start(Part(0, inputs, []), [held.items])
            features.let_go()
        elif sp.issparse(features):
            device.clear(self.buffers[0])
            parts = parts_of_csr(features, precision.sums, limit)
            self._upload.run(parts, self._starter("spread_csr", FEATURE_THREADS // 32, 1, []))
        else:
            rows, dtype = host_rows(features, precision)
            packed = isinstance(features, PackedFeatures)
            start = self._rows_starter(packed, rows.shape[1], neurons, chosen)
            self._upload.run(parts_of_rows(rows, dtype, limit), start)

    def _rows_starter(self, packed: bool, width: int, neurons: int, chosen: DeviceArray) -> Start:
        """Return what starts the kernel that takes the chosen rows of a part, bits or numbers."""
        sizes: list[Argument] = [np.int32(neurons), chosen]
        if packed:
            sizes, blocks = [np.int32(width), *sizes], -(-width // UNPACK_BYTES)
            return self._starter("unpack_bits", FEATURE_THREADS, blocks, sizes)
        blocks = -(-neurons // TRANSPOSE_TILE)
        return self._starter("turn_rows", TRANSPOSE_TILE, blocks, sizes)

    def _starter(self, name: str, block: int, blocks: int, sizes: list[Argument]) -> Start:
        """Return what starts a kernel on a part.

        `block` inputs go to a block, and to `blocks` beside each other all of their features.
        """
        kernel, device = feature_layout(name, self.precision), self.device
        to: list[Argument] = [self.buffers[0], np.int32(self.pitch), self.active]

        def start(part: Part, arrays: list[DeviceArray]) -> None:
            given = [*arrays, *sizes, np.int32(part.first), np.int32(part.rows), *to]
            device.launch(kernel, (-(-part.rows // block), blocks), given)

        return start

    def hold(self, features: PackedFeatures | Array) -> DeviceRows:
        """Return a copy of features on the device, which waits there; see `uploaded_rows`."""
        rows = uploaded_rows(self._upload, features, self.precision)
        self._waiting.add(rows.held)
        return rows

    def waiting_bytes(self) -> int:
        """Return the bytes of device memory that rows take, held or collected."""
        return sum(held.memory.nbytes for held in self._waiting)

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

    def listed(self, inputs: int) -> Array:
        """Return so many inputs of the latest list, int64 in host memory."""
        listed = self.device.view(self._ids_memory, 0, (inputs,), np.int32)
        return self.device.download(listed).astype(np.int64)

    def collect(self, steps: int, state: DeviceArray, inputs: int, neurons: int) -> DeviceRows:
        """Return the features of the inputs in a buffer, of shape (inputs, neurons).

        They stay on the device, in memory of their own.

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
        held = empty_rows(self.device, (inputs, neurons), self.precision)
        self._collect(steps, state, 0, held.items)
        self._waiting.add(held)
        return DeviceRows(held)

    def fetch(self, steps: int, state: DeviceArray, inputs: int, neurons: int) -> Array:
        """Return the same in host memory; on the device the other buffer holds them meanwhile."""
        free, dtype = self._memory[1 - steps % 2], self.precision.sums
        most = free.size // (neurons * dtype.itemsize)
        fetched = np.empty((inputs, neurons), dtype)
        for first in range(0, inputs, most):
            part = fetched[first : first + most]
            rows = self.device.view(free, 0, part.shape, dtype)
            self._collect(steps, state, first, rows)
            part[:] = self.device.download(rows)
        return fetched

    def _collect(self, steps: int, state: DeviceArray, first: int, rows: DeviceArray) -> None:
        inputs, neurons = rows.shape
        self.device.launch(
            feature_layout("collect_rows", self.precision),
            (-(-inputs // TRANSPOSE_TILE), -(-neurons // TRANSPOSE_TILE)),
            [
                self.buffers[steps % 2], np.int32(self.pitch), state, self.sources[steps % 2],
                np.int32(neurons), np.int32(first), np.int32(inputs), rows,
            ],
        )  # fmt: skip
