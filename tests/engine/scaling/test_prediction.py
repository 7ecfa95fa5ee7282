"""Predictions against numbers worked out by hand and a simulation in plain loops."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scaling_samples import calibration

from portable_spdnn.errors import InputError
from portable_spdnn.mpi.run import POLL_SECONDS
from portable_spdnn.plans.partition import chunk_bounds, static_part
from portable_spdnn.scaling.calibration import Calibration, Curve, Lifetimes
from portable_spdnn.scaling.prediction import BATCH_BYTES, RANK_BYTES, Prediction, Question
from portable_spdnn.scaling.tables import as_json

TINY = 1e-9


def simulate(made: Calibration, asked: Question, nodes: int) -> tuple[float, list[float]]:
    """Return when the last node is done and how long each computes, in plain loops."""
    lifetimes = made.lifetimes.active_after
    if asked.schedule == "static":
        parts = [static_part(asked.inputs, rank, nodes) for rank in range(nodes)]
    else:
        parts = chunk_bounds(asked.inputs, nodes)
    asking = 2 * asked.latency + POLL_SECONDS / 2 if nodes > 1 else 0
    clocks, busy = [0.0] * nodes, [0.0] * nodes
    for number, (first, end) in enumerate(parts):
        node = number if number < nodes else clocks.index(min(clocks))
        seconds = 0.0
        if number < nodes:
            seconds = made.first_batch_seconds * min(end - first, made.batch_size)
        for begin in range(first, end, made.batch_size):
            batch = lifetimes[begin : min(end, begin + made.batch_size)]
            seconds += float(made.start(len(batch)))
            for layer in range(made.start_layers, asked.layers):
                active = sum(lifetime >= min(layer, made.layers) for lifetime in batch)
                seconds += made.depth_factor * 100 * float(made.dense(active))
        busy[node] += seconds
        clocks[node] += seconds + (asking if number >= nodes else 0)
    return max(clocks), busy


def test_one_and_two_nodes_by_hand() -> None:
    prediction = Prediction(calibration(), Question(6, 8, (1, 2), latency=1e-3, bandwidth=1e6))
    one, two = prediction.strong
    assert prediction.setup == pytest.approx(0.5 + 600 * 5e-9, rel=TINY)
    # Active inputs of layers 1 to 5 (from 0): 6, 5, 4, and 4 in each of the two that were not run.
    compute = 8 * 1e-5 + 2 * 100 * 1e-9 * (6 + 5 + 4 + 4 + 4) + 8 * 1e-6
    gather = 2e-6 + 3e-6 + 1e-9 * (8 * 6 + 16 * 4)
    assert (one.compute, one.gather) == pytest.approx((compute, gather), rel=TINY)
    assert one.seconds == pytest.approx(compute + gather, rel=TINY)
    assert one.edge_rate == pytest.approx(8 * 600 / (compute + gather), rel=TINY)
    assert (one.granularity, one.planning) == (0, 0)
    assert (one.speed_up, one.efficiency, one.load_imbalance) == pytest.approx((1, 1, 1))
    # Active among inputs 0 to 3: 3, 2, 1, 1, 1; among inputs 4 to 7: 3 all along.
    first = 4e-5 + 2e-7 * 8 + 4e-6
    second = 4e-5 + 2e-7 * 15 + 4e-6
    content = 2 * 8 * 6 + 16 * 4
    size = 2 * RANK_BYTES + 2 * BATCH_BYTES + content
    gather = 4 * 1e-3 + size / 2 / 1e6 + 2 * 2e-6 + 2 * 3e-6 + 1e-9 * content
    assert two.seconds == pytest.approx(second + gather, rel=TINY)
    assert two.speed_up == pytest.approx(one.seconds / two.seconds, rel=TINY)
    assert two.imbalance == pytest.approx((second - first) / 2, rel=TINY)
    assert two.load_imbalance == pytest.approx(2 * second / (first + second), rel=TINY)
    assert (one.bound, two.bound) == ("compute", "gather")


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
@settings(deadline=None)
@given(
    lifetimes=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    nodes=st.integers(1, 70),
    layers=st.integers(1, 9),
    batch=st.integers(1, 70),
    steps=st.lists(st.floats(0, 1), min_size=3, max_size=3).map(sorted),
    latency=st.floats(0, 1),
)
def test_as_in_a_simulation(
    schedule: str, lifetimes: list[int], nodes: int, layers: int, batch: int, steps: list[float],
    latency: float,
) -> None:  # fmt: skip
    made = calibration(*lifetimes, batch_size=batch, dense=Curve((1, 16, 17), tuple(steps)))
    asked = Question(layers, len(lifetimes), (1, nodes), schedule, latency)
    end, busy = simulate(made, asked, nodes)
    mean = sum(busy) / nodes
    answer = Prediction(made, asked)
    (alone, point), weak = answer.strong, answer.weak
    assert point.seconds - point.gather == pytest.approx(end, rel=1e-6, abs=TINY)
    assert point.compute == pytest.approx(alone.compute / nodes)
    assert point.compute + point.granularity == pytest.approx(mean, rel=1e-6, abs=TINY)
    assert point.imbalance == pytest.approx(end - mean, rel=1e-6, abs=TINY)
    if schedule == "static":
        assert point.load_imbalance == pytest.approx(max(busy) / mean)
    assert weak[0] == alone
    assert (weak[1].inputs, weak[1].compute) == (nodes * asked.inputs, pytest.approx(alone.compute))
    for one in (point, weak[1]):
        parts = (one.compute, one.granularity, one.planning, one.imbalance, one.gather)
        assert sum(parts) == pytest.approx(one.seconds, rel=TINY)


def test_streamed_networks_are_planned_within_the_inference() -> None:
    quick: dict[str, Any] = {"start": Curve((1,), (1e-9,)), "dense": Curve((1,), (1e-15,))}
    wide = calibration(
        *[4] * 8, program_bytes=100 << 20, first_batch_seconds=0.0, neurons=65536, widest=65536,
        edges_per_layer=(1 << 21,) * 4, **quick,
    )  # fmt: skip
    held = Prediction(wide, Question(100, 2000, (1, 2)))
    assert (held.budget, held.strong[0].planning) == (None, 0)
    streamed = Prediction(wide, Question(100, 2000, (1, 2), memory=2 << 30))
    one, two = streamed.strong
    budget, blocks = streamed.budget, streamed.blocks
    assert budget is not None
    assert (blocks[0][0], blocks[-1][1]) == (0, 100)
    assert len(blocks) > 1
    # All are active: pieces go in while the pool takes them and one more.
    batch = budget.piece
    while (batch + budget.piece) * 4 * 65536 <= budget.pool:
        batch += budget.piece
    later = (100 - blocks[0][1]) * 2**21
    assert one.planning == pytest.approx(math.ceil(2000 / batch) * 3e-9 * later, rel=1e-3)
    assert two.planning == pytest.approx(math.ceil(1000 / batch) * 3e-9 * later, rel=1e-3)
    assert streamed.setup == pytest.approx(0.5 + 5e-9 * blocks[0][1] * 2**21)
    assert one.bound == "planning"
    assert "streamed in 2 GiB" in as_json(streamed)["assumptions"][-1]
    # Without a limit, what does not fit in three quarters of the node's memory is streamed.
    small = replace(wide, memory=4 << 30)
    assert [bool(Prediction(small, Question(n, 100, (1,))).blocks) for n in (4, 1920)] == [0, 1]
    with pytest.raises(InputError, match="memory is 1 MiB"):
        Prediction(wide, Question(4, 100, (1,), memory=1 << 20))


@given(
    lifetimes=st.lists(st.integers(0, 9), min_size=1, max_size=200),
    cuts=st.lists(st.integers(0, 1000), min_size=2, max_size=5).map(sorted),
    stride=st.sampled_from((1, 3, 7)),
    seed=st.integers(0, 2**63),
)
def test_parts_of_any_size_cut_the_same_inputs(
    lifetimes: list[int], cuts: list[int], stride: int, seed: int
) -> None:
    source = (len(lifetimes) - 1) * stride + 1
    record = Lifetimes(9, source, stride, tuple(lifetimes))
    window = record.neighbours
    assert min(len(lifetimes), 32) <= window <= len(lifetimes)
    assert window == len(lifetimes) or window * lifetimes.count(9) / len(lifetimes) >= 16
    whole = record.modelled(cuts[0], cuts[-1], seed)
    parts = [record.modelled(a, b, seed) for a, b in pairwise(cuts)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    for number, lifetime in zip(range(cuts[0], cuts[-1]), whole, strict=True):
        place = number % source // stride
        near = lifetimes[max(0, place - window) : place + window]
        exact = stride == 1 and number < source
        assert lifetime == lifetimes[place] if exact else lifetime in near


def test_draws_keep_the_rates_of_the_record_and_follow_the_seed() -> None:
    record = Lifetimes(2, 5000, 5, (0, 1, 2, 2) * 250)
    drawn = record.modelled(0, 100_000, 1)
    np.testing.assert_allclose(np.bincount(drawn) / 100_000, [0.25, 0.25, 0.5], atol=0.01)
    assert (drawn != record.modelled(0, 100_000, 2)).any()


def test_curves_go_through_what_was_measured_and_on_as_from_first_to_last() -> None:
    curve = Curve((2, 4, 10), (1.0, 1.5, 9.0))
    assert curve([0, 1, 2, 3, 4, 10, 12]) == pytest.approx([0, 1, 1, 1.25, 1.5, 9, 11])
    assert Curve((2,), (1.0,))(6) == pytest.approx(3)
