"""Products with a single column of B, with a branch after each entry, or after every few.

Rows of CSR whose ends a processor predicts have one after each entry: nothing is computed in vain.
Where it does not, `dot_blocks` takes less time. A column of CSC is a loop over its entries, by
several where most columns are long; where they are short and their ends are not predicted,
`added_columns.add_short_columns` takes less. Where most rows or columns have no entry, only those
that have one are gone through. Bound: some seven instructions for an entry; in CSC, loads of C that
wait for stores to the same item.
"""

from __future__ import annotations

from numba.core import cgutils

from portable_spdnn_cpu.jit.loops import align_loop, hidden, loop
from portable_spdnn_cpu.spmm.direct.dots import STEP
from portable_spdnn_cpu.spmm.direct.job_words import B_ROW, OUT_ROW, ROWS, K
from portable_spdnn_cpu.spmm.direct.sparse_microkernel import SparseMicrokernel
from portable_spdnn_cpu.spmm.direct.unrolled import sum_in_order
from portable_spdnn_cpu.spmm.emitter import BYTE, WORD, Value


class PredictedRows(SparseMicrokernel):
    """Emits the products of rows of A in CSR, of any lengths, with a branch after each entry."""

    def multiply(self, number: Value, first: Value, stop: Value) -> None:
        """Emit a row of C."""
        builder, terms = self.builder, []
        target = self.row_of(self.out, number, OUT_ROW)
        more, ended, stored = (builder.append_basic_block(n) for n in ("more", "ended", "stored"))
        for lane in range(STEP):
            short = builder.append_basic_block(f"of_{lane}")
            entry = self.add(first, lane)
            self._leave_at_end(entry, stop, short)
            terms.append(self.term(entry, self.words[K]))
            with builder.goto_block(short):
                self.store(sum_in_order(self, terms[:lane]), target)
                builder.branch(stored)
        slots, place = [self.slot(term.type) for term in terms], self.slot(WORD)
        for slot, term in zip(slots, terms, strict=True):
            builder.store(term, slot)
        builder.store(self.add(first, STEP), place)
        builder.branch(more)
        builder.position_at_end(more)
        # An empty asm hides the steps from LLVM, which would count up an address for each lane.
        base = hidden(builder, builder.load(place))
        for lane, slot in enumerate(slots):
            entry = self.add(base, lane)
            self._leave_at_end(entry, stop, ended)
            builder.store(self.plus(builder.load(slot), self.term(entry, self.words[K])), slot)
        builder.store(self.add(base, STEP), place)
        align_loop(builder, builder.branch(more))
        builder.position_at_end(ended)
        self.store(sum_in_order(self, [builder.load(slot) for slot in slots]), target)
        builder.branch(stored)
        builder.position_at_end(stored)

    def _leave_at_end(self, entry: Value, stop: Value, ended: Value) -> None:
        """Go on with an entry, or to a block where the row has ended."""
        following = self.builder.append_basic_block("entry")
        self.builder.cbranch(self.builder.icmp_signed("<", entry, stop), following, ended)
        self.builder.position_at_end(following)


class EachColumn(SparseMicrokernel):
    """Emits what columns of A in CSC, whose indices were checked, add to a single column of C."""

    def multiply(self, number: Value, first: Value, stop: Value) -> None:
        """Emit the entries of a column of A, times an item of B."""
        [item] = self.load_row(self.row_of(self.B, number, B_ROW))
        # LLVM would add many at a time, of which a short column has none.
        with loop(self.builder, first, stop, self.number(1), unrolls=False) as entry:
            self.add_term(entry, None, item)


class LongColumns(EachColumn):
    """Emits what columns of A in CSC, mostly long ones, add to a single column of C.

    Indices are checked as they are used, those of several entries at once.
    """

    def multiply(self, number: Value, first: Value, stop: Value) -> None:
        """Emit the entries of a column of A, times an item of B."""
        extent = self.words[ROWS]
        [item] = self.load_row(self.row_of(self.B, number, B_ROW))
        entries = self.builder.sub(stop, first)
        steps = self.add(first, self.builder.and_(entries, self.number(STEP - 1)))
        with loop(self.builder, first, steps, self.number(1), unrolls=False) as entry:
            self.add_term(entry, extent, item)
        with self.loop(steps, stop, STEP) as entry:
            self.check_indices(entry, STEP, extent)
            for place in range(STEP):
                self.add_term(self.add(entry, place), None, item)


class NonemptyRows(PredictedRows):
    """Emits the products of rows of A in CSR, of which many have no entry."""

    def multiply_all(self, begin: Value, end: Value) -> None:
        """Emit rows of C: zeros first."""
        size = self.times(self.builder.sub(end, begin), self.itemsize)
        target = self.builder.inttoptr(self.row_of(self.out, begin, OUT_ROW), BYTE.as_pointer())
        cgutils.memset(self.builder, target, size, 0)
        self.multiply_nonempty(begin, end)


class NonemptyColumns(EachColumn):
    """Emits what columns of A in CSC add to a single column of C where most have no entry."""

    def multiply_all(self, begin: Value, end: Value) -> None:
        """Emit columns begin .. end - 1 of A."""
        self.multiply_nonempty(begin, end)
