"""The microkernel of the stream: a row of weights times a panel of columns.

The sums of a row, for all columns of a panel, stay in vector registers while its entries stream
by. An entry is an offset into the panel and a value: one value spread over a vector, and for each
vector of the panel one multiply-add whose operand is loaded from the first-level cache.

Bound: loads. With v vectors an entry takes v + 2 loads for v multiply-adds. Where a core begins 1.6
loads and two multiply-adds in a cycle, as measured on an Intel server core of 2023 with AVX-512,
eight vectors reach two thirds of its peak.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from portable_spdnn_cpu.jit.compilation import Emission, intrinsic
from portable_spdnn_cpu.jit.intrinsics import broadcast
from portable_spdnn_cpu.jit.target import VECTOR_BYTES, VECTOR_REGISTERS
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES

# Vector blocks in the widest panel: what leaves registers for a value and, where a processor has
# no operands in memory, for what is loaded.
MOST_BLOCKS = min(8, (VECTOR_REGISTERS - 4) * VECTOR_BYTES // BLOCK_BYTES)
UNROLLED = 4  # entries in a step of the loop
OFFSET_UNIT = 8  # bytes; x86 addresses scale an index by 8 at no cost
Value = Any  # an LLVM value; llvmlite has no types


@intrinsic
def stream_row(
    typingctx: Any, blocks: Any, panel: Any, stride: Any, offsets: Any, values: Any, first: Any,
    count: Any, sums: Any, sums_at: Any, bias: Any, residual: Any, residual_at: Any, out: Any,
    out_at: Any, columns: Any, lower: Any, upper: Any, bounded: Any,
) -> Emission:  # fmt: skip
    """out[out_at + c] = start[c] + sum_k values[k] panel[place(k) + c], for c < `columns`.

    For k = first .. first + count - 1. Arrays are flat, and positions count items. What sums start
    with is sums[sums_at + c], or bias + residual[residual_at + c] where `sums_at` is negative, or
    the bias alone where both are.

    Parameters
    ----------
    blocks : tuple
        Its length is the panel's width in vector blocks. Numba compiles for each type of
        argument, and a tuple's length is part of its type.
    panel : ndarray of float32 or float64
        Columns of B, a row after the other; read in whole vector blocks.
    stride : int
        Items from a row of the panel to the next.
    offsets : ndarray of uint16 or int32
        Where the panel's row of each entry lies: uint16 in units of OFFSET_UNIT bytes, else as the
        number of that row.
    values : ndarray of the panel's type
    first, count : int
        The entries.
    sums, sums_at
        Sums of earlier entries, aligned on vector blocks.
    bias, residual, residual_at
        See above; of the residual, as of `out`, nothing beyond `columns` is touched.
    out, out_at, columns
        What takes the sums. All but the last vector block must be within `columns`.
    lower, upper : float
        Bounds of what is stored, where `bounded` is true. NaN passes.
    """
    width = len(blocks)
    element = panel.dtype
    signature = types.void(
        blocks, panel, types.intp, offsets, values, types.intp, types.intp, sums, types.intp,
        element, residual, types.intp, out, types.intp, types.intp, element, element, types.boolean,
    )  # fmt: skip

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def data(position: int) -> Value:
            return context.make_array(sig.args[position])(context, builder, args[position]).data

        row = RowEmitter(builder, width, data(1), args[2], args[14])
        row.begin(data(7), args[8], args[9], data(10), args[11])
        row.add_entries(data(3), data(4), args[5], args[6])
        row.clamp(*args[15:])
        row.store(data(12), args[13])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def copy_row(
    typingctx: Any, blocks: Any, panel: Any, to: Any, source: Any, start: Any, columns: Any
) -> Emission:
    """panel[to + c] = source[start + c] for c < `columns`, and 0 up to the panel's width.

    `blocks` and `columns` are as in `stream_row`; panel[to] is aligned on vector blocks.
    """
    width = len(blocks)
    signature = types.void(blocks, panel, types.intp, source, types.intp, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target, origin = (
            context.make_array(sig.args[position])(context, builder, args[position]).data
            for position in (1, 3)
        )
        row = RowEmitter(builder, width, target, args[2], args[5])
        for number in range(width):
            value = row.load(row.block(origin, args[4], number), number == width - 1)
            builder.store(value, row.block(target, args[2], number), align=BLOCK_BYTES)
        return context.get_dummy_value()

    return signature, codegen


class RowEmitter:
    """Emits the code of a row of sums.

    Sums are written as stack slots, which LLVM promotes to registers.

    Parameters
    ----------
    builder
        llvmlite's.
    blocks : int
        Vector blocks of the panel.
    panel, stride, columns
        LLVM values of what `stream_row` calls so.
    """

    def __init__(
        self, builder: Any, blocks: int, panel: Value, stride: Value, columns: Value
    ) -> None:
        self.builder, self.panel, self.stride = builder, panel, stride
        self.bits = 32 if isinstance(panel.type.pointee, ir.FloatType) else 64
        self.vector = ir.VectorType(panel.type.pointee, BLOCK_BYTES * 8 // self.bits)
        self.word = stride.type
        self.sums = [cgutils.alloca_once(builder, self.vector) for _ in range(blocks)]
        # Lanes of the last vector block that are there, and whether that is all of them.
        lanes = self.vector.count
        left = builder.sub(columns, self.number((blocks - 1) * lanes))
        words = ir.VectorType(self.word, lanes)
        lane = ir.Constant(words, list(range(lanes)))
        self.mask = builder.icmp_signed("<", lane, broadcast(builder, words, left))
        self.whole = builder.icmp_signed(">=", left, self.number(lanes))

    def begin(
        self, sums: Value, sums_at: Value, bias: Value, residual: Value, residual_at: Value
    ) -> None:
        """Set the sums to what they start with."""
        builder = self.builder
        with builder.if_else(builder.icmp_signed(">=", sums_at, self.number(0))) as (later, first):
            with later:
                for number, slot in enumerate(self.sums):
                    pointer = self.block(sums, sums_at, number)
                    builder.store(builder.load(pointer, align=BLOCK_BYTES), slot)
            with first:
                start = broadcast(builder, self.vector, bias)
                for slot in self.sums:
                    builder.store(start, slot)
                with builder.if_then(builder.icmp_signed(">=", residual_at, self.number(0))):
                    for number, slot in enumerate(self.sums):
                        pointer = self.block(residual, residual_at, number)
                        added = self.load(pointer, number == len(self.sums) - 1)
                        builder.store(builder.fadd(start, added), slot)

    def add_entries(self, offsets: Value, values: Value, first: Value, count: Value) -> None:
        """Add the entries, some in each step of a loop, and then what is left over."""
        builder = self.builder
        end = builder.add(first, count)
        rest = builder.and_(count, self.number(UNROLLED - 1))
        whole = builder.sub(end, rest)
        with self.loop(first, whole, UNROLLED) as k:
            for step in range(UNROLLED):
                self._add_entry(offsets, values, builder.add(k, self.number(step)))
        with self.loop(whole, end, 1) as k:
            self._add_entry(offsets, values, k)

    def _add_entry(self, offsets: Value, values: Value, k: Value) -> None:
        builder = self.builder
        factor = broadcast(builder, self.vector, builder.load(builder.gep(values, [k])))
        offset = builder.load(builder.gep(offsets, [k]))
        if offset.type.width == 16:
            unit = self.number(OFFSET_UNIT * 8 // self.bits)
            place = builder.mul(builder.zext(offset, self.word), unit)
        else:
            if offset.type.width < self.word.width:
                offset = builder.sext(offset, self.word)
            place = builder.mul(offset, self.stride)
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        name = f"llvm.fma.v{self.vector.count}f{self.bits}"
        fma = cgutils.get_or_insert_function(builder.module, kind, name)
        for number, slot in enumerate(self.sums):
            operand = builder.load(self.block(self.panel, place, number), align=self.bits // 8)
            builder.store(builder.call(fma, [factor, operand, builder.load(slot)]), slot)

    def clamp(self, lower: Value, upper: Value, bounded: Value) -> None:
        """Bring the sums between bounds."""
        builder = self.builder
        with builder.if_then(bounded):
            for bound, comparison in ((lower, "<"), (upper, ">")):
                limit = broadcast(builder, self.vector, bound)
                for slot in self.sums:
                    value = builder.load(slot)
                    # An ordered comparison is false for NaN, which therefore stays.
                    beyond = builder.fcmp_ordered(comparison, value, limit)
                    builder.store(builder.select(beyond, limit, value), slot)

    def store(self, out: Value, position: Value) -> None:
        """Store the sums of the columns that are there."""
        builder, align = self.builder, self.bits // 8
        *before, last = range(len(self.sums))
        for number in before:
            value = builder.load(self.sums[number])
            builder.store(value, self.block(out, position, number), align=align)
        value, pointer = builder.load(self.sums[last]), self.block(out, position, last)
        with builder.if_else(self.whole, likely=True) as (all_lanes, some):
            with all_lanes:
                builder.store(value, pointer, align=align)
            with some:
                self._call_masked("store", ir.VoidType(), [value, pointer], [])

    def load(self, pointer: Value, last: bool) -> Value:
        """Load a vector block; of the last one the lanes that are there, and zeros."""
        if not last:
            return self.builder.load(pointer, align=self.bits // 8)
        zeros = ir.Constant(self.vector, None)
        return self._call_masked("load", self.vector, [pointer], [zeros])

    def _call_masked(
        self, what: str, result: Any, before: list[Value], after: list[Value]
    ) -> Value:
        """Load or store the lanes that are there: no byte beyond them is touched."""
        operands = [*before, ir.IntType(32)(self.bits // 8), self.mask, *after]
        kind = ir.FunctionType(result, [operand.type for operand in operands])
        name = f"llvm.masked.{what}.v{self.vector.count}f{self.bits}.p0"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, operands)

    def number(self, value: int) -> Value:
        """Return a constant word."""
        return ir.Constant(self.word, value)

    def block(self, data: Value, position: Value, number: int) -> Value:
        """Return a pointer to vector block `number` of those from an item of an array on."""
        item = self.builder.add(position, self.number(number * self.vector.count))
        return self.builder.bitcast(self.builder.gep(data, [item]), self.vector.as_pointer())

    @contextmanager
    def loop(self, begin: Value, end: Value, step: int) -> Iterator[Value]:
        """Emit a loop around what is emitted inside; gives the counter."""
        with cgutils.for_range_slice(self.builder, begin, end, self.number(step), self.word) as (
            k,
            _,
        ):
            yield k
