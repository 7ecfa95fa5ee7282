"""Streams of the emulated device: work in order, as early or as late as events allow."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

Work = Callable[[], None]
_WORKING = threading.RLock()  # streams are used by threads, and work of one waits for another's


@dataclass(eq=False)
class EmulatedStream:
    """Work that waits to be done.

    Attributes
    ----------
    late : bool
        Whether its work is done when something asks for it, not when it comes.
    """

    late: bool
    waiting: deque[Work] = field(default_factory=deque)
    given: int = 0
    done: int = 0

    def add(self, work: Work) -> None:
        with _WORKING:
            self.waiting.append(work)
            self.given += 1
            if not self.late:
                self.drain(self.given)

    def drain(self, until: int | None = None) -> None:
        """Do the first `until` pieces of work, or all."""
        with _WORKING:
            until = self.given if until is None else until
            while self.done < until:
                self.done += 1  # before: a wait for an event of this stream finds it done
                self.waiting.popleft()()


@dataclass(eq=False)
class EmulatedEvent:
    """What happens when a stream has done its work so far."""

    stream: EmulatedStream
    position: int = 0
    time: float = 0.0

    @classmethod
    def on(cls, stream: EmulatedStream) -> EmulatedEvent:
        with _WORKING:
            event = cls(stream)
            stream.add(event._happen)
            event.position = stream.given
        return event

    def _happen(self) -> None:
        self.time = time.perf_counter()

    def happened(self) -> None:
        self.stream.drain(self.position)
