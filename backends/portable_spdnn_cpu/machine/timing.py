"""The clock of choices that are made by measurement, and of the processor's limits."""

from __future__ import annotations

import time
from collections.abc import Callable

from portable_spdnn_cpu.machine.thread_pool import ThreadPool

LONG = 40  # times the least that is timed: what takes so long is timed but once more


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def seconds_each(
    pool: ThreadPool, work: Callable[[int, int], object], least: float, repeats: int
) -> float:
    """Return the least seconds of one repetition of work(thread, times), on all threads.

    Parameters
    ----------
    pool : ThreadPool
    work : callable
        Repeats something `times` times, on thread number `thread`.
    least : float
        Seconds that a timing should last: `times` is chosen for it.
    repeats : int
        Timings, of which the shortest counts.
    """
    taken = [0.0] * pool.threads

    def run(times: int) -> float:
        def timed(thread: int) -> None:  # by its own clock: waking it is no part of the work
            taken[thread] = seconds_of(lambda: work(thread, times))

        pool.run(timed)
        return max(taken)

    run(0)  # compiles, or loads from the cache
    times, seconds = 1, run(1)
    while seconds < least / 2:
        times = max(2 * times, int(times * least / max(seconds, 1e-7)))
        seconds = run(times)
    repeats = repeats if seconds < LONG * least else 2  # the first may have met cold caches
    return min(seconds, *(run(times) for _ in range(repeats - 1))) / times
