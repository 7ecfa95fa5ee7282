"""A plan that applies exact passes around the plans of any backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features
from portable_spdnn.host import format_bytes, resident_bytes
from portable_spdnn.network import LayerStatistics, Network
from portable_spdnn.passes import FIXED_POINT, MERGE_INPUTS, MERGE_NEURONS
from portable_spdnn.passes.compared_rows import ComparedRows, HostRows, stacked
from portable_spdnn.passes.merge_neurons import merge_neurons
from portable_spdnn.passes.uniform_rows import Signature, advance, signature
from portable_spdnn.plans.base import Build, NetworkPlan
from portable_spdnn.plans.batch import BatchOutput, LazyRows, positive_rows
from portable_spdnn.plans.device_report import DeviceReport, merged
from portable_spdnn.plans.memory_budget import Budget, held_bytes, statistics_of
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
    rows : ComparedRows
        Features of the distinct inputs that may be active, but of the uniform ones.
    values : ndarray of the plan's type, shape (uniform,)
        What all features of a uniform input equal.
    inputs : ndarray of int64
        Inputs of the batch that may be active, rising.
    owner : ndarray of int64, shape of `inputs`
        The row of each, or ``rows.shape[0] + k`` for ``values[k]``; -1 where it is inactive.
    positive : ndarray of bool, or None
        Which rows have a positive score, where the plan that made them knew.
    """

    rows: ComparedRows
    values: Array
    inputs: Array
    owner: Array
    positive: Array | None = None

    def replace_rows(self, place: Array, rows: ComparedRows) -> None:
        """Take other rows; row i of those before is now ``place[i]``, counted as owners are."""
        values = rows.shape[0] + np.arange(self.values.size)
        self.owner = np.concatenate((place, values, [-1]))[self.owner]
        self.rows = rows

    def times(self) -> Array:
        """Return how many inputs each row, and after them each value, stands for."""
        size = self.rows.shape[0] + self.values.size
        return np.bincount(self.owner[self.owner >= 0], minlength=size)

    def positive_inputs(self) -> Array:
        """Return which inputs have a positive score; NaN raises NumericalError."""
        known = self.positive
        of_rows = positive_rows(self.rows.fetched()) if known is None else known
        return np.append(of_rows, positive_rows(self.values[:, None]))[self.owner]

    def expanded(self) -> Any:
        """Return the features of all inputs, in host memory: copies too, and uniform ones."""
        rows = stacked(self.rows.fetched(), self.values)
        alone = np.array_equal(self.owner, np.arange(rows.shape[0]))
        return rows if alone else rows[self.owner]


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
            merged = merge_neurons(network, lambda layer: self._hold([LayerStatistics.of(layer)]))
            self.rewritten, self.columns = merged.network, merged.outputs
        else:
            self._hold(statistics_of(network))
        self.rows_merged = self.layers_skipped = 0
        self.checks = {MERGE_INPUTS, FIXED_POINT} & set(options.exact_passes)
        ends = segment_ends(len(network)) if self.checks else [len(network)]
        self._edges_left = self.rewritten.edges  # of the segments that are not planned yet
        self.segments: list[Segment] = []
        for first, end in zip([0, *ends], ends, strict=False):
            self.segments.append(self._segment(first, end))

    @property
    def batch_size(self) -> int:
        """Inputs that go through the network together."""
        return min(segment.plan.batch_size for segment in self.segments)

    def _hold(self, layers: Iterable[LayerStatistics]) -> None:
        """Count layers; raise InputError where all, held at once, exceed the memory for them."""
        itemsize = np.dtype(self.options.dtype).itemsize
        self._held += sum(held_bytes(one, itemsize) for one in layers)
        if self.budget is None or self._held <= self.budget.layers_at_once:
            return
        wanted = format_bytes(self.budget.memory_for_layers(self._held))
        advice = f"allow {wanted}, add {MERGE_NEURONS},"
        if MERGE_NEURONS in self.options.exact_passes:  # more layers are yet to be merged
            advice = f"allow more than {wanted},"
        raise InputError(
            f"exact passes {', '.join(self.options.exact_passes)} hold the rewritten network "
            f"in memory, more than the {format_bytes(self.budget.layers_at_once)} for layers of "
            f"{format_bytes(self.budget.memory)}; {advice} or leave the exact passes off"
        )

    def _segment(self, first: int, end: int) -> Segment:
        layers = self.rewritten.layers[first:end]
        # An inactive input may not leave while a later segment could make it active again.
        keep = self.options.keep_dead_inputs or end < self.first_prunable_layer
        network = Network(layers, self.network.y_max)
        self._edges_left -= network.edges
        if self.segments:
            plan = self.segments[0].plan
            options = replace(plan.options, keep_dead_inputs=keep, edges_after=self._edges_left)
            plan = plan.for_layers(network, options, self._build)
        else:
            piece = None if self.budget is None else self.budget.piece
            options = replace(
                self.options, exact_passes=(), keep_dead_inputs=keep,
                batch_size=self.options.batch_size or piece, edges_after=self._edges_left,
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
        given = self.segments[0].plan.compared_rows(features) if self.checks else HostRows(features)
        state = State(given, np.empty(0, self.options.dtype), everyone, everyone)
        active_per_layer = np.zeros(len(self.network), np.int64)
        executed_edges, devices = 0, list[DeviceReport | None]()
        for segment in self.segments:
            if MERGE_INPUTS in self.checks and state.rows.shape[0] > 1:
                self._merge_equal(state)
            counts = self._run_uniform(state, segment)
            if state.rows.shape[0]:
                share = inputs / state.rows.shape[0]  # inputs that a row stands for, on average

                def inner(done: int, at: int = inputs * segment.first, s: float = share) -> None:
                    report(at + int(done * s))

                active, edges, device = self._run_rows(state, segment, inner)
                counts = np.where(active < 0, active, active + counts)
                executed_edges += edges
                devices.append(device)
            else:
                nobody = np.empty((0, segment.plan.network.neurons_out), state.values.dtype)
                state.rows, state.positive = HostRows(nobody), np.empty(0, np.bool_)
            active_per_layer[segment.first : segment.end] = counts
            kept = state.owner >= 0
            state.inputs, state.owner = state.inputs[kept], state.owner[kept]
            report(inputs * segment.end)
        return BatchOutput(
            state.inputs,
            LazyRows((state.owner.size, state.rows.shape[1]), state.values.dtype, state.expanded),
            active_per_layer,
            executed_edges,
            columns=self.columns,
            positive=state.positive_inputs(),
            device=merged(devices),
        )

    def _merge_equal(self, state: State) -> None:
        """Make one row of equal ones."""
        first, group = state.rows.equal()
        if group.size - first.size > MIN_COPIES * group.size:
            self.rows_merged += group.size - first.size
            state.replace_rows(group, state.rows.take(first))

    def _run_uniform(self, state: State, segment: Segment) -> Array:
        """Take uniform rows out, and all uniform inputs through the segment.

        Returns how many of these inputs are active after each layer. Where layers are not uniform,
        such inputs become rows again.
        """
        nobody = np.zeros(segment.end - segment.first, np.int64)
        if segment.signatures is None:
            if state.values.size:
                state.rows = HostRows(stacked(state.rows.fetched(), state.values))
                state.values = state.values[:0]
            return nobody
        uniform, values = state.rows.uniform()
        if uniform.size:
            place = np.empty(state.rows.shape[0], np.int64)
            others = np.delete(np.arange(place.size), uniform)
            place[others] = np.arange(others.size)
            place[uniform] = others.size + state.values.size + np.arange(uniform.size)
            state.replace_rows(place, state.rows.take(others))
            state.values = np.append(state.values, values.astype(state.values.dtype))
        if not state.values.size:
            return nobody
        state.values, nonzero, skipped = advance(state.values, segment.signatures)
        self.layers_skipped += skipped
        return nonzero.astype(np.int64) @ state.times()[state.rows.shape[0] :]

    def _run_rows(
        self, state: State, segment: Segment, report: Callable[[int], None]
    ) -> tuple[Array, int, DeviceReport | None]:
        """Run the rows through a segment.

        Returns how many of their inputs are active after each layer, -1 where that is not known;
        executed edges; and what the device reports.
        """
        rows = state.rows.shape[0]
        times = state.times()[:rows]
        output = segment.plan.run_rows(state.rows, report)
        found, left = output.rows, output.active.size
        place = np.full(rows, -1)
        if left < rows and segment.end < self.first_prunable_layer:  # zeros may become active
            place[:] = left + state.values.size
            state.values = np.append(state.values, np.zeros(1, state.values.dtype))
        place[output.active] = np.arange(left)
        compared = isinstance(found, ComparedRows)
        state.replace_rows(place, found if compared else HostRows(output.fetched().rows))
        state.positive = output.positive
        # Which of the rows a count counts is not known: it tells inputs where all weigh alike.
        known = (output.active_per_layer >= 0) & (times == times[0]).all()
        active = np.where(known, output.active_per_layer * times[0], -1)
        return active, output.executed_edges, output.device


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
