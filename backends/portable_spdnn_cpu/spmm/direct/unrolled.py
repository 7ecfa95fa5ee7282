"""Products with a single column of B, several entries of a row or column of A without a branch.

Rows of CSR, and columns of CSC, that all have as many entries are multiplied by code for just so
many. Bound: some five instructions for an entry of a row, and the loads of B from where it is; of a
column, loads of C that wait for stores to the same item.
"""

from __future__ import annotations

import functools

from llvmlite import ir

from portable_spdnn_cpu.jit.target import has_fast_gathers
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.direct.dots import STEP
from portable_spdnn_cpu.spmm.direct.job_words import B_ROW, INDICES, OUT_ROW, ROWS, VALUES, K
from portable_spdnn_cpu.spmm.direct.sparse_microkernel import SparseMicrokernel
from portable_spdnn_cpu.spmm.emitter import WORD, Value

MOST_EQUAL = 16  # entries of each row or column, where all have as many
# Of fewer entries indices are compared one by one, and none is asked for ahead: with one or two
# that takes a tenth less.
FEW_ENTRIES = 4


class EqualRows(SparseMicrokernel):
    """Emits the products of rows of A in CSR, which all have as many entries, at most MOST_EQUAL.

    Attributes
    ----------
    extent : int
        Of a class: in which of the job's words it is said what indices of A are below.
    """

    extent = K

    def multiply_all(self, begin: Value, end: Value) -> None:
        """Emit rows of C, or what columns add to C."""
        builder, start = self.builder, self.offset(begin)
        length = builder.sub(self.offset(self.add(begin, 1)), start)
        after = builder.append_basic_block("after")
        switch = builder.switch(length, self.refuse)
        for count in range(MOST_EQUAL + 1):
            case = builder.append_basic_block(f"of_{count}")
            switch.add_case(WORD(count), case)
            builder.position_at_end(case)
            rest = self.multiply_single_entries(begin, end, start) if count == 1 else begin
            with self.loop(rest, end) as number:
                first = self.add(start, self.times(builder.sub(number, begin), count))
                self.multiply_some(number, first, count)
            builder.branch(after)
        builder.position_at_end(after)

    def multiply_single_entries(self, begin: Value, end: Value, start: Value) -> Value:
        """Emit rows of an entry each, as many as are whole vectors; return the row after them."""
        if not has_fast_gathers():
            return begin
        builder, lanes = self.builder, BLOCK_BYTES // self.itemsize
        whole = self.whole_steps(begin, end, lanes)
        with self.loop(begin, whole, lanes) as row:
            entry = self.add(start, builder.sub(row, begin))
            self.ask_ahead(entry, lanes)
            self.check_indices(entry, lanes, self.words[self.extent])
            at = self.add(self.words[INDICES], self.times(entry, self.index_type.width // 8))
            items = self.gather(self.B, self.load(ir.VectorType(self.index_type, lanes), at))
            at = self.add(self.words[VALUES], self.times(entry, self.itemsize))
            terms = builder.fmul(self.load(self.vector(lanes), at), items)
            total = self.plus(terms, ir.Constant(terms.type, None))  # +0 in place of -0
            self.store(total, self.row_of(self.out, row, OUT_ROW))
        return whole

    def multiply_some(self, number: Value, first: Value, count: int) -> None:
        """Emit so many entries of a row or column, from a first one on."""
        if count >= FEW_ENTRIES:
            self.ask_ahead(first, count)
            self.check_indices(first, count, self.words[self.extent])
        self.multiply_entries(number, [self.add(first, place) for place in range(count)])

    def multiply_entries(self, number: Value, entries: list[Value]) -> None:
        """Emit a row of C."""
        terms = [self.term(entry, self._checked(len(entries))) for entry in entries]
        self.store(sum_in_order(self, terms), self.row_of(self.out, number, OUT_ROW))

    def _checked(self, count: int) -> Value | None:
        """Return the extent that each index of so many entries is still to be compared with."""
        return self.words[self.extent] if count < FEW_ENTRIES else None


def sum_in_order(at: SparseMicrokernel, terms: list[Value]) -> Value:
    """Return the sum of terms, added as `Dots.sum_by_steps` adds them."""
    zero = ir.Constant(at.vector(1), None)
    lanes = [terms[lane::STEP] for lane in range(STEP)]
    totals = [functools.reduce(at.plus, lane) if lane else None for lane in lanes]
    while len(totals) > 1:
        halves = totals[: len(totals) // 2], totals[len(totals) // 2 :]
        totals = [at.plus(low, high) if high else low for low, high in zip(*halves, strict=True)]
    return at.plus(totals[0], zero) if totals[0] else zero


class EqualColumns(EqualRows):
    """Emits what columns of A in CSC add to C, which all have as many entries."""

    extent = ROWS

    def multiply_single_entries(self, begin: Value, end: Value, start: Value) -> Value:
        """Emit nothing: two columns may add to the same item."""
        return begin

    def multiply_entries(self, number: Value, entries: list[Value]) -> None:
        """Emit what entries of a column add to C, in their order: two may be of one row."""
        [item] = self.load_row(self.row_of(self.B, number, B_ROW))
        for entry in entries:
            self.add_term(entry, self._checked(len(entries)), item)
