"""Products with a single column of B of rows, or columns, of A that all have as many entries.

Code for each number of entries multiplies and adds just so many, without a branch on where a row
ends. Bound: some five instructions for an entry of a row, and the loads of B from where it is; of
a column, the stores to C, of which loads of the same item may have to wait.
"""

from __future__ import annotations

import functools

from llvmlite import ir

from portable_spdnn_cpu.spmm.direct.dots import STEP, Dots
from portable_spdnn_cpu.spmm.direct.job_words import B_ROW, INDICES, OUT_ROW, ROWS, K
from portable_spdnn_cpu.spmm.emitter import WORD, Value

MOST_EQUAL = 32  # entries of a row or column
# Of fewer entries in a row indices are compared one by one, and none is asked for ahead.
FEW_ENTRIES = 4


class EqualRows(Dots):
    """Emits the products of rows of A, in CSR, of at most MOST_EQUAL entries.

    Attributes
    ----------
    extent : int
        Of a class: the word that says how many columns A has, or rows in CSC.
    """

    extent = K

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
            with self.loop(begin, end) as number:
                first = self.add(start, self.times(builder.sub(number, begin), count))
                if count >= FEW_ENTRIES:
                    self.ask_ahead(first, count)
                    self._check_indices(first, count)
                self.multiply_equal(number, [self.add(first, place) for place in range(count)])
            builder.branch(after)
        builder.position_at_end(after)

    def multiply_equal(self, number: Value, entries: list[Value]) -> None:
        """Emit a row of C."""
        checks = len(entries) < FEW_ENTRIES
        total = self._sum_in_order([self.product(entry, checks) for entry in entries])
        self.store(total, self.row_of(self.out, number, OUT_ROW))

    def _check_indices(self, first: Value, count: int) -> None:
        """Go on if so many indices, of FEW_ENTRIES or more, are below K; refuse A if not."""
        builder = self.builder
        lanes = 1 << (count.bit_length() - 1)
        bits, size = ir.IntType(lanes), self.index_type.width // 8
        good = None
        for place in sorted({0, count - lanes}):
            at = self.add(self.words[INDICES], self.times(self.add(first, place), size))
            found = self.load(ir.VectorType(self.index_type, lanes), at)
            found = self.below(found, self.words[self.extent])
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


class EqualColumns(EqualRows):
    """Emits the products of columns of A, in CSC, which are added to C."""

    extent = ROWS

    def multiply_equal(self, number: Value, entries: list[Value]) -> None:
        """Emit what a column adds to C. Entries follow each other: two may be of one row."""
        extent = self.words[ROWS] if len(entries) < FEW_ENTRIES else None
        [item] = self.load_row(self.row_of(self.B, number, B_ROW))
        for entry in entries:
            index, factor = self.entry(entry, extent)
            target = self.row_of(self.out, index, OUT_ROW)
            [total] = self.load_row(target)
            self.store(self.plus(total, self.builder.fmul(factor, item)), target)
