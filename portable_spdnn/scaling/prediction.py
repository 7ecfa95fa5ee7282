"""The model: seconds of data-parallel inference on many nodes, from a calibration of one.

A node runs its inputs in batches. A batch of n inputs takes ``start(n)`` for the first layers,
and for each later layer ``depth factor x edges x dense(live inputs)``; where the network does
not fit in the node's memory, see `streamed_costs`. The busiest node decides, and then rank 0
gathers. Nothing here measures time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from portable_spdnn.errors import InputError
from portable_spdnn.mpi.run import POLL_SECONDS, SCHEDULES
from portable_spdnn.plans.partition import chunk_bounds, static_part
from portable_spdnn.scaling.calibration import Calibration
from portable_spdnn.scaling.message_costs import LAYER_BYTES, SURVIVOR_BYTES
from portable_spdnn.scaling.node_costs import Cost, NodeCosts

COLLECTIVES = 4
"""Rounds of messages of a gathering: of sizes and of contents, for batches and for records."""

BOUNDS = ("compute", "granularity", "planning", "imbalance", "gather")


@dataclass(frozen=True)
class Question:
    """What is to be predicted.

    Attributes
    ----------
    layers : int
    inputs : int
        In all (strong scaling), or of each node (weak scaling).
    nodes : tuple of int
    schedule : {"static", "dynamic"}
    latency : float
        Seconds of a message between two nodes.
    bandwidth : float
        Bytes a second into a node.
    memory : int, optional
        Bytes that the process of a node may hold: the network is then streamed, as `run
        --memory` does. Default: it is where the network would not fit in what the node that was
        measured had available.
    seed : int
        Of the draw of inputs that were not recorded.

    Raises
    ------
    InputError
        If a value is outside its range.
    """

    layers: int
    inputs: int
    nodes: tuple[int, ...]
    schedule: str = "static"
    latency: float = 2e-6
    bandwidth: float = 10e9
    memory: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("layers", self.layers), ("--total-inputs", self.inputs)):
            if value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")
        if not self.nodes or min(self.nodes) < 1:
            raise InputError(f"--nodes is {self.nodes}; at least one number from 1 is needed")
        if self.schedule not in SCHEDULES:
            raise InputError(f"schedule is {self.schedule!r}; choose one of {', '.join(SCHEDULES)}")
        if not (0 <= self.latency < math.inf and self.bandwidth > 0):
            raise InputError(
                f"latency is {self.latency} s, bandwidth {self.bandwidth} bytes/s; they must be "
                "at least 0, and more than 0"
            )


@dataclass(frozen=True)
class Point:
    """The prediction for one number of nodes.

    The seconds are `compute + granularity + planning + imbalance + gather`.

    Attributes
    ----------
    nodes, inputs : int
        Inputs in all.
    seconds : float
        From features on the hosts to categories on rank 0.
    edge_rate : float
        Challenge edge rate: inputs x edges / seconds.
    speed_up : float
        Edge rate over that of one node.
    efficiency : float
        Speed-up over the nodes.
    load_imbalance : float
        Busy seconds of the busiest node over the mean.
    live_imbalance : float
        Layers x inputs that are computed, of the busiest node over the mean.
    compute : float
        A node's share of what one node computes.
    granularity : float
        What computing takes longer because batches are smaller (less than 0: shorter).
    planning : float
        Reading and planning layers during inference, where they are streamed.
    imbalance : float
        From the mean of the nodes to the last one, asking for chunks included.
    gather : float
    setup : float
        Loading and planning before inference; not part of the seconds.
    bound : str
        The largest part, one of `BOUNDS`.
    """

    nodes: int
    inputs: int
    seconds: float
    edge_rate: float
    speed_up: float
    efficiency: float
    load_imbalance: float
    live_imbalance: float
    compute: float
    granularity: float
    planning: float
    imbalance: float
    gather: float
    setup: float
    bound: str


@dataclass(frozen=True)
class _Busy:
    """What nodes do until the last one is done."""

    seconds: float
    mean: Cost
    busiest: float
    live_imbalance: float
    gather: float


class Model:
    """Predicts, for one calibration and one question.

    Parameters
    ----------
    calibration : Calibration
    question : Question

    Raises
    ------
    InputError
        If the network has to be streamed and the memory does not suffice for it.
    """

    def __init__(self, calibration: Calibration, question: Question) -> None:
        self.calibration, self.question = calibration, question
        self.costs = NodeCosts(calibration, question.layers, question.memory)
        self._known: dict[tuple[int, int], Cost] = {}

    def strong(self) -> list[Point]:
        """Predict for the same inputs on all numbers of nodes."""
        inputs = self.question.inputs
        return self._points(dict.fromkeys(self.question.nodes, inputs))

    def weak(self) -> list[Point]:
        """Predict for as many inputs on each node."""
        inputs = self.question.inputs
        return self._points({nodes: inputs * nodes for nodes in self.question.nodes})

    def _points(self, wanted: dict[int, int]) -> list[Point]:
        question = self.question
        # As on one node, which has the most inputs.
        self.costs.decide(question.inputs)
        self._known.clear()
        edges = self.costs.total_edges
        alone = self._busy(1, question.inputs)
        base = question.inputs * edges / (alone.seconds + alone.gather)
        computed = alone.mean.compute / question.inputs
        points = []
        for nodes, inputs in wanted.items():
            busy = self._busy(nodes, inputs)
            seconds = busy.seconds + busy.gather
            compute = computed * inputs / nodes
            mean = busy.mean.compute + busy.mean.planning
            parts = {
                "compute": compute,
                "granularity": busy.mean.compute - compute,
                "planning": busy.mean.planning,
                "imbalance": busy.seconds - mean,
                "gather": busy.gather,
            }
            rate = inputs * edges / seconds
            points.append(
                Point(
                    nodes,
                    inputs,
                    seconds,
                    rate,
                    rate / base,
                    rate / base / nodes,
                    busy.busiest / mean if mean else 1.0,
                    busy.live_imbalance,
                    **parts,
                    setup=self.costs.setup,
                    bound=max(BOUNDS, key=parts.__getitem__),
                )
            )
        return points

    def _busy(self, nodes: int, inputs: int) -> _Busy:
        question = self.question
        if question.schedule == "static":
            parts = [static_part(inputs, rank, nodes) for rank in range(nodes)]
            costs = [self._cost(*part) for part in parts]
            seconds = max(cost.compute + cost.planning for cost in costs)
            by_node, together = costs, self.costs.batch
        else:
            bounds = chunk_bounds(inputs, nodes)
            chunks = [self._cost(*part) for part in bounds]
            # A question and an answer, and half the time between two looks of rank 0.
            asking = 2 * question.latency + POLL_SECONDS / 2 if nodes > 1 else 0.0
            seconds, by_node = _hand_out(chunks, nodes, asking)
            together = min(self.costs.batch, max(end - first for first, end in bounds))
        touched = self.calibration.first_batch_seconds
        fresh = [min(cost.inputs, together) * touched for cost in by_node]
        total = sum((cost.compute + extra for cost, extra in zip(by_node, fresh, strict=True)))
        mean = Cost(
            inputs / nodes,
            total / nodes,
            sum(cost.planning for cost in by_node) / nodes,
            sum(cost.live for cost in by_node) / nodes,
            sum(cost.survivors for cost in by_node) / nodes,
            sum(cost.batches for cost in by_node) / nodes,
        )
        each = [c.compute + c.planning + extra for c, extra in zip(by_node, fresh, strict=True)]
        busiest = max(each)
        last = busiest if question.schedule == "static" else seconds + max(fresh)
        live = max(cost.live for cost in by_node) / mean.live if mean.live else 1.0
        batches = max(1.0, nodes * mean.batches)
        return _Busy(last, mean, busiest, live, self._gather(nodes, batches, mean.survivors))

    def _cost(self, first: int, end: int) -> Cost:
        """Return what a part of the inputs costs a node; parts recur between numbers of nodes."""
        if (first, end) not in self._known:
            lives = self.calibration.lives.modelled(first, end, self.question.seed)
            self._known[first, end] = self.costs.of(lives)
        return self._known[first, end]

    def _gather(self, nodes: int, batches: float, survivors: float) -> float:
        """Return the seconds until rank 0 has what `nodes` found; survivors of each on average."""
        messages = self.calibration.messages
        content = LAYER_BYTES * self.question.layers * batches + SURVIVOR_BYTES * survivors * nodes
        size = messages.bytes_each * nodes + messages.bytes_batch * batches + content
        rounds = COLLECTIVES * math.ceil(math.log2(nodes))
        network = self.question.latency * rounds
        network += size * (nodes - 1) / nodes / self.question.bandwidth
        return (
            network
            + messages.pickle_seconds
            + messages.unpickle_seconds * nodes
            + messages.unpickle_seconds_batch * batches
            + messages.unpickle_seconds_byte * content
        )


def _hand_out(chunks: Sequence[Cost], nodes: int, asking: float) -> tuple[float, list[Cost]]:
    """Hand chunks out as nodes ask; returns when the last is done, and what each node did."""
    free = [(0.0, node) for node in range(nodes)]
    mine: list[list[Cost]] = [[] for _ in range(nodes)]
    last = 0.0
    for number, chunk in enumerate(chunks):
        # The first chunk of a rank is its own number, and it need not ask for it.
        when, node = heapq.heappop(free)
        done = when + chunk.compute + chunk.planning + (asking if number >= nodes else 0.0)
        mine[node].append(chunk)
        heapq.heappush(free, (done, node))
        last = max(last, done)
    return last, [Cost.together(costs) for costs in mine]
