"""The generators of code for the forms that have rows of A in lanes of vectors.

*Lanes.* A step multiplies one entry, or none, of each row of a slice by the entry of B's column
that a permute picks out of a window of one or two vectors, or with AVX-512 two permutes and a blend
out of four (`choice.is_wide` says when). What binds, with float32 and AVX-512 in
loops of their own on a Zen 5: with four columns and more a step takes about a cycle for each
column, a permute 0.6 and a multiply-add 0.5, which overlap little; with one column 2.2 cycles, for
2.25 vectors loaded, of two a cycle, and 80 bytes of A from the second-level cache. Lanes idle where
a row has no entry in the window: with 512 x 512 to 2,048 x 512 float32 weights and 80, 90 and 95 %
zeros there are 1.35, 1.7 and 2.3 slots an entry with windows of two vectors, and 1.15, 1.4 and 1.85
with four; of float64 1.5, 2.1 and 3.0, and 1.2, 1.45 and 1.9. Idle lanes hold a zero that meets a
zero between the entries of B, never an entry: infinities stay with the rows that have them. SSE2
and NEON have no such permute, nor AVX2 for float64.

*Sliced.* A step multiplies the next entry of each row of a slice by the row of B that it meets, of
one column or two. Rows of B are loaded one by one. Few lanes idle, those of rows that are shorter
than the longest of their slice. Bound: a load for each row of a slice, of two a cycle. On a Zen 3
core with AVX2 it was 0.73 to 0.95 cycles an entry, with two columns of float32 as with one. Lanes
take 0.44 there at 80 % zeros, 0.63 at 90 % and 0.9 at 95 % with one column of 256 x 2,304 weights;
row by row two columns took 1.1.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from portable_spdnn_cpu.jit.grouped_loads import load_numbers
from portable_spdnn_cpu.jit.loops import hidden
from portable_spdnn_cpu.spmm.emitter import INT32, WORD, Value
from portable_spdnn_cpu.spmm.few_columns.copies import copy_to_rows, copy_to_windows
from portable_spdnn_cpu.spmm.few_columns.operands import Operands
from portable_spdnn_cpu.spmm.few_columns.specs import STEPS, LanesSpec, SlicedSpec

_PERMUTES = {  # by vectors looked up and bytes of an item
    (2, 4): "llvm.x86.avx512.vpermi2var.ps.512",
    (2, 8): "llvm.x86.avx512.vpermi2var.pd.512",
    (1, 4): "llvm.x86.avx2.permps",
}


class _Slices(Operands):
    """What both forms share: one slice of rows after another.

    Attributes
    ----------
    spec : LanesSpec or SlicedSpec
    """

    spec: LanesSpec | SlicedSpec

    def emit(self) -> None:
        """Emit the whole product."""
        self.read_rows()
        self.height, self.bias = self.table("height"), self.table("bias")
        self.values, self.places, starts, parts = (
            self.table(name) for name in ("values", "places", "starts", "parts")
        )
        self.copy()
        kind = self.vector(self.spec.lanes)
        columns, chains = self.spec.columns, self.spec.chains
        self.sums = [[self.slot(kind) for _ in range(chains)] for _ in range(columns)]
        self.finished = self.slot(ir.ArrayType(kind, self.spec.columns))
        first, end = (self.load_word(WORD, parts, self.argument[n]) for n in ("first", "end"))
        with self.loop(first, end) as slice_:
            for slot in (slot for slots in self.sums for slot in slots):
                self.builder.store(ir.Constant(kind, None), slot)
            begin = self.load_word(WORD, starts, slice_)
            stop = self.load_word(WORD, starts, self.add(slice_, 1))
            self.add_all(begin, stop)
            self._finish(slice_)

    def copy(self) -> None:
        """Copy B to scratch memory."""
        raise NotImplementedError

    def columns_of_sums(self, sums: list[Value]) -> list[Value]:
        """Return the sums of a slice as a vector for each column of B, a row in each lane."""
        return sums

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
        sums = self.columns_of_sums([self.sum_of(slots) for slots in self.sums])
        totals = [self.plus(column, bias) for column in sums]
        stacked = [self.add(stack, n * spec.vector_bytes) for n in range(spec.columns)]
        with builder.if_else(self.has_residual(), likely=False) as (given, none):
            with given:
                for total, place in zip(totals, stacked, strict=True):
                    self.store(total, place)
                with self.loop(self.zero, count) as lane:
                    row = self.row_index(self.add(first, lane))
                    for n, place in enumerate(stacked):
                        at = self.add(place, self.times(lane, spec.itemsize))
                        term = self.residual(row, n)
                        self.store(self.plus(self.load(self.scalar, at), term), at)
                for place in stacked:
                    finished = self.load(self.vector(spec.lanes), place)
                    self.store(self.clamp(finished), place)
            with none:
                for total, place in zip(totals, stacked, strict=True):
                    self.store(self.clamp(total), place)
        whole = builder.icmp_signed("==", count, self.number(spec.lanes))
        with builder.if_else(whole, likely=True) as (unrolled, looped):
            with unrolled:
                self._store_slice(first, stacked)
            with looped, self.loop(self.zero, count) as lane:
                self._store_lane(first, lane, stacked)

    def _store_slice(self, first: Value, stacked: list[Value]) -> None:
        """Store a slice that has a row in each lane."""

        def store_lanes() -> None:
            for lane in range(self.spec.lanes):
                self._store_lane(first, self.number(lane), stacked)

        if self.spec.columns == 1:
            store_lanes()
            return
        adjacent = self.is_adjacent("out_column")
        with self.builder.if_else(adjacent, likely=True) as (together, apart):
            with together:
                self._store_rows(first, stacked)
            with apart:
                store_lanes()

    def _store_rows(self, first: Value, stacked: list[Value]) -> None:
        """Store the rows of a slice, transposed in registers: items of a row are adjacent in C."""
        spec = self.spec
        kind, width = self.vector(spec.lanes), 1 << (spec.columns - 1).bit_length()
        columns = [self.load(kind, place) for place in stacked]
        columns += [ir.Constant(kind, None)] * (width - spec.columns)
        size = min(width, spec.lanes)  # of a piece: a row, or what a vector has of it
        for number, vector in enumerate(self.interleave(columns)):
            for begin in range(0, spec.lanes, size):
                lane, item = divmod(number * spec.lanes + begin, width)
                if item < spec.columns:
                    row = self.row_of_out(self.row_index(self.add(first, lane)))
                    piece = self.shuffle(vector, vector, list(range(begin, begin + size)))
                    start = self.add(row, item * spec.itemsize)
                    self.store_first(piece, start, spec.columns - item)

    def _store_lane(self, first: Value, lane: Value, stacked: list[Value]) -> None:
        """Store the row of C that lies in a lane, item by item, for any order of C."""
        offset = self.times(lane, self.spec.itemsize)
        values = [self.load(self.scalar, self.add(place, offset)) for place in stacked]
        self.store_row(self.row_index(self.add(first, lane)), values)


class LanesProduct(_Slices):
    """Emits the product of A in lanes."""

    spec: LanesSpec

    def copy(self) -> None:
        """Copy each column of B to windows."""
        self.window_numbers, plane = self.table("windows"), self.table("plane")
        scratch = self.argument["scratch"]
        copy_to_windows(self, self.spec, scratch, plane)
        columns = range(self.spec.columns)
        self.planes = [self.add(scratch, self.times(plane, n)) for n in columns]

    def add_all(self, begin: Value, stop: Value) -> None:
        """Do the chunks of a slice."""
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
        entries_of_chunk = STEPS * spec.lanes
        self.prefetch_entries(self.times(chunk, entries_of_chunk), entries_of_chunk, 1)
        first_window = self.times(chunk, STEPS // spec.shared_steps)
        windows: list[Any] = []
        for step in range(STEPS):
            if step % spec.shared_steps == 0:
                number = self.add(first_window, step // spec.shared_steps)
                kind = ir.IntType(8 * spec.window_bytes)
                found = self.load_word(kind, self.window_numbers, number)
                start = self.times(found, spec.window_step * spec.itemsize)
                windows = [self._load_window(self.add(plane, start)) for plane in self.planes]
            chosen = builder.lshr(positions, ir.Constant(integers, [8 * step] * spec.lanes))
            values = self.load(
                self.vector(spec.lanes), self.add(first_value, step * spec.vector_bytes)
            )
            for slots, window in zip(self.sums, windows, strict=True):
                slot = slots[step % spec.chains]
                entries = self._permute(chosen, window)
                total = self.multiply_add(values, entries, builder.load(slot))
                builder.store(total, slot)

    def _load_window(self, at: Value) -> list[Value]:
        """Load the vectors of a window."""
        spec, kind = self.spec, self.vector(self.spec.lanes)
        starts = range(0, spec.registers_of_window * spec.vector_bytes, spec.vector_bytes)
        found = [self.load(kind, self.add(at, start)) for start in starts]
        if spec.registers_of_window == 1:
            # So that the permute does not load it itself: with a multiply-add that takes a Zen 3
            # 2.0 cycles, and 1.9 so. Other processors were not measured.
            found = [hidden(self.builder, found[0], "v")]
        return found

    def _permute(self, positions: Value, window: list[Value]) -> Value:
        """Return the entries at the lanes' positions in a window, of which the low bits count."""
        spec, builder, kind = self.spec, self.builder, self.vector(self.spec.lanes)
        if len(window) > 2:  # a permute for each half, and a blend
            first, second = (self._permute(positions, half) for half in (window[:2], window[2:]))
            bit = ir.Constant(positions.type, [2 * spec.lanes] * spec.lanes)  # of the second half
            is_first = builder.icmp_unsigned(
                "==", builder.and_(positions, bit), ir.Constant(positions.type, None)
            )
            return builder.select(is_first, first, second)
        operands = [window[0], positions, *window[1:]]
        function = ir.FunctionType(kind, [operand.type for operand in operands])
        return self.call(_PERMUTES[len(window), spec.itemsize], function, operands)


class SlicedProduct(_Slices):
    """Emits the product of A sliced.

    Of two columns a vector holds rows of B side by side: with 32 bytes and float32 those that the
    rows 0, 1, 4 and 5 of a slice meet, and another vector those of 2, 3, 6 and 7, so that a shuffle
    within 16 bytes repeats each value for both columns.
    """

    spec: SlicedSpec

    def copy(self) -> None:
        """Copy B to rows, the first of which is zeros."""
        self.rows_of_b = self.argument["scratch"]
        copy_to_rows(self, self.spec, self.rows_of_b, self.number(1), self.table("depth"))

    def columns_of_sums(self, sums: list[Value]) -> list[Value]:
        """Return the sums of a slice as a vector for each column of B, a row in each lane."""
        if len(sums) == 1:
            return sums
        first, second = sums
        lanes, each = self.spec.lanes, self.spec.items_of_16_bytes
        starts = [begin + vector for begin in range(0, lanes, each) for vector in (0, lanes)]
        found = []
        for column in (0, 1):
            chosen = [start + lane for start in starts for lane in range(column, each, 2)]
            found.append(self.shuffle(first, second, chosen))
        return found

    def add_all(self, begin: Value, stop: Value) -> None:
        """Do the steps of a slice."""
        chains = self.spec.chains
        steps = self.builder.and_(self.builder.sub(stop, begin), self.number(-chains))
        single = self.add(begin, steps)
        with self.loop(begin, single, chains) as step:
            first = self.times(step, self.spec.lanes)
            self.prefetch_entries(first, chains * self.spec.lanes, self.spec.place_bytes)
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
        for number, slots in enumerate(self.sums):
            rows = self._rows_of_vector(number)
            found = self._load_rows([places[row] for row in rows])
            factors = self.shuffle(values, values, [row for row in rows for _ in self.sums])
            total = self.multiply_add(factors, found, builder.load(slots[chain]))
            builder.store(total, slots[chain])

    def _rows_of_vector(self, number: int) -> list[int]:
        """Return the rows of a slice whose sums a vector holds, the one of that number.

        There are as many vectors as B has columns.
        """
        together = self.spec.items_of_16_bytes
        each = together // self.spec.columns
        begins = range(number * each, self.spec.lanes, together)
        return [row for begin in begins for row in range(begin, begin + each)]

    def _load_rows(self, places: list[Value]) -> Value:
        """Load rows of B, by their numbers, into a vector."""
        spec = self.spec
        starts = [self.add(self.rows_of_b, self.times(place, spec.row_bytes)) for place in places]
        found = [self.load(self.vector(spec.columns), start) for start in starts]
        while len(found) > 1:
            both = list(range(2 * found[0].type.count))
            pairs = zip(found[::2], found[1::2], strict=True)
            found = [self.shuffle(*pair, both) for pair in pairs]
        return found[0]
