"""How much memory networks take, which are streamed, and how a plan shares out what it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from portable_spdnn.errors import InputError
from portable_spdnn.host import available_bytes, format_bytes, resident_bytes
from portable_spdnn.network import LayerStatistics, Network
from portable_spdnn.plans.options import BATCH_MEMORY, PlanOptions
from portable_spdnn.workloads.streamed_network import StreamedNetwork

CODE_BYTES = 192 << 20  # compilers and compiled kernels, which appear with the first plan
WEIGHTS_SHARE = 1 / 4  # of what is free; the rest is for features
# Forms of a piece's features while layers run: before, after, parked, gathered; sparse ones
# take twice their dense form.
COPIES = 6
# Buffers of a worker, rows of features: two tiles, as wide as any plan makes them. To measure, a
# plan takes some more, before there are features.
WORKER_ROWS = 2 * 128
SHARE = 3 / 4
"""Part of the available memory that a network may take, in memory or streamed."""

WORKING_COPIES = 3  # of a batch's features before and after a layer: sparse forms are larger


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
    itemsize : int
        Bytes of a value in the plan's type.
    """

    memory: int
    weights: int
    pool: int
    piece: int
    itemsize: int

    @classmethod
    def of(
        cls,
        memory: int,
        held: int,
        statistics: Iterable[LayerStatistics],
        widest: int,
        dtype: np.dtype[Any],
        threads: int,
    ) -> Budget:
        """Share out `memory`, less the `held` bytes that the process has taken already.

        Raises
        ------
        InputError
            If it does not suffice for one layer and one input; the message says what would.
        """
        row = max(1, widest) * dtype.itemsize
        taken = held + CODE_BYTES + threads * WORKER_ROWS * row
        layer = 2 * max(running_bytes(one, dtype.itemsize) for one in statistics)
        free = max(layer / WEIGHTS_SHARE, 2 * COPIES * row / (1 - WEIGHTS_SHARE))
        if memory < taken + free:
            raise InputError(
                f"memory is {format_bytes(memory)}, but the program, the inputs and buffers take "
                f"{format_bytes(taken)}; a network of {widest} neurons "
                f"needs {format_bytes(1.05 * (taken + free))} here"
            )
        weights = int(WEIGHTS_SHARE * (memory - taken))
        pool = (memory - taken - weights) // 2
        return cls(memory, weights, pool, pool // (COPIES * row), dtype.itemsize)

    @property
    def layers_at_once(self) -> int:
        """Bytes for layers where all are held, so that no inputs wait between blocks."""
        return self.weights + self.pool

    def memory_for_layers(self, size: int) -> int:
        """Return the memory of which so many bytes would be for layers that are all held."""
        free = (size - self.layers_at_once) / (WEIGHTS_SHARE + (1 - WEIGHTS_SHARE) / 2)
        return self.memory + int(1.05 * free)

    def cut_blocks(self, statistics: Iterable[LayerStatistics]) -> Iterator[tuple[int, int]]:
        """Cut layers into blocks (first, end), two of which the budget holds: one runs."""
        first = end = used = 0
        for one in statistics:
            size = running_bytes(one, self.itemsize)
            used += size
            if used > self.weights / 2 and end > first:
                yield first, end
                first, used = end, size
            end += 1
        yield first, end


def statistics_of(network: Network) -> list[LayerStatistics]:
    """Return the statistics of all layers, without reading them where the network is streamed."""
    if isinstance(network, StreamedNetwork):
        return list(network.source.statistics)
    return [LayerStatistics.of(layer) for layer in network]


def planned_bytes(statistics: LayerStatistics, itemsize: int) -> int:
    """Return the most memory of a layer in a plan of any backend, with values of `itemsize`."""
    return (4 + max(statistics.value_bytes, itemsize)) * statistics.nnz + 40 * sum(statistics.shape)


def held_bytes(statistics: LayerStatistics, itemsize: int) -> int:
    """Return the memory of a layer as it is loaded, and planned."""
    return statistics.bytes + planned_bytes(statistics, itemsize)


def running_bytes(statistics: LayerStatistics, itemsize: int) -> int:
    """Return the memory of a layer in use: read ahead, loaded and planned."""
    return statistics.bytes + held_bytes(statistics, itemsize)


def streaming_memory(
    statistics: Iterable[LayerStatistics], inputs: int, options: PlanOptions
) -> int | None:
    """Decide whether a network is held in memory or streamed.

    Parameters
    ----------
    statistics : iterable of LayerStatistics
        Of all layers.
    inputs : int
    options : PlanOptions
        Where its `memory` is set, that stands.

    Returns
    -------
    int or None
        None: held in memory. Otherwise weights in two forms (as loaded, and planned by any
        backend) and the features at work exceed `SHARE` of the available memory, and the number
        is what the whole process may hold: what it holds already, and that share. Where the
        system does not tell what is available, networks are held in memory.
    """
    if options.memory is not None:
        return options.memory
    available = available_bytes()
    if available is None or needed_bytes(statistics, inputs, options) <= SHARE * available:
        return None
    return resident_bytes() + int(SHARE * available)


def needed_bytes(statistics: Iterable[LayerStatistics], inputs: int, options: PlanOptions) -> int:
    """Return the memory that a network takes when it is loaded, planned and run at once."""
    itemsize = np.dtype(options.dtype).itemsize
    weights = widest = 0
    for one in statistics:
        weights += held_bytes(one, itemsize)
        widest = max(widest, *one.shape)
    before_and_after = 2 * widest * itemsize
    batch = options.batch_size or max(1, BATCH_MEMORY // max(1, before_and_after))
    return weights + WORKING_COPIES * min(inputs, batch) * before_and_after
