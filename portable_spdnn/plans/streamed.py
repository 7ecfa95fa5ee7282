"""A plan under a memory budget: layers are read block by block, inputs go in what fits.

A block of layers is read, or generated, by a thread of its own while the block before it runs;
then it is planned for the backend, run, and let go. Between two blocks the inputs that may be
active wait in a pool. The first block takes inputs piece by piece until the pool is full, so
that a batch is as large as its survivors allow: the network passes once for each batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.backend import Backend
from portable_spdnn.features import Features
from portable_spdnn.host import format_bytes, resident_bytes
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network, check_weights_fit
from portable_spdnn.plans.base import Build, NetworkPlan
from portable_spdnn.plans.batch import BatchOutput
from portable_spdnn.plans.device_report import DeviceReport, merged
from portable_spdnn.plans.memory_budget import Budget, statistics_of
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.workloads.streamed_network import StreamedNetwork


@dataclass(frozen=True)
class Piece:
    """Inputs between two blocks.

    Attributes
    ----------
    inputs : ndarray of int64
        Inputs of the batch, rising.
    rows : features, ndarray or csr_array
    """

    inputs: Array
    rows: Any


class StreamedPlan(NetworkPlan):
    """Blocks of layers, read ahead; see the module's text.

    Parameters
    ----------
    backend : Backend
    network : Network
    options : PlanOptions
    memory : int
        Bytes that the process may hold.
    build : callable
        Makes the plan of the first block.

    Raises
    ------
    InputError
        If the memory does not suffice for a layer and an input.
    """

    def __init__(
        self, backend: Backend, network: Network, options: PlanOptions, memory: int, build: Build
    ) -> None:
        super().__init__(backend, network, options)
        self._build = build
        statistics, dtype = statistics_of(network), np.dtype(options.dtype)
        self.budget = Budget.of(
            memory, resident_bytes(), statistics, network.widest, dtype, backend.threads
        )
        self.blocks = list(self.budget.cut_blocks(statistics))
        edges = (sum(one.nnz for one in statistics[first:end]) for first, end in self.blocks[1:])
        self._edges_after = max(edges, default=0)  # of one block, beside the first
        self.seconds_waiting = 0.0
        self._row_bytes = max(1, network.widest) * np.dtype(options.dtype).itemsize
        # The first block tells what the backend chooses; the others take its measurements over.
        self._first = self._plan(0, self._read(0))

    @property
    def batch_size(self) -> int:
        """Inputs that are offered to a batch; it takes those whose survivors fit."""
        return self.options.batch_size or np.iinfo(np.int64).max

    def describe(self) -> str:
        """Return what the plan chose and why, a line each."""
        budget = self.budget
        longest = max(end - first for first, end in self.blocks)
        lines = [
            f"streamed in {format_bytes(budget.memory)}: {len(self.blocks)} block(s) of up to "
            f"{longest} layer{'s' if longest > 1 else ''}, one read while the one before it runs",
            f"{format_bytes(budget.weights)} for layers; {format_bytes(budget.pool)} for inputs "
            f"between blocks, of which up to {budget.piece} go through a block together",
        ]
        if self.seconds_waiting:
            lines.append(f"waited {self.seconds_waiting:.3g} s for layers so far")
        return "\n".join([*lines, self._first.describe()])

    def run_batch(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        """Run as many inputs as fit; see `NetworkPlan.run_batch`."""
        active_per_layer = np.zeros(len(self.network), np.int64)
        executed_edges = taken = 0
        devices: list[DeviceReport | None] = []
        pool: list[Piece] = []
        reader = ThreadPoolExecutor(1, thread_name_prefix="spdnn-read")
        try:
            ahead = reader.submit(self._read, 1)
            for number, (first, end) in enumerate(self.blocks):
                if number == 0:
                    plan = self._first
                    pieces = self._offered(features, pool)
                else:
                    start = time.perf_counter()
                    layers = ahead.result()
                    self.seconds_waiting += time.perf_counter() - start
                    ahead = reader.submit(self._read, number + 1)
                    plan = self._first  # the block before makes room
                    plan = self._plan(number, layers)
                    del layers
                    waiting, pool = pool, []
                    pieces = _taken_from(waiting, self.budget.piece)
                for piece in pieces:
                    output = plan.run_batch(piece.rows, lambda done: None)
                    active_per_layer[first:end] += output.active_per_layer
                    executed_edges += output.executed_edges
                    devices.append(output.device)
                    if number == 0:
                        taken += piece.inputs.size
                    if end < self.first_prunable_layer:  # the inactive may become active again
                        pool.append(Piece(piece.inputs, output.all_rows(piece.inputs.size)))
                    elif output.active.size:
                        rows = output.fetched().rows
                        pool.append(Piece(piece.inputs[output.active], rows))
                    report(taken * (first if number else end))
                report(taken * end)
                if not pool:
                    break
        finally:
            reader.shutdown(wait=True, cancel_futures=True)
        width, dtype = self.network.neurons_out, np.dtype(self.options.dtype)
        nobody = Piece(np.empty(0, np.int64), np.empty((0, width), dtype))
        last = _join(pool) if pool else nobody
        return BatchOutput(
            last.inputs, last.rows, active_per_layer, executed_edges, inputs=taken,
            device=merged(devices),
        )  # fmt: skip

    def _read(self, number: int) -> Sequence[Layer]:
        """Return the layers of a block; none after the last."""
        if number == len(self.blocks):
            return ()
        first, end = self.blocks[number]
        return self.network.layers[first:end]

    def _plan(self, number: int, layers: Sequence[Layer]) -> NetworkPlan:
        """Plan a block, and let its layers go."""
        first, end = self.blocks[number]
        network = Network(layers, self.network.y_max)
        check_weights_fit(layers, self.options.dtype, first + 1)
        # An inactive input may not leave while a later block could make it active again.
        keep = self.options.keep_dead_inputs or end < self.first_prunable_layer
        if number == 0:
            options = replace(
                self.options, batch_size=self.budget.piece, keep_dead_inputs=keep,
                edges_after=self._edges_after,
            )  # fmt: skip
            plan = self._build(self.backend, network, options)
        else:
            options = replace(self._first.options, keep_dead_inputs=keep, edges_after=0)
            plan = self._first.for_layers(network, options, self._build)
        if isinstance(self.network, StreamedNetwork):
            self.network.source.release(first, end)
        return plan

    def _offered(self, features: Features, pool: list[Piece]) -> Iterator[Piece]:
        """Yield pieces of the inputs until all are offered, or the pool would overflow."""
        inputs, piece = features.shape[0], self.budget.piece
        for first in range(0, inputs, piece):
            end = min(first + piece, inputs)
            if pool and self._pool_bytes(pool) + (end - first) * self._row_bytes > self.budget.pool:
                return
            yield Piece(np.arange(first, end), features[first:end])

    def _pool_bytes(self, pool: list[Piece]) -> int:
        """Return the memory that a pool may come to take: its rows may fill up, or widen."""
        inputs = sum(piece.inputs.size for piece in pool)
        sparse = any(sp.issparse(piece.rows) for piece in pool)
        return inputs * self._row_bytes * (2 if sparse else 1)


def _taken_from(pool: list[Piece], most: int) -> Iterator[Piece]:
    """Yield the inputs of a pool, as many at a time as may be; the pool lets them go."""
    pool.reverse()
    while pool:
        together = [pool.pop()]
        count = together[0].inputs.size
        while pool and count + pool[-1].inputs.size <= most:
            count += pool[-1].inputs.size
            together.append(pool.pop())
        yield _join(together)


def _join(pieces: list[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    rows = [piece.rows for piece in pieces]
    if all(sp.issparse(part) for part in rows):
        stacked = sp.vstack(rows, format="csr")
    else:  # the layer loop gives each piece the form that its density asks for
        stacked = np.concatenate([part.toarray() if sp.issparse(part) else part for part in rows])
    return Piece(np.concatenate([piece.inputs for piece in pieces]), stacked)
