"""The prepared product of few columns: which form, on which threads, with what memory."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import numpy as np
from numpy import empty  # a name less to look up in each call

from portable_spdnn.epilogue import Epilogue, cast_bounds
from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.activations import Activation, activation_of
from portable_spdnn_cpu.jit.array_objects import expected_words
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.jobs import address_of
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.machine.cpu_info import CACHE_LINE, aligned_empty
from portable_spdnn_cpu.machine.thread_pool import WAKING, ThreadPool
from portable_spdnn_cpu.spmm.few_columns import kernel
from portable_spdnn_cpu.spmm.few_columns.choice import Form
from portable_spdnn_cpu.spmm.few_columns.costs import COSTS, FAR_READ, FAR_WRITE, far_factor
from portable_spdnn_cpu.spmm.few_columns.lanes import LanesLayout, pack_lanes
from portable_spdnn_cpu.spmm.few_columns.packing import PackedProduct
from portable_spdnn_cpu.spmm.few_columns.rows import MOST_BLOCK_BYTES, least_blocks, pack_rows
from portable_spdnn_cpu.spmm.few_columns.sliced import SlicedLayout, pack_slices
from portable_spdnn_cpu.spmm.few_columns.specs import LanesSpec, RowsSpec
from portable_spdnn_cpu.spmm.transposes import storing_code

MAX_ROW_BYTES = 128  # of a row of B
# Up to so many columns weights are not streamed, as was measured: models of both are not compared.
SURE_COLUMNS = 16
SMALL_TABLE = 1 << 16  # items of a table of rows times blocks that is made in any case
# Up to so many columns, row by row and in lanes, items of C in Fortran order are stored where they
# go. More are transposed in registers: 64 x 1,024 weights times 32 columns took 148 microseconds
# without, 8 with.
ROWS_APART, LANES_APART = 2, 4
SHARING = 5e-6  # seconds that it takes to share a product among threads


def fits(A: SparseOperand, columns: int) -> bool:
    """Whether a product is one of few columns.

    Rows are packed by blocks of columns of A, with a table of rows times blocks: of a huge and very
    sparse A that would be larger than A.
    """
    if not 0 < columns * A.dtype.itemsize <= MAX_ROW_BYTES:
        return False
    spec = RowsSpec(columns, A.dtype.itemsize, VECTOR_BYTES)
    blocks = least_blocks(A.shape[1], spec, MOST_BLOCK_BYTES)
    return A.shape[0] * blocks <= max(2 * A.nnz, SMALL_TABLE)


def sharing_threads(seconds: float, threads: int) -> int:
    """Return how many threads compute what takes so long on one: one where sharing takes longer."""
    return threads if seconds * (1 - 1 / threads) >= SHARING else 1


def predicted_seconds(alone: float, A: SparseOperand, columns: int, threads: int) -> float:
    """Return what the model says of a product, on so many threads.

    `alone`: seconds on one thread, without the call and the copy of B, as a `Form` has them.
    """
    used = sharing_threads(alone, threads)
    shared = alone / used + (SHARING if used > 1 else 0)
    return COSTS.call + copying_seconds(A, columns) + shared


def copying_seconds(A: SparseOperand, columns: int) -> float:
    """Return what the model says of the copy of B, which each thread makes for itself."""
    size = A.shape[1] * columns * A.dtype.itemsize
    far = (FAR_READ + FAR_WRITE) * far_factor(size)
    return COSTS.copied_row * A.shape[1] + size * (COSTS.copied_byte + far)


class FewColumnsProduct:
    """C = epilogue(A B) for B of a few columns; see `fits`.

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
    packed_rows : mutable mapping, optional
        What A was packed into row by row, by how many columns a row of B has once copied, and
        parts. Products of other numbers of columns take that too.

    Attributes
    ----------
    seconds : float
        Of a product on one thread, by a model, without the call and the copy of B.
    dtype : numpy dtype
        Of all operands.
    """

    def __init__(
        self,
        A: SparseOperand,
        columns: int,
        epilogue: Epilogue,
        threads: int,
        form: Form,
        packed_rows: MutableMapping[tuple[int, int], PackedProduct] | None = None,
    ) -> None:
        dtype = A.dtype
        self._shape = A.shape[0], columns  # of C
        bias = np.zeros(A.shape[0], dtype) if epilogue.bias is None else epilogue.bias
        # Bounds express none and ReLU; the others follow the kernel, on what it has stored.
        interval = epilogue.interval
        self._later = Activation() if interval else activation_of(epilogue, dtype)
        bounds = cast_bounds(interval or (-np.inf, np.inf), dtype)
        chosen, self.seconds = form
        parts = self.threads_used(threads)
        self._packed: PackedProduct
        if isinstance(chosen, LanesLayout):
            self._packed = pack_lanes(A, chosen, (bias, bounds), parts)
        elif isinstance(chosen, SlicedLayout):
            self._packed = pack_slices(A, chosen, (bias, bounds), parts)
        else:
            shared = {} if packed_rows is None else packed_rows
            key = chosen.width, parts
            self._packed = shared.get(key) or pack_rows(A, chosen, (bias, bounds), parts)
            shared[key] = self._packed
        self._padding = self._packed.slots / max(A.nnz, 1)
        self._job = kernel.job_of(chosen if isinstance(chosen, RowsSpec) else chosen.spec)
        self._entry_points = kernel.entry_points(dtype)
        self.dtype, self._none = np.dtype(dtype.type), np.empty((0, 0), dtype)
        self._unused: list[Scratch] = []

    def multiply(
        self, B: Array, out: Array, residual: Array | None, pool: ThreadPool, written: int = 0
    ) -> None:
        """Compute out = epilogue(A B).

        Parameters
        ----------
        B : ndarray, shape (K, columns), of A's type, in any order
        out : ndarray, shape (M, columns), in C or Fortran order
        residual : ndarray, shape (M, columns), in any order, or None
            Added before the activation.
        pool : ThreadPool
            Used where the work is worth sharing.
        written : int
            Not used: see `spmm.handle.Kernel`.
        """
        threads = self.threads_used(pool.threads)
        scratch = self.take_scratch(threads)
        added = self._none if residual is None else residual
        self._entry_points.multiply(scratch.address, threads == 1, B, out, added)
        if threads > 1:
            pool.run_job(self._job, scratch.words, threads if self.seconds < WAKING else -1)
            self._entry_points.finish(scratch.address)
        self._unused.append(scratch)

    def take_scratch(self, threads: int = 1) -> Scratch:
        """Return what a call needs besides A, which in turn needs this object.

        Concurrent calls each have their own. Whoever takes one may keep it.
        """
        try:
            scratch = self._unused.pop()
            if scratch.threads == threads:
                return scratch
        except IndexError:
            pass
        given = self._job.address, self._shape, self._later
        return Scratch(self._packed, self.dtype, threads, *given)

    def describe(self) -> str:
        """Return in words how products are computed."""
        spec = self._packed.spec
        if not isinstance(spec, RowsSpec):
            how = "rows of B are loaded one by one (sliced ELLPACK)"
            if isinstance(spec, LanesSpec):
                how = f"entries of B are permuted from windows of {spec.window} items"
            form = f"A is packed in slices of {spec.lanes} rows of like length, for which {how}"
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


class PlainProduct:
    """A product for plain operands of one shape, which compiled code looks at: see `plain_arrays`.

    Parameters
    ----------
    product : FewColumnsProduct
        Which one thread runs.
    of_b, of_out : tuple of int
        Shapes of B and C as they are given, with items.
    transposed : bool
        Whether transposes of B and C are given.
    layout : int
        The `Layout` of B that the product was chosen for.
    """

    __slots__ = "_dtype", "_expected", "_product", "_shape", "_start", "_unused"

    def __init__(
        self,
        product: FewColumnsProduct,
        of_b: tuple[int, ...],
        of_out: tuple[int, ...],
        transposed: bool,
        layout: int,
    ) -> None:
        self._product, self._shape, self._dtype = product, of_out, product.dtype
        self._expected = of_b, of_out, transposed, layout
        self._start = kernel.entry_points(product.dtype).multiply_plain
        self._unused: list[Scratch] = []

    def multiply(self, B: object, out: Any, residual: object) -> Array | None:
        """Return C, which is `out` unless that is None; None if they are not as is expected."""
        try:
            scratch = self._unused.pop()  # concurrent calls each have their own
        except IndexError:
            scratch = self._product.take_scratch()
            scratch.expect(*self._expected)
        C: Array = empty(self._shape, self._dtype) if out is None else out
        done = self._start(scratch.address, B, C, residual)
        self._unused.append(scratch)
        return C if done else None


class Scratch:
    """Scratch memory of some threads, and the words of a job that uses it: see `kernel`.

    Each thread copies B for itself: to read what another has just written would take longer.

    Parameters
    ----------
    packed : PackedProduct
    dtype : numpy dtype
        Of B and C.
    threads : int
    job : int
        The address of the kernel's machine code.
    shape : tuple of int
        Of C.
    later : Activation
        What follows the kernel.

    Attributes
    ----------
    threads : int
    words : ndarray of int64
    address : int
        Of the words.
    """

    def __init__(
        self,
        packed: PackedProduct,
        dtype: np.dtype[Any],
        threads: int,
        job: int,
        shape: tuple[int, int],
        later: Activation,
    ) -> None:
        self.threads, self._dtype = threads, dtype
        each = -(-packed.scratch_bytes // CACHE_LINE) * CACHE_LINE
        self._memory = aligned_empty((threads * each,), np.uint8)
        self._memory[:] = 0
        table, first = address_of(packed.table), address_of(self._memory)
        parts = []
        for worker in range(threads):
            begin, end = (packed.parts * number // threads for number in (worker, worker + 1))
            parts.append((table, first + worker * each, begin, end, begin < end))
        parts.append((table, first, 0, packed.parts, True))
        self._parts = np.array(parts, np.int64)
        self.words = np.zeros(kernel.FIRST_PART + len(parts), np.int64)
        self.words[kernel.MACHINE_CODE], self.words[kernel.WHOLE_PART] = job, threads
        sizes = (*shape, dtype.itemsize)
        self.words[[kernel.ROWS, kernel.COLUMNS, kernel.ITEMSIZE]] = sizes
        if shape[1] > (ROWS_APART if isinstance(packed.spec, RowsSpec) else LANES_APART):
            self._beside = aligned_empty(shape, dtype)  # its pages are touched where it is used
            self.words[kernel.BESIDE_AT] = address_of(self._beside)
            self.words[kernel.STORE_COLUMNS] = storing_code(dtype)
        self.words[kernel.ACTIVATION] = later.code
        bounds = self.words.view(np.float64)
        bounds[kernel.LOWER], bounds[kernel.UPPER] = later.lower, later.upper
        self.words[kernel.FIRST_PART :] = [address_of(part) for part in self._parts]
        self.address = address_of(self.words)

    def expect(
        self, of_b: tuple[int, ...], of_out: tuple[int, ...], transposed: bool, layout: int
    ) -> None:
        """Let `kernel.multiply_plain` expect plain arrays of these shapes, which have items.

        Parameters
        ----------
        of_b, of_out : tuple of int
        transposed : bool
            Whether they are the transposes of B and C.
        layout : int
            The `Layout` of B.
        """
        how = transposed, layout, id(None)
        shapes = [expected_words(shape, self._dtype) for shape in (of_b, of_out)]
        self.words[kernel.TRANSPOSED : kernel.FIRST_PART] = [*how, *shapes[0], *shapes[1]]
