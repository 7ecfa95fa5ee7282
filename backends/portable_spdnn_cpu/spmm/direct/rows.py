"""Products of rows of A, in CSR.

The sums of a row of C stay in registers. An entry is an index, compared with the rows that B has,
and a value that is spread over a vector; it meets a row of B. Several chains of sums hide the time
that an addition takes where a row of B is but few vectors. Bound: about six instructions for an
entry of up to one vector; beyond, the loads of B, which lie across two cache lines where B's rows
do not start on them, unless columns begin before 0. A row gets its bias and bounds before it is
written.

Of a last vector that is partly filled a mask names the lanes, where masks are fast. Elsewhere it is
a whole one that ends where the row does: some columns are computed twice.
"""

from __future__ import annotations

import functools
import sys

from llvmlite import ir

from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS, VECTOR_BYTES, VECTOR_REGISTERS
from portable_spdnn_cpu.jit.vectors import clamped
from portable_spdnn_cpu.layout.large_results import (
    NONTEMPORAL_BYTES,
    PREFETCH_BYTES,
    PREFETCH_ROW_BYTES,
)
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.direct.job_words import (
    B_ROW,
    LOWER,
    OUT,
    OUT_BYTES,
    OUT_FORTRAN,
    OUT_ROW,
    UPPER,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.direct.sparse_microkernel import SparseMicrokernel
from portable_spdnn_cpu.spmm.emitter import Value

ROWS_AHEAD = 4  # how far ahead rows of C are prefetched that caches do not hold
# Of panels with fewer vectors rows are neither prefetched nor written by non-temporal stores: to
# look whether they are took longer than it saved.
LEAST_VECTORS = 4


class Rows(SparseMicrokernel):
    """Emits the products of rows of A. Without fast masks, columns fill a vector at least."""

    overlaps = not HAS_FAST_MASKS
    first_mask: Value | None = None  # of lanes of the first vector, where some are before column 0
    prefetches: Value  # whether lines of C are prefetched, of LEAST_VECTORS and more
    may_be_nontemporal = sys.maxsize > NONTEMPORAL_BYTES
    nontemporal: Value | None = None  # whether stores are non-temporal; None: they never are
    passes_caches = False  # whether rows are being emitted whose stores are non-temporal

    def start(self) -> None:
        """Emit whether rows of C are prefetched, and whether their stores are non-temporal.

        What is in Fortran order is collected in memory that is near, and transposed from there.
        """
        if self.vectors < LEAST_VECTORS:
            return
        builder, words = self.builder, self.words
        in_rows = builder.icmp_signed("==", words[OUT_FORTRAN], self.zero)
        is_far = builder.icmp_signed(">", words[OUT_BYTES], self.number(PREFETCH_BYTES))
        is_wide = builder.icmp_signed(">=", words[OUT_ROW], self.number(PREFETCH_ROW_BYTES))
        self.prefetches = functools.reduce(builder.and_, [is_far, is_wide, in_rows])
        if not self.may_be_nontemporal:
            return
        places = builder.or_(builder.or_(words[OUT], self.out), words[OUT_ROW])
        low = builder.and_(places, self.number(BLOCK_BYTES - 1))
        is_aligned = builder.icmp_signed("==", low, self.zero)
        # By an activation, or here, where there is a residual, which may be C itself.
        is_read = builder.or_(builder.not_(self.bounded), self.has_residual)
        is_read = builder.and_(self.finishes, is_read)
        is_vast = builder.icmp_signed(">=", words[OUT_BYTES], self.number(NONTEMPORAL_BYTES))
        conditions = [is_vast, is_aligned, in_rows, builder.not_(is_read)]
        self.nontemporal = functools.reduce(builder.and_, conditions)

    def multiply_all(self, begin: Value, end: Value) -> None:
        """Emit rows begin .. end - 1 of A, twice where stores may be non-temporal.

        With a branch for each row in place of two loops, ordinary stores of rows of 33 and 37 items
        of float64, to a C of 18 to 20 MB, took 1.2 to 1.4 times as long on a Zen 5.
        """
        if self.nontemporal is None:
            super().multiply_all(begin, end)
            return
        with self.builder.if_else(self.nontemporal) as (past, through):
            with past:
                self.passes_caches = True
                super().multiply_all(begin, end)
            with through:
                self.passes_caches = False
                super().multiply_all(begin, end)

    def multiply(self, number: Value, first: Value, stop: Value) -> None:
        """Emit a row of C, unless it is empty and C holds zeros."""
        builder = self.builder
        is_filled = builder.icmp_signed("<", first, stop)
        with builder.if_then(builder.or_(is_filled, builder.not_(self.holds_zeros))):
            self._write(number, first, stop)

    def _write(self, number: Value, first: Value, stop: Value) -> None:
        """Emit a row of C."""
        builder, target = self.builder, self.row_of(self.out, number, OUT_ROW)
        if self.vectors < LEAST_VECTORS:
            *whole, last = self._finished(number, self.sums(first, stop))
            if self.vectors:
                self._store_row(whole, last, target)
            else:
                self.store(last, target)
            return
        if not self.passes_caches:
            with builder.if_then(self.prefetches):
                later = self.row_of(self.out, self.add(number, ROWS_AHEAD), OUT_ROW)
                for place in range(self.vectors):
                    self.prefetch(self.add(later, place * BLOCK_BYTES), written=True)
        *whole, last = self._finished(number, self.sums(first, stop))
        if self.passes_caches:  # without a mask: `fill_places` refuses a C with gaps between rows
            for place, total in enumerate([*whole, last]):
                self.store_nontemporal(total, self.add(target, place * BLOCK_BYTES))
        else:
            self._store_row(whole, last, target)

    def _store_row(self, whole: list[Value], last: Value, target: Value) -> None:
        """Emit that a row of C is stored, of whose last vector some lanes may be beyond it."""
        for place, total in enumerate(whole):
            if place or self.first_mask is None:
                self.store(total, self.add(target, place * self.vector_bytes))
            else:
                self.store_some(total, target, self.first_mask)
        self.store_first(last, self.add(target, self.last), self.left)

    def _finished(self, row: Value, sums: list[Value]) -> list[Value]:
        """Return sums plus bias, plus residual, within bounds, where the job has these.

        NaN is kept.
        """
        builder, kind = self.builder, sums[0].type
        slots = [self.slot(kind) for _ in sums]
        for slot, total in zip(slots, sums, strict=True):
            builder.store(total, slot)
        with builder.if_then(self.finishes):
            bias = self.spread(self.bias(row), kind.count)
            for slot in slots:
                builder.store(self.plus(builder.load(slot), bias), slot)
            with builder.if_then(self.has_residual):
                residual = self.row_of(self.held, row, OUT_ROW)
                held = self.load_row(residual, self.mask if self.vectors else None)
                if self.first_mask is not None:
                    held[0] = self.load_some(kind, residual, self.first_mask)
                for slot, before in zip(slots, held, strict=True):
                    builder.store(self.plus(builder.load(slot), before), slot)
            # Bounds follow an activation, which callers apply.
            with builder.if_then(self.bounded):
                bounds = [self.spread(self.bound(word), kind.count) for word in (LOWER, UPPER)]
                for slot in slots:
                    builder.store(clamped(builder, builder.load(slot), *bounds), slot)
        return [builder.load(slot) for slot in slots]

    def sums(self, first: Value, stop: Value) -> list[Value]:
        """Return the sums of a row of C."""
        chains = 4
        if self.vector_bytes == BLOCK_BYTES:
            registers = self.vectors * BLOCK_BYTES // VECTOR_BYTES
            chains = 2 if self.vectors <= 4 and 2 * registers <= VECTOR_REGISTERS - 4 else 1
        slots = [[self.slot(self.vector_type) for _ in range(self.vectors)] for _ in range(chains)]

        def add_entry(number: Value, chain: int) -> None:
            index, factor = self.entry(number, self.words[K])
            row = self.load_row(self.row_of(self.B, index, B_ROW), self.mask)
            for place, (slot, found) in enumerate(zip(slots[chain], row, strict=True)):
                before = self.builder.load(slot)
                total = self.multiply_add(factor, found, before)
                if place == 0 and self.first_mask is not None:
                    # What lies before column 0 may be subnormal, as the size that malloc keeps is:
                    # to multiply it would take a hundred times as long.
                    total = self.builder.select(self.first_mask, total, before)
                self.builder.store(total, slot)

        for slot in (slot for chain in slots for slot in chain):
            self.builder.store(ir.Constant(self.vector_type, None), slot)
        self.by_steps(first, stop, chains, add_entry)
        return [self.sum_of(list(chain)) for chain in zip(*slots, strict=True)]


class ShiftedRows(Rows):
    """Emits the same for a first column that is before 0, by less than a vector, with fast masks.

    Then loads of B do not lie across lines. There are two vectors at least. Where stores may be
    non-temporal, `by_rows.columns_before` lets no panel begin there.
    """

    may_be_nontemporal = False

    def start(self) -> None:
        """Emit the mask of the first vector, too."""
        super().start()
        before = self.builder.sub(self.zero, self.column)
        self.first_mask = self.builder.not_(self.lanes_below(before, self.vector_type.count))
