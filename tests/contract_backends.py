"""The backends that the contract suite runs on here, by name."""

from __future__ import annotations

from cuda_emulation.emulated_backend import EmulatedCupyBackend

import portable_spdnn as ps
from portable_spdnn.network import Network
from portable_spdnn.plans.base import NetworkPlan
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.registry import backends
from portable_spdnn_cpu.network.plan import DepthFirstPlan
from portable_spdnn_cpu.numba_backend import NumbaBackend

# The cupy backend runs on the emulated device where there is no GPU.
EMULATED = "cupy-emulated"
RUNNABLE = [info.name for info in backends() if info.availability.available]
if "cupy" not in RUNNABLE and EmulatedCupyBackend.availability().available:
    RUNNABLE.append(EMULATED)
DEPTH_FIRST = "numba-depth-first"


class DepthFirstBackend(NumbaBackend):
    """The numba backend, with plans that go depth first whatever suits a network."""

    def build_plan(self, network: Network, options: PlanOptions) -> NetworkPlan | None:
        if options.path == "spgemm":
            return None
        return DepthFirstPlan(self, self.workers, network, options)


def opened(name: str) -> ps.Backend:
    """Return the backend of a name."""
    if name == EMULATED:
        return EmulatedCupyBackend()
    return DepthFirstBackend() if name == DEPTH_FIRST else ps.get_backend(name)
