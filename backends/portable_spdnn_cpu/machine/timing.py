"""The clock of choices that are made by measurement, and of the processor's limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from portable_spdnn_cpu.machine.thread_pool import ThreadPool

# A trial of some calls goes round by turns, in each of which a call is repeated for so many seconds
# or so often. It is left out where it took so many times as long as the shortest in two rounds: in
# one the system may have run something else.
ROUNDS = 4
ROUNDS_OF_LONG = 2  # where those left take longer than half a turn on average
TURN_SECONDS = 5e-4
TURN_REPEATS = 5
FAR = 2.0
# Times TURN_SECONDS, or the least that is timed: what takes so long is called but once more.
LONG = 40


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def least_seconds(works: Sequence[Callable[[], object]]) -> list[float]:
    """Return the least seconds of each of some calls in a short trial.

    They are called by turns, so that what else the machine does for some milliseconds slows more
    than one of them. The first call of a turn is not timed: it compiles, or loads from the cache,
    and brings its operands into the processor's caches. What takes long
    has such a call in the first turn alone.
    """
    least = [float("inf")] * len(works)
    running = list(range(len(works)))
    for round_number in range(ROUNDS):
        mean = sum(least[index] for index in running) / len(running)
        if round_number >= ROUNDS_OF_LONG and mean > TURN_SECONDS / 2:
            break
        for index in running:
            if round_number == 0 or least[index] < LONG * TURN_SECONDS:
                works[index]()
            spent, repeats = 0.0, 0
            while spent < TURN_SECONDS and repeats < TURN_REPEATS:
                seconds = seconds_of(works[index])
                least[index] = min(least[index], seconds)
                spent, repeats = spent + seconds, repeats + 1
        if round_number:
            running = [index for index in running if least[index] <= FAR * min(least)]
        if len(running) == 1:
            break
    return least


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
