"""C = A B of little work, for an A that stays: what a call of compiled code needs is prepared."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.jobs import in_order
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.dense_layout import with_aligned_rows
from portable_spdnn_cpu.spmm.direct.choice import is_reused
from portable_spdnn_cpu.spmm.direct.product import epilogue_arguments
from portable_spdnn_cpu.spmm.direct.start import BY_ROWS, TAKEN, compiled


class DirectProduct:
    """C = A B with A as it is, finished by an epilogue, on the calling thread.

    Parameters
    ----------
    A : csr_array or csc_array, shape (m, k), canonical, of float32 or float64
    epilogue : Epilogue
        Its bias is None, or an array with an entry for each row.
    """

    def __init__(self, A: sp.csr_array | sp.csc_array, epilogue: Epilogue) -> None:
        index = np.result_type(A.indptr, A.indices)
        parts = A.indptr.astype(index, copy=False), A.indices.astype(index, copy=False), A.data
        self._parts, self._entries = tuple(map(in_order, parts)), A.nnz
        self._entry_points: Any = compiled(A.dtype, index, 2)
        self._taken = TAKEN[A.format]
        self._finish = epilogue_arguments(epilogue, A.dtype)
        self._is_bare = epilogue.bias is None and epilogue.interval == (-np.inf, np.inf)

    def multiply(self, B: Array, out: Array, residual: Array | None, pool: ThreadPool) -> bool:
        """Compute `out`, or return False where B is in neither order.

        Takes what `StreamProduct.multiply` takes.
        """
        entry_points, (k, columns), item = self._entry_points, B.shape, B.itemsize
        if B.strides[1] == item and is_reused(self._entries, k, columns, item):
            B = with_aligned_rows(B)
        accumulates = residual is not None
        address = entry_points.jobs[self._taken][columns == 1].address
        if self._is_bare and not accumulates:
            return bool(entry_points.run_alone(address, *self._parts, B, out, self._taken, False))
        if accumulates:
            out[...] = residual
        done = entry_points.run_alone_with_epilogue(
            address, *self._parts, B, out, self._taken, accumulates, *self._finish
        )
        return bool(done)

    def describe(self) -> str:
        """Return what runs, for people."""
        return "A is read as it is" if self._taken == BY_ROWS else "A is read by columns, in CSC"

    def threads_used(self, threads: int, columns: int) -> int:
        """Return 1: the calling thread computes."""
        return 1

    @property
    def nbytes(self) -> int:
        """Bytes of memory that A takes."""
        return sum(array.nbytes for array in self._parts)
