"""The `numba` backend: multithreaded, compiled for the processor at hand."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.backend import Availability, Backend, SpgemmHandle
from portable_spdnn.features import PackedFeatures
from portable_spdnn.network import Network
from portable_spdnn.operations import Prepared
from portable_spdnn.plans.base import NetworkPlan, PlanOptions
from portable_spdnn.report.roofline import Limits
from portable_spdnn_cpu.jit.cpu_info import processor_name
from portable_spdnn_cpu.jit.thread_pool import Workers, default_threads

Array = npt.NDArray[Any]


class NumbaBackend(Backend):
    """Threads on the CPU; dense features go depth-first in tiles, sparse ones row by row.

    Parameters
    ----------
    threads : int, optional
        Default: NUMBA_NUM_THREADS where set, else the cores that this process may use.
    """

    name = "numba"
    execution_space = "threads"

    def __init__(self, threads: int | None = None) -> None:
        super().__init__(default_threads() if threads is None else threads)
        self.workers = Workers(self.threads)

    @classmethod
    def availability(cls) -> Availability:
        """Available where Numba imports."""
        try:
            import numba
        except ImportError as error:
            try:
                versions = {"numba": version("numba")}
            except PackageNotFoundError:
                return Availability.no("numba is not installed; pip install numba")
            return Availability.no(f"numba does not import: {error}", versions)
        versions = {"numba": numba.__version__, "numpy": np.__version__}
        return Availability.yes(f"{processor_name()}, {default_threads()} threads", versions)

    @property
    def device(self) -> str:
        """The processor and the number of threads in use."""
        return f"{processor_name()}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def run_spmm(self, A: Any, B: Array) -> Array:
        """C = A B: the inputs of a tile are the columns of B."""
        return np.asarray(self._dense_layer(A, prepare=False)(B.T).T)

    def make_spmm(self, A: Any) -> Prepared:
        """Return the function (B, out) -> A B, with A clustered and packed."""
        product = self._dense_layer(A, prepare=True)
        return lambda B, out: product(B.T, None if out is None else out.T).T

    def _dense_layer(
        self,
        by_output: Any,
        prepare: bool,
        bias: Array | None = None,
        y_max: float | None = None,
    ) -> Any:
        """Return a layer for dense features; without a bias the plain product."""
        from portable_spdnn_cpu.layout.packing import Activation, relu
        from portable_spdnn_cpu.spmm.handle import DenseLayer

        activation = Activation() if bias is None else relu(y_max)
        if bias is None:
            bias = np.zeros(by_output.shape[0], by_output.dtype)
        return DenseLayer(self.workers, by_output, bias, activation, prepare)

    def make_spgemm_handle(self, A: Any, B: Any) -> SpgemmHandle:
        """Return a handle for C = A B."""
        from portable_spdnn_cpu.spgemm.handle import RowSpgemmHandle

        return RowSpgemmHandle(self.workers, A, B)

    def run_layer(self, W: Any, Y: Any, bias: Array, y_max: float | None) -> Any:
        """Y' = min(max(Y W + bias, 0), y_max), fused."""
        if self.is_sparse(Y):
            from portable_spdnn_cpu.spgemm.fused_layer import sparse_layer

            return sparse_layer(self.workers, W, Y, bias, y_max)
        return self._dense_layer(W.T.tocsr(), False, bias, y_max)(Y)

    def make_layer(self, W: Any, bias: Array, y_max: float | None) -> Prepared:
        """Return the function (Y, out) -> Y', with W clustered and packed for dense Y."""
        dense = self._dense_layer(W.T.tocsr(), True, bias, y_max)

        def run(Y: Any, out: Any) -> Any:
            return self.run_layer(W, Y, bias, y_max) if self.is_sparse(Y) else dense(Y, out)

        return run

    def build_plan(self, network: Network, options: PlanOptions) -> NetworkPlan:
        """Return a depth-first plan, or the layer loop where sparse features are asked for."""
        if options.path == "spgemm":
            plan = super().build_plan(network, options)
            # Compiles, or loads from the cache: a run without inputs.
            plan.run_batch(PackedFeatures.empty(network.neurons), lambda done: None)
            return plan
        from portable_spdnn_cpu.network.plan import DepthFirstPlan

        return DepthFirstPlan(self, self.workers, network, options)

    def measure_limits(self) -> Limits:
        """Measure the processor with all threads; takes some seconds."""
        from portable_spdnn_cpu.jit.peaks import measure

        return measure(self.workers)
