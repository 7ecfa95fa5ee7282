"""Packed weights on a device: all of them, or those in use and those being copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from portable_spdnn.errors import InputError
from portable_spdnn.host import format_bytes
from portable_spdnn_gpu.device.interface import Array, Device, DeviceArray
from portable_spdnn_gpu.persistent.packing import PackedSegment
from portable_spdnn_gpu.spmm.packing import PackedSpmm

SLOTS = 2
Span = tuple[Any, Any]  # events of a device before and after some work


class DeviceWeights:
    """Packed steps: the first in device memory, the rest copied in while others run.

    Steps that do not fit are kept in page-locked host memory and take two slots of device memory
    by turns: a stream of its own copies one step while the step before it runs.

    Parameters
    ----------
    device : Device
    packed : sequence of PackedSpmm or PackedSegment
        The weights of the steps, in the order in which they run. Their host memory is released
        when it has been copied.
    limit : int
        The bytes of device memory that they may take.

    Raises
    ------
    InputError
        If the limit does not suffice for two steps.

    Attributes
    ----------
    steps_on_device : int
        How many steps, the first ones, stay in device memory.
    device_bytes, streamed_bytes : int
        The bytes of device memory that are taken, and of the steps that are copied.
    places : list of device arrays of uint8
        Where each step is, or will be, on the device.
    """

    def __init__(
        self, device: Device, packed: Sequence[PackedSpmm | PackedSegment], limit: int
    ) -> None:
        self.device = device
        sizes = [step.memory.size for step in packed]
        self.steps_on_device = steps_that_fit(sizes, limit)
        slot_size = max(sizes[self.steps_on_device :], default=0)
        slots = [
            device.empty((slot_size,), np.uint8)
            for _ in range(min(SLOTS, len(packed) - self.steps_on_device))
        ]
        self.device_bytes = sum(sizes[: self.steps_on_device]) + slot_size * len(slots)
        self.streamed_bytes = sum(sizes[self.steps_on_device :])
        self.places: list[DeviceArray] = []
        # Host memory, and its place on the device.
        self._copies: list[tuple[Array, DeviceArray]] = []
        for number, step in enumerate(packed):
            if number < self.steps_on_device:
                memory = device.upload(step.memory)
            else:
                slot = slots[(number - self.steps_on_device) % SLOTS]
                memory = device.view(slot, 0, step.memory.shape, np.uint8)
                host = device.pinned(step.memory.size)
                host[:] = step.memory
                self._copies.append((host, memory))
            self.places.append(memory)
            step.memory = np.empty(0, np.uint8)  # frees the host's copy
        self._copying = device.new_stream() if self._copies else None

    def describe(self) -> str:
        """Return where the weights are."""
        held = f"weights take {format_bytes(self.device_bytes)} of device memory"
        if not self._copies:
            return held
        return (
            f"{held}; {len(self._copies)} of {len(self.places)} layers "
            f"({format_bytes(self.streamed_bytes)}) are copied while others run"
        )

    def run_streamed(self, start_step: Callable[[int], None]) -> StreamTimes:
        """Start all steps in order, each when its weights are there.

        Parameters
        ----------
        start_step : callable
            The function that starts the kernels of the step of a number.
        """
        device = self.device
        begin = device.mark()
        copies: list[Span] = []
        kernels: list[Span] = []
        for number in range(len(self.places)):
            streamed = number - self.steps_on_device
            if streamed >= 0:
                # A slot is free when the step that had it before has run.
                free = kernels[number - SLOTS][1] if streamed >= SLOTS else begin
                with device.on(self._copying):
                    device.wait(free)
                    start = device.mark()
                    device.copy_in(*self._copies[streamed])
                    copies.append((start, device.mark()))
                device.wait(copies[-1][1])
            start = device.mark()
            start_step(number)
            kernels.append((start, device.mark()))
        return StreamTimes(device, begin, copies, kernels)


@dataclass(frozen=True)
class StreamTimes:
    """When the copies and kernels of a batch began and ended.

    Attributes
    ----------
    device : Device
    begin : event
        The event before the first copy.
    copies, kernels : list of (event, event)
        The begin and end of each copy, and of the kernels of each step.
    """

    device: Device
    begin: Any
    copies: list[Span]
    kernels: list[Span]

    def copying(self) -> float:
        """Return the seconds of all copies."""
        return sum(self.device.seconds(*pair) for pair in self.copies)

    def waiting(self) -> float:
        """Return the seconds between the kernels of steps, in which they waited for weights."""
        if not self.copies:
            return 0.0
        whole = self.device.seconds(self.begin, self.kernels[-1][1])
        return max(0.0, whole - sum(self.of_steps()))

    def of_steps(self) -> list[float]:
        """Return the seconds of the kernels of each step."""
        return [self.device.seconds(*pair) for pair in self.kernels]


def steps_that_fit(sizes: Sequence[int], limit: int) -> int:
    """Return how many steps, the first ones, stay on the device.

    Parameters
    ----------
    sizes : sequence of int
        The bytes of each step.
    limit : int
        The bytes that all of them may take, those of the slots included.

    Raises
    ------
    InputError
        If not even two steps at a time fit.
    """
    if sum(sizes) <= limit:
        return len(sizes)
    # Slots are as large as the largest step that uses them.
    largest = np.maximum.accumulate(np.asarray(sizes)[::-1])[::-1]
    held = np.cumsum([0, *sizes[:-1]])
    needed = held + SLOTS * largest
    possible = np.flatnonzero(needed <= limit)
    if not possible.size:
        raise InputError(
            f"{format_bytes(limit)} of device memory for weights do not hold two layers of "
            f"{format_bytes(largest[0])}, one that runs and one that is copied; "
            f"{format_bytes(needed.min())} would: raise device_memory"
        )
    return int(possible[-1])
