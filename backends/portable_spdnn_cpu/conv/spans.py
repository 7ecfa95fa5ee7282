"""Spans of neighbouring items, in vectors of the processor: copied, finished, gathered to a panel.

Nothing outside of a span is read or written: its last vector is masked. So spans may end where
memory does, and threads may write neighbouring ones.
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
    first_lanes,
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

    def read_every(self, source: Value, first: Value, masks: list[Value | None]) -> Value:
        """Read each item from source[first] on, or each second one, as there are one or two masks.

        Masks are None, or as of `masks_every`: lanes that they have not are 0, and not read.
        """
        builder, lanes = self.builder, self.lanes
        # Of two vectors, the second begins an item early, to end with the last item wanted.
        pointers = [self.at(source, builder.add(first, WORD(n * (lanes - 1)))) for n in (0, 1)]
        parts = [
            self.load(pointer) if mask is None else self.load_masked(pointer, mask)
            for pointer, mask in zip(pointers, masks, strict=False)
        ]
        if len(parts) == 1:
            return parts[0]
        chosen = [2 * lane + (2 * lane >= lanes) for lane in range(lanes)]
        picks = ir.Constant(ir.VectorType(LANE, lanes), chosen)
        return builder.shuffle_vector(*parts, picks)

    def masks_every(self, step: int, count: Value) -> list[Value]:
        """Return the masks with which `read_every` reads `count` items, no more than lanes."""
        if step == 1:
            return [first_lanes(self.builder, count, self.lanes)]
        items = self.builder.shl(count, WORD(1))
        ends = [self.builder.sub(items, WORD(number)) for number in (1, self.lanes)]
        return [first_lanes(self.builder, end, self.lanes) for end in ends]

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
    typingctx: Any,
    step: Any,
    dst: Any,
    to: Any,
    pitch: Any,
    src: Any,
    start: Any,
    width: Any,
    rows: Any,
    count: Any,
) -> Emission:
    """dst[to + r pitch + q] = src[start + r width + q len(step)], or 0 for q = count .. pitch - 1.

    For r = 0 .. rows - 1. The step is 1 or 2. Nothing else of `src` is read; vectors of `dst` are
    written whole, so that up to one less than their lanes of what follows the last row become 0.
    """
    word = types.intp
    signature = types.void(step, dst, word, word, src, word, word, word, word)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emitter = VectorEmitter(context, builder, sig.args[1].dtype)
        target, source = (emitter.data(sig.args[n], args[n]) for n in (1, 4))
        to, pitch, (start, width, rows, count) = args[2], args[3], args[5:]
        every, lanes = len(step), WORD(emitter.lanes)
        # The last vector with items, of a row, has from one item to all.
        whole = builder.udiv(builder.sub(count, WORD(1)), lanes)
        whole = builder.select(builder.icmp_signed(">", count, WORD(0)), whole, WORD(0))
        last = builder.mul(whole, lanes)
        masks = emitter.masks_every(every, builder.sub(count, last))

        def move(row: Value, first: Value, offset: Value, masks: list[Any]) -> None:
            place = builder.add(first, builder.mul(offset, WORD(every)))
            value = emitter.read_every(source, place, masks)
            emitter.store(value, emitter.at(target, builder.add(row, offset)))

        zero, one = ir.Constant(emitter.vector, None), WORD(1)
        with cgutils.for_range_slice(builder, WORD(0), rows, one, WORD) as (number, _):
            row = builder.add(to, builder.mul(number, pitch))
            first = builder.add(start, builder.mul(number, width))
            with cgutils.for_range_slice(builder, WORD(0), last, lanes, WORD) as (offset, _):
                move(row, first, offset, [None] * every)
            move(row, first, last, masks)
            after = builder.add(last, lanes)
            with cgutils.for_range_slice(builder, after, pitch, lanes, WORD) as (offset, _):
                emitter.store(zero, emitter.at(target, builder.add(row, offset)))
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


@intrinsic
def gather_panel(
    typingctx: Any,
    width: Any,
    panel: Any,
    images: Any,
    base: Any,
    sources: Any,
    kernel_entries: Any,
    first: Any,
    last: Any,
    masks: Any,
) -> Emission:
    """Copy what positions see of images to the rows of a panel, for some entries of kernels.

    Row k - first of the panel, for k = first .. last - 1, are len(width) vectors: what lies at
    images[base + sources[k]] and on, with zeros in the lanes that bit masks[kernel_entries[k], v]
    of vector v has no 1 for. These are not read, wherever they are.

    All vectors are stored whole and aligned: a store that crosses a cache line takes as long as
    several that do not.
    """
    vectors = len(width)
    word = types.intp
    signature = types.void(width, panel, images, word, sources, kernel_entries, word, word, masks)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emitter = VectorEmitter(context, builder, sig.args[1].dtype)
        panel, images, sources, entries, masks = (
            emitter.data(sig.args[n], args[n]) for n in (1, 2, 4, 5, 8)
        )
        base, first, last = args[3], args[6], args[7]
        with cgutils.for_range_slice(builder, first, last, WORD(1), WORD) as (k, _):
            source = builder.add(base, builder.load(builder.gep(sources, [k])))
            entry = builder.zext(builder.load(builder.gep(entries, [k])), WORD)
            row = builder.mul(builder.sub(k, first), WORD(vectors * emitter.lanes))
            for vector in range(vectors):
                shift = WORD(vector * emitter.lanes)
                place = builder.add(builder.mul(entry, WORD(vectors)), WORD(vector))
                mask = emitter.mask_of(builder.load(builder.gep(masks, [place])))
                value = emitter.load_masked(emitter.at(images, builder.add(source, shift)), mask)
                pointer = emitter.at(panel, builder.add(row, shift))
                builder.store(value, pointer, align=VECTOR_BYTES)
        return context.get_dummy_value()

    return signature, codegen
