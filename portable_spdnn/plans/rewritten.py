"""A plan that applies exact passes around the plans of any backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn.host import format_bytes, resident_bytes
from portable_spdnn.network import LayerStatistics, Network
from portable_spdnn.passes import FIXED_POINT, MERGE_INPUTS, MERGE_NEURONS
from portable_spdnn.passes.equal_rows import equal_rows
from portable_spdnn.passes.merge_neurons import merge_neurons
from portable_spdnn.passes.uniform_rows import Signature, advance, signature, uniform_rows
from portable_spdnn.plans.base import Build, NetworkPlan
from portable_spdnn.plans.batch import BatchOutput
from portable_spdnn.plans.device_report import DeviceReport, merged
from portable_spdnn.plans.memory_budget import Budget, running_bytes, statistics_of
from portable_spdnn.plans.options import PlanOptions

FIRST_SEGMENT = 8  # layers: inputs look alike only after some; early checks cost little
MIN_COPIES = 1 / 16  # of the rows; fewer are not worth losing count of the inputs active
SEGMENTS_OF_A_LENGTH = 4  # then lengths double: checks grow with the logarithm of the depth


@dataclass(frozen=True)
class Segment:
    """Layers that run without a check for equal or uniform inputs.

    Attributes
    ----------
    first, end : int
        Layers, counted from 0.
    plan : NetworkPlan
    signatures : list of Signature, or None
        Of its layers where all have one.
    """

    first: int
    end: int
    plan: NetworkPlan
    signatures: list[Signature] | None


@dataclass
class State:
    """The inputs of a batch between two segments.

    Attributes
    ----------
    rows : features of the distinct inputs that may be active
    inputs : ndarray of int64
        Inputs of the batch that may be active, rising.
    owner : ndarray of int64, shape of `inputs`
        The row of each; -1 where it is inactive, or outside for now.
    """

    rows: Any
    inputs: Array
    owner: Array

    def keep(self, rows: Array) -> None:
        """Keep the given rows; the inputs of the others are inactive, or outside for now."""
        place = np.full(self.rows.shape[0] + 1, -1, np.int64)  # the last: where -1 points
        place[rows] = np.arange(rows.size)
        self.owner = place[self.owner]


class RewrittenPlan(NetworkPlan):
    """Merged neurons, merged inputs and fixed points, each where it was asked for.

    Neurons are merged at planning. For the other two passes the network is cut into segments,
    each with a plan of the backend's own: before a segment equal inputs become one row, and
    inputs whose features are all equal run as one number each.
    """

    def __init__(
        self, backend: Backend, network: Network, options: PlanOptions, build: Build
    ) -> None:
        super().__init__(backend, network, options)
        self._build = build
        self.rewritten: Network = network
        self.columns: Array | None = None
        self.budget: Budget | None = None
        self._held = 0  # bytes of the layers counted so far
        if options.memory is not None:
            self.budget = Budget.of(
                options.memory, resident_bytes(), statistics_of(network), network.widest,
                np.dtype(options.dtype), backend.threads,
            )  # fmt: skip
        if MERGE_NEURONS in options.exact_passes:
            merged = merge_neurons(network, lambda layer: self._hold(LayerStatistics.of(layer)))
            self.rewritten, self.columns = merged.network, merged.outputs
        else:
            for statistics in statistics_of(network):
                self._hold(statistics)
        self.rows_merged = self.layers_skipped = 0
        checks = {MERGE_INPUTS, FIXED_POINT} & set(options.exact_passes)
        ends = segment_ends(len(network)) if checks else [len(network)]
        self.segments: list[Segment] = []
        for first, end in zip([0, *ends], ends, strict=False):
            self.segments.append(self._segment(first, end))

    @property
    def batch_size(self) -> int:
        """Inputs that go through the network together."""
        if self.budget is None or self.options.batch_size is not None:
            return super().batch_size
        return self.budget.piece

    def _hold(self, statistics: LayerStatistics) -> None:
        """Count a layer; raise InputError where all, held at once, exceed the memory for them."""
        self._held += running_bytes(statistics, np.dtype(self.options.dtype).itemsize)
        if self.budget is not None and self._held > self.budget.weights:
            raise InputError(
                f"exact passes {', '.join(self.options.exact_passes)} hold the rewritten network "
                f"in memory, more than the {format_bytes(self.budget.weights)} for layers of "
                f"{format_bytes(self.budget.memory)}; allow more memory, add {MERGE_NEURONS}, or "
                "leave the exact passes off"
            )

    def _segment(self, first: int, end: int) -> Segment:
        layers = self.rewritten.layers[first:end]
        # An inactive input may not leave while a later segment could make it active again.
        keep = self.options.keep_dead_inputs or end < self.first_prunable_layer
        network = Network(layers, self.network.y_max)
        if self.segments:
            plan = self.segments[0].plan.for_layers(network, keep, self._build)
        else:
            options = replace(
                self.options, exact_passes=(), memory=None, keep_dead_inputs=keep,
                batch_size=self.batch_size,
            )  # fmt: skip
            plan = self._build(self.backend, network, options)
        signatures = None
        if FIXED_POINT in self.options.exact_passes:
            found = [signature(layer, self.network.y_max) for layer in layers]
            known = [one for one in found if one is not None]
            signatures = known if len(known) == len(found) else None
        return Segment(first, end, plan, signatures)

    def describe(self) -> str:
        """Return what the plan chose and why, a line each."""
        lines = [f"exact passes: {', '.join(self.options.exact_passes)}"]
        if self.columns is not None:
            before, after = self.network.edges, self.rewritten.edges
            ratio = f"{before / after:.1f} times fewer" if after else "none left"
            lines.append(f"{MERGE_NEURONS}: {before} edges became {after}, {ratio}")
        if len(self.segments) > 1:
            lines.append(f"inputs are compared before each of {len(self.segments)} segments")
        if self.rows_merged:
            lines.append(f"{MERGE_INPUTS}: {self.rows_merged} rows were copies of others so far")
        if self.layers_skipped:
            lines.append(f"{FIXED_POINT}: {self.layers_skipped} layers were skipped so far")
        return "\n".join([*lines, self.segments[0].plan.describe()])

    def run_batch(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        """Run the whole network on one batch; see `NetworkPlan.run_batch`."""
        inputs = features.shape[0]
        everyone = np.arange(inputs, dtype=np.int64)
        state = State(features, everyone, everyone)
        active_per_layer = np.zeros(len(self.network), np.int64)
        executed_edges = 0
        devices: list[DeviceReport | None] = []
        for segment in self.segments:
            if MERGE_INPUTS in self.options.exact_passes:
                self._merge_equal(state)
            outside, counts = self._run_uniform(state, segment)
            rows = max(state.rows.shape[0], 1)
            share = inputs / rows  # inputs that a row stands for, on average

            def inner(done: int, before: int = inputs * segment.first, s: float = share) -> None:
                report(before + int(done * s))

            if state.rows.shape[0]:
                # How many inputs each row stands for.
                times = np.bincount(state.owner[state.owner >= 0], minlength=state.rows.shape[0])
                output = segment.plan.run_batch(state.rows, inner).fetched()
                executed_edges += output.executed_edges
                devices.append(output.device)
                # Which of the rows a count counts is not known: it tells inputs where all weigh
                # alike.
                alike = bool((times == times[0]).all())
                known = output.active_per_layer * int(times[0]) + counts
                counts = known if alike else np.full_like(known, -1)
                state.keep(output.active)
                state.rows = output.rows
            else:
                width = segment.plan.network.neurons_out
                state.rows = np.empty((0, width), np.dtype(self.options.dtype))
            active_per_layer[segment.first : segment.end] = counts
            self._join(state, *outside)
            active = state.owner >= 0
            state.inputs, state.owner = state.inputs[active], state.owner[active]
            report(inputs * segment.end)
        rows = state.rows[state.owner]
        return BatchOutput(
            state.inputs,
            rows,
            active_per_layer,
            executed_edges,
            columns=self.columns,
            device=merged(devices),
        )

    def _merge_equal(self, state: State) -> None:
        """Make one row of equal ones."""
        first, group = equal_rows(state.rows)
        if group.size - first.size > MIN_COPIES * group.size:
            self.rows_merged += group.size - first.size
            state.owner = np.append(group, -1)[state.owner]
            state.rows = state.rows[first]

    def _run_uniform(self, state: State, segment: Segment) -> tuple[tuple[Array, Array], Array]:
        """Take uniform rows out and through the segment.

        Returns
        -------
        outside : (owner, values)
            For each input the index of its value, or -1; the values after the segment.
        counts : ndarray of int64
            Inputs active after each layer among them.
        """
        nobody = np.full(state.owner.size, -1, np.int64)
        nothing = (nobody, np.empty(0)), np.zeros(segment.end - segment.first, np.int64)
        if segment.signatures is None or isinstance(state.rows, PackedFeatures):
            return nothing
        uniform = uniform_rows(state.rows)
        if not uniform.any():
            return nothing
        chosen = np.flatnonzero(uniform)
        taken = State(state.rows, state.inputs, state.owner)
        taken.keep(chosen)
        head = state.rows[chosen][:, :1]
        values = np.asarray(head if isinstance(head, np.ndarray) else head.toarray())[:, 0]
        values = values.astype(self.options.dtype)
        after, nonzero, skipped = advance(values, segment.signatures)
        self.layers_skipped += skipped
        times = np.bincount(taken.owner[taken.owner >= 0], minlength=chosen.size)
        others = np.flatnonzero(~uniform)
        state.keep(others)
        state.rows = state.rows[others]
        return (taken.owner, after), nonzero.astype(np.int64) @ times

    def _join(self, state: State, owner: Array, values: Array) -> None:
        """Bring uniform inputs back: a row of equal features for each."""
        chosen = np.flatnonzero(owner >= 0)
        if not chosen.size:
            return
        state.owner[chosen] = state.rows.shape[0] + owner[chosen]
        rows = np.repeat(values[:, None], state.rows.shape[1], axis=1)
        if isinstance(state.rows, np.ndarray):
            state.rows = np.concatenate((state.rows, rows.astype(state.rows.dtype)))
        else:
            state.rows = sp.vstack((state.rows, sp.csr_array(rows)), format="csr")


def segment_ends(layers: int) -> list[int]:
    """Return where segments end: 8, 16, 24, 32, then 16 layers each, 32, and so on."""
    ends: list[int] = []
    length, end = FIRST_SEGMENT, 0
    while end < layers:
        for _ in range(SEGMENTS_OF_A_LENGTH):
            end += length
            ends.append(min(end, layers))
            if end >= layers:
                break
        length *= 2
    return ends
