"""Emitters of loops over rows of weights: what goes around the sums that `microkernels` emits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils

from portable_spdnn_cpu.jit.flags import Flags
from portable_spdnn_cpu.jit.grouped_loads import split_numbers
from portable_spdnn_cpu.jit.intrinsics import prefetch_line
from portable_spdnn_cpu.jit.loops import hidden, loop
from portable_spdnn_cpu.spmm.emitter import WORD, Value
from portable_spdnn_cpu.spmm.stream.entries import OFFSET_UNIT, Entries
from portable_spdnn_cpu.spmm.stream.microkernels import RowsEmitter, pairs
from portable_spdnn_cpu.spmm.stream.packing import PAIR

INT32 = ir.IntType(32)
VISIT_BYTES = 8  # two numbers of 32 bits: see `packing.StreamPart`


class Visit(NamedTuple):
    """One row, or a pair: their numbers, and how many entries each has.

    `emitter` is that of their sums; `following` emits, and returns, the numbers of two rows that
    come next.
    """

    emitter: RowsEmitter
    rows: list[Value]
    following: Callable[[], list[Value]]
    count: Value


class RowsLoop:
    """Emits a loop over rows.

    Parameters
    ----------
    builder
        llvmlite's, where the loop is to begin.
    vectors, vector_bytes, halved
        As `RowsEmitter` has them.
    element
        Numba's type of values.
    given : SimpleNamespace
        LLVM values, by the names that `row_loops` gives them.
    """

    def __init__(
        self,
        builder: Any,
        vectors: int,
        vector_bytes: int,
        halved: bool,
        element: Any,
        given: SimpleNamespace,
    ) -> None:
        self.builder, self.given = builder, given
        self.vectors, self.vector_bytes, self.halved = vectors, vector_bytes, halved
        self.scalar = ir.FloatType() if element.bitwidth == 32 else ir.DoubleType()
        self.itemsize = element.bitwidth // 8
        self.width = WORD(vectors * vector_bytes // self.itemsize)
        # Items, of offsets into a panel that is copied.
        self.unit = WORD(OFFSET_UNIT // self.itemsize)
        self.panel, self.sums = map(self._values_at, (given.panel, given.sums))
        self.flags = Flags(builder, self._conditions())

    def _conditions(self) -> dict[str, Value]:
        """Return the flags' conditions, by name."""
        return {"later": self.given.later, "far": self.given.far}

    def each_packed(self, emit: Callable[[Visit], None]) -> Value:
        """Emit a loop over rows of a block, two at a time where they are a pair.

        Returns the visit at which it stopped.
        """
        builder, given = self.builder, self.given
        self.entries = Entries(builder, given.offsets, given.values, given.entry, self.itemsize)
        self.visits = cgutils.alloca_once(builder, WORD)
        builder.store(self._visit_at(given.top), self.visits)
        end = self._visit_at(given.stop)
        test, body, after = (
            builder.append_basic_block(f"{name}_rows") for name in ("test", "some", "after")
        )
        builder.branch(test)
        builder.position_at_end(test)
        builder.cbranch(builder.icmp_signed("<", builder.load(self.visits), end), body, after)
        builder.position_at_end(body)
        row, count = self._visit(0)

        def emit_rows(rows: int) -> None:
            entries = count
            if rows == 2:  # hidden, else PAIR would be masked anew wherever the count is used
                entries = hidden(builder, builder.xor(count, WORD(PAIR)))
            numbers = [row, *(self._visit(each)[0] for each in range(1, rows))]

            def following() -> list[Value]:
                return [self._visit(rows + each)[0] for each in range(2)]

            emit(Visit(self._emitter(rows), numbers, following, entries))
            passed = builder.add(builder.load(self.visits), WORD(rows * VISIT_BYTES))
            builder.store(passed, self.visits)

        if not pairs(self.vectors, self.vector_bytes):
            emit_rows(1)
        else:
            pair = builder.and_(count, WORD(PAIR))
            is_pair = builder.icmp_signed("!=", pair, WORD(0))
            with builder.if_else(is_pair, likely=True) as (two, one):
                with two:
                    emit_rows(2)
                with one:
                    emit_rows(1)
        builder.branch(test)
        builder.position_at_end(after)
        passed = builder.sub(builder.load(self.visits), given.visits)
        return builder.sdiv(passed, WORD(VISIT_BYTES))

    def _visit_at(self, number: Value) -> Value:
        """Return the address of a visit, hidden: LLVM would keep the array's, and the number."""
        builder = self.builder
        at = builder.add(self.given.visits, builder.mul(number, WORD(VISIT_BYTES)))
        return hidden(builder, at)

    def sum(self, visit: Visit) -> None:
        """Emit that entries of one or two rows, packed, are added to the sums of these."""
        self._prefetch_sums(visit)
        for row, slots in zip(visit.rows, self._summed(visit, self.panel, self.unit), strict=True):
            visit.emitter.keep(slots, self.sums, self._sums_at(row))

    def _prefetch_sums(self, visit: Visit) -> None:
        """Emit that sums of rows that come next are prefetched where they are far."""
        with self.builder.if_then(self.flags["far"], likely=False):
            for row in visit.following():
                self._prefetch(self.sums, self._sums_at(row))

    def _summed(self, visit: Visit, panel: Value, unit: Value) -> list[list[Value]]:
        """Emit that entries of one or two rows, packed, are summed; returns the sums of each."""
        emitter = visit.emitter
        starts = [self._sums_at(row) for row in visit.rows]
        emitter.begin(self.sums, starts, self.flags["later"])
        emitter.add_packed(panel, unit, self.entries, visit.count)
        return emitter.join()

    def _visit(self, distance: int) -> tuple[Value, Value]:
        """Return the row and the number of entries of a visit, by one load."""
        builder = self.builder
        at = builder.add(builder.load(self.visits), WORD(distance * VISIT_BYTES))
        loaded = builder.load(builder.inttoptr(at, WORD.as_pointer()), align=4)
        word = hidden(builder, loaded)  # else it would be two loads
        row, count = split_numbers(builder, word, 32)
        return row, count

    def _sums_at(self, row: Value) -> Value:
        return self.builder.mul(row, self.width)

    def _prefetch(self, data: Value, position: Value) -> None:
        """Emit that a row of a panel, to be written, is prefetched."""
        emitter = self._emitter()
        for number in range(self.vectors):
            prefetch_line(self.builder, emitter.at(data, position, number), written=True)

    def _emitter(self, rows: int = 1) -> RowsEmitter:
        """Return what emits the sums of one row, or of two."""
        return RowsEmitter(
            self.builder, self.vectors, self.scalar, rows, self.vector_bytes, self.halved
        )

    def _values_at(self, address: Value) -> Value:
        return self._pointer(self.scalar, address)

    def _pointer(self, kind: Value, address: Value) -> Value:
        return self.builder.inttoptr(address, kind.as_pointer())


class FinishedRowsLoop(RowsLoop):
    """Emits a loop over rows that are written to C.

    `skips`: whether the first panel may begin before column 0. The others are as `RowsLoop` has
    them.
    """

    def __init__(
        self,
        builder: Any,
        vectors: int,
        vector_bytes: int,
        halved: bool,
        element: Any,
        given: SimpleNamespace,
        skips: bool,
    ) -> None:
        self.skips = skips
        super().__init__(builder, vectors, vector_bytes, halved, element, given)
        addresses = given.out, given.bias, given.residual
        self.out, self.bias, self.residual = map(self._values_at, addresses)

    def _conditions(self) -> dict[str, Value]:
        """Return the flags' conditions, by name."""
        builder, given = self.builder, self.given
        return super()._conditions() | {
            "has_bias": builder.icmp_signed("!=", given.bias, WORD(0)),
            "has_residual": builder.icmp_signed("!=", given.residual, WORD(0)),
            "bounded": given.bounded,
            "nontemporal": given.nontemporal,
            "prefetches": given.prefetches,
            "whole": builder.icmp_signed(">=", given.columns, self.width),
        }

    def finish_by_offsets(self, visit: Visit) -> None:
        """Emit that one or two rows, packed for a panel that is copied, are summed and written."""
        self._prefetch_sums(visit)
        self._limit(visit.emitter, self.given.skipped, reads_b=False)
        self._finish(visit, self.panel, self.unit, WORD(0))

    def finish_by_rows(self, visit: Visit) -> None:
        """Emit that one or two rows, packed for panels read in B, meet all panels."""
        self._prefetch_sums(visit)
        first = self.entries.offset(), self.entries.value()
        with self._each_panel() as (shift, skipped):
            self.entries.go_to(*first)
            self._limit(visit.emitter, skipped, reads_b=True)
            panel = self.builder.gep(self.panel, [shift])
            self._finish(visit, panel, self.given.stride, shift)

    def _finish(self, visit: Visit, panel: Value, unit: Value, shift: Value) -> None:
        """Emit that rows are summed and written, `shift` items behind `out`."""
        builder = self.builder
        with builder.if_then(self.flags["prefetches"], likely=False):
            for row in visit.following():
                self._prefetch(self.out, builder.add(self._out_at(row), shift))
        for row, slots in zip(visit.rows, self._summed(visit, panel, unit), strict=True):
            self._write(visit.emitter, slots, row, shift)

    @contextmanager
    def _each_panel(self) -> Iterator[tuple[Value, Value]]:
        """Emit a loop over panels, at least one; gives how far behind the first, and `skipped`."""
        builder, given = self.builder, self.given
        with loop(builder, WORD(0), given.panels, WORD(1)) as panel:
            is_first = builder.icmp_signed("==", panel, WORD(0))
            skipped = builder.select(is_first, given.skipped, WORD(0))
            yield builder.mul(panel, self.width), skipped

    def each_as_given(self) -> None:
        """Emit a loop over rows of weights as they are given, each of which meets all panels."""
        builder, given = self.builder, self.given
        indices, indptr = self._pointer(INT32, given.offsets), self._pointer(WORD, given.visits)
        values = self._values_at(given.values)
        with loop(builder, given.top, given.stop, WORD(1)) as row:
            after = builder.add(row, WORD(1))
            with builder.if_then(self.flags["prefetches"], likely=False):
                is_there = builder.icmp_signed("<", after, given.stop)
                start = self._out_at(builder.select(is_there, after, row))
                with loop(builder, WORD(0), given.panels, WORD(1)) as panel:
                    shift = builder.mul(panel, self.width)
                    self._prefetch(self.out, builder.add(start, shift))
            first, stop = (builder.load(builder.gep(indptr, [each])) for each in (row, after))
            with self._each_panel() as (shift, skipped):
                emitter = self._emitter()
                self._limit(emitter, skipped, reads_b=True)
                emitter.begin(self.sums, [self._sums_at(row)], self.flags["later"])
                panel = builder.gep(self.panel, [shift])
                emitter.add_as_given(panel, given.stride, indices, values, first, stop)
                [slots] = emitter.join()
                self._write(emitter, slots, row, shift)

    def _limit(self, emitter: RowsEmitter, skipped: Value, reads_b: bool) -> None:
        """Emit which lanes are there."""
        emitter.limit(self.given.columns, self.flags["whole"])
        if self.skips:
            emitter.skip(skipped, reads_b)

    def _write(self, emitter: RowsEmitter, slots: list[Value], row: Value, shift: Value) -> None:
        """Emit that the sums of a row are finished and written, `shift` items behind `out`."""
        builder, given = self.builder, self.given
        with builder.if_then(self.flags["has_bias"]):
            emitter.add_bias(slots, builder.load(builder.gep(self.bias, [row])))
        with builder.if_then(self.flags["has_residual"], likely=False):
            start = builder.add(builder.mul(row, given.residual_stride), shift)
            emitter.add_residual(slots, self.residual, start)
        with builder.if_then(self.flags["bounded"]):
            emitter.clamp(slots, given.lower, given.upper)
        start = builder.add(self._out_at(row), shift)
        with builder.if_else(self.flags["nontemporal"], likely=False) as (nontemporal, as_usual):
            with nontemporal:
                emitter.store(slots, self.out, start, nontemporal=True)
            with as_usual:
                emitter.store(slots, self.out, start)

    def _out_at(self, row: Value) -> Value:
        return self.builder.mul(row, self.given.out_stride)
