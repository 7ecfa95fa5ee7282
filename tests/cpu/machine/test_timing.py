"""The clock of choices by measurement: how often work is repeated, and what counts."""

from __future__ import annotations

import functools

import pytest

from portable_spdnn_cpu.machine import timing
from portable_spdnn_cpu.machine.thread_pool import ThreadPool


@pytest.mark.parametrize(
    ("each", "repetitions"),
    [
        (1e-6, [0, 1, 1000, 1000, 1000]),
        (1e-3, [0, 1, 1, 1]),
        (1.0, [0, 1, 1]),  # so long that one more is enough
    ],
)
def test_short_work_is_repeated_and_long_work_is_not(
    each: float, repetitions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []

    def seconds_of(work: object) -> float:
        assert callable(work)
        work()
        return each * done[-1]

    monkeypatch.setattr(timing, "seconds_of", seconds_of)
    seconds = timing.seconds_each(ThreadPool(1), lambda thread, times: done.append(times), 1e-3, 3)
    assert seconds == pytest.approx(each)
    assert done == repetitions


def test_a_disturbance_in_the_first_turn_drops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = 0.0, [0, 0]

    def work(index: int) -> None:
        nonlocal clock
        disturbed = index == 0 and calls[0] < 2  # as if the system took the core
        clock += 4e-3 if disturbed else (1e-5, 2.5e-5)[index]
        calls[index] += 1

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock)
    works = [functools.partial(work, index) for index in (0, 1)]
    assert timing.least_seconds(works) == pytest.approx([1e-5, 2.5e-5])


def test_a_trial_goes_round_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disturbance of some milliseconds falls on one round; what is far slower is run in two."""
    clock = 0.0
    calls: list[int] = []

    def work(index: int) -> None:
        nonlocal clock
        disturbed = 1.4 if 0.001 < clock < 0.002 else 1.0
        clock += disturbed * (1e-4, 1.2e-4, 1e-3)[index]
        calls.append(index)

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock)
    works = [functools.partial(work, index) for index in (2, 0, 1)]
    found = timing.least_seconds(works)
    assert found == pytest.approx([1e-3, 1e-4, 1.2e-4])
    assert calls.count(2) == 2 * 2  # half of them not timed
    turns = timing.ROUNDS * (1 + timing.TURN_REPEATS)
    assert calls.count(0) == calls.count(1) == turns
    calls.clear()
    long = [lambda: work(2), lambda: work(2)]
    assert timing.least_seconds(long) == pytest.approx([1e-3, 1e-3])
    assert len(calls) == 2 * 2 * timing.ROUNDS_OF_LONG


def test_a_trial_of_one_call_takes_one_round() -> None:
    calls: list[int] = []
    (seconds,) = timing.least_seconds([lambda: calls.append(0)])
    assert 0 < seconds < 1
    assert len(calls) == 1 + timing.TURN_REPEATS


def test_what_takes_long_is_called_once_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = 0.0, 0

    def work() -> None:
        nonlocal clock, calls
        clock += timing.LONG * timing.TURN_SECONDS
        calls += 1

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock)
    timing.least_seconds([work, work])
    assert calls == 2 * (1 + timing.ROUNDS_OF_LONG)
