"""Memory that calls lend each other: who gets what, and what is kept."""

from __future__ import annotations

import ctypes

import numpy as np

from portable_spdnn_cpu.machine.buffers import Buffers, Spare, Workspace


def test_the_next_call_gets_what_the_last_one_left_and_calls_at_a_time_their_own() -> None:
    spare = Spare(Buffers)
    first, second = spare.take(), spare.take()
    assert first is not second
    spare.give_back(second)
    spare.give_back(first)
    assert spare.take() is first  # which was given back last
    assert spare.take() not in (first, second)


def test_a_workspace_grows_and_is_aligned() -> None:
    workspace = Workspace()
    assert workspace.of_bytes(0) == 0
    address = workspace.of_bytes(1000)
    assert address % 64 == 0
    assert workspace.of_bytes(10) == address
    assert ctypes.string_at(workspace.of_bytes(1 << 23), 1 << 23)  # can be read to its end


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
