"""The model: seconds of data-parallel inference on many nodes, from a calibration of one.

A node runs its inputs in batches. A batch of n inputs takes ``start(n)`` for the first layers,
and for each later layer ``edges x dense(active inputs)``. The inference ends when the busiest node
has finished and rank 0 has gathered the results. A network that does not fit in a node's memory is
streamed: blocks of layers are read one after the other, once for every batch of as many inputs as
fit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.mpi.run import POLL_SECONDS
from portable_spdnn.network import LayerStatistics
from portable_spdnn.plans.memory_budget import SHARE, Budget, needed_bytes
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.partition import chunk_bounds, static_part
from portable_spdnn.scaling.calibration import Calibration, Curve, count_active

COLLECTIVES = 4  # gatherings of results: sizes and contents, of batches and of records
# Sizes of what is in the pickled results of a rank. Of each layer of a batch these hold how many
# inputs were active after it, of each survivor its number, as active input and as category.
RESULT_BYTES = {"rank": 500, "batch": 150, "layer of a batch": 8, "survivor": 16}


@dataclass(frozen=True)
class Question:
    """What is to be predicted."""

    layers: int
    inputs: int  # in all (strong scaling), or of each node (weak scaling)
    nodes: tuple[int, ...]
    schedule: str = "static"  # or "dynamic"; see `portable_spdnn.mpi.run`
    latency: float = 2e-6  # seconds of a message between two nodes
    bandwidth: float = 10e9  # bytes a second into a node
    memory: int | None = None  # bytes of a node's process; None: stream only what does not fit


@dataclass(frozen=True)
class Point:
    """The prediction for one number of nodes.

    `seconds` are ``compute + granularity + planning + imbalance + gather``, from features on the
    hosts to categories on rank 0.
    """

    nodes: int
    inputs: int  # in all
    seconds: float
    edge_rate: float  # challenge edge rate: inputs x edges / seconds
    speed_up: float  # edge rate over that of one node
    efficiency: float  # speed-up over the nodes
    compute: float  # a node's share of what one node alone computes
    granularity: float  # additional time because batches are smaller; may be negative
    planning: float  # reading and planning layers during inference, where they are streamed
    imbalance: float  # from the mean of the nodes to the last one, requests for chunks included
    gather: float
    bound: str  # the largest of the five parts


class Prediction:
    """The predicted strong and weak scaling.

    Attributes
    ----------
    strong, weak : list of Point
        One for each number of nodes, for `question.inputs` in all and on each node.
    edges : ndarray of float64, shape (layers,)
    budget : Budget or None
        How a node shares out its memory; None where it holds the whole network.
    blocks : list of (int, int)
        First and end of the layers that are read together; empty where `budget` is None.
    setup : float
        Seconds of loading and planning before the clock starts.

    Raises
    ------
    InputError
        If the network has to be streamed and the memory does not suffice for that.
    """

    def __init__(self, calibration: Calibration, question: Question) -> None:
        self.calibration, self.question = calibration, question
        run, layers, start = calibration.layers, question.layers, calibration.start_layers
        measured = np.array(calibration.edges_per_layer, np.float64)
        # Layers that were not run have the mean of those that were.
        self.edges = np.append(measured, np.full(max(0, layers - run), measured.mean()))[:layers]
        self.budget, self.blocks = self._decide()
        per_edge = calibration.load_seconds_edge + calibration.plan_seconds_edge
        first = self.blocks[0][1] if self.blocks else layers
        self.setup = float(per_edge * self.edges[:first].sum())
        # A network that ends within the first layers takes a share of their time.
        self._start_share = self.edges[:start].sum() / max(measured[:start].sum(), 1)
        # For each number of `count_active` the edges of the layers after the first ones.
        number = np.minimum(np.arange(layers), run)
        self._edges = np.bincount(number[start:], self.edges[start:], run + 1)
        # Inputs that go through a layer together.
        self._piece = calibration.batch_size if self.budget is None else self.budget.piece
        self._cost = cache(self._cost_of_part)  # parts recur between numbers of nodes
        inputs, alone = question.inputs, self._point(1, question.inputs, None)
        self.strong = [self._point(nodes, inputs, alone) for nodes in question.nodes]
        self.weak = [self._point(nodes, inputs * nodes, alone) for nodes in question.nodes]

    def _decide(self) -> tuple[Budget | None, list[tuple[int, int]]]:
        """Decide whether one node, which has the most inputs, holds the network or streams it."""
        made, inputs, memory = self.calibration, self.question.inputs, self.question.memory
        shape, options = (made.widest, made.widest), PlanOptions(made.dtype)
        facts = [LayerStatistics(shape, int(n), made.value_bytes, True) for n in self.edges]
        held = made.program_bytes + inputs * -(-made.neurons // 8)
        if memory is None:
            allowed = SHARE * made.memory
            if not allowed or needed_bytes(facts, inputs, options) <= allowed:
                return None, []
            memory = held + int(allowed)
        dtype = np.dtype(options.dtype)
        budget = Budget.of(memory, held, facts, made.widest, dtype, made.threads)
        return budget, list(budget.cut_blocks(facts))

    def _point(self, nodes: int, inputs: int, alone: Point | None) -> Point:
        """Predict one number of nodes, in relation to one node alone (None: this is it)."""
        question = self.question
        parts = [static_part(inputs, rank, nodes) for rank in range(nodes)]
        if question.schedule == "dynamic":
            parts = chunk_bounds(inputs, nodes)
        costs = np.array([self._cost(*part) for part in parts])
        # A request and an answer, and on average half of the time between two polls of rank 0.
        asking = 2 * question.latency + POLL_SECONDS / 2 if nodes > 1 else 0.0
        end = _hand_out((costs[:, 0] + costs[:, 1]).tolist(), nodes, asking)
        computing, planning, survivors, batches = costs.sum(axis=0).tolist()
        computed, planned = computing / nodes, planning / nodes
        share = computed if alone is None else alone.compute * inputs / alone.inputs / nodes
        rounds = COLLECTIVES * math.ceil(math.log2(nodes))
        counts = (nodes, batches, question.layers * batches, survivors)
        size = sum(n * each for n, each in zip(counts, RESULT_BYTES.values(), strict=True))
        arriving = size * (nodes - 1) / nodes  # those of rank 0 itself stay in place
        seconds = {
            "compute": share,
            "granularity": computed - share,
            "planning": planned,
            "imbalance": end - computed - planned,
            "gather": question.latency * rounds + arriving / question.bandwidth,
        }
        total = end + seconds["gather"]
        rate = inputs * float(self.edges.sum()) / total
        speed_up = 1.0 if alone is None else rate / alone.edge_rate
        return Point(
            nodes, inputs, total, rate, speed_up, speed_up / nodes, **seconds,
            bound=max(seconds, key=seconds.__getitem__),
        )  # fmt: skip

    def _cost_of_part(self, first: int, end: int) -> Array:
        """Return the seconds of computing and of planning, survivors and batches of a part."""
        lifetimes = self.calibration.lifetimes(first, end)
        costs = [self._cost_of_batch(batch) for batch in self._batches(lifetimes)]
        return np.asarray(np.sum(costs, axis=0))

    def _batches(self, lifetimes: Array) -> Iterator[Array]:
        """Cut the inputs of a part into batches of one piece, or of more for a streamed network.

        There a batch takes in pieces until its survivors of the first block might not fit.
        """
        calibration, piece = self.calibration, self._piece
        room = block = 0  # where nothing is streamed, nothing may wait for a second piece
        if self.budget is not None:
            room = self.budget.pool // (calibration.widest * self.budget.itemsize)
            block = min(self.blocks[0][1], calibration.layers)
        first = waiting = 0
        for at in range(0, lifetimes.size, piece):
            if waiting and waiting + min(piece, lifetimes.size - at) > room:
                yield lifetimes[first:at]
                first, waiting = at, 0
            waiting += int((lifetimes[at : at + piece] >= block).sum())
        yield lifetimes[first:]

    def _cost_of_batch(self, lifetimes: Array) -> tuple[float, float, int, int]:
        """Return for one batch what `_cost_of_part` returns."""
        calibration, piece = self.calibration, self._piece

        def in_pieces(curve: Curve, inputs: Any) -> Array:
            return np.asarray(inputs // piece * curve(piece) + curve(inputs % piece))

        active = count_active(lifetimes, calibration.layers)
        start = self._start_share * in_pieces(calibration.start, lifetimes.size)
        deep = in_pieces(calibration.dense, active) @ self._edges
        # A block is read while the previous one runs, and planned before it runs.
        reached = [(b, e) for b, e in self.blocks[1:] if active[min(b, calibration.layers)]]
        edges = sum(self.edges[b:e].sum() for b, e in reached)
        planning = calibration.plan_seconds_edge * edges
        # Computing and planning hide as much of the reading as they take themselves.
        reading = max(0.0, calibration.load_seconds_edge * edges - planning - start - deep)
        survivors = active[min(self.question.layers, calibration.layers)]
        return float(start + deep), planning + reading, survivors, min(1, lifetimes.size)


def _hand_out(seconds: list[float], nodes: int, asking: float) -> float:
    """Hand out parts as nodes ask for them; return when the last node is done."""
    # A node begins with the part of its own number, for which it need not ask.
    free = (seconds + [0.0] * nodes)[:nodes]
    heapq.heapify(free)
    for one in seconds[nodes:]:
        heapq.heapreplace(free, free[0] + asking + one)
    return max(free)
