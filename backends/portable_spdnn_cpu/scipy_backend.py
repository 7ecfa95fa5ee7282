"""The serial reference: scipy.sparse, one readable line per step of the mathematics."""

from __future__ import annotations

import numpy as np
import scipy
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.backend import Availability, Backend
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.handles import SpgemmHandle
from portable_spdnn.operations.operands import DenseOperand, with_values
from portable_spdnn_cpu.machine.cpu_info import processor_name


class ScipyBackend(Backend):
    """Everything in scipy.sparse on one thread.

    Written to be compared with the paper, not to be fast. Whole networks run in the neutral
    layer loop; with the plan option `keep_dead_inputs` it is the Graph Challenge's serial
    reference, which carries every input through every layer.
    """

    name = "scipy"
    execution_space = "serial"
    priority = 0

    @classmethod
    def availability(cls) -> Availability:
        """Available wherever the package is: SciPy is a dependency."""
        versions = {"scipy": scipy.__version__, "numpy": np.__version__}
        return Availability.yes(f"{processor_name()}, 1 thread", versions)

    def run_spmm(
        self, A: sp.csr_array, B: DenseOperand, epilogue: Epilogue, residual: DenseOperand | None
    ) -> Array:
        """C = A B, finished."""
        return np.asarray(epilogue.apply(A @ B, residual, per_row=True))

    def make_spgemm_handle(self, A: sp.csr_array, B: sp.csr_array) -> SpgemmHandle:
        """Return a handle for C = A B."""
        return ScipySpgemmHandle(A, B)

    def run_layer(
        self,
        W: sp.csr_array,
        Y: DenseOperand | sp.csr_array,
        epilogue: Epilogue,
        residual: DenseOperand | None,
    ) -> Array | sp.csr_array:
        """Y' = Y W, finished; of a sparse product the stored entries, since zeros stay zeros."""
        return epilogue.apply(Y @ W, residual)


class ScipySpgemmHandle(SpgemmHandle):
    """C = A B by `A @ B`; the symbolic phase multiplies the patterns."""

    def __init__(self, A: sp.csr_array, B: sp.csr_array) -> None:
        self.A, self.B = A, B
        self._indptr: Array | None = None

    def symbolic(self) -> Array:
        """Return the row offsets of C; see `SpgemmHandle.symbolic`."""
        if self._indptr is None:
            ones = [
                sp.csr_array((np.ones(M.nnz, np.float64), M.indices, M.indptr), shape=M.shape)
                for M in (self.A, self.B)
            ]
            self._indptr = (ones[0] @ ones[1]).indptr.astype(np.int64)
        return self._indptr

    def numeric(self, A_data: Array | None = None, B_data: Array | None = None) -> sp.csr_array:
        """Return C; see `SpgemmHandle.numeric`."""
        C = with_values("A", self.A, A_data) @ with_values("B", self.B, B_data)
        C.sort_indices()
        return C
