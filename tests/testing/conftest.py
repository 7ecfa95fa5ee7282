"""The backends that the contract suite runs on here."""

from __future__ import annotations

import pytest
from contract_backends import RUNNABLE, opened

import portable_spdnn as ps


@pytest.fixture(params=RUNNABLE, scope="module")
def backend(request: pytest.FixtureRequest) -> ps.Backend:
    return opened(request.param)
