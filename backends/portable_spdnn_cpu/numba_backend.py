"""The `numba` backend: multithreaded, compiled for the processor at hand."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.backend import Availability, Backend
from portable_spdnn.caching import cached_property
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.errors import InputError
from portable_spdnn.kernel_model import Limits
from portable_spdnn.network import Network
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn.operations.convolutions.interface import CONVOLUTIONS
from portable_spdnn.operations.handles import DescribedCall, Prepared, SpgemmHandle
from portable_spdnn.operations.heads import PreparedAttention
from portable_spdnn.operations.operands import DenseOperand, SparseOperand
from portable_spdnn.plans.base import NetworkPlan
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.sparse_arrays import check_structure, marked_canonical
from portable_spdnn_cpu.jit import default_threads
from portable_spdnn_cpu.machine.cpu_info import processor_name

if TYPE_CHECKING:
    from portable_spdnn_cpu.spmm.handle import WeightsProduct


class NumbaBackend(Backend):
    """Threads on the CPU: networks depth-first in tiles, products by the kernel that suits them.

    Parameters
    ----------
    threads : int, optional
        Default: NUMBA_NUM_THREADS where set, else the cores that this process may use.
    """

    name = "numba"
    execution_space = "threads"
    priority = 80
    optional_operations = CONVOLUTIONS | {"sddmm", "sparse_softmax", "sparse_attention"}

    def __init__(self, threads: int | None = None) -> None:
        super().__init__(default_threads() if threads is None else threads)
        from portable_spdnn_cpu.machine.thread_pool import ThreadPool

        self.workers = ThreadPool(self.threads)

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
        return Availability.yes(_device(default_threads()), versions)

    @property
    def device(self) -> str:
        """The processor and the number of threads in use."""
        return _device(self.threads)

    def sparse_operand(
        self, name: str, array: object, dtype: npt.DTypeLike = np.float32
    ) -> SparseOperand:
        """Return a sparse operand in canonical form; see `Backend.sparse_operand`."""
        from portable_spdnn_cpu.layout.canonical import is_canonical
        from portable_spdnn_cpu.layout.csc_to_csr import csc_to_csr

        converted = csc_to_csr(array)
        matrix: Any = array if converted is None else converted
        if not is_canonical(matrix) or matrix.dtype.itemsize < np.dtype(dtype).itemsize:
            return super().sparse_operand(name, matrix, dtype)
        return marked_canonical(matrix)  # type: ignore[no-any-return]

    @cached_property
    def _direct(self) -> Any:
        # To look a module up in each call would take an eighth of a small product.
        from portable_spdnn_cpu.spmm.direct import product

        return product

    @cached_property
    def _single_pass(self) -> Any:
        from portable_spdnn_cpu.spgemm import single_pass

        return single_pass

    def spgemm_as_given(self, A: object, B: object) -> SparseOperand | None:
        """C = A B of canonical operands and few multiply-adds; None where two phases do it."""
        C: SparseOperand | None = self._single_pass.multiply_as_given(A, B)
        return C

    def spmm_as_given(
        self, A: object, B: object, epilogue: Epilogue | None, residual: object
    ) -> Array | None:
        """C = A B for A in CSR or CSC, checked as it is read; None where another way is faster."""
        C: Array | None = self._direct.multiply_as_given(self.workers, A, B, epilogue, residual)
        return C

    def layer_as_given(
        self, weights: object, features: object, epilogue: Epilogue, residual: object
    ) -> Array | None:
        """Y'^T = W^T Y^T. Checked as others are, weights in CSC would become CSR, and then W^T."""
        found: Array | None = self._direct.layer_as_given(
            self.workers, weights, features, epilogue, residual
        )
        if found is not None or not isinstance(weights, sp.csc_array | sp.csc_matrix):
            return found
        from portable_spdnn_cpu.spmm.once import layer_of_csc

        # The layer's own checks name what is wrong. SciPy turns arrays that are not checked into
        # others, or raises errors of its own.
        with suppress(InputError, ValueError):
            check_structure("layer: weights", weights)
            A = self.sparse_operand("layer: weights", weights.T, weights.dtype)
            return layer_of_csc(self.workers, A, epilogue, features, residual)
        return None

    def run_spmm(
        self, A: SparseOperand, B: DenseOperand, epilogue: Epilogue, residual: DenseOperand | None
    ) -> DenseOperand:
        """C = A B, finished; little is prepared."""
        from portable_spdnn_cpu.spmm.once import multiply_once

        return multiply_once(self.workers, A, epilogue, B, residual)

    def make_spmm(self, A: SparseOperand, columns: int | None, epilogue: Epilogue) -> Prepared:
        """Return the function (B, out, residual) -> C, with A packed for the fastest kernel."""
        product = self._weights_product(A, epilogue, columns)
        return DescribedCall(product.multiply, product.describe, product.multiply_as_given)

    def _weights_product(
        self,
        A: SparseOperand,
        epilogue: Epilogue,
        columns: int | None = None,
        keeps_order: bool = False,
    ) -> WeightsProduct:
        from portable_spdnn_cpu.spmm.handle import WeightsProduct

        return WeightsProduct(self.workers, A, epilogue, columns, keeps_order)

    def make_spgemm_handle(self, A: SparseOperand, B: SparseOperand) -> SpgemmHandle:
        """Return a handle for C = A B."""
        from portable_spdnn_cpu.spgemm.handle import RowSpgemmHandle

        return RowSpgemmHandle(self.workers, A, B)

    def run_layer(
        self,
        W: sp.csr_array,
        Y: Any,
        epilogue: Epilogue,
        residual: Any,
    ) -> Any:
        """Y' = Y W, finished, in one pass."""
        if self.is_sparse(Y):
            from portable_spdnn_cpu.spgemm.fused_layer import sparse_layer

            return sparse_layer(self.workers, W, Y, epilogue)
        from portable_spdnn_cpu.spmm.once import layer_once

        return layer_once(self.workers, W, epilogue, Y, residual)

    def make_layer(self, W: sp.csr_array, inputs: int | None, epilogue: Epilogue) -> Prepared:
        """Return the function (Y, out, residual) -> Y', with W packed for the fastest kernel."""
        from portable_spdnn_cpu.layout.csc_to_csr import transposed

        product = self._weights_product(transposed(W), epilogue, inputs, keeps_order=True)

        def run(Y: Array | sp.csr_array, out: Array | None, residual: Array | None) -> Any:
            if not isinstance(Y, np.ndarray):  # soon told: small layers take three microseconds
                return self.run_layer(W, Y, epilogue, None)
            out = None if out is None else out.T
            added = None if residual is None else residual.T
            return product.multiply(Y.T, out, added).T

        def describe() -> str:
            return f"The product of A = W^T and B = Y^T.\n{product.describe(layer=True)}"

        return DescribedCall(run, describe, product.multiply_as_given)

    def run_sddmm(
        self, masks: list[SparseOperand], Q: Array, K: Array, scale: float
    ) -> list[SparseOperand]:
        """S = scale Q K^T at the entries of the masks."""
        from portable_spdnn_cpu.sddmm.handle import sampled_products

        return sampled_products(self.workers, masks, Q, K, scale)

    def run_sparse_softmax(self, matrices: list[SparseOperand]) -> list[SparseOperand]:
        """P = softmax of each row over its stored entries."""
        from portable_spdnn_cpu.sddmm.handle import sparse_softmax

        return [sparse_softmax(self.workers, matrix) for matrix in matrices]

    def make_attention(self, masks: list[SparseOperand], d: int | None) -> PreparedAttention:
        """Return the function (Q, K, V, scale, out) -> O, with the masks packed."""
        from portable_spdnn_cpu.attention.handle import SparseAttention

        return SparseAttention(self.workers, masks, d)

    def run_conv(
        self,
        x: Any,
        weights: Array,
        geometry: ConvGeometry,
        epilogue: Epilogue,
        residual: Any,
    ) -> Any:
        """Convolve images, finished, in a way that a model chooses."""
        from portable_spdnn_cpu.conv.handle import convolve_once

        return convolve_once(self.workers, x, weights, geometry, epilogue, residual)

    def make_conv(
        self, weights: Array, geometry: ConvGeometry, epilogue: Epilogue, batch: int
    ) -> Prepared:
        """Return the function (x, out, residual) -> y, with weights packed."""
        from portable_spdnn_cpu.conv.handle import prepare

        return prepare(self.workers, weights, geometry, epilogue, batch)

    def build_plan(self, network: Network, options: PlanOptions) -> NetworkPlan | None:
        """Return a plan of products, or one that goes depth first; that under a memory limit.

        None where sparse features are asked for: the layer loop has them.
        """
        if options.path == "spgemm":
            return None
        from portable_spdnn_cpu.network.choice import suits_products
        from portable_spdnn_cpu.network.layer_products import LayerProductsPlan
        from portable_spdnn_cpu.network.plan import DepthFirstPlan

        # Tiles pack weights once; products, for each number of inputs and each way of sharing.
        limited = options.memory is not None
        if not limited and suits_products(network, options.expected_inputs):
            return LayerProductsPlan(self, self.workers, network, options)
        return DepthFirstPlan(self, self.workers, network, options)

    def measure_limits(self) -> Limits:
        """Measure the processor with all threads; takes some seconds."""
        from portable_spdnn_cpu.machine.peaks import measure

        return measure(self.workers)

    def measure_flops(self) -> float:
        """Measure multiply-adds with all threads; takes some 15 milliseconds."""
        from portable_spdnn_cpu.machine.peaks import fma_rate_now

        return fma_rate_now(self.workers)


def _device(threads: int) -> str:
    """Return the processor and a number of threads, for people."""
    return f"{processor_name()}, {threads} thread{'s' if threads > 1 else ''}"
