"""Products of rows of A, in CSR, with a single column of B, where gathers are not fast.

Items of B are loaded one by one into a vector, which meets a vector of values. The last entries of
a row take a whole vector too: those that follow in A, of the next rows, are multiplied as well and
left out. So a row of a few entries takes no branch that depends on how many. Bound: four
instructions for an entry, and some thirty for a row.
"""

from __future__ import annotations

from llvmlite import ir

from portable_spdnn_cpu.spmm.direct.job_words import B_ROW, INDICES, INDPTR, ROWS, VALUES, K
from portable_spdnn_cpu.spmm.direct.rows import Rows
from portable_spdnn_cpu.spmm.emitter import INT32, Value

STEP = 8  # entries in a vector
SHORT_STEP = 4  # where rows have fewer on average


class LoadedDots(Rows):
    """Emits the products of rows of A with a column."""

    def start(self) -> None:
        """Emit where the last steps may begin, and how long a row is at most for a short one."""
        builder, rows = self.builder, self.words[ROWS]
        entries = self.load_word(self.index_type, self.words[INDPTR], rows)
        self.last_short, self.last = (
            builder.sub(entries, self.number(step)) for step in (SHORT_STEP, STEP)
        )
        few = builder.icmp_signed("<", entries, self.times(rows, SHORT_STEP))
        self.short = builder.select(few, self.number(SHORT_STEP), self.number(-1))

    def sums(self, first: Value, stop: Value) -> list[Value]:
        """Return the sum of a row times a single column."""
        builder, length = self.builder, self.builder.sub(stop, first)
        total = self.slot(self.vector_type)
        is_short = builder.and_(
            builder.icmp_signed("<=", length, self.short),
            builder.icmp_signed("<=", first, self.last_short),
        )
        with builder.if_else(is_short) as (short, any_length):
            with short:
                builder.store(self.lane_sum(self._step(first, SHORT_STEP, length)), total)
            with any_length:
                builder.store(self._long_sum(first, stop), total)
        return [builder.load(total)]

    def _long_sum(self, first: Value, stop: Value) -> Value:
        """Return the sum of a row of any length."""
        builder, kind = self.builder, self.vector(STEP)
        slot, single = self.slot(kind), self.slot(self.vector_type)
        builder.store(ir.Constant(kind, None), slot)
        builder.store(ir.Constant(self.vector_type, None), single)
        whole = self.whole_steps(first, stop, STEP)
        with self.loop(first, whole, STEP) as entry:
            found, values = self._load(entry, STEP)
            builder.store(self.multiply_add(values, found, builder.load(slot)), slot)
        fits = builder.icmp_signed("<=", whole, self.last)
        with builder.if_else(fits, likely=True) as (vector, one_by_one):
            with vector:
                rest = self._step(whole, STEP, builder.sub(stop, whole))
                builder.store(self.plus(builder.load(slot), rest), slot)
            with one_by_one, self.loop(whole, stop) as entry:
                index, factor = self.entry(entry, self.words[K])
                [item] = self.load_row(self.row_of(self.B, index, B_ROW))
                builder.store(self.multiply_add(factor, item, builder.load(single)), single)
        return self.plus(self.lane_sum(builder.load(slot)), builder.load(single))

    def _step(self, first: Value, step: int, count: Value) -> Value:
        """Return the products of `count` entries, at most `step`, and zeros."""
        found, values = self._load(first, step)
        integer = ir.IntType(8 * self.itemsize)
        numbers = ir.Constant(ir.VectorType(integer, step), list(range(step)))
        count = count if self.itemsize == 8 else self.builder.trunc(count, integer)
        counts = self.builder.icmp_signed("<", numbers, self.spread(count, step))
        products = self.builder.fmul(values, found)
        return self.builder.select(counts, products, ir.Constant(products.type, None))

    def _load(self, first: Value, step: int) -> tuple[Value, Value]:
        """Return the items of B that some entries name, whose indices are checked, and values."""
        builder, kind, bits = self.builder, self.vector(step), ir.IntType(step)
        at = self.add(self.words[INDICES], self.times(first, self.index_type.width // 8))
        indices = self.load(ir.VectorType(self.index_type, step), at)
        good = builder.bitcast(self.below(indices, self.words[K]), bits)
        self.refuse_unless(builder.icmp_unsigned("==", good, bits(-1)))
        found = ir.Constant(kind, ir.Undefined)
        for lane in range(step):
            index = self.load_word(self.index_type, self.words[INDICES], self.add(first, lane))
            item = self.load(self.scalar, self.row_of(self.B, index, B_ROW))
            found = builder.insert_element(found, item, INT32(lane))
        at = self.add(self.words[VALUES], self.times(first, self.itemsize))
        return found, self.load(kind, at)
