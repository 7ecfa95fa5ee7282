"""SciPy: one thread; csr @ dense, csr @ csr, and the layer loop on sparse features."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy

import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan


class ScipyPeer:
    """Plain scipy.sparse."""

    name, version, threads = "scipy", scipy.__version__, 1

    def __init__(self, threads: int) -> None:
        del threads  # scipy.sparse has one

    def spmm(self, A: Any, B: Any) -> Any:
        return lambda: A @ B

    def layer(self, A: Any, B: Any, bias: Any, y_max: float) -> Any:
        column = bias[:, None]

        def run() -> Any:
            C = A @ B
            C += column
            return np.clip(C, 0, np.float32(y_max), out=C)

        return run

    def spgemm(self, A: Any, B: Any) -> Any:
        return lambda: A @ B

    def inference(self, network: ps.Network, features: Any) -> Any:
        plan = make_plan(ps.get_backend("scipy"), network)
        return lambda: plan.run(features).categories

    def host(self, result: Any) -> Any:
        return result
