"""Spans of neighbouring items, in vectors of the processor: copied, and finished.

Nothing outside of a span is read or written: its last vector is masked, but by `copy_rows`, which
writes whole vectors. So spans may end where memory does, and threads may write neighbouring ones.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from portable_spdnn_cpu.jit.compilation import Emission, intrinsic
from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS, VECTOR_BYTES
from portable_spdnn_cpu.jit.vectors import (
    broadcast,
    clamped,
    load_first,
    load_masked,
    store_first,
)

Value = Any  # an LLVM value or type; llvmlite has no types
WORD, LANE = ir.IntType(64), ir.IntType(32)


class VectorEmitter:
    """Emits loads and stores of whole and of masked vectors of the items of an array.

    Parameters
    ----------
    context, builder
        Numba's target context and llvmlite's builder.
    element : numba type
        Of an item: float32 or float64.
    """

    def __init__(self, context: Any, builder: Any, element: Any) -> None:
        self.context, self.builder, self.bits = context, builder, element.bitwidth
        self.lanes = VECTOR_BYTES * 8 // element.bitwidth
        self.scalar = context.get_value_type(element)
        self.vector = ir.VectorType(self.scalar, self.lanes)

    def data(self, kind: Any, array: Value) -> Value:
        """Return the pointer to the first item of an array."""
        return self.context.make_array(kind)(self.context, self.builder, array).data

    def at(self, pointer: Value, offset: Value) -> Value:
        """Return a pointer to the vector that begins `offset` items after a pointer."""
        return self.builder.bitcast(self.builder.gep(pointer, [offset]), self.vector.as_pointer())

    def spread(self, value: Value) -> Value:
        """Return a vector of which each lane holds a number."""
        return broadcast(self.builder, self.vector, value)

    def load(self, pointer: Value) -> Value:
        """Load a vector that is aligned as its items are."""
        return self.builder.load(pointer, align=self.bits // 8)

    def store(self, value: Value, pointer: Value) -> None:
        """Store a vector that is aligned as its items are."""
        self.builder.store(value, pointer, align=self.bits // 8)

    def mask_of(self, bits: Value) -> Value:
        """Return the mask given by the low bits of a number, lane 0 first."""
        builder = self.builder
        if HAS_FAST_MASKS:
            low = builder.trunc(bits, ir.IntType(self.lanes))
            return builder.bitcast(low, ir.VectorType(ir.IntType(1), self.lanes))
        # What LLVM makes of that cast without such registers takes dozens of instructions.
        item = ir.IntType(self.bits)
        own = ir.Constant(
            ir.VectorType(item, self.lanes), [1 << lane for lane in range(self.lanes)]
        )
        widened = builder.zext(bits, item)
        spread = broadcast(builder, own.type, widened)
        return builder.icmp_unsigned("==", builder.and_(spread, own), own)

    def load_masked(self, pointer: Value, mask: Value) -> Value:
        """Load the lanes of a mask; the others are 0, and their memory is not read."""
        return load_masked(self.builder, self.vector, pointer, mask, self.bits // 8)

    def store_first(self, value: Value, pointer: Value, count: Value) -> None:
        """Store the first lanes, `count` of them."""
        store_first(self.builder, value, pointer, count, self.bits // 8)

    def read(self, pointer: Value, count: Value | None) -> Value:
        """Load a vector, or of its lanes the first; the others are 0, and not read."""
        if count is None:
            return self.load(pointer)
        return load_first(self.builder, self.vector, pointer, count, self.bits // 8)

    def write(self, value: Value, pointer: Value, count: Value | None) -> None:
        """Store a vector, or of its lanes the first."""
        if count is None:
            self.store(value, pointer)
        else:
            self.store_first(value, pointer, count)

    def over_span(self, count: Value, emit: Any) -> None:
        """Emit a loop over a span: emit(offset, None) for whole vectors, emit(offset, left) last.

        Parameters
        ----------
        count : LLVM word
            Items of the span.
        emit : callable
            Takes the offset of a vector in the span, and how many of its lanes belong to it.
        """
        builder, lanes = self.builder, WORD(self.lanes)
        whole = builder.sub(count, builder.srem(count, lanes))
        with cgutils.for_range_slice(builder, WORD(0), whole, lanes, WORD) as (offset, _):
            emit(offset, None)
        with builder.if_then(builder.icmp_signed("<", whole, count)):
            emit(whole, builder.sub(count, whole))


@intrinsic
def copy_rows(
    typingctx: Any, step: Any, phases: Any, dst: Any, to: Any, phase_stride: Any, pitch: Any,
    src: Any, start: Any, width: Any, rows: Any, count: Any,
) -> Emission:  # fmt: skip
    """Copy every item of some rows, or each second one, to one phase or to two.

    dst[to + n phase_stride + r pitch + q] = src[start + r width + q len(step) + n] for
    n < len(phases), r < `rows` and q < `pitch`, and 0 where the column q len(step) + n is `count`
    or more. The step is 1 or 2, and len(phases) at most the step. No item of a row from `count` on
    is read; vectors of `dst` are written whole, so that up to one less than their lanes of what
    follows the last row are overwritten.
    """
    word = types.intp
    signature = types.void(step, phases, dst, *[word] * 3, src, *[word] * 4)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emitter = VectorEmitter(context, builder, sig.args[2].dtype)
        target, source = (emitter.data(sig.args[n], args[n]) for n in (2, 6))
        to, phase_stride, pitch = args[3:6]
        start, width, rows, count = args[7:]
        every, lanes = len(step), emitter.lanes

        def move_column(offset: Value, counts: list[Value | None]) -> None:
            """Copy a vector of each row, `offset` items from its start, from one vector or two.

            `counts` are how many lanes of these there are, None for all.
            """
            first = builder.add(start, builder.mul(offset, WORD(every)))
            with cgutils.for_range_slice(builder, WORD(0), rows, WORD(1), WORD) as (row, _):
                place = builder.add(first, builder.mul(row, width))
                parts = []
                for number, there in enumerate(counts):
                    at = builder.add(place, WORD(number * lanes))
                    parts.append(emitter.read(emitter.at(source, at), there))
                moved = builder.add(builder.add(to, offset), builder.mul(row, pitch))
                for phase in range(len(phases)):
                    picks = [every * lane + phase for lane in range(lanes)]
                    chosen = ir.Constant(ir.VectorType(LANE, lanes), picks)
                    value = builder.shuffle_vector(parts[0], parts[-1], chosen)
                    emitter.store(value, emitter.at(target, moved))
                    moved = builder.add(moved, phase_stride)

        # From right to left: what a row's last vector stores beyond its end is where the next one
        # begins.
        vectors = builder.udiv(builder.add(pitch, WORD(lanes - 1)), WORD(lanes))
        with cgutils.for_range_slice(builder, WORD(0), vectors, WORD(1), WORD) as (number, _):
            vector = builder.sub(builder.sub(vectors, WORD(1)), number)
            offset = builder.mul(vector, WORD(lanes))
            left = builder.sub(count, builder.mul(offset, WORD(every)))
            is_whole = builder.icmp_signed(">=", left, WORD(every * lanes))
            with builder.if_else(is_whole) as (whole, partly):
                with whole:
                    move_column(offset, [None] * every)
                with partly:
                    move_column(offset, [builder.sub(left, WORD(n * lanes)) for n in range(every)])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def finish_span(
    typingctx: Any,
    dst: Any,
    to: Any,
    sums: Any,
    start: Any,
    count: Any,
    bias: Any,
    residual: Any,
    added: Any,
    lower: Any,
    upper: Any,
) -> Emission:
    """dst[to + q] = min(max(sums[start + q] + bias + residual[to + q], lower), upper).

    For q = 0 .. count - 1. NaN passes. Where `added` is 0, there is no residual.
    """
    number = dst.dtype
    signature = types.void(
        dst, types.intp, sums, types.intp, types.intp, number, residual, types.intp, number, number
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emitter = VectorEmitter(context, builder, sig.args[0].dtype)
        target, source, residual = (emitter.data(sig.args[n], args[n]) for n in (0, 2, 6))
        bias, lower, upper = (emitter.spread(args[n]) for n in (5, 8, 9))

        def finish(offset: Value, left: Value, added: bool) -> None:
            position = builder.add(args[1], offset)
            value = emitter.read(emitter.at(source, builder.add(args[3], offset)), left)
            value = builder.fadd(value, bias)
            if added:
                value = builder.fadd(value, emitter.read(emitter.at(residual, position), left))
            value = clamped(builder, value, lower, upper)
            emitter.write(value, emitter.at(target, position), left)

        with builder.if_else(builder.icmp_signed("!=", args[7], WORD(0))) as (then, otherwise):
            with then:
                emitter.over_span(args[4], functools.partial(finish, added=True))
            with otherwise:
                emitter.over_span(args[4], functools.partial(finish, added=False))
        return context.get_dummy_value()

    return signature, codegen
