"""How a plan shares out the memory that it may take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from portable_spdnn.errors import InputError
from portable_spdnn.host import format_bytes, resident_bytes
from portable_spdnn.network import Network
from portable_spdnn.workloads.streamed_network import LayerFacts, StreamedNetwork

CODE_BYTES = 192 << 20  # compilers and compiled kernels, which appear with the first plan
WEIGHTS_SHARE = 1 / 4  # of what is free; the rest is for features
# Forms of a piece's features while layers run: before, after, parked, gathered; sparse ones
# take twice their dense form.
COPIES = 6
# Buffers of a worker, rows of features: two tiles, as wide as any plan makes them. To measure, a
# plan takes some more, before there are features.
WORKER_ROWS = 2 * 128


@dataclass(frozen=True)
class Budget:
    """Shares of the memory that a plan may take.

    Attributes
    ----------
    memory : int
        Bytes that the whole process may hold.
    weights : int
        Bytes for layers: those that run, and those that are read ahead.
    pool : int
        Bytes for features that wait between blocks of layers.
    piece : int
        Inputs that go through layers together.
    """

    memory: int
    weights: int
    pool: int
    piece: int

    @classmethod
    def share(cls, memory: int, network: Network, dtype: np.dtype[Any], threads: int) -> Budget:
        """Share out `memory`, less what the process holds already.

        Raises
        ------
        InputError
            If it does not suffice for one layer and one input; the message says what would.
        """
        return cls.of(memory, resident_bytes(), facts_of(network), network.widest, dtype, threads)

    @classmethod
    def of(
        cls,
        memory: int,
        held: int,
        facts: Iterable[LayerFacts],
        widest: int,
        dtype: np.dtype[Any],
        threads: int,
    ) -> Budget:
        """Share out `memory`, less the `held` bytes, for layers of which only facts are known.

        Raises
        ------
        InputError
            As `share`.
        """
        row = max(1, widest) * dtype.itemsize
        taken = held + CODE_BYTES + threads * WORKER_ROWS * row
        layer = 2 * max(map(running_bytes, facts))
        free = max(layer / WEIGHTS_SHARE, 2 * COPIES * row / (1 - WEIGHTS_SHARE))
        if memory < taken + free:
            raise InputError(
                f"memory is {format_bytes(memory)}, of which {format_bytes(taken)} are taken by "
                f"the program, the inputs and buffers; a network of {widest} neurons "
                f"needs {format_bytes(1.05 * (taken + free))} here"
            )
        weights = int(WEIGHTS_SHARE * (memory - taken))
        pool = (memory - taken - weights) // 2
        return cls(memory, weights, pool, pool // (COPIES * row))

    def cut_blocks(self, facts: Iterable[LayerFacts]) -> Iterator[tuple[int, int]]:
        """Cut layers into blocks (first, end), two of which the budget holds: one runs."""
        first = end = used = 0
        for one in facts:
            used += running_bytes(one)
            if used > self.weights / 2 and end > first:
                yield first, end
                first, used = end, running_bytes(one)
            end += 1
        yield first, end


def facts_of(network: Network) -> list[LayerFacts]:
    """Return the facts of all layers, without reading them where the network is streamed."""
    if isinstance(network, StreamedNetwork):
        return list(network.source.facts)
    return [LayerFacts.of(layer) for layer in network]


def running_bytes(facts: LayerFacts) -> int:
    """Return the memory of a layer in use: read ahead, and planned in the form of any backend."""
    planned = (4 + max(facts.value_bytes, 4)) * facts.nnz + 40 * sum(facts.shape)
    return 2 * facts.bytes + planned
