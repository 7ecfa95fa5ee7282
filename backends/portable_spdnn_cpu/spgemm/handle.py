"""spgemm in two phases, on a handle."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from portable_spdnn.operations.handles import SpgemmHandle
from portable_spdnn.operations.operands import SparseOperand, with_values
from portable_spdnn_cpu.jit.compilation import Array, read_only
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spgemm import row_bins
from portable_spdnn_cpu.spgemm.accumulators import make_workspace
from portable_spdnn_cpu.spgemm.epilogue import RowSink, no_epilogue
from portable_spdnn_cpu.spgemm.gustavson import add_rows, count_products, count_rows, refill_rows
from portable_spdnn_cpu.spgemm.operands import (
    Product,
    as_csr,
    as_operand,
    result_index_type,
    with_bitmaps,
    with_uniform,
)
from portable_spdnn_cpu.spgemm.row_bins import DENSE, SORTED, RowBin


class RowSpgemmHandle(SpgemmHandle):
    """C = A B row by row on all threads; see `gustavson`, and `accumulators` for adding up a row.

    Offsets are 64-bit throughout, so C may have more than 2^31 entries. Whichever accumulator a
    row takes, an entry of C is 0 plus its products in the order of A's columns.
    """

    def __init__(self, pool: ThreadPool, A: SparseOperand, B: SparseOperand) -> None:
        self.A, self.B = A, B
        left, right = as_operand(A), with_bitmaps(as_operand(B))
        self._operands = left, right
        self._products = count_products(pool, left, right)
        self._workers = row_bins.worth_sharing(pool, int(self._products.sum()))
        self._indptr: Array | None = None
        self._starts: Array  # of rows of C, and their entries: once indptr is known
        self._entries: Array
        self._bins: dict[int, RowBin] | None = None  # of the numeric phase
        self._indices: Array | None = None  # kept from the second product on, if of use
        self._repeats = False

    @property
    def _has_bitmaps(self) -> bool:
        return bool(self._operands[1].bitmaps.size)

    def symbolic(self) -> Array:
        """Return the row offsets of C; see `SpgemmHandle.symbolic`."""
        if self._indptr is None:
            products, (A, B) = self._products, self._operands
            product = Product(A, B, np.minimum(products, B.columns))
            accumulators = row_bins.symbolic_accumulators(products, B.columns)
            if self._has_bitmaps:
                accumulators[:] = DENSE
            bins = self._bin_rows(accumulators, product.bounds)
            if self._has_bitmaps:
                self._bins = bins  # the numeric phase has the same
            counters = _new_counters(bins)
            offsets = np.zeros(products.size + 1, np.int64)

            def work(thread: int) -> None:
                for accumulator, row_bin in bins.items():
                    memory = make_workspace(accumulator, row_bin, B, symbolic=True)
                    counter = counters[accumulator]
                    count_rows(accumulator, counter, row_bin, product, memory, offsets[1:])

            self._workers.run(work)
            indptr = np.cumsum(offsets)
            self._indptr, self._starts, self._entries = read_only(indptr), indptr[:-1], offsets[1:]
        return self._indptr

    def numeric(self, A_data: Array | None = None, B_data: Array | None = None) -> sp.csr_array:
        """Return C; see `SpgemmHandle.numeric`."""
        A, B = self._operands
        if A_data is not None:
            A = A._replace(data=read_only(with_values("A", self.A, A_data).data))
        if B_data is not None:
            B = B._replace(data=read_only(with_values("B", self.B, B_data).data))
        indptr = self.symbolic()
        product = Product(A, with_uniform(B), self._entries)
        nnz = int(indptr[-1])
        data = np.empty(nnz, A.data.dtype)
        bins = self._numeric_bins()
        known = self._indices
        # A copy: what the caller does to one result must not reach the next.
        indices = np.empty(nnz, result_index_type(nnz, B)) if known is None else known.copy()
        self._fill(_new_counters(bins), bins, product, indices, data)
        if known is None and self._repeats and bins.keys() != {SORTED}:
            self._indices = indices.copy()
        self._repeats = True
        return as_csr(data, indices, indptr, (self.A.shape[0], B.columns))

    def _numeric_bins(self) -> dict[int, RowBin]:
        if self._bins is None:
            self.symbolic()
            self._bins = self._bin_rows(self._accumulators(), self._entries)
        return self._bins

    def _accumulators(self) -> Array:
        """Return the accumulator of each row in the numeric phase."""
        if self._has_bitmaps:
            return np.full(self._entries.size, DENSE)
        return row_bins.numeric_accumulators(self._products, self.B.shape[1], self._entries)

    def _bin_rows(self, accumulators: Array, bounds: Array) -> dict[int, RowBin]:
        return row_bins.bin_rows(self._products, accumulators, bounds, self._workers.threads)

    def _fill(
        self,
        counters: dict[int, Array],
        bins: dict[int, RowBin],
        product: Product,
        indices: Array,
        data: Array,
    ) -> None:
        """Write the values of C, and the columns unless they are known."""
        none, known = np.empty(0, np.int64), self._indices is not None
        epilogue = no_epilogue(data.dtype)

        def work(thread: int) -> None:
            sink = RowSink(False, epilogue, thread, self._starts, none, none, indices, data)
            for accumulator, row_bin in bins.items():
                memory = make_workspace(accumulator, row_bin, product.B)
                common = accumulator, counters[accumulator], row_bin, product, memory, sink
                if known and accumulator != SORTED:
                    refill_rows(*common)
                else:
                    add_rows(*common, 0, -1)

        self._workers.run(work)

    def describe(self) -> str:
        """Return which accumulators rows take, and the work; see `SpgemmHandle.describe`."""
        bins = self._numeric_bins()
        accumulators = self._accumulators()[self._products > 0]
        names = ("bitmap" if self._has_bitmaps else "dense", "hash", "sorted", "empty")
        counts = *np.bincount(accumulators, minlength=3), self._products.size - accumulators.size
        rows = [f"{n:,} {name}" for n, name in zip(counts, names, strict=True) if n]
        chunks = sum(row_bin.capacities.size for row_bin in bins.values())
        return (
            f"rows: {', '.join(rows) or 'none'}; {float(self._products.sum()):.2g} multiply-adds "
            f"in {chunks} chunk{'s' if chunks != 1 else ''}"
        )


def _new_counters(bins: dict[int, RowBin]) -> dict[int, Array]:
    """Return for each bin the number of chunks that threads have taken: none."""
    return {accumulator: np.zeros(1, np.int64) for accumulator in bins}
