"""Launches of a network's steps, and what the device counted on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from portable_spdnn.network import Network
from portable_spdnn_gpu.device.epilogue import DeviceEpilogue
from portable_spdnn_gpu.device.features import (
    ACTIVE,
    ALWAYS,
    COUNT,
    KEEP,
    OVERFLOWED,
    STATE,
    STATE_BYTES,
    STATE_WORDS,
    DeviceFeatures,
    StepOperands,
    drop_before,
)
from portable_spdnn_gpu.device.interface import Array
from portable_spdnn_gpu.network.steps import Step
from portable_spdnn_gpu.network.weights import DeviceWeights
from portable_spdnn_gpu.persistent.launch import DeviceSegment, LayerCounts
from portable_spdnn_gpu.persistent.packing import PackedSegment
from portable_spdnn_gpu.spmm.launch import DeviceSpmm
from portable_spdnn_gpu.spmm.packing import PackedSpmm


class StepLaunches:
    """Starts the steps of a network, each of which ends with a list of the active inputs.

    Parameters
    ----------
    network : Network
    steps : sequence of Step
        The steps, which hold all layers in order.
    weights : DeviceWeights
        The packed weights of the steps.
    features : DeviceFeatures
        The two buffers that steps read and write by turns.
    drops : sequence of bool
        Whether inactive inputs may leave before all layers, and after each.

    Attributes
    ----------
    state : list of device arrays of int32
        The InputState (common.cuh) before the first list, before each step, and after the last.
    """

    def __init__(
        self,
        network: Network,
        steps: Sequence[Step],
        weights: DeviceWeights,
        features: DeviceFeatures,
        drops: Sequence[bool],
    ) -> None:
        self._device, self._steps, self._features = features.device, steps, features
        # The policies after each step; after the last one all inactive inputs leave.
        self._first_policy = drop_before(len(network)) if drops[0] else KEEP
        self._policies = [
            drop_before(len(network) - step.end) if drops[step.end] else KEEP for step in steps
        ]
        self._policies[-1] = ALWAYS
        device, precision = self._device, features.precision
        kernels = {*features.kernels()}
        self._segments: dict[int, DeviceSegment] = {}  # by the number of the step
        self._launches: list[Callable[[StepOperands], None]] = []
        for number, (step, memory) in enumerate(zip(steps, weights.places, strict=True)):
            if isinstance(step.packed, PackedSegment):
                segment = DeviceSegment(device, step.packed, memory)
                self._segments[number] = segment
                self._launches.append(partial(segment.launch, y_max=network.y_max))
                kernels.add(step.packed.kernel)
            else:
                product = DeviceSpmm(device, step.packed, memory, precision)
                layer = network.layers[step.first]
                finish = layer.epilogue(network.y_max)
                epilogue = DeviceEpilogue(device, finish, layer.shape[1], precision.sums)
                self._launches.append(partial(product.launch, epilogue=epilogue))
                kind = epilogue.kind(marks=True)
                kernels |= {launch.kernel(precision, kind) for launch in step.packed.launches}
        for kernel in kernels:
            device.resident_blocks(kernel)  # compiles it, before launches may be recorded
        rows = len(steps) + 2
        memory = device.empty((rows * STATE_BYTES,), np.uint8)
        self._states = device.view(memory, 0, (rows, STATE_WORDS), np.int32)
        self.state = [device.view(memory, n * STATE_BYTES, (STATE,), np.int32) for n in range(rows)]

    def start_all(self) -> None:
        """Start the first list and all steps."""
        self.list_first()
        for number in range(len(self._steps)):
            self.start(number)

    def list_first(self) -> None:
        """Start the list of the inputs that are active before all layers."""
        first = self._features.listing(0, self.state[1], self._first_policy)
        self._features.list_active(self.state[0], first)

    def start(self, number: int) -> None:
        """Start a step, with the list behind it."""
        features, state, packed = self._features, self.state[number + 1], self._steps[number].packed
        listing = features.listing(number + 1, self.state[number + 2], self._policies[number])
        self._launches[number](features.operands(number, state, listing))
        if isinstance(packed, PackedSpmm) and not packed.launches:  # a layer without outputs
            features.list_active(state, listing)

    def counts(self) -> tuple[LayerCounts, int]:
        """Wait for the steps; return what each layer counted, and the inputs active at the end."""
        # Before the first list, before each step, and after the last.
        states = self._device.download(self._states)
        counted, first = [], 0
        for number in [*self._segments, len(self._steps)]:
            # The single layers before a segment, or the end: each has a step.
            before, after = states[first + 1 : number + 1], states[first + 2 : number + 2]
            counted.append(LayerCounts(after[:, ACTIVE], before[:, COUNT], before[:, OVERFLOWED]))
            if number in self._segments:
                counted.append(self._segments[number].counts())
            first = number + 1
        whole = (np.concatenate(each).astype(np.int64) for each in zip(*counted, strict=True))
        return LayerCounts(*whole), int(states[-1, COUNT])


def seconds_by_layer(
    steps: Sequence[Step], seconds: Sequence[float], multiply_adds: Array
) -> Array:
    """Return the seconds of each layer: those of a segment shared out by multiply-adds.

    Parameters
    ----------
    steps : sequence of Step
    seconds : sequence of float
        The seconds of each step.
    multiply_adds : ndarray, shape (layers,)
        The multiply-adds of each layer.
    """
    found = np.zeros(multiply_adds.size)
    for step, spent in zip(steps, seconds, strict=True):
        part = multiply_adds[step.first : step.end]
        whole, layers = part.sum(), step.end - step.first
        found[step.first : step.end] = spent * (part / whole if whole else 1 / layers)
    return found
