"""The prepared product of few columns: which form, on which threads, with what memory."""

from __future__ import annotations

import numba
import numpy as np

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.activations import activate_span, activation_of
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.jobs import address_of
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.machine.cpu_info import CACHE_LINE, aligned_empty
from portable_spdnn_cpu.machine.thread_pool import WAKING, ThreadPool
from portable_spdnn_cpu.spmm.few_columns import kernel
from portable_spdnn_cpu.spmm.few_columns.choice import Form
from portable_spdnn_cpu.spmm.few_columns.lanes import LanesLayout, pack_lanes
from portable_spdnn_cpu.spmm.few_columns.packing import PackedProduct
from portable_spdnn_cpu.spmm.few_columns.rows import L2, least_blocks, pack_rows
from portable_spdnn_cpu.spmm.few_columns.specs import LanesSpec, RowsSpec

MAX_COLUMNS = 15
SMALL_TABLE = 1 << 16  # items of a table of rows times blocks that is made in any case
SHARING = 5e-6  # seconds that it takes to share a product among threads
# Seconds besides, on each thread: of a call, and for a byte of B, which is copied.
CALL, COPIED_BYTE = (7e-7, 1.5e-11) if VECTOR_BYTES == 64 else (1.2e-6, 3.5e-11)


def fits(A: SparseOperand, columns: int) -> bool:
    """Whether a product is one of few columns.

    Rows are packed by blocks of columns of A, with a table of rows times blocks: of a huge and very
    sparse A that would be larger than A.
    """
    if not 1 <= columns <= MAX_COLUMNS:
        return False
    spec = RowsSpec(columns, A.dtype.itemsize, VECTOR_BYTES)
    blocks = least_blocks(A.shape[1], spec, L2)
    return A.shape[0] * blocks <= max(2 * A.nnz, SMALL_TABLE)


def sharing_threads(seconds: float, threads: int) -> int:
    """Return how many threads compute what takes so long on one: one where sharing takes longer."""
    return threads if seconds * (1 - 1 / threads) >= SHARING else 1


def predicted_seconds(form: Form, A: SparseOperand, columns: int, threads: int) -> float:
    """Return what the model says of a product in a form, on so many threads."""
    used = sharing_threads(form.seconds, threads)
    copied = COPIED_BYTE * A.shape[1] * columns * A.dtype.itemsize
    return CALL + copied + form.seconds / used + (SHARING if used > 1 else 0)


class FewColumnsProduct:
    """C = epilogue(A B) for B of a few columns, 1 to MAX_COLUMNS.

    Parameters
    ----------
    A : csr_array, canonical, float32 or float64
    columns : int
        Of B.
    epilogue : Epilogue
        Its bias is None, or an array of A's type, one for each row.
    threads : int
        That will share products, where they are worth it: rows are packed in a part for each.
    form : Form
        How A is packed.

    Attributes
    ----------
    seconds : float
        Of a product on one thread, by a model, without the call and the copy of B.
    """

    def __init__(
        self,
        A: SparseOperand,
        columns: int,
        epilogue: Epilogue,
        threads: int,
        form: Form,
    ) -> None:
        dtype = A.dtype
        bias = np.zeros(A.shape[0], dtype) if epilogue.bias is None else epilogue.bias
        # Bounds express none and ReLU; the others follow the kernel, on what it has stored.
        interval = epilogue.interval
        self._later = None if interval else activation_of(epilogue)
        bounds = np.array(interval or (-np.inf, np.inf), dtype)
        chosen, self.seconds = form
        parts = self.threads_used(threads)
        self._packed: PackedProduct
        if isinstance(chosen, LanesLayout):
            self._packed = pack_lanes(A, chosen, (bias, bounds), parts)
        else:
            self._packed = pack_rows(A, chosen, (bias, bounds), parts)
        self._padding = self._packed.slots / max(A.nnz, 1)
        self._kernel = kernel.compiled(self._packed.spec, numba.from_dtype(dtype))
        if self._later is not None:
            activate_span(np.empty(0, dtype), 0, 0, *self._later)  # compiles it
        self._none = np.empty((0, 0), dtype)
        nothing = np.array([address_of(self._packed.table), 0, 0, 0, False], np.int64)  # no parts
        none = self._none
        self._function = self._kernel(address_of(nothing), none, none.copy(), none)
        self._unused: list[_Scratch] = []

    def multiply(self, B: Array, out: Array, residual: Array | None, pool: ThreadPool) -> None:
        """Compute out = epilogue(A B).

        Parameters
        ----------
        B : ndarray, shape (K, columns), of A's type, in any order
        out : ndarray, shape (M, columns), in C or Fortran order
        residual : ndarray, shape (M, columns), in any order, or None
            Added before the activation.
        pool : ThreadPool
            Used where the work is worth sharing.
        """
        threads = self.threads_used(pool.threads)
        try:
            scratch: _Scratch | None = self._unused.pop()  # concurrent calls each have their own
        except IndexError:
            scratch = None
        if scratch is None or scratch.threads != threads:
            scratch = _Scratch(self._packed, threads)
        if threads == 1:
            added = self._none if residual is None else residual
            self._kernel(scratch.jobs[0], B, out, added)
        else:
            words = self._words(scratch.jobs, B, out, residual)
            pool.run_job(kernel.multiply_part, words, threads if self.seconds < WAKING else -1)
        self._unused.append(scratch)
        if self._later is not None:
            activate_span(out.ravel(order="K"), 0, out.size, *self._later)

    def describe(self) -> str:
        """Return in words how products are computed."""
        spec = self._packed.spec
        if isinstance(spec, LanesSpec):
            looked_up = "permuted" if spec.registers_of_window else "loaded"
            form = (
                f"A is packed in slices of {spec.lanes} rows of like length, for which entries of "
                f"B are {looked_up} from windows of {spec.window}"
            )
        else:
            form = f"A is packed row by row, for rows of B of {spec.width} columns"
        return f"few columns, B is copied; {form}, with {self._padding:.2f} slots for each entry"

    def threads_used(self, threads: int, columns: int = 0) -> int:
        """Return how many of a pool's threads compute: one where sharing takes longer."""
        return sharing_threads(self.seconds, threads)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that A takes."""
        return sum(array.nbytes for array in self._packed.arrays.values())

    def _words(self, jobs: list[int], B: Array, out: Array, residual: Array | None) -> Array:
        """Return the words of a job of several threads."""
        arrays: list[int] = []
        for array in (B, out, residual):
            arrays += (0, 0, 0) if array is None else (address_of(array), *array.strides)
        return np.array([self._function, *arrays, *jobs], np.int64)


class _Scratch:
    """Scratch memory of some threads, and the jobs that use it: see `operands.JOB`.

    Each thread copies B for itself: to read what another has just written would take longer.

    Attributes
    ----------
    threads : int
    jobs : list of int
        Addresses of a job for each thread, and at last of one that is all of the product.
    """

    def __init__(self, packed: PackedProduct, threads: int) -> None:
        self.threads = threads
        each = -(-packed.scratch_bytes // CACHE_LINE) * CACHE_LINE
        self._memory = aligned_empty((threads * each,), np.uint8)
        self._memory[:] = 0
        table, first = address_of(packed.table), address_of(self._memory)
        jobs = []
        for worker in range(threads):
            begin, end = (packed.parts * number // threads for number in (worker, worker + 1))
            jobs.append((table, first + worker * each, begin, end, begin < end))
        jobs.append((table, first, 0, packed.parts, True))
        self._jobs = np.array(jobs, np.int64)
        self.jobs = [address_of(job) for job in self._jobs]
