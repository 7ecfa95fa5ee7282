"""Which of several ways is the fastest: learnt from calls that are made anyway."""

from __future__ import annotations

import math

TRIALS = 2  # calls with each way, before the fastest is kept
# The way that was kept is held against what the next best took: where it has become so much
# slower, over so many calls, all are tried again; after that only after twice as many.
SLOWER = 1.25
PATIENCE = 32
MEMORY = 0.1  # weight of the latest call in the mean


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
        self._rival = math.inf
        self._recent = 0.0
        self._since = 0
        self._patience = PATIENCE

    def next(self) -> int:
        """Return the way to go: one that is still to be tried, else the one that is kept."""
        if self.kept is not None:
            return self.kept
        return min(range(len(self.calls)), key=self.calls.__getitem__)

    def note(self, way: int, seconds: float) -> None:
        """Note what a call took that went way `way`."""
        self.calls[way] += 1
        self.least[way] = min(self.least[way], seconds)
        if self.kept is None:
            if min(self.calls) >= TRIALS:
                ranked = sorted(range(len(self.least)), key=self.least.__getitem__)
                self.kept = ranked[0]
                self._recent, self._rival = self.least[ranked[0]], self.least[ranked[1]]
                self._since = 0
        elif way == self.kept and len(self.calls) > 1:
            self._recent += MEMORY * (seconds - self._recent)
            self._since += 1
            if self._since >= self._patience and self._recent > SLOWER * self._rival:
                self.calls = [0] * len(self.calls)
                self.least = [math.inf] * len(self.least)
                self.kept = None
                self._patience *= 2
