"""How a plan shares out a device's memory.

What an input takes, and so how many go through the network together, stands in device/features.py.
At 65,536 neurons 60,000 inputs in float32 take 29.3 GiB, and a layer of the challenge, in clusters
and with one value for all weights, 1.03 MiB, and 0.25 MiB for biases: 29.5 GiB with 120 layers and
31.7 GiB with 1,920 (46.7 GiB where values differ). Of the 78 GiB of an H100 that is one batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from portable_spdnn.network import Network
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.features import bytes_for_input

RESERVE = 1 / 16  # part left to graphs, kernels and measurements, and half of it to scores
WEIGHTS_SHARE = 1 / 2  # part of the rest that weights may take at least


@dataclass(frozen=True)
class MemoryShares:
    """Bytes of a device's memory.

    Attributes
    ----------
    weights_and_features : int
    weights : int
        What weights may take of that: all that the inputs leave, or half of it.
    scores : int
        What scores may take on the device, until somebody asks for them.
    """

    weights_and_features: int
    weights: int
    scores: int

    @classmethod
    def of(
        cls, network: Network, precision: Precision, inputs: int, free: int, limit: int | None
    ) -> MemoryShares:
        """Share out the `free` bytes of a device, no more than a `limit`, for so many inputs."""
        memory = free if limit is None else min(limit, free)
        biases = sum(layer.shape[1] for layer in network) * precision.sums.itemsize
        shared = int((1 - RESERVE) * memory) - biases
        rest = shared - inputs * bytes_for_input(network.widest, precision)
        return cls(shared, max(int(WEIGHTS_SHARE * shared), rest), int(RESERVE / 2 * memory))
