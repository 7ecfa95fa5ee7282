"""The hash of 64-bit words: the published finaliser, and one output for each input."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from portable_spdnn.hashing import mix64

GAMMA = 0x9E3779B97F4A7C15


def test_it_is_the_finaliser_of_splitmix64() -> None:
    # The first outputs of the generator's reference code for the seed 0.
    states = np.array([n * GAMMA % (1 << 64) for n in (1, 2, 3)], np.uint64)
    assert [hex(word) for word in mix64(states).tolist()] == [
        "0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f",
    ]  # fmt: skip


@given(st.sets(st.integers(0, (1 << 64) - 1), max_size=50))
def test_different_words_stay_different(values: set[int]) -> None:
    words = np.array(sorted(values), np.uint64)
    before = words.copy()
    assert np.unique(mix64(words)).size == len(values)
    np.testing.assert_array_equal(words, before)
