"""Parts of rows have about as much work each."""

from __future__ import annotations

import numpy as np

from portable_spdnn_cpu.spmm.row_parts import divide


def test_rows_are_divided_by_entries() -> None:
    bounds = divide(np.array([0, *[100] * 100]), 2, 1)
    assert bounds[0] == 0
    assert bounds[2] == 100
    assert 1 <= bounds[1] <= 10
    assert divide(np.zeros(4, np.int32), 3, 1) == [0, 1, 2, 3]
    assert divide(np.zeros(1, np.int32), 2, 1) == [0, 0, 0]


def test_rows_without_entries_are_divided_too() -> None:
    counts = np.repeat([1, 0], [1000, 19_000])
    first, middle, end = divide(np.concatenate(([0], np.cumsum(counts))), 2, 8)
    assert (first, end) == (0, 20_000)
    assert 8000 < middle < 10_000
    assert divide(np.array([0, 100]), 2, 8) == [0, 1, 1]  # a row is not divided
