"""Rows of features that lie on a device, and are compared there for exact passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from portable_spdnn.features import PackedFeatures
from portable_spdnn.passes.compared_rows import ComparedRows
from portable_spdnn.plans.batch import LazyRows
from portable_spdnn_gpu.compile.catalog import FEATURE_THREADS, compared_rows
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.interface import Argument, Array, Device, DeviceArray
from portable_spdnn_gpu.device.upload import ChunkedUpload, host_rows, parts_of_rows

WORD = 4  # bytes that are hashed and compared at a time
KEY = np.dtype(np.ulonglong)
ROWS_OF_BLOCK = FEATURE_THREADS // 32  # a warp for each


@dataclass(frozen=True, eq=False)
class RowMemory:
    """Rows of features side by side in a device's memory.

    Attributes
    ----------
    device : Device
    memory : device array of uint8, one-dimensional
        Each row takes whole words.
    items : device array
        The same memory as it is read: of the type of sums, shape (rows, neurons); bits as bytes.
    shape : (int, int)
        Rows and neurons.
    packed : bool
        Whether a neuron is a bit.
    fetch : callable
        Returns the rows in host memory.
    """

    device: Device
    memory: DeviceArray
    items: DeviceArray
    shape: tuple[int, int]
    packed: bool
    fetch: Callable[[], Any]

    @property
    def row_bytes(self) -> int:
        """The bytes of a row."""
        return self.memory.nbytes // max(self.shape[0], 1)


class DeviceRows(LazyRows, ComparedRows):
    """Rows of features on a device, or some of them; they are compared there.

    Only numbers of rows, and a number for each row, come to the host. See compared_rows.cu.

    Parameters
    ----------
    held : RowMemory
        It is freed with the last `DeviceRows` on it.
    chosen : ndarray of int32, optional
        Which of its rows these are. By default they are all of them.

    Attributes
    ----------
    chosen : ndarray of int32, or None
    seconds : float
        What the device spent so far on uploading and comparing them.
    """

    def __init__(self, held: RowMemory, chosen: Array | None = None) -> None:
        fetch, count = held.fetch, held.shape[0] if chosen is None else chosen.size
        super().__init__(
            (count, held.shape[1]),
            held.items.dtype,
            fetch if chosen is None else lambda: fetch()[chosen],
        )
        self._held: RowMemory | None = held
        self.chosen = chosen
        self.seconds = 0.0

    @property
    def held(self) -> RowMemory:
        """Where they lie, as long as they are on the device."""
        assert self._held is not None
        return self._held

    def let_go(self) -> None:
        """Give the memory back, if no others lie in it; nothing can be asked of them any more."""
        self._held = self._fetch = None

    def fetched(self) -> Array:
        """Return the rows in host memory; they leave the device."""
        rows = super().fetched()
        self._held = None
        return rows

    def take(self, rows: Array) -> DeviceRows:
        """Return the given rows; none is moved."""
        taken = DeviceRows(self.held, self._numbers()[rows])
        taken.seconds = self.seconds
        return taken

    def _numbers(self) -> Array:
        """Return which rows of the memory these are."""
        every = np.arange(self.shape[0], dtype=np.int32)
        return every if self.chosen is None else self.chosen

    def equal(self) -> tuple[Array, Array]:
        """Group rows that are equal to the bit; see `portable_spdnn.passes.equal_rows`."""
        held, device, count = self.held, self.held.device, self.shape[0]
        slots = 1 << (2 * count).bit_length()
        with device.bound():
            begin = device.mark()
            keys, firsts = device.empty((slots,), KEY), device.empty((slots,), np.int32)
            device.clear(keys)
            device.clear(firsts)
            slot, leaders = (device.empty((count,), np.int32) for _ in range(2))
            chosen, words = device.upload(self._numbers()), np.int32(held.row_bytes // WORD)
            rows: list[Argument] = [held.memory, words, chosen, np.int32(count)]
            self._launch("hash_rows", [*rows, keys, firsts, np.int32(slots - 1), slot])
            self._launch("match_rows", [*rows, firsts, slot, leaders])
            leader = device.download(leaders)
            self.seconds += device.seconds(begin, device.mark())
        first = np.flatnonzero(leader == np.arange(count))
        group = np.empty(count, np.int64)
        group[first] = np.arange(first.size)
        return first, group[leader]

    def uniform(self) -> tuple[Array, Array]:
        """Return the rows with entries that are all equal, and that entry of each."""
        held, device, (count, neurons) = self.held, self.held.device, self.shape
        if held.packed or not neurons:
            return np.empty(0, np.int64), np.empty(0)
        with device.bound():
            begin = device.mark()
            chosen = device.upload(self._numbers())
            uniform, values = device.empty((count,), np.uint8), device.empty((count,), self.dtype)
            rows: list[Argument] = [held.items, np.int32(neurons), chosen, np.int32(count)]
            self._launch("uniform_rows", [*rows, uniform, values])
            which, entries = np.flatnonzero(device.download(uniform)), device.download(values)
            self.seconds += device.seconds(begin, device.mark())
        return which, entries[which]

    def _launch(self, name: str, arguments: list[Argument]) -> None:
        kernel = compared_rows(name, np.float32 if self.held.packed else self.dtype)
        self.held.device.launch(kernel, (-(-self.shape[0] // ROWS_OF_BLOCK), 1), arguments)


def uploaded_bytes(features: PackedFeatures | Array, precision: Precision) -> int:
    """Return the bytes of device memory that `uploaded_rows` takes."""
    rows, dtype = host_rows(features, precision)
    inputs, columns = rows.shape
    return int(inputs * -(-columns * dtype.itemsize // WORD) * WORD)


def uploaded_rows(
    upload: ChunkedUpload, features: PackedFeatures | Array, precision: Precision
) -> DeviceRows:
    """Return features of the host on a device: bits as they are, others in the type of sums."""
    device, (rows, dtype) = upload.device, host_rows(features, precision)
    packed, missing = isinstance(features, PackedFeatures), -rows.shape[1] * dtype.itemsize % WORD
    if missing:
        rows = np.pad(rows, ((0, 0), (0, missing)))
    memory = device.empty((uploaded_bytes(features, precision),), np.uint8)
    upload.run(parts_of_rows(rows, dtype, upload.limit), lambda part, arrays: None, memory)
    items = memory if packed else device.view(memory, 0, features.shape, dtype)
    return DeviceRows(RowMemory(device, memory, items, features.shape, packed, lambda: features))


def empty_rows(device: Device, shape: tuple[int, int], precision: Precision) -> RowMemory:
    """Return memory for rows of the type of sums, with unset content."""
    memory = device.empty((shape[0] * shape[1] * precision.sums.itemsize,), np.uint8)
    items = device.view(memory, 0, shape, precision.sums)
    return RowMemory(device, memory, items, shape, False, partial(_downloaded, device, items))


def _downloaded(device: Device, items: DeviceArray) -> Array:
    with device.bound():  # the caller's thread may be bound to another device
        return device.download(items)
