"""How a plan shares out the memory that it may take."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.host import parse_limit
from portable_spdnn.plans.memory_budget import Budget, facts_of, running_bytes
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.workloads.streamed_network import GeneratedLayers, LayerFacts, StreamedNetwork

GIB = 1 << 30


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 10**6), min_size=1, max_size=30),
    weights=st.integers(1, 10**8),
)
def test_blocks_cover_all_layers_and_fit(sizes: list[int], weights: int) -> None:
    facts = [LayerFacts((10, 10), nnz, 4, True) for nnz in sizes]
    blocks = list(Budget(GIB, weights, 1, 1, 4).cut_blocks(facts))
    assert [first for first, _ in blocks] == [0, *(end for _, end in blocks[:-1])]
    assert blocks[-1][1] == len(facts)
    for first, end in blocks:
        used = sum(running_bytes(one, 4) for one in facts[first:end])
        assert end == first + 1 or used <= weights / 2
    # Greedy: two neighbours never fit into one.
    for (first, _), (_, end) in itertools.pairwise(blocks):
        assert sum(running_bytes(one, 4) for one in facts[first:end]) > weights / 2


def test_too_little_memory_says_what_would_do() -> None:
    network = StreamedNetwork(GeneratedLayers(65536, 4), 32.0)
    backend = ps.get_backend("numba")
    with pytest.raises(ps.InputError, match=r"needs \d.* here") as refused:
        make_plan(backend, network, ps.PlanOptions(memory=1 << 20))
    needed = str(refused.value).rpartition("needs ")[2].removesuffix(" here")
    allowed = parse_limit(needed, "needed")
    assert allowed is not None
    share = Budget.share(allowed, network, np.dtype(np.float32), backend.threads)
    assert share.piece >= 1
    assert share.weights >= running_bytes(facts_of(network)[0], 4)
