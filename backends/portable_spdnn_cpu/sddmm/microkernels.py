"""Microkernels of scattered keys: scores of one query, and the softmax of a row.

Idea: a part of a query stays in registers; each key's row is multiplied with it lane by lane; a sum
of more than a register is folded to one; and the lanes of four keys are summed together, by eight
shuffles. Bound, for a part of four blocks of float32 with AVX-512: four loads and a key's number,
four multiply-adds, two shuffles and 1.5 additions for each score; from the second-level cache the
four cache lines of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from portable_spdnn_cpu.jit.compilation import Array, Emission, intrinsic
from portable_spdnn_cpu.jit.loops import by_number
from portable_spdnn_cpu.jit.vectors import FUSED, broadcast, first_lanes
from portable_spdnn_cpu.sddmm.register_tile import TOGETHER, most_blocks
from portable_spdnn_cpu.sddmm.vectors import LANES, WORD, Blocks, Value

# A sum has fewer terms than this: it is finite if each of its terms times this is.
HEADROOM = 2.0**32


def has_headroom(rows: Array) -> Array:
    """Return for each row whether its numbers times `HEADROOM` are finite; `load_row` tells too."""
    most = np.finfo(rows.dtype).max / HEADROOM
    within: Array = (np.abs(rows) <= most).all(axis=-1)
    return within


@intrinsic
def score_rows(
    typingctx: Any, part: Any, Q: Any, q: Any, K: Any, k: Any, stride: Any, keys: Any, first: Any,
    count: Any, scale: Any, S: Any, s: Any, more: Any,
) -> Emission:  # fmt: skip
    """S[s + e] = scale times the product of a part of a query and of row keys[first + e] of K.

    For e < count. The part is `part` blocks, 1 to `most_blocks`; that of the query begins at
    Q[q], those of the keys at K[k + stride key]. `more`: it is added to what is in S, by which rows
    wider than a part go part by part. Nothing beyond the entries is touched; all arrays are
    contiguous, and positions count their items.
    """
    signature = types.void(
        WORD, Q, WORD, K, WORD, WORD, keys, WORD, WORD, Q.dtype, S, WORD, types.boolean
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        part, Q, q, K, k, stride, keys, first, count, scale, S, s, more = args
        b = Blocks(context, builder, sig.args[1].dtype)
        queries, rows = b.data(sig.args[1], Q), b.at(b.data(sig.args[3], K), k)
        numbers, out = b.at(b.data(sig.args[6], keys), first), b.at(b.data(sig.args[10], S), s)
        few = ir.VectorType(b.scalar, TOGETHER)
        factor = broadcast(builder, few, scale)

        def product(query: list[Value], entry: Value) -> Value:
            row = builder.mul(b.load_word(b.at(numbers, entry)), stride)
            total = None
            for n, block in enumerate(query):
                key = b.load(b.at(rows, row, LANES * n))
                new = total is None
                total = (
                    builder.fmul(block, key, FUSED) if new else b.multiply_add(block, key, total)
                )
            return b.folded(total)

        def scores(products: list[Value], before: Callable[[], Value]) -> Value:
            """Return what is to be stored; what was there before is added where it is to be."""
            fresh = builder.fmul(b.lane_sums(products), factor)
            found = cgutils.alloca_once_value(builder, fresh)
            with builder.if_then(more):
                builder.store(builder.fadd(fresh, before()), found)
            return builder.load(found)

        whole = builder.and_(count, ir.Constant(count.type, -TOGETHER))
        left = builder.sub(count, whole)

        def score(blocks: int) -> None:
            query = [b.load(b.at(queries, q, LANES * n)) for n in range(blocks)]
            with b.steps(whole, TOGETHER) as entry:
                place = builder.bitcast(b.at(out, entry), few.as_pointer())
                products = [product(query, b.add(entry, n)) for n in range(TOGETHER)]
                value = scores(products, lambda: builder.load(place, align=b.itemsize))
                builder.store(value, place, align=b.itemsize)
            zero = b.folded(b.zero)
            slots = [cgutils.alloca_once_value(builder, zero) for _ in range(TOGETHER - 1)]
            with builder.if_then(builder.icmp_signed(">", left, ir.Constant(left.type, 0))):
                for n, slot in enumerate(slots):
                    with builder.if_then(builder.icmp_signed(">", left, ir.Constant(left.type, n))):
                        builder.store(product(query, b.add(whole, n)), slot)
                place = b.at(out, whole)
                products = [*(builder.load(slot) for slot in slots), zero]
                value = scores(products, lambda: b.load_first(place, left, TOGETHER))
                b.store_first(value, place, left)

        by_number(builder, part, most_blocks(b.itemsize), score)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def exponentials(typingctx: Any, S: Any, s: Any, count: Any, most: Any) -> Emission:
    """S[s + e] = exp(S[s + e] - most) for e < count, in place; returns their sum.

    To the end of the last block of 16 it writes zeros.
    """
    signature = S.dtype(S, WORD, WORD, S.dtype)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        S, s, count, most = args
        b = Blocks(context, builder, sig.args[0].dtype)
        data, level = b.at(b.data(sig.args[0], S), s), b.spread(most)
        [[total]] = b.sums(1, 1)
        with b.steps(count, LANES) as entry:
            place = b.at(data, entry)
            value = b.exponential(builder.fsub(b.load(place), level))
            value = builder.select(
                first_lanes(builder, builder.sub(count, entry), LANES), value, b.zero
            )
            b.store(value, place)
            builder.store(builder.fadd(builder.load(total), value), total)
        return b.total(builder.load(total))

    return signature, codegen


@intrinsic
def largest(typingctx: Any, S: Any, s: Any, count: Any) -> Emission:
    """Return the largest of S[s + e] for e < count, -inf where there is none; NaN is passed over.

    Loads go on to the end of the last block of 16.
    """
    signature = S.dtype(S, WORD, WORD)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        S, s, count = args
        b = Blocks(context, builder, sig.args[0].dtype)
        data = b.at(b.data(sig.args[0], S), s)
        most = cgutils.alloca_once_value(builder, b.least)
        with b.steps(count, LANES) as entry:
            within = first_lanes(builder, builder.sub(count, entry), LANES)
            value = builder.select(within, b.load(b.at(data, entry)), b.least)
            builder.store(b.larger(value, builder.load(most)), most)
        return b.largest(builder.load(most))

    return signature, codegen


@intrinsic
def load_row(
    typingctx: Any, source: Any, first: Any, count: Any, row: Any, place: Any, width: Any
) -> Emission:
    """Copy source[first ...] to row[place ...], `count` numbers, then zeros to `width` of them.

    `width` is a whole number of blocks. Returns 0, or NaN where a number times `HEADROOM` is not
    finite.
    """
    signature = row.dtype(source, WORD, WORD, row, WORD, WORD)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source, first, count, row, place, width = args
        b = Blocks(context, builder, sig.args[3].dtype)
        origin, out = (
            b.at(b.data(sig.args[0], source), first),
            b.at(b.data(sig.args[3], row), place),
        )
        [[flaw]] = b.sums(1, 1)
        headroom = b.constant(HEADROOM)
        with b.steps(width, LANES) as column:
            value = b.load_first(b.at(origin, column), builder.sub(count, column))
            scaled = builder.fmul(value, headroom)
            builder.store(builder.fadd(builder.load(flaw), builder.fsub(scaled, scaled)), flaw)
            b.store(value, b.at(out, column))
        return b.total(builder.load(flaw))

    return signature, codegen


@intrinsic
def store_row(
    typingctx: Any, row: Any, place: Any, factor: Any, out: Any, first: Any, count: Any
) -> Emission:
    """out[first + c] = factor times row[place + c] for c < count.

    Loads go on to the end of the last block of 16.
    """
    signature = types.void(row, WORD, row.dtype, out, WORD, WORD)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        row, place, factor, out, first, count = args
        b = Blocks(context, builder, sig.args[0].dtype)
        origin, target = (
            b.at(b.data(sig.args[0], row), place),
            b.at(b.data(sig.args[3], out), first),
        )
        share = b.spread(factor)
        with b.steps(count, LANES) as column:
            value = builder.fmul(b.load(b.at(origin, column)), share)
            b.store_first(value, b.at(target, column), builder.sub(count, column))
        return context.get_dummy_value()

    return signature, codegen
