"""Products with a single column of B whose branches a processor foresees.

A branch follows each entry of a row of CSR, or of a column of CSC: nothing is computed in vain, and
nothing else is done for a row. Where the processor does not foresee how many entries there are,
`dot_blocks` and `vectors.add_short_columns` take less time; for long columns it matters little.
Bound: some seven instructions for an entry; in CSC, loads of C that wait for stores to the same
item.
"""

from __future__ import annotations

from portable_spdnn_cpu.jit.loops import align_loop, hidden
from portable_spdnn_cpu.jit.target import cpu_name
from portable_spdnn_cpu.spmm.direct.columns import Columns
from portable_spdnn_cpu.spmm.direct.dots import STEP
from portable_spdnn_cpu.spmm.direct.job_words import B_ROW, OUT_ROW, ROWS, K
from portable_spdnn_cpu.spmm.direct.unrolled import EqualRows
from portable_spdnn_cpu.spmm.emitter import WORD, Value

# Whether indices of columns are checked in a pass of their own, before columns are added, or each
# as it is used: the first takes 0.9 of the time on an Intel Xeon, the second on a Zen 3.
CHECKS_AHEAD = not cpu_name().startswith("znver")


class ForeseenRows(EqualRows):
    """Emits the products of rows of A in CSR, of any lengths, with a branch after each entry."""

    def multiply_all(self, begin: Value, end: Value) -> None:
        """Emit rows of C."""
        with self.loop(begin, end) as number:
            self.multiply(number, self.offset(number), self.offset(self.add(number, 1)))

    def multiply(self, number: Value, first: Value, stop: Value) -> None:
        """Emit a row of C."""
        builder, terms = self.builder, []
        target = self.row_of(self.out, number, OUT_ROW)
        more, ended, stored = (builder.append_basic_block(n) for n in ("more", "ended", "stored"))
        for lane in range(STEP):
            short = builder.append_basic_block(f"of_{lane}")
            entry = self.add(first, lane)
            self._leave_at_end(entry, stop, short)
            terms.append(self._term(entry))
            with builder.goto_block(short):
                self.store(self._sum_in_order(terms[:lane]), target)
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
            builder.store(self.plus(builder.load(slot), self._term(entry)), slot)
        builder.store(self.add(base, STEP), place)
        align_loop(builder, builder.branch(more))
        builder.position_at_end(ended)
        self.store(self._sum_in_order([builder.load(slot) for slot in slots]), target)
        builder.branch(stored)
        builder.position_at_end(stored)

    def _leave_at_end(self, entry: Value, stop: Value, ended: Value) -> None:
        """Go on with an entry, or to a block where the row has ended."""
        following = self.builder.append_basic_block("entry")
        self.builder.cbranch(self.builder.icmp_signed("<", entry, stop), following, ended)
        self.builder.position_at_end(following)

    def _term(self, entry: Value) -> Value:
        """Return the product of an entry and its item of B."""
        index, factor = self.entry(entry, self.words[K])
        [item] = self.load_row(self.row_of(self.B, index, B_ROW))
        return self.builder.fmul(factor, item)


class EachColumn(Columns):
    """Emits what columns of A in CSC add to a single column of C, entry by entry."""

    def start(self) -> None:
        """Emit nothing: C was begun before."""

    def multiply(self, number: Value, first: Value, stop: Value) -> None:
        """Emit the entries of a column of A, times an item of B."""
        [item] = self.load_row(self.row_of(self.B, number, B_ROW))
        with self.loop(first, stop) as entry:
            index, factor = self.entry(entry, None if CHECKS_AHEAD else self.words[ROWS])
            target = self.row_of(self.out, index, OUT_ROW)
            [total] = self.load_row(target)
            self.store(self.plus(total, self.builder.fmul(factor, item)), target)
