"""Predictions against a simulation in plain loops; lifetimes of inputs that were not recorded."""

from __future__ import annotations

import bisect
import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scaling_samples import calibration

from portable_spdnn.mpi.run import POLL_SECONDS
from portable_spdnn.plans.partition import chunk_bounds, static_part
from portable_spdnn.scaling.calibration import Curve, count_active
from portable_spdnn.scaling.prediction import Point, Prediction, Question


@functools.lru_cache(maxsize=4096)
def on_curve(curve: Curve, inputs: int) -> float:
    return float(curve(inputs))


def seconds_of_batch(answer: Prediction, pieces: list[list[int]]) -> tuple[float, float]:
    """Return the seconds of computing and of planning, layer by layer."""
    made, piece = answer.calibration, len(pieces[0])
    lifetimes = sorted(lifetime for inputs in pieces for lifetime in inputs)
    ends = [min(layer, made.layers) for layer in range(answer.question.layers)]
    active = [len(lifetimes) - bisect.bisect_left(lifetimes, end) for end in ends]
    computing = sum(on_curve(made.start, len(inputs)) for inputs in pieces)
    for n in active[made.start_layers :]:
        computing += 100 * (
            n // piece * on_curve(made.dense, piece) + on_curve(made.dense, n % piece)
        )
    edges = sum(100 * (end - first) for first, end in answer.blocks[1:] if active[first])
    planning = edges * made.plan_seconds_edge
    return computing, planning + max(0, edges * made.load_seconds_edge - planning - computing)


def assert_as_simulated(answer: Prediction, point: Point) -> None:
    """Run a job in plain loops over nodes, batches and layers."""
    made, asked, nodes, inputs = answer.calibration, answer.question, point.nodes, point.inputs
    lifetimes = made.lifetimes(0, inputs).tolist()
    parts = [static_part(inputs, rank, nodes) for rank in range(nodes)]
    if asked.schedule == "dynamic":
        parts = chunk_bounds(inputs, nodes)
    piece, room, block = made.batch_size, 0, 0
    if answer.budget is not None:
        piece, room = answer.budget.piece, answer.budget.pool // (4 * made.widest)
        block = min(answer.blocks[0][1], made.layers)
    clocks, busy, planning, batches = [0.0] * nodes, 0.0, 0.0, 0
    for number, (first, end) in enumerate(parts):
        node = number if number < nodes else clocks.index(min(clocks))
        cut: list[list[list[int]]] = []
        for begin in range(first, end, piece):
            waiting = sum(one >= block for pieces in cut[-1:] for part in pieces for one in part)
            taken = lifetimes[begin : min(end, begin + piece)]
            if not cut or (waiting and waiting + len(taken) > room):
                cut.append([])
            cut[-1].append(taken)
        costs = [seconds_of_batch(answer, pieces) for pieces in cut]
        seconds = math.fsum(map(math.fsum, costs))
        if number >= nodes > 1:
            clocks[node] += 2 * asked.latency + POLL_SECONDS / 2
        busy += seconds
        clocks[node] += seconds
        planning += sum(planned for _, planned in costs)
        batches += len(cut)
    mean = busy / nodes
    survivors = sum(lifetime >= min(asked.layers, made.layers) for lifetime in lifetimes)
    size = 500 * nodes + (150 + 8 * asked.layers) * batches + 16 * survivors
    gather = 4 * math.ceil(math.log2(nodes)) * asked.latency
    gather += size * (nodes - 1) / nodes / asked.bandwidth
    assert point.gather == pytest.approx(gather)
    assert point.seconds == pytest.approx(max(clocks) + gather)
    assert point.planning == pytest.approx(planning / nodes)
    assert point.compute + point.granularity + point.planning == pytest.approx(mean)
    assert point.imbalance == pytest.approx(max(clocks) - mean, abs=1e-12)
    assert point.edge_rate == pytest.approx(inputs * 100 * asked.layers / point.seconds)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("schedule", ["static", "dynamic"])
@settings(deadline=None, max_examples=50)
@given(
    lifetimes=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    # Of weak scaling at most 3,000 inputs are simulated.
    sizes=st.integers(1, 70).flatmap(
        lambda nodes: st.tuples(st.integers(1, min(200, 3000 // nodes)), st.just(nodes))
    ),
    layers=st.integers(1, 9),
    batch=st.integers(1, 70),
    extra=st.integers(70_000, 400_000),
    steps=st.lists(st.floats(0, 1e-3), min_size=3, max_size=3).map(sorted),
    latency=st.floats(0, 1),
)
def test_as_in_a_simulation(
    schedule: str, streamed: bool, lifetimes: list[int], sizes: tuple[int, int], layers: int,
    batch: int, extra: int, steps: list[float], latency: float,
) -> None:  # fmt: skip
    inputs, nodes = sizes
    made = calibration(*lifetimes, batch_size=batch, dense=Curve((1, 16, 17), tuple(steps)))
    # What the program and the inputs take, and little more for layers and features.
    memory = (192 << 20) + 256 * 256 + 8 * inputs + extra if streamed else None
    asked = Question(layers, inputs, (1, nodes), schedule, latency, 1e6, memory)
    answer = Prediction(made, asked)
    assert (answer.budget is not None) == streamed
    (alone, strong), weak = answer.strong, answer.weak
    assert weak[0] == alone
    assert (strong.inputs, weak[1].inputs) == (inputs, inputs * nodes)
    for point in (strong, weak[1]):
        assert_as_simulated(answer, point)
        assert point.compute == pytest.approx(alone.compute * point.inputs / inputs / nodes)
        assert point.speed_up == pytest.approx(point.edge_rate / alone.edge_rate)
    first = answer.blocks[0][1] if streamed else layers
    assert answer.setup == pytest.approx(5e-9 * 100 * first)


def test_networks_that_do_not_fit_are_streamed() -> None:
    made = calibration(neurons=65536, widest=65536, edges_per_layer=(1 << 21,) * 4, memory=4 << 30)
    assert [bool(Prediction(made, Question(n, 100, (1,))).blocks) for n in (4, 1920)] == [0, 1]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.integers(0, 600))
def test_lifetimes_are_those_of_the_record(lifetimes: list[int], first: int) -> None:
    made = calibration(*lifetimes)
    assert made.active[0] == len(lifetimes)
    drawn = made.lifetimes(0, 600)
    assert set(drawn.tolist()) <= set(lifetimes)
    np.testing.assert_array_equal(made.lifetimes(first, 600), drawn[first:])


def test_draws_keep_the_rates_of_the_record() -> None:
    drawn = calibration(*(0, 1, 4, 4) * 250).lifetimes(0, 100_000)
    rates = count_active(drawn, 4) / 100_000
    np.testing.assert_allclose(rates, [1, 0.75, 0.5, 0.5, 0.5], atol=0.01)


def test_curves_go_through_what_was_measured_and_on_as_from_first_to_last() -> None:
    curve = Curve((2, 4, 10), (1.0, 1.5, 9.0))
    assert curve([0, 1, 2, 3, 4, 10, 12]) == pytest.approx([0, 1, 1, 1.25, 1.5, 9, 11])
    assert Curve((2,), (1.0,))(6) == pytest.approx(3)
