"""Microkernels: C = A B for A in lanes, sliced, and row by row.

*Lanes.* A step multiplies one entry, or none, of each row of a slice by the entry of B's column
that a permute picks out of a window of one or two vectors. Two permutes and a blend pick it out of
four, for a single column with AVX-512. Bound there, for a step and N columns: 1.25 + N loads of two
a cycle (steps share windows), and 80 bytes of the second-level cache. On a Zen 5 a step of one
column takes 2.2 cycles with windows of two vectors and 2.4 with four; half a load less saves 0.4,
and permutes, at 0.6 each, do not bind. Lanes idle where a row has no entry in the window: at 80, 90
and 95 % zeros there are 1.4, 1.7 and 2.4 slots an entry with windows of two vectors, 1.2, 1.4 and
2.0 with four. Idle lanes hold a zero that meets a zero between the entries of B, never an entry:
infinities stay with the rows that have them. SSE2 and NEON have no such permute, nor AVX2 for
float64.

*Sliced.* A step multiplies the next entry of each row of a slice by the entry of B that it meets;
these are loaded one by one. Few lanes idle, those of rows that are shorter than the longest of
their slice. Bound: a load for each lane, of two a cycle. On a Zen 3 core with AVX2 it was 0.95
cycles an entry, where lanes took 0.8 at 80 % zeros, 1.3 at 95 % and 3 at 98 %.

*Rows.* An entry times a row of B: a load for the row, and for four entries one for their places
and one for their values (`jit.grouped_loads`). Bound: two vectors loaded in a cycle, 0.75 cycles an
entry where a row of B is one vector. On a Zen 5 core it was 0.9, 1.0 and 1.2 for 4, 8 and 16
columns of float32; with a load for each value it had been 1.35, 1.35 and 1.55. Rows of A are cut
into blocks of columns, whose rows of B are in the first-level cache where a row of A has many
entries in a block, else in the second-level one: to begin and end a row in one more block takes as
long as six to ten entries. In a block rows are ordered by length and filled up to fours, so that
the branch that ends a row is predicted. What fills up meets a row of zeros at the start of every
block.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from portable_spdnn_cpu.jit.grouped_loads import broadcast_group, load_numbers
from portable_spdnn_cpu.spmm.emitter import INT16, INT32, WORD, Value
from portable_spdnn_cpu.spmm.few_columns.copies import copy_to_planes, copy_to_rows, copy_to_windows
from portable_spdnn_cpu.spmm.few_columns.operands import Operands, declare
from portable_spdnn_cpu.spmm.few_columns.specs import (
    ENTRIES,
    STEPS,
    LanesSpec,
    RowsSpec,
    SlicedSpec,
    Spec,
)

UNIT = 8  # bytes in which the places of B's rows are given
_PERMUTES = {  # by vectors looked up and bytes of an item
    (2, 4): "llvm.x86.avx512.vpermi2var.ps.512",
    (2, 8): "llvm.x86.avx512.vpermi2var.pd.512",
    (1, 4): "llvm.x86.avx2.permps",
}


def define_product(module: Any, name: str, spec: Spec) -> Any:
    """Add the function of a product to a module of LLVM code.

    Parameters
    ----------
    module : llvmlite.ir.Module
    name : str
    spec : LanesSpec, SlicedSpec or RowsSpec

    Returns
    -------
    llvmlite.ir.Function
        Takes what `operands.ARGUMENTS` lists.
    """
    function = declare(module, name)
    emitters = {LanesSpec: _Lanes, SlicedSpec: _Sliced, RowsSpec: _Rows}
    product: Any = emitters[type(spec)](function, spec)
    product.emit()
    product.builder.ret_void()
    return function


class _Slices(Operands):
    """What the forms that have rows in lanes share: a slice of rows after the other.

    Attributes
    ----------
    spec : LanesSpec or SlicedSpec
    """

    spec: LanesSpec | SlicedSpec

    def emit(self) -> None:
        self.read_rows()
        self.height, self.bias = self.table("height"), self.table("bias")
        self.values, self.places, starts, parts = (
            self.table(name) for name in ("values", "places", "starts", "parts")
        )
        plane, scratch = self.table("plane"), self.argument["scratch"]
        self.copy(scratch, plane)
        columns = range(self.spec.columns)
        self.planes = [self.add(scratch, self.times(plane, n)) for n in columns]
        kind = self.vector(self.spec.lanes)
        self.sums = [[self.slot(kind) for _ in range(self.spec.chains)] for _ in columns]
        self.finished = self.slot(ir.ArrayType(kind, self.spec.columns))
        first, end = (self.load_word(WORD, parts, self.argument[n]) for n in ("first", "end"))
        with self.loop(first, end) as slice_:
            for slot in (slot for slots in self.sums for slot in slots):
                self.builder.store(ir.Constant(kind, None), slot)
            begin = self.load_word(WORD, starts, slice_)
            stop = self.load_word(WORD, starts, self.add(slice_, 1))
            self.add_all(begin, stop)
            self._finish(slice_)

    def copy(self, scratch: Value, plane: Value) -> None:
        """Copy each column of B to a plane, of so many bytes."""
        raise NotImplementedError

    def add_all(self, begin: Value, stop: Value) -> None:
        """Do the steps, or chunks of them, of a slice."""
        raise NotImplementedError

    def _finish(self, slice_: Value) -> None:
        """Add bias and residual, clamp, and store the sums of a slice, which may be the last."""
        spec, builder = self.spec, self.builder
        first = self.times(slice_, spec.lanes)
        bias = self.load(
            self.vector(spec.lanes), self.add(self.bias, self.times(first, spec.itemsize))
        )
        count = self.least(builder.sub(self.height, first), self.number(spec.lanes))
        stack = self.address_of(self.finished)
        totals = [self.plus(self.sum_of(slots), bias) for slots in self.sums]
        places = [self.add(stack, n * spec.vector_bytes) for n in range(spec.columns)]
        with builder.if_else(self.has_residual(), likely=False) as (given, none):
            with given:
                for total, place in zip(totals, places, strict=True):
                    self.store(total, place)
                with self.loop(self.zero, count) as lane:
                    row = self.row_index(self.add(first, lane))
                    for n, place in enumerate(places):
                        at = self.add(place, self.times(lane, spec.itemsize))
                        term = self.residual(row, n)
                        self.store(self.plus(self.load(self.scalar, at), term), at)
                for place in places:
                    finished = self.load(self.vector(spec.lanes), place)
                    self.store(self.clamp(finished), place)
            with none:
                for total, place in zip(totals, places, strict=True):
                    self.store(self.clamp(total), place)
        whole = builder.icmp_signed("==", count, self.number(spec.lanes))
        with builder.if_else(whole, likely=True) as (unrolled, looped):
            with unrolled:
                self._store_slice(first, places)
            with looped, self.loop(self.zero, count) as lane:
                self._store_lane(first, lane, places)

    def _store_slice(self, first: Value, places: list[Value]) -> None:
        """Store a slice that has a row in each lane."""
        spec, builder = self.spec, self.builder
        if spec.columns == 1:
            for lane in range(spec.lanes):
                self._store_lane(first, self.number(lane), places)
            return
        adjacent = builder.icmp_unsigned(
            "==", self.argument["out_column"], self.number(spec.itemsize)
        )
        with builder.if_else(adjacent, likely=True) as (rows, items):
            with rows:
                self._store_rows(first, places)
            with items:
                for lane in range(spec.lanes):
                    self._store_lane(first, self.number(lane), places)

    def _store_rows(self, first: Value, places: list[Value]) -> None:
        """Store the rows of a slice, transposed in registers: items of a row are adjacent in C."""
        spec = self.spec
        kind, width = self.vector(spec.lanes), 1 << (spec.columns - 1).bit_length()
        columns = [self.load(kind, place) for place in places]
        columns += [ir.Constant(kind, None)] * (width - spec.columns)
        rows_of_vector = spec.lanes // width
        for number, vector in enumerate(self.interleave(columns)):
            for row in range(rows_of_vector):
                items = list(range(row * width, (row + 1) * width))
                lane = number * rows_of_vector + row
                index = self.row_index(self.add(first, lane))
                start = self.times(index, self.argument["out_row"])
                self.store_first(
                    self.shuffle(vector, vector, items),
                    self.add(self.argument["out"], start),
                    spec.columns,
                )

    def _store_lane(self, first: Value, lane: Value, places: list[Value]) -> None:
        offset = self.times(lane, self.spec.itemsize)
        values = [self.load(self.scalar, self.add(place, offset)) for place in places]
        self.store_row(self.row_index(self.add(first, lane)), values)


class _Lanes(_Slices):
    """Emits the product of A in lanes."""

    spec: LanesSpec

    def emit(self) -> None:
        self.windows = self.table("windows")
        super().emit()

    def copy(self, scratch: Value, plane: Value) -> None:
        copy_to_windows(self, self.spec, scratch, plane)

    def add_all(self, begin: Value, stop: Value) -> None:
        with self.loop(begin, stop) as chunk:
            self._add_chunk(chunk)

    def _add_chunk(self, chunk: Value) -> None:
        """Do STEPS steps."""
        spec, builder = self.spec, self.builder
        integers = ir.VectorType(ir.IntType(8 * spec.itemsize), spec.lanes)
        at = self.add(self.places, self.times(chunk, STEPS * spec.lanes))
        positions = self.load(ir.VectorType(INT32, spec.lanes), at)
        if integers.element != INT32:
            positions = builder.zext(positions, integers)
        first_value = self.add(self.values, self.times(chunk, STEPS * spec.vector_bytes))
        first_window = self.times(chunk, STEPS // spec.shared_steps)
        tables: list[Any] = []
        for step in range(STEPS):
            if step % spec.shared_steps == 0:
                number = self.add(first_window, step // spec.shared_steps)
                kind = ir.IntType(8 * spec.window_bytes)
                start = self.times(
                    self.load_word(kind, self.windows, number), spec.window_step * spec.itemsize
                )
                tables = [self._look_up(self.add(plane, start)) for plane in self.planes]
            chosen = builder.lshr(positions, ir.Constant(integers, [8 * step] * spec.lanes))
            values = self.load(
                self.vector(spec.lanes), self.add(first_value, step * spec.vector_bytes)
            )
            for slots, table in zip(self.sums, tables, strict=True):
                slot = slots[step % spec.chains]
                entries = self._permute(chosen, table)
                total = self.multiply_add(values, entries, builder.load(slot))
                builder.store(total, slot)

    def _look_up(self, window: Value) -> list[Value]:
        """Load the vectors of a window."""
        spec, kind = self.spec, self.vector(self.spec.lanes)
        starts = range(0, spec.registers_of_window * spec.vector_bytes, spec.vector_bytes)
        return [self.load(kind, self.add(window, start)) for start in starts]

    def _permute(self, positions: Value, table: list[Value]) -> Value:
        """Return the entries of a window at the positions, of which the low bits count."""
        spec, builder, kind = self.spec, self.builder, self.vector(self.spec.lanes)
        if len(table) > 2:  # each half by a permute
            first, second = (self._permute(positions, half) for half in (table[:2], table[2:]))
            bit = ir.Constant(positions.type, [2 * spec.lanes] * spec.lanes)
            is_first = builder.icmp_unsigned(
                "==", builder.and_(positions, bit), ir.Constant(positions.type, None)
            )
            return builder.select(is_first, first, second)
        operands = [table[0], positions, *table[1:]]
        function = ir.FunctionType(kind, [operand.type for operand in operands])
        return self.call(_PERMUTES[len(table), spec.itemsize], function, operands)


class _Sliced(_Slices):
    """Emits the product of A sliced."""

    spec: SlicedSpec

    def copy(self, scratch: Value, plane: Value) -> None:
        copy_to_planes(self, self.spec, scratch, plane)

    def add_all(self, begin: Value, stop: Value) -> None:
        chains = self.spec.chains
        steps = self.builder.and_(self.builder.sub(stop, begin), self.number(-chains))
        single = self.add(begin, steps)
        with self.loop(begin, single, chains) as step:
            for chain in range(chains):
                self._add_step(self.add(step, chain), chain)
        with self.loop(single, stop) as step:
            self._add_step(step, 0)

    def _add_step(self, step: Value, chain: int) -> None:
        spec, builder = self.spec, self.builder
        first = self.times(step, spec.lanes)
        kind = ir.IntType(8 * spec.place_bytes)
        if spec.lanes * spec.place_bytes % 8 == 0:
            places = load_numbers(builder, self.pointer(kind, self.places, first), spec.lanes)
        else:  # two of 16 bits
            numbers = [self.add(first, lane) for lane in range(spec.lanes)]
            places = [self.load_word(kind, self.places, number) for number in numbers]
        at = self.add(self.values, self.times(first, spec.itemsize))
        values = self.load(self.vector(spec.lanes), at)
        for plane, slots in zip(self.planes, self.sums, strict=True):
            entries = self.load_each(plane, places)
            total = self.multiply_add(values, entries, builder.load(slots[chain]))
            builder.store(total, slots[chain])


class _Rows(Operands):
    """Emits the product row by row."""

    spec: RowsSpec

    def emit(self) -> None:
        self.read_rows()
        spec, builder, scratch = self.spec, self.builder, self.argument["scratch"]
        blocks, block_rows, starts, first_words, self.words, self.bias = (
            self.table(name)
            for name in ("blocks", "block_rows", "starts", "first_words", "words", "bias")
        )
        self.values, self.places = self.table("values"), self.table("places")
        self.partial = self.add(scratch, self.table("sums"))
        copy_to_rows(self, spec, scratch, blocks, block_rows)
        self.row_kind = self.vector(spec.width)
        self.sums = [self.slot(self.row_kind) for _ in range(spec.chains)]
        # LLVM keeps `total` in a register; `finished` has an address.
        self.total, self.finished = self.slot(self.row_kind), self.slot(self.row_kind)
        self.word = self.slot(WORD)
        # Whether items of C are adjacent in a row, and of the residual if there is one.
        ordered = [
            builder.icmp_unsigned("==", self.argument[step], self.number(spec.itemsize))
            for step in ("out_column", "residual_column")
        ]
        no_residual = builder.not_(self.has_residual())
        self.is_adjacent = builder.and_(ordered[0], builder.or_(ordered[1], no_residual))
        # Each block begins with a row of zeros.
        block_bytes = self.times(self.add(block_rows, 1), spec.row_bytes)
        last = self.add(blocks, -1)
        parts = self.loop(self.argument["first"], self.argument["end"])
        with parts as part, self.loop(self.zero, blocks) as block:
            number = self.add(self.times(part, blocks), block)
            builder.store(self.load_word(WORD, first_words, number), self.word)
            begin = self.load_word(WORD, starts, number)
            stop = self.load_word(WORD, starts, self.add(number, 1))
            self.source = self.add(scratch, self.times(block, block_bytes))
            is_first = builder.icmp_unsigned("==", block, self.zero)
            is_last = builder.icmp_unsigned("==", block, last)
            with self.loop(begin, stop) as visit:
                self._visit(visit, is_first, is_last)

    def _visit(self, visit: Value, is_first: Value, is_last: Value) -> None:
        """Do the entries of a row in a block."""
        builder, zero = self.builder, ir.Constant(self.row_kind, None)
        row = self.row_index(visit)
        partial = self.add(self.partial, self.times(row, self.spec.row_bytes))
        for slot in self.sums:
            builder.store(zero, slot)
        with builder.if_then(builder.not_(is_first)):
            builder.store(self.load(self.row_kind, partial), self.sums[0])
        first = builder.load(self.word)
        count = self.load_word(INT16, self.words, visit)
        even = self.add(first, builder.and_(count, self.number(-2)))
        end = self.add(first, count)
        with self.loop(first, even, 2) as word:
            self._add_words(word, 2)
        with builder.if_then(builder.icmp_unsigned("<", even, end)):
            self._add_words(even, 1)
        builder.store(end, self.word)
        total = self.sum_of(self.sums)
        with builder.if_else(is_last) as (finish, keep):
            with finish:
                self._finish(row, total)
            with keep:
                self.store(total, partial)

    def _add_words(self, word: Value, words: int) -> None:
        """Add so many times ENTRIES entries."""
        spec, builder = self.spec, self.builder
        for number in range(words):
            first = self.times(self.add(word, number), ENTRIES)
            units = load_numbers(builder, self.pointer(INT16, self.places, first))
            values = self.pointer(self.scalar, self.values, first)
            factors = broadcast_group(builder, self.row_kind, values, spec.vector_bytes)
            for entry in range(ENTRIES):
                features = self.load(
                    self.row_kind, self.add(self.source, self.times(units[entry], UNIT))
                )
                slot = self.sums[entry % spec.chains]
                total = self.multiply_add(features, factors[entry], builder.load(slot))
                builder.store(total, slot)

    def _finish(self, row: Value, total: Value) -> None:
        """Add bias and residual, clamp, and store a row of C."""
        spec, builder = self.spec, self.builder
        bias = self.load(self.scalar, self.add(self.bias, self.times(row, spec.itemsize)))
        builder.store(self.plus(total, self.spread(bias, spec.width)), self.total)
        with builder.if_else(self.is_adjacent, likely=True) as (adjacent, apart):
            with adjacent:
                with builder.if_then(self.has_residual(), likely=False):
                    start = self.times(row, self.argument["residual_row"])
                    added = self._load_row(self.add(self.argument["residual"], start))
                    builder.store(self.plus(builder.load(self.total), added), self.total)
                start = self.times(row, self.argument["out_row"])
                result = self.clamp(builder.load(self.total))
                self.store_first(result, self.add(self.argument["out"], start), spec.columns)
            with apart:
                self._finish_apart(row)

    def _load_row(self, address: Value) -> Value:
        """Load items for the columns that there are, and zeros; no byte of others is touched."""
        lanes = self.spec.width
        if self.spec.columns == lanes:
            return self.load(self.row_kind, address)
        there = [int(lane < self.spec.columns) for lane in range(lanes)]
        mask = ir.Constant(ir.VectorType(ir.IntType(1), lanes), there)
        return self.load_some(self.row_kind, address, mask)

    def _finish_apart(self, row: Value) -> None:
        """Add a residual if there is one, clamp, and store a row of C, one item after the other."""
        spec, builder = self.spec, self.builder
        builder.store(builder.load(self.total), self.finished)
        stack = self.address_of(self.finished)
        places = [self.add(stack, n * spec.itemsize) for n in range(spec.columns)]
        with builder.if_then(self.has_residual(), likely=False):
            for n, place in enumerate(places):
                term = self.residual(row, n)
                self.store(self.plus(self.load(self.scalar, place), term), place)
        builder.store(self.clamp(builder.load(self.finished)), self.finished)
        self.store_row(row, [self.load(self.scalar, place) for place in places])
