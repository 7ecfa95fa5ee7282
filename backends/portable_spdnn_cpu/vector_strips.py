"""Explicit vectors for Numba: strips of one output neuron, transposition, prefetch, a counter.

Plain loops leave the compiler to guess that tiles do not alias and that accumulators may stay
in registers. These intrinsics say so, by emitting LLVM vectors. A *granule* is 64 bytes of
neighbouring inputs (16 float32 or 8 float64), whatever vectors the processor has: LLVM splits
it into what fits.

Each sum runs in two chains, over even and over odd entries, which hides the latency of the
addition. The order of additions depends on the pattern alone, not on widths, tiles or threads,
so results are bitwise the same for every batch size and thread count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import Signature

from portable_spdnn_cpu.compiled import intrinsic

GRANULE_BYTES = 64
CHAINS = 2


def _make_strip(granules: int) -> Callable[..., None]:
    """Build the intrinsic for strips of `granules` granules."""

    @intrinsic
    def strip(
        typingctx: Any,
        dst: Any,
        src: Any,
        live: Any,
        indices: Any,
        values: Any,
        begin: Any,
        end: Any,
        row: Any,
        column: Any,
        weight: Any,
        bias: Any,
        lowest: Any,
        highest: Any,
    ) -> tuple[Signature, Callable[..., Any]]:
        """dst[row, c] = clamp(sum_k w_k src[indices[k], c] + bias); live[c] += dst[row, c].

        For k in begin .. end - 1 and c in column .. column + strip width - 1. `values` is None
        where all weights equal `weight`. NaN passes the clamp.
        """
        element = dst.dtype
        per_granule = GRANULE_BYTES * 8 // element.bitwidth
        item_bytes = element.bitwidth // 8
        valued = not isinstance(values, types.NoneType)
        signature = types.void(
            dst, src, live, indices, values, types.intp, types.intp, types.intp, types.intp,
            element, element, element, element,
        )  # fmt: skip

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            scalar = context.get_value_type(element)
            vector = ir.VectorType(scalar, per_granule)
            lanes = ir.VectorType(ir.IntType(32), per_granule)

            def array(position: int) -> Any:
                return context.make_array(sig.args[position])(context, builder, args[position])

            def leading(tile: Any) -> Any:
                return builder.extract_value(tile.shape, 1)

            def vector_at(data: Any, offset: Any, granule: int) -> Any:
                shift = ir.Constant(offset.type, granule * per_granule)
                pointer = builder.gep(data, [builder.add(offset, shift)])
                return builder.bitcast(pointer, vector.as_pointer())

            def load(pointer: Any) -> Any:
                return builder.load(pointer, align=item_bytes)

            def spread(value: Any) -> Any:
                undefined = ir.Constant(vector, ir.Undefined)
                first = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
                return builder.shuffle_vector(first, undefined, ir.Constant(lanes, None))

            target, source, liveness, columns = array(0), array(1), array(2), array(3)
            begin, end, row, column, weight, bias, lowest, highest = args[5:]
            zero = ir.Constant(vector, None)
            sums = [
                [cgutils.alloca_once_value(builder, zero) for _ in range(granules)]
                for _ in range(CHAINS)
            ]
            source_leading = leading(source)

            def accumulate(k: Any, chain: int) -> None:
                index = builder.load(builder.gep(columns.data, [k]))
                if index.type.width < k.type.width:
                    extend = builder.sext if sig.args[3].dtype.signed else builder.zext
                    index = extend(index, k.type)
                offset = builder.add(builder.mul(index, source_leading), column)
                if valued:
                    factor = spread(builder.load(builder.gep(array(4).data, [k])))
                for granule in range(granules):
                    term = load(vector_at(source.data, offset, granule))
                    if valued:
                        term = builder.fmul(term, factor, flags=("contract",))
                    total = builder.load(sums[chain][granule])
                    builder.store(
                        builder.fadd(total, term, flags=("contract",)), sums[chain][granule]
                    )

            step = ir.Constant(begin.type, CHAINS)
            whole = builder.sub(end, builder.srem(builder.sub(end, begin), step))
            with cgutils.for_range_slice(builder, begin, whole, step, begin.type) as (k, _):
                for chain in range(CHAINS):
                    accumulate(builder.add(k, ir.Constant(k.type, chain)), chain)
            with cgutils.for_range_slice(
                builder, whole, end, ir.Constant(begin.type, 1), begin.type
            ) as (k, _):
                accumulate(k, 0)

            target_offset = builder.add(builder.mul(row, leading(target)), column)
            bias_vector = spread(bias)
            low, high = spread(lowest), spread(highest)
            for granule in range(granules):
                value = builder.fadd(builder.load(sums[0][granule]), builder.load(sums[1][granule]))
                if not valued:
                    value = builder.fmul(value, spread(weight), flags=("contract",))
                value = builder.fadd(value, bias_vector, flags=("contract",))
                # Ordered comparisons are false for NaN, which therefore stays.
                value = builder.select(builder.fcmp_ordered("<", value, low), low, value)
                value = builder.select(builder.fcmp_ordered(">", value, high), high, value)
                builder.store(
                    value, vector_at(target.data, target_offset, granule), align=item_bytes
                )
                # A sum of features >= 0 is zero only where all are; NaN stays NaN.
                pointer = vector_at(liveness.data, column, granule)
                builder.store(builder.fadd(load(pointer), value), pointer, align=item_bytes)
            return context.get_dummy_value()

        return signature, codegen

    return strip


single_strip = _make_strip(1)
double_strip = _make_strip(2)


@intrinsic
def copy_granule(
    typingctx: Any, dst: Any, to: Any, src: Any, start: Any
) -> tuple[Signature, Callable[..., Any]]:
    """Copy one granule between arrays of one type: items from `start` on, to `to` on.

    Positions count items from the first of each array, whatever its shape.
    """
    element = dst.dtype
    signature = types.void(dst, types.intp, src, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = ir.VectorType(
            context.get_value_type(element), GRANULE_BYTES * 8 // element.bitwidth
        )

        def pointer(position: int) -> Any:
            array = context.make_array(sig.args[position])(context, builder, args[position])
            first = builder.gep(array.data, [args[position + 1]])
            return builder.bitcast(first, vector.as_pointer())

        align = element.bitwidth // 8
        builder.store(builder.load(pointer(2), align=align), pointer(0), align=align)
        return context.get_dummy_value()

    return signature, codegen


TRANSPOSE_BYTES = 32  # of a row of a block: 8 x 8 float32 or 4 x 4 float64


def _make_transpose(to_tile: bool) -> Callable[..., None]:
    """Build the intrinsic that moves a square block between features and a tile."""

    @intrinsic
    def transpose(
        typingctx: Any, tile: Any, neuron: Any, column: Any, features: Any, rows: Any
    ) -> tuple[Signature, Callable[..., Any]]:
        """tile[neuron + q, column + p] = features[rows[column + p], neuron + q], or back.

        For p, q in 0 .. TRANSPOSE_BYTES / item size - 1; both arrays in C order.
        """
        element = tile.dtype
        side = TRANSPOSE_BYTES * 8 // element.bitwidth
        item_bytes = element.bitwidth // 8
        signature = types.void(tile, types.intp, types.intp, features, rows)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            vector = ir.VectorType(context.get_value_type(element), side)

            def array(position: int) -> Any:
                return context.make_array(sig.args[position])(context, builder, args[position])

            inside, outside, chosen = array(0), array(3), array(4)
            neuron, column = args[1:3]
            in_tile, in_features = [], []
            for step in range(side):
                shift = ir.Constant(neuron.type, step)
                leading = builder.extract_value(inside.shape, 1)
                offset = builder.add(builder.mul(builder.add(neuron, shift), leading), column)
                in_tile.append(builder.gep(inside.data, [offset]))
                row = builder.load(builder.gep(chosen.data, [builder.add(column, shift)]))
                leading = builder.extract_value(outside.shape, 1)
                offset = builder.add(builder.mul(row, leading), neuron)
                in_features.append(builder.gep(outside.data, [offset]))
            sources, targets = (in_features, in_tile) if to_tile else (in_tile, in_features)
            block = [
                builder.load(builder.bitcast(pointer, vector.as_pointer()), align=item_bytes)
                for pointer in sources
            ]
            # Swap the off-diagonal quarters of ever larger squares: log2(side) rounds.
            span = 1
            while span < side:
                first = [e if not e & span else side + e - span for e in range(side)]
                second = [e + span if not e & span else side + e for e in range(side)]
                for upper in range(side):
                    if not upper & span:
                        pair = block[upper], block[upper + span]
                        block[upper] = builder.shuffle_vector(*pair, _lanes(first))
                        block[upper + span] = builder.shuffle_vector(*pair, _lanes(second))
                span *= 2
            for value, pointer in zip(block, targets, strict=True):
                builder.store(
                    value, builder.bitcast(pointer, vector.as_pointer()), align=item_bytes
                )
            return context.get_dummy_value()

        return signature, codegen

    return transpose


def _lanes(chosen: list[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), chosen)


transpose_into_tile = _make_transpose(True)
transpose_from_tile = _make_transpose(False)


@intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> tuple[Signature, Callable[..., Any]]:
    """Ask for the cache line of the element `index` items after the array's first."""
    signature = types.void(array, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        flag = ir.IntType(32)
        pointer = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [pointer.type, flag, flag, flag]),
            "llvm.prefetch.p0",
        )
        # To be read, to be kept in all levels, data.
        builder.call(function, [pointer, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def fetch_add(
    typingctx: Any, counters: Any, index: Any, amount: Any
) -> tuple[Signature, Callable[..., Any]]:
    """Add `amount` to counters[index] atomically and return what was there before."""
    signature = types.int64(counters, types.intp, types.int64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, builder, args[0])
        return builder.atomic_rmw("add", builder.gep(array.data, [args[1]]), args[2], "monotonic")

    return signature, codegen
