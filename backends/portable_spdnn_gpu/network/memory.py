"""How plans share out a device's memory.

What an input takes, and so how many go through the network together, stands in device/features.py.
At 65,536 neurons 60,000 inputs in float32 take 29.3 GiB, and a layer of the challenge, in clusters
and with one value for all weights, 1.03 MiB, and 0.25 MiB for biases: 29.5 GiB with 120 layers and
31.7 GiB with 1,920 (46.7 GiB where values differ). Of the 78 GiB of an H100 that is one batch.

Plans of parts of a network share memory: the first one takes buffers for the features of all, and
leaves room for the weights of the others. Rows that exact passes compare wait where scores do, and
so take no more: the bits of 60,000 inputs, 0.46 GiB, or the survivors, 0.7 GiB, of 2.4 GiB on an
H100. To compare them takes up to 60 bytes an input meanwhile.
"""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field, replace

from portable_spdnn.errors import InputError
from portable_spdnn.host import format_bytes
from portable_spdnn.network import Network
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.features import (
    LEAST_INPUTS,
    DeviceFeatures,
    bytes_for_input,
    capacity_within,
)
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.network.weights import SLOTS, DeviceWeights
from portable_spdnn_gpu.persistent.packing import PackedSegment
from portable_spdnn_gpu.spmm.packing import PackedSpmm

RESERVE = 1 / 16  # part left to graphs, kernels and measurements, and half of it to rows
WEIGHTS_SHARE = 1 / 2  # part of the rest that weights may take at least
# Of what is left to all weights, layers take their part of the edges, and so much more where they
# need it, since edges do not tell the bytes exactly.
PART_AND_MORE = 1.25


@dataclass(frozen=True)
class MemoryShares:
    """Bytes of a device's memory.

    Attributes
    ----------
    precision : Precision
    weights_and_features : int
    weights : int
        What weights may take of that: all that the inputs leave, or half of it.
    rows : int
        What rows of features and scores may take on the device, until somebody asks for them.
    reserve : int
        What is left to rows, and to graphs, kernels and measurements.
    limited : bool
        Whether a limit was given, not only what is free.
    held : WeakSet of DeviceWeights
        The weights of all plans that share the memory.
    """

    precision: Precision
    weights_and_features: int
    weights: int
    rows: int
    reserve: int
    limited: bool
    held: weakref.WeakSet[DeviceWeights] = field(default_factory=weakref.WeakSet, compare=False)

    @classmethod
    def of(
        cls, network: Network, precision: Precision, inputs: int, free: int, limit: int | None
    ) -> MemoryShares:
        """Share out the `free` bytes of a device, no more than a `limit`, for so many inputs."""
        memory = free if limit is None else min(limit, free)
        reserve = int(RESERVE * memory)
        shared = memory - reserve - _bias_bytes(network, precision)
        rest = shared - inputs * bytes_for_input(network.widest, precision)
        weights = max(int(WEIGHTS_SHARE * shared), rest)
        return cls(precision, shared, weights, reserve // 2, reserve, limit is not None)

    def beside(self, network: Network, features: DeviceFeatures, free: int) -> MemoryShares:
        """Return the shares of a plan of later layers, which takes the same buffers for features.

        Weights may take what is left; rows wait in one share, whichever plan made them.
        """
        left = free - self.reserve
        if self.limited:
            taken = features.nbytes + sum(weights.device_bytes for weights in self.held)
            left = min(left, self.weights_and_features - taken)
        return replace(self, weights=max(0, left - _bias_bytes(network, self.precision)))

    def for_layers(self, network: Network, edges_after: int) -> int:
        """Return what weights may take, where so many edges are to find memory after them."""
        if not edges_after:
            return self.weights
        part = network.edges / (network.edges + edges_after)
        return int(min(1, PART_AND_MORE * part) * self.weights)

    def device_weights(
        self, device: Device, packed: Sequence[PackedSpmm | PackedSegment], limit: int
    ) -> DeviceWeights:
        """Bring weights to the device: those within a limit, two steps at the least."""
        slots = SLOTS * max((step.memory.size for step in packed), default=0)
        weights = DeviceWeights(device, packed, max(limit, min(slots, self.weights)))
        self.held.add(weights)
        return weights

    def features(
        self,
        device: Device,
        there: MutableMapping[Precision, DeviceFeatures],
        network: Network,
        wanted: int,
        weights: DeviceWeights,
        edges_after: int,
    ) -> DeviceFeatures:
        """Return buffers for a batch: those that are there, if they suffice.

        Parameters
        ----------
        device : Device
        there : mapping of Precision to DeviceFeatures
            What plans have made; new buffers are put there.
        network : Network
        wanted : int
            How many inputs should go through it together.
        weights : DeviceWeights
            Its weights.
        edges_after : int
            Edges of later layers, whose weights are expected to take as much each.

        Raises
        ------
        InputError
            If there is memory for none.
        """
        widest, held = network.widest, there.get(self.precision)
        input_bytes = bytes_for_input(widest, self.precision)
        these = sum(place.nbytes for place in weights.places) + _bias_bytes(network, self.precision)
        later = these * edges_after // max(network.edges, 1)
        later = max(0, min(later, self.weights - weights.device_bytes))
        free = self.weights_and_features - weights.device_bytes - later
        # They are taken where they are no smaller than new ones beside them would be.
        capacity = capacity_within(free, wanted, input_bytes)
        suffices = held is not None and held.widest >= widest and held.capacity >= max(capacity, 1)
        if held is not None and suffices and (held.nbytes <= free or not self.limited):
            return held
        if not capacity:
            raise InputError(
                f"device memory: {format_bytes(max(free, 0))} are left beside the weights, and "
                f"{LEAST_INPUTS} inputs of this network, the fewest that there is memory for, take "
                f"{format_bytes(LEAST_INPUTS * input_bytes)}; raise device_memory"
            )
        made = there[self.precision] = DeviceFeatures(device, widest, capacity, self.precision)
        return made


def _bias_bytes(network: Network, precision: Precision) -> int:
    return sum(layer.shape[1] for layer in network) * precision.sums.itemsize
