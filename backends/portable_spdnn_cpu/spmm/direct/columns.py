"""Products of columns of A, in CSC.

A row of B stays in registers, and is added, times each entry of a column of A, to the row of C that
the entry names. What is left of a row beyond whole vectors goes in pieces of half as many lanes, a
quarter, and so on, each behind a branch that is always the same. So each load of C is of what one
store wrote: columns that follow one another often meet the same rows, and a store is forwarded to a
load of all or a part of it, but not two stores to one load, which waits for the cache. Bound: a
load and a store of C for each vector and piece.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from portable_spdnn_cpu.jit.flags import Flags
from portable_spdnn_cpu.spmm.direct.job_words import B_ROW, ENTRIES, OUT_ROW, ROWS, K
from portable_spdnn_cpu.spmm.direct.sparse_microkernel import SparseMicrokernel
from portable_spdnn_cpu.spmm.emitter import Value

STEP = 4  # entries
# Columns of A that are passed over at once if none has an entry, in panels where A has more than so
# many columns for an entry: with fewer, a processor often predicts wrongly whether all are empty.
PASSED_OVER, COLUMNS_FOR_ENTRY = 8, 16


class Columns(SparseMicrokernel):
    """Emits the products of columns of A; here columns of B fill a vector at least."""

    def place_last_vector(self, columns: Value) -> None:
        """Set `last` to the last whole vector's distance, and find the pieces of what is left."""
        builder, lanes = self.builder, self.vector_type.count
        self.last = (self.vectors - 1) * self.vector_bytes
        left = builder.sub(columns, self.number(self.vectors * lanes))
        has_piece = {"any": builder.icmp_signed(">", left, self.zero)}
        # Lanes of each piece, and its distance from the first vector.
        self.pieces: list[tuple[int, Value]] = []
        place = self.number(self.vectors * self.vector_bytes)
        while lanes := lanes // 2:
            size = builder.and_(left, self.number(lanes))
            has_piece[f"of {lanes}"] = builder.icmp_signed("!=", size, self.zero)
            self.pieces.append((lanes, place))
            place = self.add(place, self.times(size, self.itemsize))
        self.has_piece = Flags(builder, has_piece)

    def start(self) -> None:
        """Emit that rows of C are zero unless they hold the residual, and that bias is added."""
        builder = self.builder
        anew = builder.not_(builder.or_(self.holds_zeros, self.has_residual))
        with builder.if_then(anew), self.loop(self.zero, self.words[ROWS]) as row:
            target = self.row_of(self.out, row, OUT_ROW)
            self._on_each_part(target, lambda kind, *_: ir.Constant(kind, None))
        with builder.if_then(self.finishes), self.loop(self.zero, self.words[ROWS]) as row:
            bias, target = self.bias(row), self.row_of(self.out, row, OUT_ROW)

            def plus_bias(kind: Value, place: Value, _: int | None) -> Value:
                before = self.load(kind, self.add(target, place))
                return self.plus(self.spread(bias, kind.count), before)

            self._on_each_part(target, plus_bias)

    def multiply_all(self, begin: Value, end: Value) -> None:
        """Emit columns begin .. end - 1 of A; some together are passed over if all are empty."""
        builder, columns = self.builder, self.words[K]
        least = self.times(self.words[ENTRIES], COLUMNS_FOR_ENTRY)
        are_few = builder.icmp_unsigned("<", least, columns)
        together = builder.select(are_few, self.number(PASSED_OVER), columns)
        with self.loop(begin, end, together) as number:
            after = self.least(self.add(number, together), end)
            is_filled = builder.icmp_signed("!=", self.offset(number), self.offset(after))
            with builder.if_then(is_filled):
                super().multiply_all(number, after)

    def multiply(self, number: Value, first: Value, stop: Value) -> None:
        """Emit the entries of a column of A, times a row of B."""
        builder = self.builder
        with builder.if_then(builder.icmp_signed("<", first, stop)):
            source = self.row_of(self.B, number, B_ROW)
            row = self.load_row(source)
            self.by_steps(first, stop, STEP, lambda entry, _: self._add(source, row, entry))

    def _add(self, source: Value, row: list[Value], entry: Value) -> None:
        """Emit an entry times a row of B, added to the row of C that its index names."""
        index, factor = self.entry(entry, self.words[ROWS])
        self.add_row(source, row, factor, self.row_of(self.out, index, OUT_ROW))

    def add_row(self, source: Value, row: list[Value], factor: Value, target: Value) -> None:
        """Emit a factor times a row of B, whose whole vectors are loaded, added to a row of C."""

        def total(kind: Value, place: Value, vector: int | None) -> Value:
            before = self.load(kind, self.add(target, place))
            found = self.load(kind, self.add(source, place)) if vector is None else row[vector]
            lanes = list(range(kind.count))
            return self.multiply_add(self.shuffle(factor, factor, lanes), found, before)

        self._on_each_part(target, total)

    def _on_each_part(
        self, target: Value, value: Callable[[Value, Value, int | None], Value]
    ) -> None:
        """Store value(type, distance, number) as each vector of a row; a piece has no number."""
        builder = self.builder
        for number in range(self.vectors):
            place = self.number(number * self.vector_bytes)
            self.store(value(self.vector_type, place, number), self.add(target, place))
        with builder.if_then(self.has_piece["any"]):
            for lanes, place in self.pieces:
                with builder.if_then(self.has_piece[f"of {lanes}"]):
                    self.store(value(self.vector(lanes), place, None), self.add(target, place))
