"""Launches of a network's steps.

With what the device counted on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.network import Network
from portable_spdnn_gpu.compile.catalog import Kernel
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.features import (
    ALIVE,
    ALWAYS,
    COUNT,
    DROP,
    KEEP,
    NANS,
    STATE,
    DeviceFeatures,
)
from portable_spdnn_gpu.network.steps import Step
from portable_spdnn_gpu.network.weights import DeviceWeights
from portable_spdnn_gpu.persistent import launch as run_counts
from portable_spdnn_gpu.persistent.launch import PackedRun, ResidentRun, read_counts
from portable_spdnn_gpu.spmm.launch import PlacedProduct

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LayerCounts:
    """What was counted in a batch.

    Attributes
    ----------
    alive, computed : ndarray of int64, shape (layers,)
        Inputs alive after each layer, and inputs that it computed.
    unusable : ndarray of bool, shape (layers,)
        Whether the layer made a feature of no use.
    left : int
        Inputs alive at the end.
    """

    alive: Array
    computed: Array
    unusable: Array
    left: int


class StepLaunches:
    """Starts the steps of a network, each followed by the list of the inputs that live.

    Parameters
    ----------
    network : Network
    steps : sequence of Step
        Of all layers, in order.
    weights : DeviceWeights
        Of the steps.
    features : DeviceFeatures
        Steps read one buffer of them and write the other, by turns.
    drops : sequence of bool
        Whether dead inputs may leave before all layers, and after each.

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
        self._y_max = network.y_max
        # After each step; of the last one all of them leave.
        self._first_policy = DROP if drops[0] else KEEP
        self._policies = [DROP if drops[step.end] else KEEP for step in steps]
        self._policies[-1] = ALWAYS
        device, precision = self._device, features.precision
        for kernel in {*_kernels(steps, precision), *features.kernels()}:
            device.resident_blocks(kernel)  # compiled, before they may be recorded
        self._products: list[PlacedProduct | ResidentRun] = []
        self._beside: list[Any] = []  # biases of a layer; what a run counts
        for step, memory in zip(steps, weights.places, strict=True):
            if isinstance(step.packed, PackedRun):
                run = ResidentRun(device, step.packed, memory)
                self._products.append(run)
                self._beside.append(run.new_counts())
            else:
                self._products.append(PlacedProduct(device, step.packed, memory, precision))
                bias = network.layers[step.first].bias
                self._beside.append(device.upload(np.ascontiguousarray(bias, precision.sums)))
        rows, row = len(steps) + 2, STATE * np.dtype(np.int32).itemsize
        memory = device.empty((rows * row,), np.uint8)
        self._states = device.view(memory, 0, (rows, STATE), np.int32)
        self.state = [device.view(memory, n * row, (STATE,), np.int32) for n in range(rows)]

    def start_all(self) -> None:
        """Start the first list and all steps."""
        self.list_first()
        for number in range(len(self._steps)):
            self.start(number)

    def list_first(self) -> None:
        """Start the list of the inputs that live before all layers."""
        self._features.list_alive(0, self.state[0], self.state[1], self._first_policy)

    def start(self, number: int) -> None:
        """Start a step and the list after it."""
        features, state = self._features, self.state[number + 1]
        product, beside = self._products[number], self._beside[number]
        operands = (
            features.buffers[number % 2], features.buffers[(number + 1) % 2], features.pitch,
            state, features.source, features.alive,
        )  # fmt: skip
        if isinstance(product, ResidentRun):
            product.launch(*operands, self._y_max, beside)
        else:
            product.launch(*operands, beside, self._y_max, True)
        features.list_alive(number + 1, state, self.state[number + 2], self._policies[number])

    def counts(self) -> LayerCounts:
        """Return what was counted, when the steps are done."""
        states = self._device.download(self._states)
        alive, computed, unusable = [], [], []
        for number, step in enumerate(self._steps):
            if isinstance(step.packed, PackedRun):
                counted = read_counts(self._device.download(self._beside[number]))
                alive.append(counted[:, run_counts.ALIVE])
                computed.append(counted[:, run_counts.COMPUTED])
                unusable.append(counted[:, run_counts.UNUSABLE])
            else:
                alive.append(states[number + 2 : number + 3, ALIVE])
                computed.append(states[number + 1 : number + 2, COUNT])
                unusable.append(states[number + 1 : number + 2, NANS])
        return LayerCounts(
            np.concatenate(alive).astype(np.int64),
            np.concatenate(computed).astype(np.int64),
            np.concatenate(unusable) != 0,
            int(states[-1, COUNT]),
        )


def _kernels(steps: Sequence[Step], precision: Precision) -> Iterator[Kernel]:
    for step in steps:
        if isinstance(step.packed, PackedRun):
            yield step.packed.kernel
        else:
            yield from (launch.kernel(precision, True) for launch in step.packed.launches)


def seconds_by_layer(
    steps: Sequence[Step], seconds: Sequence[float], multiply_adds: Array
) -> Array:
    """Return the seconds of each layer: those of a run shared out by multiply-adds.

    Parameters
    ----------
    steps : sequence of Step
    seconds : sequence of float
        Of each step.
    multiply_adds : ndarray, shape (layers,)
    """
    found = np.zeros(multiply_adds.size)
    for step, spent in zip(steps, seconds, strict=True):
        part = multiply_adds[step.first : step.end]
        whole, layers = part.sum(), step.end - step.first
        found[step.first : step.end] = spent * (part / whole if whole else 1 / layers)
    return found
