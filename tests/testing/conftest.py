"""The backends that the contract suite runs on here."""

from __future__ import annotations

import pytest
from cuda_emulation.emulated_backend import EmulatedCupyBackend

import portable_spdnn as ps
from portable_spdnn.registry import backends

# The cupy backend runs on the emulated device where there is no GPU.
EMULATED = "cupy-emulated"
RUNNABLE = [info.name for info in backends() if info.availability.available]
if "cupy" not in RUNNABLE and EmulatedCupyBackend.availability().available:
    RUNNABLE.append(EMULATED)


@pytest.fixture(params=RUNNABLE, scope="module")
def backend(request: pytest.FixtureRequest) -> ps.Backend:
    if request.param == EMULATED:
        return EmulatedCupyBackend()
    return ps.get_backend(request.param)
