"""Which of several ways is the fastest: learnt from calls that are made anyway."""

from __future__ import annotations

import math

TRIALS = 2  # calls with each way, before the fastest is kept
# Calls with the way that was kept, before all are tried again: a disturbance may have decided.
# Doubled each time, so that ever fewer calls are spent on trying.
PATIENCE = 64


class MeasuredChoice:
    """Keeps the fastest of some ways to do the same work.

    Parameters
    ----------
    ways : int
        How many there are; they are named 0, 1, ...
    """

    def __init__(self, ways: int) -> None:
        self.calls = [0] * ways
        self.least = [math.inf] * ways
        self.kept: int | None = 0 if ways == 1 else None
        self._left = self._patience = PATIENCE

    def next(self) -> int:
        """Return the way to go: one that is still to be tried, else the one that is kept."""
        kept = self.kept  # once: calls may run side by side
        if kept is not None:
            return kept
        return min(range(len(self.calls)), key=self.calls.__getitem__)

    def note(self, way: int, seconds: float) -> None:
        """Note what a call took that went way `way`."""
        if len(self.calls) == 1:
            return
        self.calls[way] += 1
        self.least[way] = min(self.least[way], seconds)
        if self.kept is not None:
            self._left -= 1
            if self._left <= 0:
                self._patience *= 2
                self._left = self._patience
                self.calls = [0] * len(self.calls)
                self.least = [math.inf] * len(self.least)
                self.kept = None
        elif min(self.calls) >= TRIALS:
            self.kept = min(range(len(self.least)), key=self.least.__getitem__)
