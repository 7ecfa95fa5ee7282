"""C = A B with A as it is, for an A that stays: what a call of compiled code needs is prepared."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.jobs import address_of, in_order
from portable_spdnn_cpu.layout.large_results import PREFETCH_BYTES
from portable_spdnn_cpu.machine.thread_pool import ALONE, ThreadPool
from portable_spdnn_cpu.spmm.dense_layout import copied_if_reused
from portable_spdnn_cpu.spmm.direct.entry_points import compiled
from portable_spdnn_cpu.spmm.direct.product import epilogue_arguments
from portable_spdnn_cpu.spmm.direct.start import BY_ROWS, TAKEN
from portable_spdnn_cpu.spmm.stream.product import WAKING_WORK, is_shared


def shares_rows(entries: int, shape: tuple[int, ...], columns: int, itemsize: int) -> bool:
    """Whether threads share rows of A in CSR, of some shape, where B and C are in C order."""
    return columns > 1 and is_shared(entries, shape, columns, itemsize, WAKING_WORK)


class DirectProduct:
    """C = A B with A as it is, finished by an epilogue.

    Threads share rows of A in CSR where that pays and B and C are in C order.

    Parameters
    ----------
    A : csr_array or csc_array, shape (m, k), canonical, of float32 or float64
    epilogue : Epilogue
        Its bias is None, or an array with an entry for each row.
    """

    def __init__(self, A: sp.csr_array | sp.csc_array, epilogue: Epilogue) -> None:
        index = np.result_type(A.indptr, A.indices)
        parts = A.indptr.astype(index, copy=False), A.indices.astype(index, copy=False), A.data
        self._parts, self._entries, self._shape = tuple(map(in_order, parts)), A.nnz, A.shape
        self._entry_points: Any = compiled(A.dtype, index, 2)
        self._taken = TAKEN[A.format]
        self._finish = epilogue_arguments(epilogue, A.dtype)
        self._is_bare = epilogue.bias is None and epilogue.interval == (-np.inf, np.inf)

    def multiply(
        self, B: Array, out: Array, residual: Array | None, pool: ThreadPool, written: int = 0
    ) -> bool:
        """Compute `out`, or return False where B is in neither order.

        Takes what `StreamProduct.multiply` takes.
        """
        entry_points, columns, item = self._entry_points, B.shape[1], B.itemsize
        if B.strides[1] == item:
            B = copied_if_reused(B, self._entries)
        in_rows = columns > 1 and B.strides[1] == out.strides[1] == item
        threads = self.threads_used(pool.threads, columns) if in_rows else 1
        table = entry_points.table(self._taken, columns, columns > 1 and not in_rows)
        # `run_shared` alone can say that more is written than C.
        is_one_of_many = written > PREFETCH_BYTES and written > out.nbytes
        alone = threads == 1 and not (is_one_of_many and in_rows and self._taken == BY_ROWS)
        operands = *self._parts, B, out
        if alone and self._is_bare and residual is None:
            return bool(entry_points.run_alone(table, *operands, self._taken, False))
        held = 0
        if residual is not None:
            out[...] = residual
            held = address_of(out)
        if not alone:
            workers = pool if threads > 1 else ALONE
            done = entry_points.run_shared(
                workers, self._parts, B, out, held, self._finish, written
            )
            return bool(done)
        done = entry_points.run_alone_with_epilogue(
            table, *operands, self._taken, held, *self._finish
        )
        return bool(done)

    def describe(self) -> str:
        """Return what runs, for people."""
        return "A is read as it is" if self._taken == BY_ROWS else "A is read by columns, in CSC"

    def threads_used(self, threads: int, columns: int) -> int:
        """Return how many of so many threads share a product with so many columns."""
        item = self._parts[2].itemsize
        shared = self._taken == BY_ROWS and shares_rows(self._entries, self._shape, columns, item)
        return threads if shared else 1

    @property
    def nbytes(self) -> int:
        """Bytes of memory that A takes."""
        return sum(array.nbytes for array in self._parts)
