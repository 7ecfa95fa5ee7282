"""The contract suite on every backend that can run here, and both plans of numba: plans."""

from __future__ import annotations

import pytest
from contract_backends import DEPTH_FIRST, RUNNABLE, opened

import portable_spdnn as ps
from portable_spdnn.testing.contract_plans import *  # noqa: F403


@pytest.fixture(params=[*RUNNABLE, DEPTH_FIRST], scope="module")
def backend(request: pytest.FixtureRequest) -> ps.Backend:
    return opened(request.param)
