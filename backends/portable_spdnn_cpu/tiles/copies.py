"""Copies between features and tiles: whole vector blocks, and squares that are transposed.

Tiles hold a column for each input, features in C order a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from portable_spdnn_cpu.jit.compilation import Array, Emission, intrinsic, kernel_part
from portable_spdnn_cpu.jit.intrinsics import prefetch
from portable_spdnn_cpu.layout.large_results import store_nontemporal
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES

TRANSPOSE_BYTES = 32  # of a row of a square: 8 x 8 float32 or 4 x 4 float64
LINE_SQUARES = BLOCK_BYTES // TRANSPOSE_BYTES  # squares of which a row is a cache line
ROWS_AHEAD = 16  # rows are far apart in memory, where no hardware prefetcher follows


@intrinsic
def copy_block(typingctx: Any, dst: Any, to: Any, src: Any, start: Any) -> Emission:
    """Copy one vector block between arrays of one type: items from `start` on, to `to` on.

    Positions count items from the first of each array, whatever its shape.
    """
    element = dst.dtype
    signature = types.void(dst, types.intp, src, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = ir.VectorType(context.get_value_type(element), BLOCK_BYTES * 8 // element.bitwidth)

        def pointer(position: int) -> Any:
            array = context.make_array(sig.args[position])(context, builder, args[position])
            first = builder.gep(array.data, [args[position + 1]])
            return builder.bitcast(first, vector.as_pointer())

        align = element.bitwidth // 8
        builder.store(builder.load(pointer(2), align=align), pointer(0), align=align)
        return context.get_dummy_value()

    return signature, codegen


def _make_transpose(to_tile: bool, nontemporal: bool = False) -> Callable[..., None]:
    """Build the intrinsic that moves a square block between features and a tile.

    If `nontemporal`, from a tile: LINE_SQUARES of them, of neurons that follow each other, so that
    whole cache lines of features are written by non-temporal stores; they are aligned on lines.
    """
    squares = LINE_SQUARES if nontemporal else 1

    @intrinsic
    def transpose(
        typingctx: Any, tile: Any, rows: Any, neuron: Any, column: Any, features: Any, inputs: Any
    ) -> Emission:
        """tile[rows[neuron + q], column + p] = features[inputs[column + p], neuron + q], or back.

        For p, q in 0 .. TRANSPOSE_BYTES / item size - 1; both arrays in C order; `rows` is of
        int32, or None: each neuron in its own row. `inputs` is of int64, or None: each column of
        its own input, and those below 0 of input 0. Lines are stored in the order of p or q.
        """
        element = tile.dtype
        side = TRANSPOSE_BYTES * 8 // element.bitwidth
        item_bytes = element.bitwidth // 8
        signature = types.void(tile, rows, types.intp, types.intp, features, inputs)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            vector = ir.VectorType(context.get_value_type(element), side)

            def array(position: int) -> Any:
                return context.make_array(sig.args[position])(context, builder, args[position])

            inside, outside = array(0), array(4)
            permutation, chosen = (
                None if isinstance(sig.args[position], types.NoneType) else array(position).data
                for position in (1, 5)
            )
            neuron, column = args[2:4]
            in_tile, in_features = [], []
            for step in range(squares * side):
                shift = ir.Constant(neuron.type, step)
                leading = builder.extract_value(inside.shape, 1)
                row = builder.add(neuron, shift)
                if permutation is not None:
                    row = builder.sext(builder.load(builder.gep(permutation, [row])), neuron.type)
                offset = builder.add(builder.mul(row, leading), column)
                in_tile.append(builder.gep(inside.data, [offset]))
                number = builder.add(column, shift)
                if chosen is None:
                    zero = ir.Constant(number.type, 0)
                    below = builder.icmp_signed("<", number, zero)
                    number = builder.select(below, zero, number)
                else:
                    number = builder.load(builder.gep(chosen, [number]))
                leading = builder.extract_value(outside.shape, 1)
                offset = builder.add(builder.mul(number, leading), neuron)
                in_features.append(builder.gep(outside.data, [offset]))
            sources, targets = (in_features, in_tile) if to_tile else (in_tile, in_features)
            loaded = [
                builder.load(builder.bitcast(pointer, vector.as_pointer()), align=item_bytes)
                for pointer in sources
            ]
            block = transposed(builder, loaded[:side])
            if nontemporal:
                following, whole = transposed(builder, loaded[side:]), _lanes(list(range(2 * side)))
                for number, pair in enumerate(zip(block, following, strict=True)):
                    line = builder.shuffle_vector(*pair, whole)
                    pointer = builder.bitcast(targets[number], line.type.as_pointer())
                    store_nontemporal(builder, line, pointer)
                return context.get_dummy_value()
            for value, pointer in zip(block, targets, strict=True):
                builder.store(
                    value, builder.bitcast(pointer, vector.as_pointer()), align=item_bytes
                )
            return context.get_dummy_value()

        return signature, codegen

    return transpose


def transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Return the columns of a square, a vector for each row, as vectors."""
    # Swap the off-diagonal quarters of ever larger squares, in log2(side) rounds: of each pair of
    # rows, `first` takes the lanes whose bit `span` is clear, `second` the others.
    block, side, span = list(rows), len(rows), 1
    while span < side:
        first = [e if not e & span else side + e - span for e in range(side)]
        second = [e + span if not e & span else side + e for e in range(side)]
        for upper in range(side):
            if not upper & span:
                pair = block[upper], block[upper + span]
                block[upper] = builder.shuffle_vector(*pair, _lanes(first))
                block[upper + span] = builder.shuffle_vector(*pair, _lanes(second))
        span *= 2
    return block


def _lanes(chosen: list[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), chosen)


transpose_into_tile = _make_transpose(True)
transpose_from_tile = _make_transpose(False)
transpose_nontemporal = _make_transpose(False, nontemporal=True)


@kernel_part
def load_dense(
    features: Array, first: int, count: int, rows: Array, tile: Array, width: int
) -> None:
    """tile[rows[n], c] = features[first + c, n] for c < count, and zero from there to `width`.

    `features`, shape (inputs, neurons), are in C or in Fortran order, which is a tile's own.
    """
    neurons = rows.size
    if count < width:
        for neuron in range(neurons):
            tile[neuron, count:width] = 0
    if features.strides[0] == features.itemsize:  # a neuron's inputs are neighbours: plain copies
        leading = features.shape[0]
        lanes = BLOCK_BYTES // tile.itemsize
        whole = count // lanes * lanes
        for neuron in range(neurons):
            ahead = min(neuron + ROWS_AHEAD, neurons - 1) * leading + first
            for column in range(0, whole, lanes):
                prefetch(features, ahead + column)
                to = rows[neuron] * tile.shape[1] + column
                copy_block(tile, to, features, neuron * leading + first + column)
            for column in range(whole, count):
                tile[rows[neuron], column] = features[first + column, neuron]
        return
    # An input's neurons are neighbours: squares turned in registers, so that both sides are read
    # and written in vectors; one by one what is left over at the right and below.
    side = TRANSPOSE_BYTES // tile.itemsize
    inputs = np.arange(first, first + count)
    square = count // side * side
    for column in range(0, square, side):
        for neuron in range(0, neurons // side * side, side):
            transpose_into_tile(tile, rows, neuron, column, features, inputs)
    for column in range(count):
        begin = neurons // side * side if column < square else 0
        for neuron in range(begin, neurons):
            tile[rows[neuron], column] = features[first + column, neuron]


@kernel_part
def store_tile(tile: Array, inputs: Array, count: int, out: Array) -> None:
    """out[inputs[c], :] = tile[:, c] for the first `count` columns; `out` in C order."""
    neurons = out.shape[1]
    side = TRANSPOSE_BYTES // tile.itemsize
    square = count // side * side
    for column in range(0, square, side):
        for neuron in range(0, neurons // side * side, side):
            transpose_from_tile(tile, None, neuron, column, out, inputs)
    for column in range(count):
        begin = neurons // side * side if column < square else 0
        for neuron in range(begin, neurons):
            out[inputs[column], neuron] = tile[neuron, column]
