"""Microkernels of attention: tiles of 8 queries by 16 keys, and rows of V that are added up.

Idea: where a tile has enough entries, all its scores are computed, and those that the mask has not
become minus infinity. K is transposed into panels of 16 keys, so that scores lie sixteen keys to a
block and no lanes are summed; of some queries and panels all sums stay in registers, and so do
those of the queries and some columns of V afterwards. Bound: the multiply-adds, 24 of which take
eleven loads with AVX-512 in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from portable_spdnn_cpu.jit.compilation import Emission, intrinsic
from portable_spdnn_cpu.jit.loops import by_number
from portable_spdnn_cpu.sddmm.register_tile import GROUP, TOGETHER, most_blocks
from portable_spdnn_cpu.sddmm.vectors import LANES, WORD, Blocks, Value


@intrinsic
def score_tiles(
    typingctx: Any, rows: Any, keys: Any, Q: Any, q: Any, depth: Any, panels: Any, numbers: Any,
    bits: Any, tile: Any, row: Any, scale: Any, S: Any, s: Any, length: Any,
) -> Emission:  # fmt: skip
    """S[r, 16 t + k] = scale Q[r] . K[16 numbers[tile + t] + k], for the tiles t and queries r.

    As many queries as `rows` has entries, as many tiles as `keys` has. Query r begins at
    Q[q + depth r], its scores at S[s + length r]; they are -inf where bit k of
    bits[8 (tile + t) + row + r] is not set.
    """
    signature = types.void(
        rows, keys, Q, WORD, WORD, panels, numbers, bits, WORD, WORD, Q.dtype, S, WORD, WORD
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, _, Q, q, depth, panels, numbers, bits, tile, row, scale, S, s, length = args
        b = Blocks(context, builder, sig.args[2].dtype)
        height, width = len(sig.args[0]), len(sig.args[1])
        numbered, masks = b.data(sig.args[6], numbers), b.data(sig.args[7], bits)
        origin, keys = b.data(sig.args[2], Q), b.data(sig.args[5], panels)
        firsts = []
        for t in range(width):
            number = b.load_word(b.at(numbered, tile, t))
            firsts.append(b.at(keys, builder.mul(number, b.times(depth, LANES))))
        queries = _rows(b, origin, q, depth, height)
        sums = b.sums(height, width)

        def panel_row(i: Value) -> list[Value]:
            return [b.load(b.at(first, b.times(i, LANES))) for first in firsts]

        _multiply(b, queries, depth, panel_row, sums)
        factor, flags = b.spread(scale), ir.VectorType(ir.IntType(1), LANES)
        targets = _rows(b, b.data(sig.args[11], S), s, length, height)
        first_bits = builder.add(b.times(tile, GROUP), row)
        for r, (slots, target) in enumerate(zip(sums, targets, strict=True)):
            for t, slot in enumerate(slots):
                value = builder.fmul(builder.load(slot), factor)
                stored = builder.load(b.at(masks, first_bits, GROUP * t + r))
                value = builder.select(builder.bitcast(stored, flags), value, b.least)
                b.store(value, builder.gep(target, [ir.Constant(row.type, LANES * t)]))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def add_tiles(
    typingctx: Any, rows: Any, columns: Any, P: Any, p: Any, length: Any, V: Any, width: Any,
    numbers: Any, first: Any, end: Any, column: Any, out: Any, place: Any,
) -> Emission:  # fmt: skip
    """out[r, c] += sum over tiles t and keys k of P[r, 16 (t - first) + k] V[16 numbers[t] + k, c].

    For the tiles first .. end - 1, as many queries r as `rows` has entries, and from `column` on as
    many blocks of columns c as `columns` has. Rows of V and `out` are `width` apart; query r
    begins at P[p + length r] and out[place + width r].
    """
    signature = types.void(
        rows, columns, P, WORD, WORD, V, WORD, numbers, WORD, WORD, WORD, out, WORD
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, _, P, p, length, V, width, numbers, first, end, column, out, place = args
        b = Blocks(context, builder, sig.args[2].dtype)
        height, blocks = len(sig.args[0]), len(sig.args[1])
        weights, numbered = b.data(sig.args[2], P), b.data(sig.args[7], numbers)
        values = b.at(b.data(sig.args[5], V), column)
        targets = _rows(b, b.at(b.data(sig.args[11], out), column), place, width, height)
        sums = b.sums(height, blocks)
        shifts = [ir.Constant(width.type, LANES * n) for n in range(blocks)]
        for target, slots in zip(targets, sums, strict=True):
            for shift, slot in zip(shifts, slots, strict=True):
                builder.store(b.load(builder.gep(target, [shift])), slot)
        with b.steps(builder.sub(end, first)) as t:
            number = b.load_word(b.at(numbered, builder.add(first, t)))
            rows_of_tile = b.at(values, builder.mul(b.times(number, LANES), width))
            queries = _rows(b, weights, builder.add(p, b.times(t, LANES)), length, height)

            def value_row(k: Value, start: Value = rows_of_tile) -> list[Value]:
                row = b.at(start, builder.mul(k, width))
                return [b.load(builder.gep(row, [shift])) for shift in shifts]

            _multiply(b, queries, ir.Constant(t.type, LANES), value_row, sums)
        for target, slots in zip(targets, sums, strict=True):
            for shift, slot in zip(shifts, slots, strict=True):
                b.store(builder.load(slot), builder.gep(target, [shift]))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def add_rows(
    typingctx: Any, part: Any, P: Any, p: Any, V: Any, v: Any, stride: Any, keys: Any, first: Any,
    count: Any, out: Any, place: Any,
) -> Emission:  # fmt: skip
    """out[place ...] += the sum over e < count of P[p + e] times part of row keys[first + e] of V.

    The part is `part` blocks, 1 to `most_blocks`, and begins at V[v + stride key].
    """
    signature = types.void(WORD, P, WORD, V, WORD, WORD, keys, WORD, WORD, out, WORD)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        part, P, p, V, v, stride, keys, first, count, out, place = args
        b = Blocks(context, builder, sig.args[1].dtype)
        weights, rows = b.at(b.data(sig.args[1], P), p), b.at(b.data(sig.args[3], V), v)
        numbers, found = b.at(b.data(sig.args[6], keys), first), b.data(sig.args[9], out)

        def add(blocks: int) -> None:
            places = [b.at(found, place, LANES * n) for n in range(blocks)]
            [slots] = b.sums(1, blocks)
            for target, slot in zip(places, slots, strict=True):
                builder.store(b.load(target), slot)
            with b.steps(count) as entry:
                row = builder.mul(b.load_word(b.at(numbers, entry)), stride)
                weight = b.spread(builder.load(b.at(weights, entry)))
                for n, slot in enumerate(slots):
                    value = b.load(b.at(rows, row, LANES * n))
                    builder.store(b.multiply_add(weight, value, builder.load(slot)), slot)
            for target, slot in zip(places, slots, strict=True):
                b.store(builder.load(slot), target)

        by_number(builder, part, most_blocks(b.itemsize), add)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def drop_last(typingctx: Any, S: Any, end: Any, count: Any) -> Emission:
    """S[end - 1], S[end - 2], ... = -inf, `count` of them, fewer than four; without a branch."""
    signature = types.void(S, WORD, WORD)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        S, end, count = args
        b = Blocks(context, builder, sig.args[0].dtype)
        few = ir.VectorType(b.scalar, TOGETHER)
        place = b.at(b.data(sig.args[0], S), builder.sub(end, count))
        b.store_first(ir.Constant(few, [-math.inf] * TOGETHER), place, count)
        return context.get_dummy_value()

    return signature, codegen


def _rows(b: Blocks, data: Value, first: Value, stride: Value, count: int) -> list[Value]:
    """Return pointers to some rows, `stride` items apart."""
    pointers = [b.at(data, first)]
    while len(pointers) < count:
        pointers.append(b.at(pointers[-1], stride))
    return pointers


def _multiply(
    b: Blocks,
    rows: list[Value],
    depth: Value,
    blocks: Callable[[Value], list[Value]],
    sums: list[list[Value]],
) -> None:
    """Emit sums[r][n] += rows[r][i] blocks(i)[n] for i < depth."""
    with b.steps(depth) as i:
        loaded = blocks(i)
        for row, slots in zip(rows, sums, strict=True):
            factor = b.spread(b.builder.load(b.at(row, i)))
            for block, slot in zip(loaded, slots, strict=True):
                b.builder.store(b.multiply_add(factor, block, b.builder.load(slot)), slot)
