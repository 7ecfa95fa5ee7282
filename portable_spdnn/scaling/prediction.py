"""The model: seconds of data-parallel inference on many nodes, from a calibration of one.

A node runs its inputs in batches. A batch of n inputs takes ``start(n)`` for the first layers,
and for each later layer ``depth_factor x edges x dense(live inputs)``. The busiest node decides,
and then rank 0 gathers. A network that does not fit in a node's memory is streamed: it passes,
block of layers by block, once for each batch of as many inputs as fit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.mpi.run import POLL_SECONDS
from portable_spdnn.plans.memory_budget import SHARE, Budget, needed_bytes
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.partition import chunk_bounds, static_part
from portable_spdnn.scaling.calibration import Calibration, Curve, count_live
from portable_spdnn.workloads.streamed_network import LayerStatistics

Array = npt.NDArray[Any]

COLLECTIVES = 4  # rounds of messages of a gathering: sizes and contents, of batches and of records
LAYER_BYTES = 8  # of a batch's message for each layer: the inputs that were alive after it
SURVIVOR_BYTES = 16  # for each survivor: its number, as alive and as a category


@dataclass(frozen=True)
class Question:
    """What is to be predicted."""

    layers: int
    inputs: int  # in all (strong scaling), or of each node (weak scaling)
    nodes: tuple[int, ...]
    schedule: str = "static"  # or "dynamic"; see `portable_spdnn.mpi.run`
    latency: float = 2e-6  # seconds of a message between two nodes
    bandwidth: float = 10e9  # bytes a second into a node
    memory: int | None = None  # bytes of a node's process; None: stream what would not fit
    seed: int = 0  # of the draw of inputs that were not recorded


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
    load_imbalance: float  # busy seconds of the busiest node over the mean
    live_imbalance: float  # layers x inputs that are computed, of the busiest node over the mean
    compute: float  # a node's share of what one node computes
    granularity: float  # what smaller batches take longer; less than 0 where they take less
    planning: float  # reading and planning layers during inference, where they are streamed
    imbalance: float  # from the mean of the nodes to the last one, asking for chunks included
    gather: float
    setup: float  # loading and planning before inference; not part of the seconds
    bound: str  # the largest of the five parts


class Prediction:
    """The answer to a question, from one calibration.

    `strong` and `weak` have a point for each number of nodes, for as many inputs in all and on
    each node. `edges` are those of each layer; `budget` and `blocks`, the (first, end) of layers
    that are read together, are None and empty where a node holds the network. `setup` are the
    seconds of loading and planning before the clock starts.

    Raises InputError if the network has to be streamed and the memory does not suffice for it.
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
        self.setup = float(calibration.plan_seconds + per_edge * self.edges[:first].sum())
        # A network that ends within the first layers takes its part of them.
        self._start_share = self.edges[:start].sum() / max(measured[:start].sum(), 1)
        # For each column of `count_live`: layers, and edges of those after the first layers.
        column = np.minimum(np.arange(layers), run)
        self._layers = np.bincount(column, minlength=run + 1)
        self._edges = np.bincount(column[start:], self.edges[start:], run + 1)
        self._cost = cache(self._cost_of_part)  # parts recur between numbers of nodes
        inputs, alone = question.inputs, self._point(1, question.inputs, None)
        self.strong = [self._point(nodes, inputs, alone) for nodes in question.nodes]
        self.weak = [self._point(nodes, inputs * nodes, alone) for nodes in question.nodes]

    def _decide(self) -> tuple[Budget | None, list[tuple[int, int]]]:
        """Decide whether one node, which has the most inputs, holds the network or streams it."""
        calibration, inputs = self.calibration, self.question.inputs
        shape = (calibration.widest, calibration.widest)
        facts = [
            LayerStatistics(shape, int(nnz), calibration.value_bytes, True) for nnz in self.edges
        ]
        held = calibration.program_bytes + inputs * -(-calibration.neurons // 8)
        memory, options = self.question.memory, PlanOptions(calibration.dtype)
        if memory is None:
            allowed = SHARE * calibration.memory
            if not allowed or needed_bytes(facts, inputs, options) <= allowed:
                return None, []
            memory = held + int(allowed)
        dtype = np.dtype(options.dtype)
        budget = Budget.of(memory, held, facts, calibration.widest, dtype, calibration.threads)
        return budget, list(budget.cut_blocks(facts))

    def _point(self, nodes: int, inputs: int, alone: Point | None) -> Point:
        """Predict beside one node alone, for which `alone` is None."""
        calibration, question = self.calibration, self.question
        static = question.schedule == "static"
        if static:
            parts = [static_part(inputs, rank, nodes) for rank in range(nodes)]
        else:
            parts = chunk_bounds(inputs, nodes)
        costs = np.array([self._cost(*part) for part in parts])
        batch = calibration.batch_size if self.budget is None else self.budget.piece
        batch = min(batch, max(end - first for first, end in parts))
        last = 0.0
        if not static:
            # A question and an answer, and half the time between two looks of rank 0.
            asking = 2 * question.latency + POLL_SECONDS / 2 if nodes > 1 else 0.0
            owners, last = _hand_out(costs[:, 1] + costs[:, 2], nodes, asking)
            chunks, costs = costs, np.zeros((nodes, costs.shape[1]))
            np.add.at(costs, owners, chunks)
        inputs_each, compute, planning, live, survivors, batches = costs.T
        touching = calibration.first_batch_seconds * np.minimum(inputs_each, batch)
        busy = compute + planning + touching
        end = float(busy.max() if static else last + touching.max())
        computed, planned = float((compute + touching).mean()), float(planning.mean())
        share = computed if alone is None else alone.compute * inputs / alone.inputs / nodes
        seconds = {
            "compute": share,
            "granularity": computed - share,
            "planning": planned,
            "imbalance": end - computed - planned,
            "gather": self._gather(nodes, float(batches.sum()), float(survivors.sum())),
        }
        total = end + seconds["gather"]
        rate = inputs * float(self.edges.sum()) / total
        speed_up = 1.0 if alone is None else rate / alone.edge_rate
        return Point(
            nodes, inputs, total, rate, speed_up, speed_up / nodes,
            load_imbalance=float(busy.max() / busy.mean()) if busy.any() else 1.0,
            live_imbalance=float(live.max() / live.mean()) if live.any() else 1.0,
            **seconds, setup=self.setup, bound=max(seconds, key=seconds.__getitem__),
        )  # fmt: skip

    def _cost_of_part(self, first: int, end: int) -> Array:
        """Return what a part of the inputs costs a node, as `_compute` does.

        A batch of a streamed network is offered pieces of inputs until its survivors of the
        first block might not fit. A block is read while the one before it runs, and planned when
        its turn comes.
        """
        calibration, budget = self.calibration, self.budget
        lives = calibration.lives.modelled(first, end, self.question.seed)
        if budget is None or not lives.size:
            return self._compute(lives, calibration.batch_size, calibration.batch_size)
        room = budget.pool // (calibration.widest * np.dtype(calibration.dtype).itemsize)
        survive = lives >= min(self.blocks[0][1], calibration.layers)
        costs, at = [], 0
        while at < lives.size:
            begin, waiting = at, 0
            while piece := min(budget.piece, lives.size - at):
                if waiting and waiting + piece > room:
                    break
                waiting += int(survive[at : at + piece].sum())
                at += piece
            costs.append(self._compute(lives[begin:at], at - begin, budget.piece))
            longest = lives[begin:at].max()
            reached = [(b, e) for b, e in self.blocks[1:] if longest >= min(b, calibration.layers)]
            edges = sum(self.edges[b:e].sum() for b, e in reached)
            planning = calibration.plan_seconds_edge * edges
            # What runs while layers are read hides that much of it.
            reading = calibration.load_seconds_edge * edges - planning - costs[-1][1]
            costs[-1][2] = planning + max(0.0, reading)
        return np.asarray(np.sum(costs, axis=0))

    def _compute(self, lives: Array, batch: int, piece: int) -> Array:
        """Return what batches of inputs cost, pieces of which go through a layer together.

        Inputs, seconds of computing and of planning, the sum over layers of the inputs that take
        part, survivors, batches.
        """

        def in_pieces(curve: Curve, inputs: Any) -> Any:
            return inputs // piece * curve(piece) + curve(inputs % piece)

        calibration = self.calibration
        live = count_live(lives, batch, calibration.layers)
        start = self._start_share * in_pieces(calibration.start, lives.size)
        deep = calibration.depth_factor * (in_pieces(calibration.dense, live) @ self._edges).sum()
        survivors = live[:, min(self.question.layers, calibration.layers)].sum()
        layers = (live @ self._layers).sum()
        return np.array([lives.size, start + deep, 0.0, layers, survivors, len(live)])

    def _gather(self, nodes: int, batches: float, survivors: float) -> float:
        """Return the seconds until rank 0 has what all nodes found."""
        messages, question = self.calibration.messages, self.question
        content = LAYER_BYTES * question.layers * batches + SURVIVOR_BYTES * survivors
        size = messages.bytes_each * nodes + messages.bytes_batch * batches + content
        return (
            question.latency * COLLECTIVES * math.ceil(math.log2(nodes))
            + size * (nodes - 1) / nodes / question.bandwidth
            + messages.pickle_seconds
            + messages.unpickle_seconds * nodes
            + messages.unpickle_seconds_batch * batches
            + messages.unpickle_seconds_byte * content
        )


def _hand_out(seconds: Iterable[float], nodes: int, asking: float) -> tuple[list[int], float]:
    """Hand chunks out as nodes ask; returns the node of each, and when the last is done."""
    free = [(0.0, node) for node in range(nodes)]
    owners = []
    for number, one in enumerate(seconds):
        when, node = free[0]
        owners.append(node)
        # The first chunk of a rank is its own number, and it need not ask for it.
        heapq.heapreplace(free, (when + one + (asking if number >= nodes else 0.0), node))
    return owners, max(free)[0]
