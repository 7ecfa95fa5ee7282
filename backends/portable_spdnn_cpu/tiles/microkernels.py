"""Vector strips of outputs.

Sums of output neurons over their inputs stay in registers.

Plain loops leave the compiler to guess that tiles do not alias and that accumulators may stay
in registers. These intrinsics say so, by emitting LLVM vectors over neighbouring inputs.

A *single* strip is one output neuron. Each of its sums runs in two chains, over even and odd
entries, which hides the latency of the addition. A *cluster* strip is CLUSTER outputs that have
inputs in common: each of those is loaded once and added to all their sums, which are chains
enough. What an output has for itself is added first, in one chain.

Where features are 0 or 1 they come as bytes, 64 to a granule, and sums are counts in bytes, four
times as many in a register as float32; no output may then have more than MOST_COUNTED inputs.

The order of additions depends on the pattern alone, not on widths, tiles or threads, so results
are bitwise the same for every batch size and thread count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import Signature

from portable_spdnn_cpu.jit.compilation import intrinsic
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES, CLUSTER, CLUSTER_BLOCKS

SINGLE_CHAINS = 2
_FUSED = ("contract",)  # multiplication and addition may be one instruction


def _make_strip(outputs: int, granules: int) -> Callable[..., None]:
    """Build the intrinsic for `outputs` neurons and strips of `granules` granules."""
    chains = SINGLE_CHAINS if outputs == 1 else 1

    @intrinsic
    def strip(
        typingctx: Any,
        dst: Any,
        src: Any,
        live: Any,
        indices: Any,
        values: Any,
        first_value: Any,
        offsets: Any,
        first_offset: Any,
        rows: Any,
        first_row: Any,
        column: Any,
        end: Any,
        shift: Any,
        weight: Any,
        bias: Any,
        lowest: Any,
        highest: Any,
    ) -> tuple[Signature, Callable[..., Any]]:
        """dst[row, c + shift] = clamp(sum_k w_k src[indices[k], c] + bias), added to live[c].

        For the rows rows[first_row + o], o = 0 .. outputs - 1, and c in the whole strips of
        column .. end - 1. With one output, its entries are offsets[first_offset] and on. With
        several, those come first that all have in common, then those of each. `values` is None
        where all weights equal `weight`; else they start at `first_value`, those of common
        entries together. NaN passes the clamp. Where `src` holds bytes, each 0 or 1, `values`
        is None.
        """
        element = dst.dtype
        counts = src.dtype == types.uint8
        per_granule = BLOCK_BYTES * 8 // element.bitwidth
        item_bytes = element.bitwidth // 8
        valued = not isinstance(values, types.NoneType)
        signature = types.void(
            dst, src, live, indices, values, types.intp, offsets, types.intp, rows, types.intp,
            types.intp, types.intp, types.intp, element, bias, element, element,
        )  # fmt: skip

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            scalar = context.get_value_type(element)
            vector = ir.VectorType(scalar, per_granule)
            lanes = ir.VectorType(ir.IntType(32), per_granule)
            addend = ir.VectorType(ir.IntType(8), BLOCK_BYTES) if counts else vector
            word = context.get_value_type(types.intp)

            def array(position: int) -> Any:
                return context.make_array(sig.args[position])(context, builder, args[position])

            def whole(number: int) -> Any:
                return ir.Constant(word, number)

            def item(source: Any, position: Any, number_type: Any) -> Any:
                """Load source[position], an integer, as a word."""
                found = builder.load(builder.gep(source.data, [position]))
                if found.type.width < word.width:
                    extend = builder.sext if number_type.signed else builder.zext
                    return extend(found, word)
                return found

            def vector_at(data: Any, offset: Any, granule: int, kind: Any = vector) -> Any:
                pointer = builder.gep(data, [builder.add(offset, whole(granule * kind.count))])
                return builder.bitcast(pointer, kind.as_pointer())

            def load(pointer: Any) -> Any:
                return builder.load(pointer, align=1 if counts else item_bytes)

            def add(total: Any, term: Any) -> Any:
                return builder.add(total, term) if counts else builder.fadd(total, term, _FUSED)

            def add_by_multiplying(total: Any, term: Any) -> Any:
                kind = ir.FunctionType(vector, [vector] * 3)
                name = f"llvm.fmuladd.v{per_granule}f{element.bitwidth}"
                fmuladd = cgutils.get_or_insert_function(builder.module, kind, name)
                return builder.call(fmuladd, [term, unit, total])

            def as_features(total: Any) -> list[Any]:
                """Return a sum, or the pieces of a count, as vectors of the element type."""
                if not counts:
                    return [total]
                pieces = []
                for first in range(0, BLOCK_BYTES, per_granule):
                    chosen = ir.Constant(lanes, list(range(first, first + per_granule)))
                    piece = builder.shuffle_vector(total, total, chosen)
                    pieces.append(builder.uitofp(builder.zext(piece, lanes), vector))
                return pieces

            def spread(value: Any) -> Any:
                undefined = ir.Constant(vector, ir.Undefined)
                first = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
                return builder.shuffle_vector(first, undefined, ir.Constant(lanes, None))

            target, source, liveness, columns = array(0), array(1), array(2), array(3)
            bounds, places, biases = array(6), array(8), array(14)
            first_value, first_offset, first_row = args[5], args[7], args[9]
            first_column, end_column, shift = args[10:13]
            weight, lowest, highest = args[13], args[15], args[16]
            leading = builder.extract_value(source.shape, 1)
            width = builder.extract_value(target.shape, 1)
            factors = array(4).data if valued else None
            # One, though the compiler cannot know: some processors add in other units than
            # they multiply in, and clusters keep both busy. The sums are the same.
            sign = builder.lshr(leading, whole(word.width - 1))
            unit = spread(builder.uitofp(builder.add(sign, whole(1)), scalar))
            # What holds for all strips of a row is loaded once: stores might change it.
            edges = [
                item(bounds, builder.add(first_offset, whole(position)), sig.args[6].dtype)
                for position in range(2 if outputs == 1 else outputs + 2)
            ]
            starts, offsets_of_rows = [], []
            for output in range(outputs):
                row = builder.add(first_row, whole(output))
                starts.append(builder.load(builder.gep(biases.data, [row])))
                place = item(places, row, sig.args[8].dtype)
                offsets_of_rows.append(builder.add(builder.mul(place, width), shift))

            def strip_at(column: Any) -> None:
                zero = ir.Constant(addend, None)
                sums = [
                    [
                        [cgutils.alloca_once_value(builder, zero) for _ in range(granules)]
                        for _ in range(chains)
                    ]
                    for _ in range(outputs)
                ]

                def accumulate(k: Any, where: list[list[Any]], value_at: Any) -> None:
                    """Add entry `k` to each of the sums `where`; their weights are neighbours."""
                    index = item(columns, k, sig.args[3].dtype)
                    offset = builder.add(builder.mul(index, leading), column)
                    terms = [
                        load(vector_at(source.data, offset, g, addend)) for g in range(granules)
                    ]
                    for neighbour, sum_of in enumerate(where):
                        if valued:
                            place = builder.gep(factors, [builder.add(value_at, whole(neighbour))])
                            factor = spread(builder.load(place))
                        for term, total in zip(terms, sum_of, strict=True):
                            if valued:
                                term = builder.fmul(term, factor, flags=_FUSED)
                            multiplies = neighbour % 2 and not valued and not counts
                            added = add_by_multiplying if multiplies else add
                            builder.store(added(builder.load(total), term), total)

                def accumulate_own(output: int, begin: Any, end: Any, value_at: Any) -> None:
                    """Add entries begin .. end - 1, in all chains, to one output's sums."""
                    shift = builder.sub(value_at, begin)
                    step = whole(chains)
                    rounded = builder.sub(end, builder.srem(builder.sub(end, begin), step))
                    with cgutils.for_range_slice(builder, begin, rounded, step, word) as (k, _):
                        for chain in range(chains):
                            entry = builder.add(k, whole(chain))
                            accumulate(entry, [sums[output][chain]], builder.add(entry, shift))
                    if chains > 1:
                        one = whole(1)
                        with cgutils.for_range_slice(builder, rounded, end, one, word) as (k, _):
                            accumulate(k, [sums[output][0]], builder.add(k, shift))

                if outputs == 1:
                    accumulate_own(0, edges[0], edges[1], first_value)
                else:
                    begin, end = edges[:2]
                    common = builder.mul(builder.sub(end, begin), whole(outputs))
                    own_values = builder.sub(builder.add(first_value, common), end)
                    has_own = builder.icmp_signed("<", end, edges[-1])
                    with builder.if_then(has_own, likely=False):
                        start = end
                        for output in range(outputs):
                            stop = edges[2 + output]
                            accumulate_own(output, start, stop, builder.add(own_values, start))
                            start = stop
                    together = [chain[0] for chain in sums]
                    with cgutils.for_range_slice(builder, begin, end, whole(1), word) as (k, _):
                        position = builder.mul(builder.sub(k, begin), whole(outputs))
                        accumulate(k, together, builder.add(first_value, position))

                low, high = spread(lowest), spread(highest)
                pieces = granules * (addend.count // per_granule)
                alive = [load(vector_at(liveness.data, column, p)) for p in range(pieces)]
                for output in range(outputs):
                    bias_vector = spread(starts[output])
                    target_offset = builder.add(offsets_of_rows[output], column)
                    totals = []
                    for granule in range(granules):
                        total = builder.load(sums[output][0][granule])
                        for chain in range(1, chains):
                            total = add(total, builder.load(sums[output][chain][granule]))
                        totals += as_features(total)
                    for piece, value in enumerate(totals):
                        if not valued:
                            value = builder.fmul(value, spread(weight), flags=_FUSED)
                        value = builder.fadd(value, bias_vector, flags=_FUSED)
                        # Ordered comparisons are false for NaN, which therefore stays.
                        value = builder.select(builder.fcmp_ordered("<", value, low), low, value)
                        value = builder.select(builder.fcmp_ordered(">", value, high), high, value)
                        builder.store(
                            value, vector_at(target.data, target_offset, piece), align=item_bytes
                        )
                        # A sum of features >= 0 is zero only where all are; NaN stays NaN.
                        alive[piece] = builder.fadd(alive[piece], value)
                for piece in range(pieces):
                    pointer = vector_at(liveness.data, column, piece)
                    builder.store(alive[piece], pointer, align=item_bytes)

            step = whole(granules * addend.count)
            stop = builder.add(builder.sub(end_column, step), whole(1))
            with cgutils.for_range_slice(builder, first_column, stop, step, word) as (column, _):
                strip_at(column)
            return context.get_dummy_value()

        return signature, codegen

    return strip


single_strip = _make_strip(1, 1)
double_strip = _make_strip(1, 2)
cluster_strip = _make_strip(CLUSTER, 1)
wide_cluster_strip = _make_strip(CLUSTER, CLUSTER_BLOCKS)
