"""The numba backend of this package, without and with all exact passes."""

from __future__ import annotations

from typing import Any

import portable_spdnn as ps
from portable_spdnn.dlmc.collection import aligned_empty
from portable_spdnn.passes import EXACT_PASSES
from portable_spdnn.plans.planner import make_plan


class NumbaPeer:
    """Prepared handles, two-phase SpGEMM, the depth-first plan."""

    name, version = "portable_spdnn numba", ps.__version__

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.backend = ps.get_backend("numba", threads)

    def spmm(self, A: Any, B: Any) -> Any:
        handle = self.backend.spmm_handle(A, columns=B.shape[1])
        out = aligned_empty((A.shape[0], B.shape[1]))
        return lambda: handle.multiply(B, out)

    def layer(self, A: Any, B: Any, bias: Any, y_max: float) -> Any:
        handle = self.backend.layer_handle(A.T, bias, y_max)
        return lambda: handle.apply(B.T).T

    def spgemm(self, A: Any, B: Any) -> Any:
        return lambda: self.backend.spgemm(A, B)

    def inference(self, network: ps.Network, features: Any) -> Any:
        plan = make_plan(self.backend, network)
        return lambda: plan.run(features).categories

    def host(self, result: Any) -> Any:
        return result


class ExactPassesPeer:
    """Whole networks with all exact passes; products are the same as without."""

    name, version = "portable_spdnn numba, exact passes", ps.__version__

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def inference(self, network: ps.Network, features: Any) -> Any:
        options = ps.PlanOptions(exact_passes=EXACT_PASSES)
        plan = make_plan(ps.get_backend("numba", self.threads), network, options)
        return lambda: plan.run(features).categories

    def host(self, result: Any) -> Any:
        return result
