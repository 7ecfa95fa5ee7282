"""Products of rows of A, in CSR, with a single column of B, one row after the other.

Entries are multiplied STEP at a time: items of B are loaded one by one, or gathered where that is
fast, and meet a vector of values. Bound: some four instructions for an entry; beyond the caches,
what is loaded of A, which is asked for ahead.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba.core import cgutils

from portable_spdnn_cpu.jit.grouped_loads import load_numbers
from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS, has_fast_gathers
from portable_spdnn_cpu.spmm.direct.job_words import INDICES, ROWS, VALUES, K
from portable_spdnn_cpu.spmm.direct.rows import Rows
from portable_spdnn_cpu.spmm.emitter import INT32, Value

STEP = 8  # entries that are multiplied together
MOST_TERMS = 32  # of a row, which can be told from those of other rows without fast masks


class Dots(Rows):
    """Emits the products of rows of A with a column."""

    def start(self) -> None:
        """Emit where the last step may begin, and memory for what a row needs."""
        self.last_step = self.builder.sub(self.offset(self.words[ROWS]), self.number(STEP))
        self.rest = self.memory(self.scalar, STEP)
        if HAS_FAST_MASKS:
            return
        kind = ir.ArrayType(ir.IntType(8 * self.itemsize), 2 * MOST_TERMS)
        constant = ir.Constant(kind, [-1] * MOST_TERMS + [0] * MOST_TERMS)
        address = self.address_of(cgutils.global_constant(self.builder.module, "masks", constant))
        self.masks = self.add(address, MOST_TERMS * self.itemsize)

    def sums(self, first: Value, stop: Value) -> list[Value]:
        """Return the sum of a row."""
        builder, products = self.builder, self.slot(self.vector(STEP))

        def last_products(entry: Value) -> Value:
            fits = builder.icmp_signed("<=", entry, self.last_step)
            with builder.if_else(fits, likely=True) as (vector, one_by_one):
                with vector:
                    builder.store(self.products(entry), products)
                with one_by_one:
                    base = builder.sub(self.rest, self.times(entry, self.itemsize))
                    self.keep_each(entry, stop, base)
                    builder.store(self.load(self.vector(STEP), self.rest), products)
            return builder.load(products)

        def next_products(entry: Value) -> Value:
            self.ask_ahead(entry, STEP)
            return self.products(entry)

        return [self.sum_by_steps(first, stop, next_products, last_products)]

    def sum_by_steps(
        self,
        first: Value,
        stop: Value,
        terms: Callable[[Value], Value],
        last_terms: Callable[[Value], Value],
    ) -> Value:
        """Return the sum of a row, in a vector of one, of STEP terms from each STEP-th entry on.

        Products are not fused with additions, so that it is the same wherever they are made. Of the
        last terms, those of other rows are left out. It is never -0, as SciPy's is not.
        """
        builder, kind = self.builder, self.vector(STEP)
        slot = self.slot(kind)
        builder.store(ir.Constant(kind, None), slot)
        whole = self.whole_steps(first, stop, STEP)
        with self.loop(first, whole, STEP) as entry:
            builder.store(self.plus(builder.load(slot), terms(entry)), slot)
        rest = self.first_lanes_of(last_terms(whole), builder.sub(stop, whole))
        return self.lane_sum(self.plus(builder.load(slot), rest))

    def keep_each(self, first: Value, stop: Value, target: Value) -> None:
        """Emit that products of entries are kept in an array, one by one."""
        with self.loop(first, stop) as entry:
            product = self.term(entry, self.words[K])
            self.store(product, self.add(target, self.times(entry, self.itemsize)))

    def products(self, first: Value) -> Value:
        """Return the products of STEP entries, whose indices are checked."""
        self.check_indices(first, STEP, self.words[K])
        at = self.add(self.words[VALUES], self.times(first, self.itemsize))
        return self.builder.fmul(self._items(first), self.load(self.vector(STEP), at))

    def _items(self, first: Value) -> Value:
        """Return the items of B that STEP entries name, from a first one on."""
        if has_fast_gathers():
            at = self.add(self.words[INDICES], self.times(first, self.index_type.width // 8))
            return self.gather(self.B, self.load(ir.VectorType(self.index_type, STEP), at))
        # Loaded once more: to take them out of a vector would take longer.
        pointer = self.pointer(self.index_type, self.words[INDICES], first)
        return self.load_each(self.B, load_numbers(self.builder, pointer, STEP))

    def first_lanes_of(self, terms: Value, count: Value, lane: int = 0) -> Value:
        """Return a vector that begins with a lane of a row, and zeros from `count` of these on."""
        lanes, builder = terms.type.count, self.builder
        if HAS_FAST_MASKS:
            mask = self.lanes_below(builder.trunc(count, INT32), lanes, lane)
            return builder.select(mask, terms, ir.Constant(terms.type, None))
        integers = ir.VectorType(ir.IntType(8 * self.itemsize), lanes)
        count = self.least(count, self.number(MOST_TERMS))
        before = self.times(builder.sub(self.number(lane), count), self.itemsize)
        mask = self.load(integers, self.add(self.masks, before))
        return builder.bitcast(builder.and_(builder.bitcast(terms, integers), mask), terms.type)
