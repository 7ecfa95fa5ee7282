"""Products of rows of A, in CSR, with a single column of B: rows that all have as many entries.

Code for each number of entries multiplies and adds just so many, without a branch on where a row
ends. Bound: some five instructions for an entry, and the loads of B from where it is.
"""

from __future__ import annotations

import functools

from llvmlite import ir

from portable_spdnn_cpu.spmm.direct.dots import STEP, Dots
from portable_spdnn_cpu.spmm.direct.job_words import INDICES, OUT_ROW, K
from portable_spdnn_cpu.spmm.emitter import WORD, Value

MOST_EQUAL = 32  # entries of a row
# Of fewer entries in a row indices are compared one by one, and none is asked for ahead.
FEW_ENTRIES = 4


class EqualDots(Dots):
    """Emits the products of rows of A, of at most MOST_EQUAL entries, with a column."""

    def multiply_all(self, begin: Value, end: Value) -> None:
        """Emit rows of C."""
        builder, start = self.builder, self.offset(begin)
        length = builder.sub(self.offset(self.add(begin, 1)), start)
        after = builder.append_basic_block("after_equal")
        switch = builder.switch(length, after)
        for count in range(MOST_EQUAL + 1):
            case = builder.append_basic_block(f"rows_of_{count}")
            switch.add_case(WORD(count), case)
            builder.position_at_end(case)
            with self.loop(begin, end) as row:
                first = self.add(start, self.times(builder.sub(row, begin), count))
                checks = count < FEW_ENTRIES
                if not checks:
                    self.ask_ahead(first, count)
                    self._check_indices(first, count)
                terms = [self.product(self.add(first, place), checks) for place in range(count)]
                self.store(self._sum_in_order(terms), self.row_of(self.out, row, OUT_ROW))
            builder.branch(after)
        builder.position_at_end(after)

    def _check_indices(self, first: Value, count: int) -> None:
        """Go on if so many indices, of FEW_ENTRIES or more, are below K; refuse A if not."""
        builder = self.builder
        lanes = 1 << (count.bit_length() - 1)
        bits, size = ir.IntType(lanes), self.index_type.width // 8
        good = None
        for place in sorted({0, count - lanes}):
            at = self.add(self.words[INDICES], self.times(self.add(first, place), size))
            found = self.below(self.load(ir.VectorType(self.index_type, lanes), at), self.words[K])
            good = found if good is None else builder.and_(good, found)
        self.refuse_unless(builder.icmp_unsigned("==", builder.bitcast(good, bits), bits(-1)))

    def _sum_in_order(self, terms: list[Value]) -> Value:
        """Return the sum of terms, added as `sum_by_steps` adds them."""
        zero = ir.Constant(self.vector(1), None)
        lanes = [terms[lane::STEP] for lane in range(STEP)]
        totals = [functools.reduce(self.plus, lane) if lane else None for lane in lanes]
        while len(totals) > 1:
            halves = totals[: len(totals) // 2], totals[len(totals) // 2 :]
            totals = [
                self.plus(low, high) if high else low for low, high in zip(*halves, strict=True)
            ]
        return self.plus(totals[0], zero) if totals[0] else zero
