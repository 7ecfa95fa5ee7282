"""Time limits of a run."""

from __future__ import annotations

import time
from collections.abc import Callable

REPEAT = 5
LEAST_REPEAT = 2


class Budget:
    """Seconds in all, and for the runs of one plan.

    Parameters
    ----------
    seconds : float
        That the whole may take, from now.
    for_runs : float
        After which a plan is not run again, though LEAST_REPEAT times.
    """

    def __init__(self, seconds: float, for_runs: float) -> None:
        self.end = time.perf_counter() + seconds
        self.for_runs = for_runs

    def left(self) -> float:
        """Seconds that are left; negative when it is overdrawn."""
        return self.end - time.perf_counter()

    def runs(self, run: Callable[[], float]) -> list[float]:
        """Repeat what returns its seconds, REPEAT times or while there is time for it."""
        start = time.perf_counter()
        times: list[float] = []
        while len(times) < REPEAT:
            spent = time.perf_counter() - start
            if len(times) >= LEAST_REPEAT and spent + times[-1] > min(self.for_runs, self.left()):
                break
            times.append(run())
        return times
