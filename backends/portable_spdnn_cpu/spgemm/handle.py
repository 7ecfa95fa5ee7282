"""spgemm in two phases, on a handle."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.layer import common_value
from portable_spdnn.operations.handles import SpgemmHandle
from portable_spdnn_cpu.jit.compilation import read_only
from portable_spdnn_cpu.jit.thread_pool import Workers
from portable_spdnn_cpu.scipy_backend import with_values
from portable_spdnn_cpu.spgemm import bitmaps as masked_rows
from portable_spdnn_cpu.spgemm import gustavson as kernels
from portable_spdnn_cpu.spgemm import row_bins as row_shares
from portable_spdnn_cpu.spgemm.epilogue import Target
from portable_spdnn_cpu.spgemm.fused_layer import (
    Counters,
    Shares,
    add_rows,
    as_csr,
    as_rows,
    chunk_counters,
    column_bits,
    count_products,
    hash_keys,
    index_type,
)
from portable_spdnn_cpu.spgemm.gustavson import Rows
from portable_spdnn_cpu.spgemm.row_bins import DENSE, HASH, SORTED

Array = npt.NDArray[Any]


class RowSpgemmHandle(SpgemmHandle):
    """C = A B row by row on all workers; see `row_accumulators` for the ways to add up a row.

    Offsets are 64-bit throughout, so C may have more than 2^31 entries. Whichever way a row is
    added up, an entry of C is 0 plus its products in the order of A's columns.
    """

    def __init__(self, workers: Workers, A: Any, B: Any) -> None:
        self.workers, self.A, self.B = workers, A, B
        self._rows = as_rows(A), as_rows(B)
        self._masks = self._make_masks()
        self._products = count_products(workers, *self._rows)
        self._indptr: Array | None = None
        self._shares: Shares | None = None  # of the numeric phase
        self._indices: Array | None = None  # kept from the second product on, if of use
        self._repeats = False

    def _make_masks(self) -> Array | None:
        """Return the columns of B's rows as bits, where uniting those is the cheaper way."""
        rows, columns = self.B.shape
        words = -(-columns // 64)
        cheap = words * rows <= masked_rows.WORDS_PER_ENTRY * self.B.nnz
        if not cheap or 8 * words * rows > masked_rows.MOST_MASK_BYTES:
            return None
        masks = np.zeros((rows, words), np.uint64)
        masked_rows.fill_masks(self._rows[1], masks)
        return read_only(masks)

    def symbolic(self) -> Array:
        """Return the row offsets of C; see `SpgemmHandle.symbolic`."""
        if self._indptr is None:
            A, B = self._rows
            products, masks = self._products, self._masks
            kinds = row_shares.counting_kinds(products, B.columns)
            if masks is not None:
                kinds[:] = DENSE
            shares = self._share_out(kinds, np.minimum(products, B.columns))
            if masks is not None:
                self._shares = shares  # the numeric phase takes the same rows together
            counters = chunk_counters(shares)
            offsets = np.zeros(products.size + 1, np.int64)
            counts = offsets[1:]

            def work(worker: int) -> None:
                for kind, share in shares.items():
                    common = counters[kind], share, A
                    if masks is not None:
                        masked_rows.count_rows_by_masks(*common, masks, counts)
                    elif kind == DENSE:
                        kernels.count_dense_rows(*common, B, products, column_bits(B), counts)
                    else:
                        table = hash_keys(B, share), np.empty(share.longest, np.int64)
                        kernels.count_hash_rows(*common, B, products, *table, counts)

            self.workers.run(work)
            self._indptr = read_only(np.cumsum(offsets))
        return self._indptr

    def numeric(self, A_data: Array | None = None, B_data: Array | None = None) -> Any:
        """Return C; see `SpgemmHandle.numeric`."""
        A, B = self._rows
        if A_data is not None:
            A = as_rows(with_values("A", self.A, A_data))
        if B_data is not None:
            B = as_rows(with_values("B", self.B, B_data))
        indptr = self.symbolic()
        nnz = int(indptr[-1])
        data = np.empty(nnz, A.data.dtype)
        weight = common_value(B.data)
        weight = data.dtype.type(np.nan if weight is None else weight)
        shares = self._numeric_shares()
        known = self._indices
        # A copy: what the caller does to one result must not reach the next.
        indices = np.empty(nnz, index_type(nnz, B)) if known is None else known.copy()
        self._fill(chunk_counters(shares), shares, A, B, weight, indices, data)
        if known is None and self._repeats and shares.keys() != {SORTED}:
            self._indices = indices.copy()
        self._repeats = True
        return as_csr(data, indices, indptr, (self.A.shape[0], B.columns))

    def _numeric_shares(self) -> Shares:
        if self._shares is None:
            entries = np.diff(self.symbolic())
            self._shares = self._share_out(self._kinds(entries), entries)
        return self._shares

    def _kinds(self, entries: Array) -> Array:
        """Return how each row is added up."""
        if self._masks is not None:
            return np.full(entries.size, DENSE)
        return row_shares.adding_kinds(self._products, self.B.shape[1], entries)

    def _share_out(self, kinds: Array, bounds: Array) -> Shares:
        return row_shares.share_out(self._products, kinds, bounds, self.workers.threads)

    def _fill(
        self,
        counters: Counters,
        shares: Shares,
        A: Rows,
        B: Rows,
        weight: Any,
        indices: Array,
        data: Array,
    ) -> None:
        """Write values of C, and columns that are not known; `weight` as in `add_row`."""
        indptr, masks, known = self.symbolic(), self._masks, self._indices is not None
        bounds, places = np.diff(indptr), indptr[:-1].copy()
        none, no_bias = np.empty(0, np.int64), read_only(np.empty(0, data.dtype))

        def work(worker: int) -> None:
            target = Target(False, no_bias, weight, worker, none, places, none, indices, data)
            for kind, share in shares.items():
                common, result = (counters[kind], share, A, B), (indptr, indices, data)
                if known and kind == DENSE:
                    sums = np.zeros(B.columns, data.dtype)
                    kernels.refill_dense_rows(*common, weight, sums, *result)
                elif known and kind == HASH:
                    keys = hash_keys(B, share)
                    sums, slots = np.empty(keys.size, data.dtype), np.empty(share.longest, np.int64)
                    kernels.refill_hash_rows(*common, keys, sums, slots, *result)
                elif masks is not None:
                    masked_rows.fill_rows_by_masks(*common, weight, masks, *result)
                else:
                    # To sort again, 7 to 14 ns a product, is faster than to look up where each
                    # belongs, 13 to 15; but for rows of less than ten products.
                    add_rows(kind, *common, bounds, target, 0, -1)

        self.workers.run(work)

    def describe(self) -> str:
        """Return how rows are added up, and the work; see `SpgemmHandle.describe`."""
        kinds = self._kinds(np.diff(self.symbolic()))[self._products > 0]
        names = ("masked" if self._masks is not None else "dense", "hash", "sorted")
        counts = [*np.bincount(kinds, minlength=3), self._products.size - kinds.size]
        rows = [f"{n:,} {name}" for n, name in zip(counts, (*names, "empty"), strict=True) if n]
        chunks = sum(share.rooms.size for share in self._numeric_shares().values())
        return (
            f"rows: {', '.join(rows) or 'none'}; {float(self._products.sum()):.2g} multiply-adds "
            f"in {chunks} chunk{'s' if chunks != 1 else ''}"
        )
