"""Products of few columns of B with A that has few entries in a row, or in a column in CSC.

The number of its row, or column, is written for each entry of some rows; then each entry, times a
row of B, is added to a row of C, in one loop. So no branch depends on how many entries a row has,
up to AT_ONCE of them. Bound: two or three cycles for a row, and for an entry, as in `columns`, a
load and a store of C for each vector and piece.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from portable_spdnn_cpu.spmm.direct.choice import MOSTLY_EMPTY
from portable_spdnn_cpu.spmm.direct.columns import STEP, Columns
from portable_spdnn_cpu.spmm.direct.job_words import B_ROW, OUT_ROW, ROWS, K
from portable_spdnn_cpu.spmm.direct.sparse_microkernel import SparseMicrokernel
from portable_spdnn_cpu.spmm.emitter import BYTE, WORD, Value

PAGE_BYTES = 4096
LINES = 256  # rows, or columns in CSC, whose entries' numbers are written before they are added
MOST_NUMBERS = 1024  # of entries that are numbered: LINES columns of more are added one by one
AT_ONCE = 8  # numbers that are written for a row without a loop: the next row's overwrite some


class EntriesOfColumns(Columns):
    """Emits the products of entries of A in CSC."""

    def multiply_all(self, begin: Value, end: Value) -> None:
        """Emit columns begin .. end - 1 of A."""
        builder = self.builder
        self.numbers = self.memory(self.index_type, MOST_NUMBERS + AT_ONCE)
        with self.loop(begin, end, LINES) as number:
            after = self.least(self.add(number, LINES), end)
            first, stop = self.offset(number), self.offset(after)
            entries = builder.sub(stop, first)
            has_room = builder.icmp_unsigned("<=", entries, self.number(MOST_NUMBERS))
            self.begin_block(number, after, entries)
            with builder.if_else(has_room) as (numbered, one_by_one):
                with numbered:
                    self._write_numbers(number, after, first, entries)
                    self.by_steps(first, stop, STEP, lambda entry, _: self._add_numbered(entry))
                with one_by_one, self.loop(number, after) as line:
                    following = self.offset(self.add(line, 1))
                    with self.loop(self.offset(line), following) as entry:
                        self._add_entry(entry, line)

    def _write_numbers(self, begin: Value, end: Value, first: Value, entries: Value) -> None:
        """Emit that the numbers of columns begin .. end - 1 are written for so many entries."""
        builder, size = self.builder, self.index_type.width // 8
        self.of_first = builder.sub(self.numbers, self.times(first, size))
        least = self.times(entries, MOSTLY_EMPTY)
        are_few = builder.icmp_unsigned("<", least, builder.sub(end, begin))
        with builder.if_else(are_few) as (mostly_empty, filled):
            with mostly_empty:
                self.multiply_nonempty(begin, end)
            with filled:
                SparseMicrokernel.multiply_all(self, begin, end)

    def begin_block(self, begin: Value, end: Value, entries: Value) -> None:
        """Emit what is done before columns begin .. end - 1 of A, of so many entries."""

    def multiply(self, number: Value, first: Value, stop: Value) -> None:
        """Emit that the number of a row or column is written for each of its entries."""
        kind, size = self.index_type, self.index_type.width // 8
        narrow = number if kind == WORD else self.builder.trunc(number, kind)
        at = self.add(self.of_first, self.times(first, size))
        self.store(self.spread(narrow, AT_ONCE), at, size)
        with self.loop(self.add(first, AT_ONCE), stop) as entry:
            self.store(narrow, self.add(self.of_first, self.times(entry, size)), size)

    def _add_numbered(self, entry: Value) -> None:
        """Emit an entry, whose number was written, times a row of B."""
        self._add_entry(entry, self.load_word(self.index_type, self.of_first, entry))

    def _add_entry(self, entry: Value, number: Value) -> None:
        """Emit an entry of a row or column times a row of B, added to a row of C."""
        column, row, factor = self.places(entry, number)
        source = self.row_of(self.B, column, B_ROW)
        self.add_row(source, self.load_row(source), factor, self.row_of(self.out, row, OUT_ROW))

    def places(self, entry: Value, number: Value) -> tuple[Value, Value, Value]:
        """Return an entry's row of B and of C, and its value spread over a vector."""
        index, factor = self.entry(entry, self.words[ROWS])
        return number, index, factor


class EntriesOfRows(EntriesOfColumns):
    """Emits the products of entries of A in CSR: what is said of columns above is done for rows."""

    def start(self) -> None:
        """Emit nothing: rows of C are begun block by block, so that they are near when added to."""

    def begin_block(self, begin: Value, end: Value, entries: Value) -> None:
        """Emit that rows begin .. end - 1 of C are zero, and that their pages exist.

        There is no epilogue. Where C holds zeros, to read a page that the system has not mapped
        yet, and then to write it, costs two page faults: so a zero is written to each first, unless
        these rows have fewer entries than pages.
        """
        builder = self.builder
        start, stop = (self.row_of(self.out, row, OUT_ROW) for row in (begin, end))
        size = builder.sub(stop, start)
        with builder.if_else(self.holds_zeros) as (zeroed, unwritten):
            with zeroed:
                reached = self.times(entries, PAGE_BYTES)
                with (
                    builder.if_then(builder.icmp_unsigned(">=", reached, size)),
                    self.loop(start, stop, PAGE_BYTES) as address,
                ):
                    self.store(ir.Constant(self.scalar, 0.0), address)
            with unwritten:
                cgutils.memset(builder, builder.inttoptr(start, BYTE.as_pointer()), size, 0)

    def places(self, entry: Value, number: Value) -> tuple[Value, Value, Value]:
        """Return an entry's row of B and of C, and its value spread over a vector."""
        index, factor = self.entry(entry, self.words[K])
        return index, number, factor
