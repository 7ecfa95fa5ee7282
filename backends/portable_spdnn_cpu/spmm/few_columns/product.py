"""The prepared product of few columns: which form, on which threads, with what memory."""

from __future__ import annotations

from itertools import pairwise

import numba
import numpy as np

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.activations import activate_span, activation_of
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.machine.cpu_info import aligned_empty
from portable_spdnn_cpu.machine.thread_pool import WAKING, ThreadPool
from portable_spdnn_cpu.spmm.few_columns.choice import choose
from portable_spdnn_cpu.spmm.few_columns.kernel import compiled
from portable_spdnn_cpu.spmm.few_columns.lanes import LanesLayout, pack_lanes
from portable_spdnn_cpu.spmm.few_columns.packing import PackedProduct
from portable_spdnn_cpu.spmm.few_columns.rows import pack_rows
from portable_spdnn_cpu.spmm.few_columns.specs import LanesSpec

MAX_COLUMNS = 15
LEAST_BLOCK = 768  # columns of A in a block, of the widest rows of B and a small cache
SMALL_TABLE = 1 << 16
PART = 2e-5  # seconds that a part of the rows takes at least, on one thread
MAX_PARTS = 64


def fits(A: SparseOperand, columns: int) -> bool:
    """Whether a product is one of few columns.

    Rows are packed by blocks of columns of A, with a table of rows times blocks: of a huge and very
    sparse A that would be larger than A.
    """
    if not 1 <= columns <= MAX_COLUMNS:
        return False
    blocks = -(-A.shape[1] // LEAST_BLOCK)
    return A.shape[0] * blocks <= max(2 * A.nnz, SMALL_TABLE)


class FewColumnsProduct:
    """C = epilogue(A B) for B of a few columns, 1 to MAX_COLUMNS.

    Parameters
    ----------
    A : csr_array, canonical, float32 or float64
    columns : int
        Of B.
    epilogue : Epilogue
        Its bias is None, or an array of A's type, one for each row.

    Attributes
    ----------
    seconds : float
        Of a product on one thread, by a model.
    """

    def __init__(self, A: SparseOperand, columns: int, epilogue: Epilogue) -> None:
        dtype = A.dtype
        bias = np.zeros(A.shape[0], dtype) if epilogue.bias is None else epilogue.bias
        # Bounds express none and ReLU; the others follow the kernel, on what it has stored.
        interval = epilogue.interval
        self._later = None if interval else activation_of(epilogue)
        bounds = np.array(interval or (-np.inf, np.inf), dtype)
        chosen, self.seconds = choose(A, columns, VECTOR_BYTES)
        parts = int(min(max(self.seconds / PART, 1), MAX_PARTS))
        self._packed: PackedProduct
        if isinstance(chosen, LanesLayout):
            self._packed = pack_lanes(A, chosen, (bias, bounds), parts)
        else:
            self._packed = pack_rows(A, chosen, (bias, bounds), parts)
        self._padding = self._packed.slots / max(A.nnz, 1)
        self._kernel = compiled(self._packed.spec, numba.from_dtype(dtype))
        if self._later is not None:
            activate_span(np.empty(0, dtype), 0, 0, *self._later)  # compiles it
        self._none = np.empty((0, 0), dtype)
        self._spare: list[tuple[int, Array, Array]] = []

    def multiply(self, B: Array, out: Array, residual: Array | None, pool: ThreadPool) -> None:
        """Compute out = epilogue(A B).

        Parameters
        ----------
        B : ndarray, shape (K, columns), of A's type, in any order
        out : ndarray, shape (M, columns), in C or Fortran order
        residual : ndarray, shape (M, columns), in any order, or None
            Added before the activation.
        pool : ThreadPool
            Used where the work is worth waking threads.
        """
        try:
            spare = self._spare.pop()  # concurrent calls each have their own
        except IndexError:
            spare = self._new_spare()
        added = self._none if residual is None else residual
        threads = pool.threads
        if self.threads_used(threads) == 1:
            self._kernel(spare[0], B, out, added)
        else:
            self._run(pool, spare[2], B, out, added)
        self._spare.append(spare)
        if self._later is not None:
            activate_span(out.ravel(order="K"), 0, out.size, *self._later)

    def describe(self) -> str:
        """Return in words how products are computed."""
        spec = self._packed.spec
        if isinstance(spec, LanesSpec):
            looked_up = "gathered" if spec.gathered else "permuted"
            looked_up = looked_up if spec.gathered or spec.registers_of_window else "loaded"
            form = (
                f"A is packed in slices of {spec.lanes} rows of like length, for which entries of "
                f"B are {looked_up} from windows of {spec.window}"
            )
        else:
            form = f"A is packed row by row, for rows of B of {spec.width} columns"
        return f"few columns, B is copied; {form}, with {self._padding:.2f} slots for each entry"

    def threads_used(self, threads: int) -> int:
        """Return how many of a pool's threads compute: one where starting others takes longer."""
        return threads if self.seconds * (1 - 1 / threads) >= WAKING else 1

    def _run(self, pool: ThreadPool, scratch: Array, B: Array, out: Array, added: Array) -> None:
        """Compute on all threads of a pool, once B is copied."""
        threads, parts = pool.threads, self._packed.parts
        firsts = [parts * worker // threads for worker in range(threads + 1)]
        copying, *jobs = (
            self._job(scratch, *part)
            for part in ((0, 0, 1), *((*ends, 0) for ends in pairwise(firsts)))
        )
        self._kernel(copying.ctypes.data, B, out, added)
        pool.run(lambda worker: self._kernel(jobs[worker].ctypes.data, B, out, added))

    def _new_spare(self) -> tuple[int, Array, Array]:
        """Return the address of a job that does all, the job, and its scratch memory."""
        scratch = aligned_empty((self._packed.scratch_bytes,), np.uint8)
        scratch[:] = 0
        job = self._job(scratch, 0, self._packed.parts, 1)
        return int(job.ctypes.data), job, scratch

    def _job(self, scratch: Array, first: int, end: int, copy: int) -> Array:
        """Return what `operands.JOB` lists."""
        addresses = self._packed.table.ctypes.data, scratch.ctypes.data
        return np.array([*addresses, first, end, copy], np.int64)
