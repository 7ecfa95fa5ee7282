"""The sort of columns: every length around the changes of method, wide and narrow keys."""

from __future__ import annotations

import numpy as np
import pytest

from portable_spdnn_cpu.spgemm.radix_sort import BUCKETS, PADDING, RANK_TO, SHORT_LIST, sort_keys


@pytest.mark.parametrize(
    "count", [0, 1, 2, 15, 16, 17, RANK_TO, RANK_TO + 1, SHORT_LIST - 1, SHORT_LIST, 1000, 40_000]
)
@pytest.mark.parametrize("bits", [1, 6, 9, 20, 31, 45])
def test_keys_come_out_sorted(count: int, bits: int) -> None:
    rng = np.random.default_rng(count + bits)
    for lists in ("random", "falling", "equal"):
        upper = rng.integers(0, 1 << bits, count)
        if lists == "falling":
            upper = np.sort(upper)[::-1]
        elif lists == "equal":
            upper[:] = 5
        # The number in the low bits makes keys differ, and rise where the upper bits are equal.
        keys = upper << 17 | np.arange(count)
        order, spare = np.empty((2, count + PADDING), np.int64)
        order[:count] = keys
        sort_keys(order, spare, np.empty(BUCKETS, np.int64), count, np.uint64(17))
        np.testing.assert_array_equal(order[:count], np.sort(keys))
