"""The microkernel of the stream: rows of weights times a panel of columns.

The sums of a row, for all columns of a panel, stay in vector registers while its entries stream
by. An entry is an offset into the panel and a value: one value spread over a vector, and for each
vector of the panel one multiply-add whose operand is loaded from the first-level cache. Entries go
in groups of four (`jit.grouped_loads`): one load brings four offsets of 16 bits, or two those of 32
bits, and one four values, which shuffles spread.

Multiply-adds of one sum wait for each other, four cycles each, while a core begins two in a cycle.
So entries are added by turns to several sums of a vector, as many as `chains` says: to those of two
rows that have as many entries, a pair, or to more than one of the same row, which are joined at its
end. Offsets of packed rows are loaded a group ahead: on a Zen 5 an entry of four vectors takes 2.5
cycles so, and 2.8 without; in long rows, of which there the offsets of two groups come by one load
into a vector register, it takes 2.2. What a row has beyond whole groups is loaded like a group
where it is packed, and one by one where it is as given.

Bound: v + 1/2 loads for v multiply-adds, with panels of v vectors that are a register each, and v +
3/8 where offsets come by two groups. On Intel's cores with three ports that load, each value is
loaded into all lanes: v loads of 64 bytes, and 1 1/4 smaller ones; there power binds before ports.
A Zen 4 loads, and multiplies and adds, one vector of 64 bytes in a cycle, or two of 32: v cycles
for an entry, and half a cycle less where the last vector is halved (`last_is_halved`). Where a
vector of 64 bytes is several registers, as with AVX2, half of them is left out likewise.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from portable_spdnn_cpu.jit.grouped_loads import (
    GROUP,
    broadcast_group,
    load_numbers,
    load_words,
    split_numbers,
)
from portable_spdnn_cpu.jit.loops import hidden, loop
from portable_spdnn_cpu.jit.target import (
    HAS_FAST_MASKS,
    VECTOR_BYTES,
    VECTOR_REGISTERS,
    has_slow_word_loads,
    is_zen_4,
)
from portable_spdnn_cpu.jit.vectors import (
    broadcast,
    clamped,
    first_lanes,
    load_first,
    load_masked,
    multiply_add,
    store_first,
    store_masked,
)
from portable_spdnn_cpu.layout.large_results import store_nontemporal
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.emitter import WORD, Value
from portable_spdnn_cpu.spmm.stream.entries import OFFSET_BYTES, Entries

# Vectors of 64 bytes in the widest panel: what leaves registers for four values, for one of them
# that is spread and, where a processor has no operands in memory, for what is loaded.
MAX_VECTORS = min(8, (VECTOR_REGISTERS - 4) * VECTOR_BYTES // BLOCK_BYTES)
# Entries of a row, or of both rows of a pair together, from which on the offsets of two groups are
# loaded at once where loads of single words are slow. From 16 on it took a third longer with rows
# of panels that the first level does not hold.
LONG_ROW = 24


def chains(vectors: int, vector_bytes: int = BLOCK_BYTES) -> int:
    """Return how many sums of a vector take entries by turns: 1, 2 or 4; fewer in wider panels."""
    registers = vectors * vector_bytes // VECTOR_BYTES
    if registers <= 2:
        return 4
    return 2 if 2 * registers <= VECTOR_REGISTERS - 4 else 1


def pairs(vectors: int, vector_bytes: int = BLOCK_BYTES) -> bool:
    """Whether kernels for panels of so many vectors, and of fewer, take rows by pairs."""
    return chains(vectors, vector_bytes) > 1


def has_cheap_halves(vector_bytes: int) -> bool:
    """Whether half a vector takes half of the time.

    It does where a vector takes several registers, and on a processor that computes the halves of a
    register one after the other.
    """
    return vector_bytes > VECTOR_BYTES or is_zen_4()


def last_is_halved(row_bytes: int, vectors: int, vector_bytes: int = BLOCK_BYTES) -> bool:
    """Whether of the last of so many vectors only the first half is computed.

    A row has no byte in the other half then.
    """
    return has_cheap_halves(vector_bytes) and 0 < 2 * row_bytes <= (2 * vectors - 1) * vector_bytes


class RowsEmitter:
    """Emits the sums of a row of C, or of two whose entries come by turns, for a panel of columns.

    Sums are written as stack slots, which LLVM promotes to registers. Positions count items.

    Parameters
    ----------
    builder
        llvmlite's.
    vectors : int
        Of a row of the panel.
    scalar
        The LLVM type of values.
    rows : int
        1 or 2.
    vector_bytes : int
        Of a vector: a register, or several where these are shorter.
    halved : bool
        Whether only the first half of the last vector is computed: no column is in the other half.
    """

    def __init__(
        self,
        builder: Any,
        vectors: int,
        scalar: Value,
        rows: int = 1,
        vector_bytes: int = BLOCK_BYTES,
        halved: bool = False,
    ) -> None:
        self.builder, self.vectors, self.rows = builder, vectors, rows
        self.vector_bytes = vector_bytes
        self.itemsize = 4 if isinstance(scalar, ir.FloatType) else 8
        self.vector = ir.VectorType(scalar, vector_bytes // self.itemsize)
        last = ir.VectorType(scalar, self.vector.count // 2) if halved else self.vector
        self.kinds = [*[self.vector] * (vectors - 1), last]  # LLVM's types of the vectors
        self.masks: dict[int, Value] = {}  # by vector: the lanes that alone are summed
        self.first_mask: Value | None = None  # of lanes of the first vector, where some are skipped

    def limit(self, columns: Value, whole: Value) -> None:
        """Set how many lanes of the last vector are there, and whether that is all of them."""
        before = WORD((self.vectors - 1) * self.vector.count)
        self.left, self.whole = self.builder.sub(columns, before), whole

    def skip(self, skipped: Value, reads_b: bool) -> None:
        """Find which lanes of the first vector are stored, and whether it begins with the first.

        `reads_b`: whether what the others hold may be no zeros, as what lies beside a row of B.
        """
        builder, lanes, last = self.builder, self.vector.count, self.vectors - 1
        self.begins_whole = builder.icmp_signed("==", skipped, WORD(0))
        self.first_mask = builder.not_(first_lanes(builder, skipped, lanes))
        last_mask = first_lanes(builder, self.left, lanes)
        if not last:
            self.first_mask = last_mask = builder.and_(self.first_mask, last_mask)
        if reads_b and HAS_FAST_MASKS:
            self.masks = {0: self.first_mask, last: last_mask}

    def begin(self, sums: Value, starts: list[Value], later: Value) -> None:
        """Set the sums to those that are there, from a position on for each row, or to 0."""
        builder = self.builder
        self.slots = [
            [
                [cgutils.alloca_once(builder, kind) for kind in self.kinds]
                for _ in range(max(1, chains(self.vectors, self.vector_bytes) // self.rows))
            ]
            for _ in range(self.rows)
        ]
        for slot in (slot for row in self.slots for chain in row for slot in chain):
            builder.store(ir.Constant(slot.type.pointee, None), slot)
        with builder.if_then(later):
            for row, start in zip(self.slots, starts, strict=True):
                for number, slot in enumerate(row[0]):
                    pointer = self.at(sums, start, number)
                    builder.store(builder.load(pointer, align=self.vector_bytes), slot)

    def add_packed(self, panel: Value, unit: Value, entries: Entries, count: Value) -> None:
        """Add the next `count` entries of each row; `entries` then goes on behind them.

        An entry's row of the panel is its offset times `unit` items behind the first. Up to PADDING
        offsets behind the last entry are read.
        """
        builder, rows = self.builder, self.rows
        left = cgutils.alloca_once(builder, WORD)  # entries of all rows
        builder.store(builder.mul(count, WORD(rows)), left)
        if has_slow_word_loads():
            with builder.if_then(builder.icmp_unsigned(">=", builder.load(left), WORD(LONG_ROW))):
                self._add_groups(panel, unit, entries, left, 2)
        [ahead] = self._add_groups(panel, unit, entries, left, 1)
        rest = builder.load(left)
        with ExitStack() as stack:
            for number in range(0, GROUP - rows, rows):
                is_there = builder.icmp_unsigned(">", rest, WORD(number))
                stack.enter_context(builder.if_then(is_there))
                if number == 0:
                    factors = self._factors(entries.value())
                    group = split_numbers(builder, builder.load(ahead), 8 * OFFSET_BYTES)
                    entries.pass_by(rest)
                for each in range(number, number + rows):
                    self._add(panel, factors[each], builder.mul(group[each], unit), each)

    def _add_groups(
        self, panel: Value, unit: Value, entries: Entries, left: Value, together: int
    ) -> list[Value]:
        """Add entries by steps of so many groups; `left`, a slot, then holds how many remain.

        Returns slots of the offsets of the groups that come next, a word for each.
        """
        builder, step = self.builder, together * GROUP
        begin = entries.offset()
        whole = builder.and_(builder.load(left), WORD(-step))
        end = builder.add(begin, builder.mul(whole, WORD(OFFSET_BYTES)))
        ahead = [cgutils.alloca_once(builder, WORD) for _ in range(together)]
        value = cgutils.alloca_once(builder, WORD)
        builder.store(entries.value(), value)

        def load_ahead(address: Value) -> None:
            words = load_words(builder, address, together, OFFSET_BYTES)
            for slot, word in zip(ahead, words, strict=True):
                builder.store(word, slot)

        load_ahead(begin)
        with loop(builder, begin, end, WORD(step * OFFSET_BYTES), unrolls=False) as address:
            words = [builder.load(slot) for slot in ahead]
            load_ahead(builder.add(address, WORD(step * OFFSET_BYTES)))
            first = builder.load(value)
            for group, word in enumerate(words):
                factors = self._factors(builder.add(first, WORD(group * GROUP * self.itemsize)))
                for number, offset in enumerate(split_numbers(builder, word, 8 * OFFSET_BYTES)):
                    self._add(panel, factors[number], builder.mul(offset, unit), number)
            following = builder.add(first, WORD(step * self.itemsize))
            builder.store(hidden(builder, following), value)
        entries.go_to(end, builder.load(value))
        builder.store(builder.and_(builder.load(left), WORD(step - 1)), left)
        return ahead

    def _factors(self, values: Value) -> list[Value]:
        """Return each of GROUP values from an address on, spread over a vector."""
        pointer = self.builder.inttoptr(values, self.vector.element.as_pointer())
        return broadcast_group(self.builder, self.vector, pointer)

    def add_as_given(
        self, panel: Value, stride: Value, indices: Value, values: Value, first: Value, stop: Value
    ) -> None:
        """Add entries first .. stop - 1 of a row; the panel's rows are `stride` items apart."""
        builder = self.builder
        count = builder.and_(builder.sub(stop, first), WORD(-GROUP))
        single = builder.add(first, count)
        with loop(builder, first, single, WORD(GROUP), unrolls=False) as entry:
            factors = broadcast_group(builder, self.vector, builder.gep(values, [entry]))
            group = load_numbers(builder, builder.gep(indices, [entry]))
            for number in range(GROUP):
                self._add(panel, factors[number], builder.mul(group[number], stride), number)
        with loop(builder, single, stop, WORD(1), unrolls=False) as entry:
            value = builder.load(builder.gep(values, [entry]))
            index = builder.zext(builder.load(builder.gep(indices, [entry])), WORD)
            factor = broadcast(builder, self.vector, value)
            self._add(panel, factor, builder.mul(index, stride), 0)

    def _add(self, panel: Value, factor: Value, place: Value, number: int) -> None:
        """Add an entry, by its number in its group: its row of the panel is at a position."""
        builder, row = self.builder, self.slots[number % self.rows]
        for vector, slot in enumerate(row[number // self.rows % len(row)]):
            operand = builder.load(self.at(panel, place, vector), align=self.itemsize)
            before = builder.load(slot)
            total = multiply_add(builder, self._part(factor, vector), operand, before)
            if vector in self.masks:
                # Other lanes may be subnormal, as the sizes that malloc keeps between arrays are:
                # to multiply them would take a hundred times as long.
                total = builder.select(self.masks[vector], total, before)
            builder.store(total, slot)

    def join(self) -> list[list[Value]]:
        """Return the slots of each row, of which the first chain gets the sums of all."""
        builder = self.builder
        for row in self.slots:
            while len(row) > 1:
                half = len(row) // 2
                for to, other in zip(row[:half], row[half:], strict=True):
                    for slot, term in zip(to, other, strict=True):
                        builder.store(builder.fadd(builder.load(slot), builder.load(term)), slot)
                del row[half:]
        return [row[0] for row in self.slots]

    def keep(self, slots: list[Value], sums: Value, start: Value) -> None:
        """Write the sums of a row to where they wait."""
        for number, slot in enumerate(slots):
            value = self.builder.load(slot)
            self.builder.store(value, self.at(sums, start, number), align=self.vector_bytes)

    def add_bias(self, slots: list[Value], bias: Value) -> None:
        """Add a number to all sums of a row."""
        builder, added = self.builder, broadcast(self.builder, self.vector, bias)
        for number, slot in enumerate(slots):
            builder.store(builder.fadd(builder.load(slot), self._part(added, number)), slot)

    def add_residual(self, slots: list[Value], residual: Value, start: Value) -> None:
        """Add a row of the residual, which starts at a position."""
        builder = self.builder
        for number, slot in enumerate(slots):
            pointer = self.at(residual, start, number)
            if number or self.first_mask is None:
                value = self.load(pointer, number)
            else:
                mask = self.first_mask
                value = load_masked(builder, self.vector, pointer, mask, self.itemsize)
            builder.store(builder.fadd(builder.load(slot), value), slot)

    def clamp(self, slots: list[Value], lower: Value, upper: Value) -> None:
        """Bring the sums of a row between bounds."""
        builder = self.builder
        bounds = [broadcast(builder, self.vector, bound) for bound in (lower, upper)]
        for number, slot in enumerate(slots):
            limits = [self._part(bound, number) for bound in bounds]
            builder.store(clamped(builder, builder.load(slot), *limits), slot)

    def store(
        self, slots: list[Value], out: Value, start: Value, nontemporal: bool = False
    ) -> None:
        """Store the sums of the columns that are there; `nontemporal`: how whole vectors are."""
        builder, align = self.builder, self.itemsize

        def store_whole(value: Value, pointer: Value) -> None:
            if nontemporal:
                store_nontemporal(builder, value, pointer)
            else:
                builder.store(value, pointer, align=align)

        def store_last(value: Value, pointer: Value) -> None:
            if value.type != self.vector:  # half a vector: it may have all of its lanes, or fewer
                store_first(builder, value, pointer, self.left, align)
                return
            with builder.if_else(self.whole, likely=True) as (all_lanes, some):
                with all_lanes:
                    store_whole(value, pointer)
                with some:
                    store_first(builder, value, pointer, self.left, align)

        for number, slot in enumerate(slots):
            value, pointer = builder.load(slot), self.at(out, start, number)
            store_lanes = store_last if number == self.vectors - 1 else store_whole
            if number or self.first_mask is None:
                store_lanes(value, pointer)
                continue
            with builder.if_else(self.begins_whole, likely=True) as (from_first, from_later):
                with from_first:
                    store_lanes(value, pointer)
                with from_later:
                    store_masked(builder, value, pointer, self.first_mask, align)

    def load(self, pointer: Value, number: int) -> Value:
        """Load vector `number`; of the last one the lanes that are there, and zeros."""
        align = self.itemsize
        if number == self.vectors - 1:
            return load_first(self.builder, self.kinds[number], pointer, self.left, align)
        return self.builder.load(pointer, align=align)

    def at(self, data: Value, position: Value, number: int) -> Value:
        """Return a pointer to vector `number` of those from an item of an array on."""
        item = self.builder.add(position, WORD(number * self.vector.count))
        return self.builder.bitcast(self.builder.gep(data, [item]), self.kinds[number].as_pointer())

    def _part(self, value: Value, number: int) -> Value:
        """Return the lanes of a vector that vector `number` has: all, or the first half."""
        if self.kinds[number] == value.type:
            return value
        lanes = list(range(self.kinds[number].count))
        chosen = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
        return self.builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), chosen)
