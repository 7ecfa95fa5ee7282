"""Packed weights on a device.

All of them, or those in use and those on the way there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from portable_spdnn.errors import InputError
from portable_spdnn.host import format_bytes
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.persistent.launch import PackedRun
from portable_spdnn_gpu.spmm.packing import PackedProduct

SLOTS = 2


class DeviceWeights:
    """Packed layers: the first in device memory, the rest copied in while others run.

    What does not fit is kept in page-locked host memory and take two slots of device
    memory by turns: a stream of its own copies one while the layer before it runs.

    Parameters
    ----------
    device : Device
    layers : sequence of PackedProduct or PackedRun
        In the order in which they run. Their host memory is let go when it has been copied.
    limit : int or None
        Bytes of device memory that they may take; None for as many as they are.

    Raises
    ------
    InputError
        If the limit does not suffice for two layers.
    """

    def __init__(
        self,
        device: Device,
        layers: Sequence[PackedProduct | PackedRun],
        limit: int | None = None,
    ) -> None:
        self.device = device
        sizes = [layer.memory.size for layer in layers]
        self.resident = count_resident(sizes, limit)
        slot_size = max(sizes[self.resident :], default=0)
        slots = [
            device.empty((slot_size,), np.uint8)
            for _ in range(min(SLOTS, len(layers) - self.resident))
        ]
        self.device_bytes = sum(sizes[: self.resident]) + slot_size * len(slots)
        self.streamed_bytes = sum(sizes[self.resident :])
        self.places: list[Any] = []  # where each is, or will be, on the device
        self._copies: list[tuple[Any, Any]] = []  # host memory, and its place on the device
        for number, layer in enumerate(layers):
            if number < self.resident:
                memory = device.upload(layer.memory)
            else:
                slot = slots[(number - self.resident) % SLOTS]
                memory = device.view(slot, 0, layer.memory.shape, np.uint8)
                host = device.pinned(layer.memory.size)
                host[:] = layer.memory
                self._copies.append((host, memory))
            self.places.append(memory)
            layer.let_go()
        self._copying = device.new_stream() if self._copies else None

    def describe(self) -> str:
        """Say where the weights are."""
        held = f"weights: {format_bytes(self.device_bytes)} of device memory"
        if not self._copies:
            return held
        return (
            f"{held}; {len(self._copies)} of {len(self.places)} layers "
            f"({format_bytes(self.streamed_bytes)}) copied while others run"
        )

    def run_streamed(self, layer: Callable[[int], None]) -> StreamTimes:
        """Start all layers in order, each when its weights are there.

        Parameters
        ----------
        layer : callable
            Starts the kernels of the layer of a number.
        """
        device = self.device
        begin = device.mark()
        copies: list[tuple[Any, Any]] = []
        kernels: list[tuple[Any, Any]] = []
        for number in range(len(self.places)):
            streamed = number - self.resident
            if streamed >= 0:
                # A slot is free when the layer that had it before has run.
                free = kernels[number - SLOTS][1] if streamed >= SLOTS else begin
                with device.on(self._copying):
                    device.wait(free)
                    start = device.mark()
                    device.copy_in(*self._copies[streamed])
                    copies.append((start, device.mark()))
                device.wait(copies[-1][1])
            start = device.mark()
            layer(number)
            kernels.append((start, device.mark()))
        return StreamTimes(device, begin, copies, kernels)


class StreamTimes:
    """Events of a run with streamed layers.

    Parameters
    ----------
    device : Device
    begin : event
    copies, kernels : list of (event, event)
        Begin and end of each copy, and of the kernels of each layer.
    """

    def __init__(
        self,
        device: Device,
        begin: Any,
        copies: list[tuple[Any, Any]],
        kernels: list[tuple[Any, Any]],
    ) -> None:
        self._device, self._begin, self._copies, self._kernels = device, begin, copies, kernels

    def copying(self) -> float:
        """Return the seconds of all copies."""
        return sum(self._device.seconds(*pair) for pair in self._copies)

    def waiting(self) -> float:
        """Return the seconds between the kernels of layers: what they waited for weights."""
        if not self._copies:
            return 0.0
        whole = self._device.seconds(self._begin, self._kernels[-1][1])
        return max(0.0, whole - sum(self.of_layers()))

    def of_layers(self) -> list[float]:
        """Return the seconds of the kernels of each layer."""
        return [self._device.seconds(*pair) for pair in self._kernels]


def count_resident(sizes: Sequence[int], limit: int | None) -> int:
    """Return how many layers, the first ones, stay on the device under a limit in bytes.

    Raises
    ------
    InputError
        If not even two layers at a time fit.
    """
    if limit is None or sum(sizes) <= limit:
        return len(sizes)
    # Slots are as large as the largest layer that uses them.
    largest = np.maximum.accumulate(np.asarray(sizes)[::-1])[::-1]
    held = np.cumsum([0, *sizes[:-1]])
    needed = held + SLOTS * largest
    possible = np.flatnonzero(needed <= limit)
    if not possible.size:
        raise InputError(
            f"device memory: {format_bytes(limit)} for weights do not hold two layers of "
            f"{format_bytes(largest[0])}, one that runs and one that is copied; "
            f"{format_bytes(needed.min())} would"
        )
    return int(possible[-1])
