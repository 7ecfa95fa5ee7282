"""The generator of code for products row by row.

An entry times a row of B: a load for the row, and for four entries one for their places and one for
their values (`jit.grouped_loads`). Bound: two vectors loaded in a cycle, 0.75 cycles an entry where
a row of B is one vector. On a Zen 5 core it was 0.9, 1.0 and 1.2 for 4, 8 and 16 columns of
float32; with a load for each value it had been 1.35, 1.35 and 1.55. Rows of A are cut into blocks
of columns, whose rows of B are in the first-level cache where a row of A has many entries in a
block, else in the second-level one: to begin and end a row in one more block takes as long as six
to ten entries. In a block rows are ordered by length and filled up to fours, so that the branch
that ends a row is predicted. What fills up meets a row of zeros at the start of every block.
"""

from __future__ import annotations

from llvmlite import ir

from portable_spdnn_cpu.jit.flags import Flags
from portable_spdnn_cpu.jit.grouped_loads import broadcast_group, load_numbers, split_numbers
from portable_spdnn_cpu.jit.loops import hidden, loop
from portable_spdnn_cpu.spmm.emitter import INT16, WORD, Value
from portable_spdnn_cpu.spmm.few_columns.copies import copy_to_rows
from portable_spdnn_cpu.spmm.few_columns.operands import Operands
from portable_spdnn_cpu.spmm.few_columns.specs import ENTRIES, UNIT, RowsSpec

# Entries of a row in a block from which on they are added to twice as many sums. On a Zen 4, where
# alone it was measured, products took 0.87 to 1.0 of the time so; with 32, those of rows with 26 to
# 50 entries took up to 1.05 times as long.
LONG_ROW = 48


class RowsProduct(Operands):
    """Emits the product row by row."""

    spec: RowsSpec

    def emit(self) -> None:
        """Emit the whole product."""
        spec, builder, scratch = self.spec, self.builder, self.argument["scratch"]
        blocks, block_rows, starts, first_entries, self.visits, self.bias = (
            self.table(name)
            for name in ("blocks", "block_rows", "starts", "first_entries", "visits", "bias")
        )
        self.values, self.places = self.table("values"), self.table("places")
        self.partial = self.add(scratch, self.table("sums"))
        copy_to_rows(self, spec, scratch, blocks, block_rows)
        self.row_kind = self.vector(spec.width)
        self.sums = [self.slot(self.row_kind) for _ in range(spec.chains)]
        self.further_sums = [self.slot(self.row_kind) for _ in range(spec.further_chains)]
        # LLVM keeps `total` in a register; `finished` has an address.
        self.total, self.finished = self.slot(self.row_kind), self.slot(self.row_kind)
        self.entry = self.slot(WORD)
        # Whether items of C are adjacent in a row, and of the residual if there is one.
        ordered = [self.is_adjacent(step) for step in ("out_column", "residual_column")]
        no_residual = builder.not_(self.has_residual())
        rows_are_whole = builder.and_(ordered[0], builder.or_(ordered[1], no_residual))
        # Each block begins with a row of zeros.
        block_bytes = self.times(self.add(block_rows, 1), spec.row_bytes)
        last = self.add(blocks, -1)
        parts = self.loop(self.argument["first"], self.argument["end"])
        with parts as part, self.loop(self.zero, blocks) as block:
            number = self.add(self.times(part, blocks), block)
            builder.store(self.load_word(WORD, first_entries, number), self.entry)
            begin = self.load_word(WORD, starts, number)
            stop = self.load_word(WORD, starts, self.add(number, 1))
            self.source = self.add(scratch, self.times(block, block_bytes))
            self.flags = Flags(builder, {
                "continues": builder.icmp_unsigned("!=", block, self.zero),
                "ends": builder.icmp_unsigned("==", block, last),
                "rows_are_whole": rows_are_whole,
                "has_residual": self.has_residual(),
            })  # fmt: skip
            with self.loop(begin, stop) as visit:
                self._visit(visit)

    def _visit(self, visit: Value) -> None:
        """Do the entries of a row in a block."""
        builder, zero = self.builder, ir.Constant(self.row_kind, None)
        word = self.load_word(WORD, self.visits, visit)
        word = hidden(builder, word)  # else it would be two loads
        row, count = split_numbers(builder, word, 32)
        partial = self.add(self.partial, self.times(row, self.spec.row_bytes))
        for slot in self.sums:
            builder.store(zero, slot)
        with builder.if_then(self.flags["continues"]):
            builder.store(self.load(self.row_kind, partial), self.sums[0])
        first = builder.load(self.entry)
        whole = self.add(first, builder.and_(count, self.number(-2 * ENTRIES)))
        end = self.add(first, count)
        if self.further_sums:
            is_long = builder.icmp_unsigned(">=", count, self.number(LONG_ROW))
            with builder.if_else(is_long) as (long, short):
                with long:
                    self._add_long_row(first, whole)
                with short:
                    self._add_groups(first, whole, self.sums)
        else:
            self._add_groups(first, whole, self.sums)
        with builder.if_then(builder.icmp_unsigned("<", whole, end)):
            self._add_entries(whole, 1, self.sums)
        builder.store(end, self.entry)
        total = self.sum_of(self.sums)
        with builder.if_else(self.flags["ends"]) as (finish, keep):
            with finish:
                self._finish(row, total)
            with keep:
                self.store(total, partial)

    def _add_long_row(self, first: Value, end: Value) -> None:
        """Add entries first .. end - 1 to twice as many sums, which are joined then."""
        builder = self.builder
        for slot in self.further_sums:
            builder.store(ir.Constant(self.row_kind, None), slot)
        self._add_groups(first, end, [*self.sums, *self.further_sums])
        for slot, further in zip(self.sums, self.further_sums, strict=True):
            builder.store(self.plus(builder.load(slot), builder.load(further)), slot)

    def _add_groups(self, first: Value, end: Value, sums: list[Value]) -> None:
        """Add entries first .. end - 1, whole pairs of groups, to some sums by turns."""
        together = self.number(2 * ENTRIES)
        with loop(self.builder, first, end, together, unrolls=False) as entry:
            self._add_entries(entry, 2, sums)

    def _add_entries(self, entry: Value, groups: int, sums: list[Value]) -> None:
        """Add so many groups of ENTRIES entries, from one on, to some sums by turns."""
        spec, builder = self.spec, self.builder
        # Lines of places are asked for four times: without them rows from memory take 1.4 times as
        # long.
        self.prefetch_entries(entry, groups * ENTRIES, INT16.width // 8)
        for number in range(groups):
            first = self.add(entry, number * ENTRIES)
            units = load_numbers(builder, self.pointer(INT16, self.places, first))
            values = self.pointer(self.scalar, self.values, first)
            factors = broadcast_group(builder, self.row_kind, values, spec.vector_bytes)
            for place in range(ENTRIES):
                features = self.load(
                    self.row_kind, self.add(self.source, self.times(units[place], UNIT))
                )
                slot = sums[(number * ENTRIES + place) % len(sums)]
                total = self.multiply_add(features, factors[place], builder.load(slot))
                builder.store(total, slot)

    def _finish(self, row: Value, total: Value) -> None:
        """Add bias and residual, clamp, and store a row of C."""
        spec, builder = self.spec, self.builder
        bias = self.load(self.scalar, self.add(self.bias, self.times(row, spec.itemsize)))
        builder.store(self.plus(total, self.spread(bias, spec.width)), self.total)
        with builder.if_else(self.flags["rows_are_whole"], likely=True) as (adjacent, apart):
            with adjacent:
                with builder.if_then(self.flags["has_residual"], likely=False):
                    start = self.times(row, self.argument["residual_row"])
                    residual = self.add(self.argument["residual"], start)
                    added = self.load_first(self.row_kind, residual, spec.columns)
                    builder.store(self.plus(builder.load(self.total), added), self.total)
                result = self.clamp(builder.load(self.total))
                self.store_first(result, self.row_of_out(row), spec.columns)
            with apart:
                self._finish_apart(row)

    def _finish_apart(self, row: Value) -> None:
        """Add a residual if there is one, clamp, and store a row of C, one item after the other."""
        spec, builder = self.spec, self.builder
        builder.store(builder.load(self.total), self.finished)
        stack = self.address_of(self.finished)
        places = [self.add(stack, n * spec.itemsize) for n in range(spec.columns)]
        with builder.if_then(self.flags["has_residual"], likely=False):
            for n, place in enumerate(places):
                term = self.residual(row, n)
                self.store(self.plus(self.load(self.scalar, place), term), place)
        builder.store(self.clamp(builder.load(self.finished)), self.finished)
        self.store_row(row, [self.load(self.scalar, place) for place in places])
