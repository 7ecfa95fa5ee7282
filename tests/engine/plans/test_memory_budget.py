"""Which networks are streamed: what one takes, beside what the machine has."""

from __future__ import annotations

import math

import numpy as np
import pytest

from portable_spdnn.host import resident_bytes
from portable_spdnn.plans import memory_budget
from portable_spdnn.plans.memory_budget import SHARE, needed_bytes, streaming_memory
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.workloads.streamed_network import LayerStatistics


def test_a_network_is_streamed_where_it_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = [LayerStatistics((1024, 1024), 32 * 1024, 0, True)] * 120
    options = PlanOptions()
    needed = needed_bytes(statistics, 10, options)
    # 16-bit indices as loaded; an index of 4 bytes and a weight as planned, for each edge.
    assert 1 < needed / ((120 * 32 * 1024) * (2 + 4 + 4)) < 1.3
    assert needed_bytes(statistics, 1000, options) - needed == 3 * 990 * 2 * 1024 * 4
    assert needed_bytes(statistics, 1000, PlanOptions(batch_size=10)) == needed
    assert needed_bytes(statistics, 10, PlanOptions(np.float64)) > needed
    assert streaming_memory(statistics, 10, options, math.ceil(needed / SHARE)) is None
    less = int(0.9 * needed / SHARE)
    allowed = streaming_memory(statistics, 10, options, less)
    assert allowed is not None
    assert abs(allowed - resident_bytes() - SHARE * less) < 50e6
    assert streaming_memory(statistics, 10, PlanOptions(memory=5)) == 5
    monkeypatch.setattr(memory_budget, "available_bytes", lambda: None)
    assert streaming_memory(statistics, 10, options) is None
