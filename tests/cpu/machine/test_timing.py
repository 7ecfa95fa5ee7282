"""The clock of choices by measurement: how often work is repeated, and what counts."""

from __future__ import annotations

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
