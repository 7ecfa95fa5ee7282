"""What a node needs for its inputs: batches, and layers that are streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.plans.memory_budget import SHARE, Budget, needed_bytes
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.scaling.calibration import Calibration
from portable_spdnn.scaling.live_inputs import count_live
from portable_spdnn.workloads.streamed_network import LayerFacts

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Cost:
    """What some inputs cost a node.

    Attributes
    ----------
    inputs : float
    compute, planning : float
        Seconds; planning, reading included, only where layers are streamed.
    live : float
        Sum over layers of the inputs that take part.
    survivors, batches : float
    """

    inputs: float
    compute: float
    planning: float
    live: float
    survivors: float
    batches: float

    @classmethod
    def together(cls, costs: Sequence[Cost]) -> Cost:
        """Return the sum."""
        names = ("inputs", "compute", "planning", "live", "survivors", "batches")
        return cls(*(float(sum(getattr(cost, name) for cost in costs)) for name in names))


class NodeCosts:
    """What inputs cost a node, for a network of some depth.

    Parameters
    ----------
    calibration : Calibration
    layers : int
        Of the network; those beyond the calibrated ones are like them, on the same live inputs.
    memory : int, optional
        Stream the network within so many bytes. Default: as `decide` finds.
    """

    def __init__(self, calibration: Calibration, layers: int, memory: int | None) -> None:
        self.calibration, self.layers, self.memory = calibration, layers, memory
        self.edges = np.array(calibration.edges_of(layers))
        self.total_edges = float(self.edges.sum())
        self.start_layers = min(calibration.start_layers, layers)
        started = sum(calibration.edges_per_layer[: calibration.start_layers])
        # A network that ends within the first layers takes its part of them.
        self.start_share = self.edges[: self.start_layers].sum() / max(started, 1)
        self.budget: Budget | None = None
        self.blocks: list[tuple[int, int]] = []

    def facts(self) -> list[LayerFacts]:
        """Return the facts of all layers; none revives the dead."""
        shape = (self.calibration.widest,) * 2
        return [
            LayerFacts(shape, int(nnz), self.calibration.value_bytes, True) for nnz in self.edges
        ]

    def decide(self, inputs: int) -> None:
        """Decide whether a node of so many inputs holds the network, or streams it.

        Raises
        ------
        InputError
            If it has to be streamed, and the memory does not suffice for that.
        """
        calibration = self.calibration
        facts, options = self.facts(), PlanOptions(calibration.dtype)
        held = calibration.program_bytes + inputs * -(-calibration.neurons // 8)
        memory = self.memory
        if memory is None:
            available = calibration.memory
            if not available or needed_bytes(facts, inputs, options) <= SHARE * available:
                self.budget, self.blocks = None, []
                return
            memory = held + int(SHARE * available)
        self.budget = Budget.of(
            memory, held, facts, calibration.widest, np.dtype(calibration.dtype),
            calibration.threads,
        )  # fmt: skip
        self.blocks = list(self.budget.cut_blocks(facts))

    @property
    def batch(self) -> int:
        """Inputs that go through a layer together at most."""
        return self.calibration.batch_size if self.budget is None else self.budget.piece

    @property
    def setup(self) -> float:
        """Seconds of loading and planning before inference: of the first block, if streamed."""
        calibration = self.calibration
        per_edge = calibration.load_seconds_edge + calibration.plan_seconds_edge
        end = self.blocks[0][1] if self.blocks else self.layers
        return calibration.plan_seconds + per_edge * float(self.edges[:end].sum())

    def of(self, lives: Array) -> Cost:
        """Return what inputs that live so long cost.

        Parameters
        ----------
        lives : ndarray of int64, shape (inputs,)
            As `LifeRecord.modelled` gives them.
        """
        if not lives.size:
            return Cost(0, 0.0, 0.0, 0, 0, 0)
        if self.budget is not None:
            return self._streamed(lives, self.budget)
        live = self._live(lives, self.batch)
        return self._summed(lives.size, self._start(lives, self.batch), live, self._deep(live))

    def _start(self, lives: Array, batch: int) -> float:
        """Return the seconds of the first layers."""
        whole, rest = divmod(lives.size, batch)
        curve = self.calibration.start
        return float(self.start_share * (whole * curve(batch) + curve(rest)))

    def _live(self, lives: Array, batch: int) -> Array:
        """Return the live inputs of each batch before each calibrated layer, and in the end."""
        batches = -(-lives.size // batch)
        padded = np.full(batches * min(batch, lives.size), -1, np.int64)
        padded[: lives.size] = lives
        return count_live(padded.reshape(batches, -1), self.calibration.layers)

    def _deep(self, live: Array, most: int | None = None) -> float:
        """Return the seconds of the layers after the first; `most` inputs go together."""

        def cost(inputs: Array) -> Array:
            dense = self.calibration.dense
            if most is None:
                return dense(inputs)
            return np.asarray((inputs // most) * dense(most) + dense(inputs % most))

        known = min(self.layers, self.calibration.layers)
        first = self.start_layers
        seconds = (cost(live[:, first:known]) * self.edges[first:known]).sum()
        seconds += (cost(live[:, -1]) * self.edges[known:].sum()).sum()
        return float(self.calibration.depth_factor * seconds)

    def _summed(
        self, inputs: int, start: float, live: Array, deep: float, planning: float = 0.0
    ) -> Cost:
        known = min(self.layers, self.calibration.layers)
        beyond = self.layers - known
        parts = live[:, :known].sum() + beyond * live[:, -1].sum()
        survivors = live[:, known].sum()
        return Cost(inputs, start + deep, planning, float(parts), float(survivors), len(live))

    def _streamed(self, lives: Array, budget: Budget) -> Cost:
        """Return what inputs cost where the network passes once for each batch.

        A batch is offered pieces of inputs until its survivors of the first block might not fit.
        A block is read while the one before it runs, and planned when its turn comes.
        """
        row = self.calibration.widest * np.dtype(self.calibration.dtype).itemsize
        end = min(self.blocks[0][1], self.calibration.layers)
        calibration = self.calibration
        passes = []
        at = 0
        while at < lives.size:
            first, waiting = at, 0
            while at < lives.size:
                piece = lives[at : at + budget.piece]
                if waiting and (waiting + piece.size) * row > budget.pool:
                    break
                waiting += int((piece >= end).sum())
                at += piece.size
            batch = lives[first:at]
            live = self._live(batch, batch.size)
            start, deep = self._start(batch, budget.piece), self._deep(live, budget.piece)
            left = np.append(live[0], np.repeat(live[0, -1], max(0, self.layers - live.shape[1])))
            later = [(b, e) for b, e in self.blocks[1:] if left[b]]
            edges = float(sum(self.edges[b:e].sum() for b, e in later))
            planning = calibration.plan_seconds_edge * edges
            reading = calibration.load_seconds_edge * edges
            # What runs while layers are read hides that much of it.
            planning += max(0.0, reading - planning - start - deep)
            passes.append(self._summed(batch.size, start, live, deep, planning))
        return Cost.together(passes)
