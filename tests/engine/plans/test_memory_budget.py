"""How a plan shares out the memory that it may take."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.host import parse_limit, resident_bytes
from portable_spdnn.network import LayerStatistics
from portable_spdnn.plans import memory_budget
from portable_spdnn.plans.memory_budget import (
    SHARE,
    Budget,
    needed_bytes,
    running_bytes,
    statistics_of,
    streaming_memory,
)
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.workloads.streamed_network import GeneratedLayers, StreamedNetwork

GIB = 1 << 30


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 10**6), min_size=1, max_size=30),
    weights=st.integers(1, 10**8),
)
def test_blocks_cover_all_layers_and_fit(sizes: list[int], weights: int) -> None:
    statistics = [LayerStatistics((10, 10), nnz, 4, True) for nnz in sizes]
    blocks = list(Budget(GIB, weights, 1, 1, 4).cut_blocks(statistics))
    assert [first for first, _ in blocks] == [0, *(end for _, end in blocks[:-1])]
    assert blocks[-1][1] == len(statistics)
    for first, end in blocks:
        used = sum(running_bytes(one, 4) for one in statistics[first:end])
        assert end == first + 1 or used <= weights / 2
    # Greedy: two neighbours never fit into one.
    for (first, _), (_, end) in itertools.pairwise(blocks):
        assert sum(running_bytes(one, 4) for one in statistics[first:end]) > weights / 2


def test_too_little_memory_says_what_would_do() -> None:
    network = StreamedNetwork(GeneratedLayers(65536, 4), 32.0)
    backend = ps.get_backend("numba")
    with pytest.raises(ps.InputError, match=r"needs \d.* here") as refused:
        make_plan(backend, network, ps.PlanOptions(memory=1 << 20))
    needed = str(refused.value).rpartition("needs ")[2].removesuffix(" here")
    allowed = parse_limit(needed, "needed")
    assert allowed is not None
    statistics, single = statistics_of(network), np.dtype(np.float32)
    share = Budget.of(
        allowed, resident_bytes(), statistics, network.widest, single, backend.threads
    )
    assert share.piece >= 1
    assert share.weights >= running_bytes(statistics[0], 4)


def test_a_network_is_streamed_where_it_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = [LayerStatistics((1024, 1024), 32 * 1024, 0, True)] * 120
    options = PlanOptions()
    needed = needed_bytes(statistics, 10, options)
    # 16-bit indices as loaded; an index of 4 bytes and a weight as planned, for each edge.
    assert 1 < needed / ((120 * 32 * 1024) * (2 + 4 + 4)) < 1.3
    assert needed_bytes(statistics, 1000, options) - needed == 3 * 990 * 2 * 1024 * 4
    assert needed_bytes(statistics, 1000, PlanOptions(batch_size=10)) == needed
    assert needed_bytes(statistics, 10, PlanOptions(np.float64)) > needed
    enough, less = math.ceil(needed / SHARE), int(0.9 * needed / SHARE)
    monkeypatch.setattr(memory_budget, "available_bytes", lambda: enough)
    assert streaming_memory(statistics, 10, options) is None
    monkeypatch.setattr(memory_budget, "available_bytes", lambda: less)
    allowed = streaming_memory(statistics, 10, options)
    assert allowed is not None
    assert abs(allowed - resident_bytes() - SHARE * less) < 50e6
    assert streaming_memory(statistics, 10, PlanOptions(memory=5)) == 5
    monkeypatch.setattr(memory_budget, "available_bytes", lambda: None)
    assert streaming_memory(statistics, 10, options) is None
