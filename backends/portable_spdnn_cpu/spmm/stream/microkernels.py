"""The microkernel of the stream: a row of weights times a panel of columns.

The sums of a row, for all columns of a panel, stay in vector registers while its entries stream
by. An entry is an offset into the panel and a value: one value spread over a vector, and for each
vector of the panel one multiply-add whose operand is loaded from the first-level cache. Entries go
in groups of four (`jit.grouped_loads`): one load brings four offsets of 16 bits, or two those of 32
bits, and one four values, which shuffles spread. What is left of a row is read one by one.

Bound: v + 1/2 loads for v multiply-adds, with panels of v vectors that are a register each; where
shuffles share a port with multiply-adds, as in Intel's cores with AVX-512, v + 1 operations of two
ports.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from portable_spdnn_cpu.jit.compilation import Emission, intrinsic
from portable_spdnn_cpu.jit.grouped_loads import GROUP, broadcast_group, load_numbers
from portable_spdnn_cpu.jit.loops import loop
from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS, VECTOR_BYTES, VECTOR_REGISTERS
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

# Vectors of 64 bytes in the widest panel: what leaves registers for four values, for one of them
# that is spread and, where a processor has no operands in memory, for what is loaded.
MAX_VECTORS = min(8, (VECTOR_REGISTERS - 4) * VECTOR_BYTES // BLOCK_BYTES)
OFFSET_UNIT = 8  # bytes; x86 addresses scale an index by 8 at no cost
Value = Any  # an LLVM value; llvmlite has no types


@intrinsic
def sum_row(
    typingctx: Any, vectors: Any, panel: Any, panel_at: Any, stride: Any, offsets: Any,
    values: Any, first: Any, count: Any, sums: Any, sums_at: Any, later: Any,
) -> Emission:  # fmt: skip
    """sums[sums_at + c] = start + sum_k values[k] panel[panel_at + place(k) + c], for a panel's c.

    For k = first .. first + count - 1. Arrays are flat, and positions count items.

    Parameters
    ----------
    vectors : tuple
        Its length is the panel's width in vectors of 64 bytes, which are two registers or more
        where those are shorter. Numba compiles for each type of argument, and a tuple's length is
        part of its type.
    panel, panel_at : ndarray of float32 or float64, int
        Columns of B, a row after the other; read in whole vectors.
    stride : int
        Items from a row of the panel to the next.
    offsets : ndarray of uint16 or int32
        Where the panel's row of each entry lies: uint16 in units of OFFSET_UNIT bytes, else as the
        number of that row.
    values : ndarray of the panel's type
    first, count : int
        The entries.
    sums, sums_at
        Sums of a row of C, aligned on vectors.
    later : bool
        Whether to start with the sums that are there, and not with 0.
    """
    width = len(vectors)
    signature = types.void(
        vectors, panel, types.intp, types.intp, offsets, values, types.intp, types.intp,
        sums, types.intp, types.boolean,
    )  # fmt: skip

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data, row = summed_row(context, builder, sig, args, width)
        row.keep(data(8), args[9])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def finish_row(
    typingctx: Any, vectors: Any, panel: Any, panel_at: Any, stride: Any, offsets: Any,
    values: Any, first: Any, count: Any, sums: Any, sums_at: Any, later: Any, adds: Any,
    bias: Any, has_residual: Any, residual: Any, residual_at: Any, out: Any, out_at: Any,
    columns: Any, lower: Any, upper: Any, bounded: Any, nontemporal: Any, skips: Any,
    skipped: Any,
) -> Emission:  # fmt: skip
    """Sum as `sum_row` does, and store to out[out_at + c] for `skipped` <= c < `columns`.

    Where the tuple `skips` is empty `skipped` is 0, and no code is emitted for it. If `adds`, the
    bias is added, and residual[residual_at + c] if `has_residual`. If `bounded`, what is stored is
    between `lower` and `upper`; NaN passes. No other item is touched: `skipped` is less than a
    vector, and all vectors but the last are within `columns`. If `nontemporal`, out[out_at] is
    aligned on vectors, and whole ones are written by non-temporal stores.
    """
    width = len(vectors)
    element = panel.dtype
    signature = types.void(
        vectors, panel, types.intp, types.intp, offsets, values, types.intp, types.intp,
        sums, types.intp, types.boolean, types.boolean, element, types.boolean, residual,
        types.intp, out, types.intp, types.intp, element, element, types.boolean, types.boolean,
        skips, types.intp,
    )  # fmt: skip

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        skipped = args[24] if len(skips) else None
        data, row = summed_row(context, builder, sig, args, width, args[18], skipped)
        with builder.if_then(args[11]):
            row.add(args[12], args[13], data(14), args[15])
        with builder.if_then(args[21]):
            row.clamp(*args[19:21])
        with builder.if_else(args[22]) as (nontemporal, as_usual):
            with nontemporal:
                row.store(data(16), args[17], nontemporal=True)
            with as_usual:
                row.store(data(16), args[17])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def copy_row(
    typingctx: Any, vectors: Any, panel: Any, to: Any, source: Any, start: Any, columns: Any
) -> Emission:
    """panel[to + c] = source[start + c] for c < `columns`, and 0 up to the panel's width.

    `vectors` and `columns` are as in `finish_row`.
    """
    width = len(vectors)
    signature = types.void(vectors, panel, types.intp, source, types.intp, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        make = context.make_array
        target, origin = (make(sig.args[n])(context, builder, args[n]).data for n in (1, 3))
        row = RowEmitter(builder, width, target, args[2])
        row.limit(args[5])
        for number in range(width):
            value = row.load(row.at(origin, args[4], number), number == width - 1)
            builder.store(value, row.at(target, args[2], number), align=row.bits // 8)
        return context.get_dummy_value()

    return signature, codegen


def summed_row(
    context: Any,
    builder: Any,
    sig: Any,
    args: Any,
    width: int,
    columns: Value | None = None,
    skipped: Value | None = None,
) -> tuple[Callable[[int], Value], RowEmitter]:
    """Emit the sums of `sum_row`; returns what gives an argument's data, and the row of sums.

    `columns`, `skipped`: of `finish_row`.
    """

    def data(position: int) -> Value:
        return context.make_array(sig.args[position])(context, builder, args[position]).data

    row = RowEmitter(builder, width, builder.gep(data(1), [args[2]]), args[3])
    if columns is not None:
        row.limit(columns)
    if skipped is not None:
        row.skip(skipped, reads_b=sig.args[4].dtype.bitwidth > 16)
    row.begin(data(8), args[9], args[10])
    row.add_entries(data(4), data(5), args[6], args[7])
    return data, row


class RowEmitter:
    """Emits the code of a row of sums of C.

    Sums are written as stack slots, which LLVM promotes to registers.

    Parameters
    ----------
    builder
        llvmlite's.
    vectors : int
        Those of the panel.
    panel, stride
        LLVM values of what `sum_row` calls so.
    """

    def __init__(self, builder: Any, vectors: int, panel: Value, stride: Value) -> None:
        self.builder, self.panel, self.stride = builder, panel, stride
        self.bits = 32 if isinstance(panel.type.pointee, ir.FloatType) else 64
        self.vector = ir.VectorType(panel.type.pointee, BLOCK_BYTES * 8 // self.bits)
        self.word = stride.type
        self.sums = [cgutils.alloca_once(builder, self.vector) for _ in range(vectors)]
        self.masks: dict[int, Value] = {}  # by vector: the lanes that alone are summed
        self.first_mask: Value | None = None  # of lanes of the first vector, where some are skipped

    def limit(self, columns: Value) -> None:
        """Find how many lanes of the last vector are there, and whether that is all of them."""
        builder, lanes = self.builder, self.vector.count
        self.left = builder.sub(columns, self.number((len(self.sums) - 1) * lanes))
        self.whole = builder.icmp_signed(">=", self.left, self.number(lanes))

    def skip(self, skipped: Value, reads_b: bool) -> None:
        """Find which lanes of the first vector are stored, and whether it begins with the first.

        `reads_b`: whether what the others hold may be no zeros, as what lies beside a row of B.
        """
        builder, lanes, last = self.builder, self.vector.count, len(self.sums) - 1
        self.begins_whole = builder.icmp_signed("==", skipped, self.number(0))
        self.first_mask = builder.not_(first_lanes(builder, skipped, lanes))
        last_mask = first_lanes(builder, self.left, lanes)
        if not last:
            self.first_mask = last_mask = builder.and_(self.first_mask, last_mask)
        if reads_b and HAS_FAST_MASKS:
            self.masks = {0: self.first_mask, last: last_mask}

    def begin(self, sums: Value, sums_at: Value, later: Value) -> None:
        """Set the sums to those that are there, or to 0."""
        builder, zero = self.builder, ir.Constant(self.vector, None)
        with builder.if_else(later) as (there, first):
            with there:
                for number, slot in enumerate(self.sums):
                    pointer = self.at(sums, sums_at, number)
                    builder.store(builder.load(pointer, align=BLOCK_BYTES), slot)
            with first:
                for slot in self.sums:
                    builder.store(zero, slot)

    def keep(self, sums: Value, sums_at: Value) -> None:
        """Write the sums to where they wait."""
        for number, slot in enumerate(self.sums):
            value = self.builder.load(slot)
            self.builder.store(value, self.at(sums, sums_at, number), align=BLOCK_BYTES)

    def add(self, bias: Value, has_residual: Value, residual: Value, residual_at: Value) -> None:
        """Add a bias to all sums, and a residual where there is one."""
        builder = self.builder
        added = broadcast(builder, self.vector, bias)
        for slot in self.sums:
            builder.store(builder.fadd(builder.load(slot), added), slot)
        with builder.if_then(has_residual):
            for number, slot in enumerate(self.sums):
                pointer = self.at(residual, residual_at, number)
                if number or self.first_mask is None:
                    value = self.load(pointer, number == len(self.sums) - 1)
                else:
                    align = self.bits // 8
                    value = load_masked(builder, self.vector, pointer, self.first_mask, align)
                builder.store(builder.fadd(builder.load(slot), value), slot)

    def add_entries(self, offsets: Value, values: Value, first: Value, count: Value) -> None:
        """Add the entries, in groups as far as they go."""
        builder = self.builder
        end = builder.add(first, count)
        single = builder.add(first, builder.and_(count, self.number(-GROUP)))
        scale = self.stride
        if offsets.type.pointee.width == 16:
            scale = self.number(OFFSET_UNIT * 8 // self.bits)
        with self.loop(first, single, GROUP) as k:
            factors = broadcast_group(builder, self.vector, builder.gep(values, [k]))
            group = load_numbers(builder, builder.gep(offsets, [k]))
            for factor, offset in zip(factors, group, strict=True):
                self._add_entry(factor, offset, scale)
        with self.loop(single, end) as k:
            factor = broadcast(builder, self.vector, builder.load(builder.gep(values, [k])))
            offset = builder.load(builder.gep(offsets, [k]))
            self._add_entry(factor, builder.zext(offset, self.word), scale)

    def _add_entry(self, factor: Value, offset: Value, scale: Value) -> None:
        builder = self.builder
        place = builder.mul(offset, scale)
        for number, slot in enumerate(self.sums):
            operand = builder.load(self.at(self.panel, place, number), align=self.bits // 8)
            before = builder.load(slot)
            total = multiply_add(builder, factor, operand, before)
            if number in self.masks:
                # Other lanes may be subnormal, as the sizes that malloc keeps between arrays are:
                # to multiply them would take a hundred times as long.
                total = builder.select(self.masks[number], total, before)
            builder.store(total, slot)

    def clamp(self, lower: Value, upper: Value) -> None:
        """Bring the sums between bounds."""
        builder = self.builder
        bounds = [broadcast(builder, self.vector, bound) for bound in (lower, upper)]
        for slot in self.sums:
            builder.store(clamped(builder, builder.load(slot), *bounds), slot)

    def store(self, out: Value, position: Value, nontemporal: bool = False) -> None:
        """Store the sums of the columns that are there; `nontemporal`: how whole vectors are."""
        builder, align = self.builder, self.bits // 8

        def store_whole(value: Value, pointer: Value) -> None:
            if nontemporal:
                store_nontemporal(builder, value, pointer)
            else:
                builder.store(value, pointer, align=align)

        def store_last(value: Value, pointer: Value) -> None:
            with builder.if_else(self.whole, likely=True) as (all_lanes, some):
                with all_lanes:
                    store_whole(value, pointer)
                with some:
                    store_first(builder, value, pointer, self.left, align)

        for number, slot in enumerate(self.sums):
            value, pointer = builder.load(slot), self.at(out, position, number)
            store_lanes = store_last if number == len(self.sums) - 1 else store_whole
            if number or self.first_mask is None:
                store_lanes(value, pointer)
                continue
            with builder.if_else(self.begins_whole, likely=True) as (from_first, from_later):
                with from_first:
                    store_lanes(value, pointer)
                with from_later:
                    store_masked(builder, value, pointer, self.first_mask, align)

    def load(self, pointer: Value, last: bool) -> Value:
        """Load a vector; of the last one the lanes that are there, and zeros."""
        align = self.bits // 8
        if last:
            return load_first(self.builder, self.vector, pointer, self.left, align)
        return self.builder.load(pointer, align=align)

    def number(self, value: int) -> Value:
        """Return a constant word."""
        return ir.Constant(self.word, value)

    def at(self, data: Value, position: Value, number: int) -> Value:
        """Return a pointer to vector `number` of those from an item of an array on."""
        item = self.builder.add(position, self.number(number * self.vector.count))
        return self.builder.bitcast(self.builder.gep(data, [item]), self.vector.as_pointer())

    def loop(self, begin: Value, end: Value, step: int = 1) -> AbstractContextManager[Value]:
        """Emit a loop. Unrolled it would leave a rest, often mispredicted."""
        return loop(self.builder, begin, end, self.number(step), unrolls=False)
