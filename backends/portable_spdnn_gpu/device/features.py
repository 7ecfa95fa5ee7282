"""Features on a device."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn_gpu.compile.catalog import (
    FEATURE_THREADS,
    TRANSPOSE_TILE,
    UNPACK_BYTES,
    Kernel,
    feature_layout,
    list_alive,
)
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.device.matrices import upload_csr

Array = npt.NDArray[Any]

PITCH = 64  # inputs: a row of features begins with a whole line of memory
KEEP, DROP, ALWAYS = np.int32(0), np.int32(1), np.int32(2)  # policies of list_alive
STATE = 4  # integers of an InputState
COUNT, GATHERS, ALIVE, NANS = range(STATE)


def bytes_for_input(widest: int, precision: Precision) -> int:
    """Return the device memory that an input takes, from the host's form to its scores."""
    buffers = 2 * widest * precision.storage.itemsize
    rows = widest * precision.sums.itemsize  # as they come, or as they go
    return int(buffers + rows) + 4 * np.dtype(np.int32).itemsize


def pitch_of(capacity: int) -> int:
    """Return how many inputs of a neuron lie in a row: whole lines, but for the few."""
    return -(-capacity // PITCH) * PITCH if capacity > PITCH else max(capacity, 1)


class DeviceFeatures:
    """Two buffers of features, [neuron][input], and who the inputs in them are.

    The layers of a batch read one buffer and write the other by turns. Plans that do not run at
    the same time share one.

    Parameters
    ----------
    device : Device
    widest : int
        Neurons, at most.
    capacity : int
        Inputs, at most.
    precision : Precision
    """

    def __init__(self, device: Device, widest: int, capacity: int, precision: Precision) -> None:
        self.device, self.widest, self.precision = device, widest, precision
        self.pitch = pitch_of(capacity)
        self.capacity, self.one_at_a_time = capacity, threading.Lock()
        size = max(widest, 1) * self.pitch
        self.buffers = [device.empty((size,), precision.storage) for _ in range(2)]
        self.ids = [device.empty((self.pitch,), np.int32) for _ in range(2)]
        self.source = device.empty((self.pitch,), np.int32)
        self.alive = device.empty((self.pitch,), np.uint8)

    def kernels(self) -> list[Kernel]:
        """Return the kernels that work on features."""
        names = ("unpack_bits", "spread_csr", "turn_rows", "collect_rows", "number_inputs")
        return [list_alive(), *(feature_layout(name, self.precision) for name in names)]

    def load(self, features: Features) -> None:
        """Bring features of the host into the first buffer, and mark the inputs that live.

        Parameters
        ----------
        features : PackedFeatures, ndarray or csr_array, shape (inputs, neurons)
            No more inputs than the capacity.
        """
        device, pitch, precision = self.device, np.int32(self.pitch), self.precision
        inputs, neurons = features.shape
        count = np.int32(inputs)
        device.clear(self.alive)
        across = -(-inputs // FEATURE_THREADS)
        device.launch(feature_layout("number_inputs", precision), (across, 1), [self.ids[0], count])
        if isinstance(features, PackedFeatures):
            bits = device.upload(features.bits)
            row_bytes = features.bits.shape[1]
            device.launch(
                feature_layout("unpack_bits", precision),
                (across, -(-row_bytes // UNPACK_BYTES)),
                [
                    bits, np.int32(row_bytes), np.int32(neurons), count, self.buffers[0], pitch,
                    self.alive,
                ],
            )  # fmt: skip
        elif sp.issparse(features):
            device.clear(self.buffers[0])
            csr = upload_csr(device, features.astype(precision.sums, copy=False))
            device.launch(
                feature_layout("spread_csr", precision),
                (-(-inputs // (FEATURE_THREADS // 32)), 1),
                [
                    csr.offsets, csr.indices, csr.data, count, self.buffers[0], pitch, self.alive,
                ],
            )  # fmt: skip
        else:
            rows = device.upload(np.ascontiguousarray(features, precision.sums))
            device.launch(
                feature_layout("turn_rows", precision),
                (-(-inputs // TRANSPOSE_TILE), -(-neurons // TRANSPOSE_TILE)),
                [rows, np.int32(neurons), count, self.buffers[0], pitch, self.alive],
            )

    def list_alive(self, turn: int, before: Any, after: Any, policy: np.int32) -> None:
        """Start to list the inputs that go on.

        Parameters
        ----------
        turn : int
            How many lists came before in this batch.
        before, after : device arrays of int32, shape (STATE,)
        policy : KEEP, DROP or ALWAYS
        """
        self.device.launch(
            list_alive(),
            (1, 1),
            [
                before, after, self.alive, self.ids[turn % 2], self.ids[(turn + 1) % 2],
                self.source, policy,
            ],
        )  # fmt: skip

    def collect(self, turn: int, state: Any, inputs: int, neurons: int) -> Any:
        """Return the features of the inputs in a buffer as a device array (inputs, neurons).

        Parameters
        ----------
        turn : int
            Layers that wrote features in this batch.
        state : device array of int32, shape (STATE,)
            Counts `inputs`.
        """
        rows = self.device.empty((inputs, neurons), self.precision.sums)
        self.device.launch(
            feature_layout("collect_rows", self.precision),
            (-(-inputs // TRANSPOSE_TILE), -(-neurons // TRANSPOSE_TILE)),
            [
                self.buffers[turn % 2], np.int32(self.pitch), state, self.source,
                np.int32(neurons), rows,
            ],
        )  # fmt: skip
        return rows
