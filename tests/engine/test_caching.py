"""Values that are computed once, and what waits meanwhile: nothing."""

from __future__ import annotations

import threading

from portable_spdnn.caching import cached_property


class Slow:
    def __init__(self, begun: threading.Event, may_end: threading.Event) -> None:
        self.begun, self.may_end, self.computed = begun, may_end, 0

    @cached_property
    def value(self) -> int:
        """Wait until it may end."""
        self.begun.set()
        self.may_end.wait(10)
        self.computed += 1
        return self.computed


def test_a_value_is_computed_once_and_kept() -> None:
    ended = threading.Event()
    ended.set()
    slow = Slow(threading.Event(), ended)
    assert (slow.value, slow.value, slow.computed) == (1, 1, 1)
    assert vars(slow)["value"] == 1
    assert Slow.value.__doc__ == "Wait until it may end."


def test_other_objects_do_not_wait_for_a_value_in_the_making() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    ended.set()
    first, second = Slow(begun, may_end), Slow(threading.Event(), ended)
    making = threading.Thread(target=lambda: first.value)
    making.start()
    assert begun.wait(10)
    other = threading.Thread(target=lambda: second.value)
    other.start()
    other.join(5)
    waits = other.is_alive()
    may_end.set()
    making.join()
    other.join()
    assert not waits
    assert (first.value, second.value) == (1, 1)
