"""Calls of one function by several threads at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

CALLS = 200  # of each thread


def check_calls_at_a_time(multiply: Callable[[Any], Any], operands: list[Any]) -> None:
    """Let a thread for each operand multiply it again and again, and compare with one thread."""
    expected = [multiply(operand) for operand in operands]
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(CALLS):
            if not np.array_equal(multiply(operands[number]), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(operands))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
