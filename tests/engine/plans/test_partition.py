"""How inputs are shared out."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from portable_spdnn.plans.partition import chunk_bounds, static_part


@given(inputs=st.integers(0, 10**6), size=st.integers(1, 5000))
def test_static_parts_cover_the_inputs_evenly(inputs: int, size: int) -> None:
    parts = [static_part(inputs, rank, size) for rank in range(size)]
    assert parts[0][0] == 0
    assert parts[-1][1] == inputs
    assert all(a[1] == b[0] for a, b in pairwise(parts))
    lengths = [end - first for first, end in parts]
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(0, 3000), st.integers(1, 100))
def test_chunks_cover_all_inputs_once(inputs: int, size: int) -> None:
    chunks = chunk_bounds(inputs, size)
    assert sum(end - first for first, end in chunks) == inputs
    assert all(a[1] == b[0] for a, b in pairwise(chunks))
    assert len(chunks) == min(inputs, 8 * size)
