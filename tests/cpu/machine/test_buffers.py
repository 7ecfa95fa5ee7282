"""Memory that calls lend each other: who gets what, and what is kept."""

from __future__ import annotations

import numpy as np
import pytest

from portable_spdnn_cpu.machine.buffers import Buffers, Spare


def test_the_next_call_gets_what_the_last_one_left_and_calls_at_a_time_their_own() -> None:
    spare = Spare(Buffers)
    with spare.lent() as first, spare.lent() as second:
        assert first is not second
    with spare.lent() as third:
        assert third is first  # which was given back last


def test_what_an_error_interrupted_is_not_lent_again() -> None:
    spare = Spare(Buffers)
    with pytest.raises(KeyboardInterrupt), spare.lent() as interrupted:
        raise KeyboardInterrupt
    with spare.lent() as other:
        assert other is not interrupted


def test_buffers_grow_and_are_aligned() -> None:
    buffers = Buffers()
    small = buffers.take("sums", 0, (3, 5), np.float32)
    assert small.shape == (3, 5)
    assert small.ctypes.data % 64 == 0
    assert np.shares_memory(buffers.take("sums", 0, (15,), np.float32), small)
    assert not np.shares_memory(buffers.take("sums", 1, (15,), np.float32), small)
    large = buffers.take("sums", 0, (100,), np.float32)
    assert large.size == 100
    assert np.shares_memory(buffers.take("sums", 0, (2, 2), np.float32), large)
    assert buffers.take("sums", 0, (4,), np.float64).dtype == np.float64
