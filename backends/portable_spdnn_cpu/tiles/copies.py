"""Copies to and from tiles.

From sources and parked tiles, to the arena and the output.

Everything here computes on validated arrays and runs without the interpreter's lock.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu.jit.compilation import kernel
from portable_spdnn_cpu.jit.intrinsics import prefetch
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.tiles.vector_copies import (
    TRANSPOSE_BYTES,
    copy_granule,
    transpose_from_tile,
    transpose_into_tile,
)

Array = npt.NDArray[Any]

# Kinds of Source.
BITS, DENSE, CSR, ARENA = range(4)
ROWS_AHEAD = 16  # rows are far apart in memory, where no hardware prefetcher follows


class Source(NamedTuple):
    """Where tiles come from: one of four kinds; the arrays of the others are empty.

    Attributes
    ----------
    kind : int
        BITS, DENSE, CSR or ARENA.
    bits : ndarray of uint8, shape (inputs, bytes)
    dense : ndarray, shape (inputs, neurons), C or Fortran order
    indptr, indices, data : ndarray
        CSR features.
    offset, stride : ndarray of int64, shape (inputs,)
        Where in the arena an input's first feature is, and how far apart its features are.
    """

    kind: int
    bits: Array
    dense: Array
    indptr: Array
    indices: Array
    data: Array
    offset: Array
    stride: Array


@kernel
def load_tile(
    source: Source, arena: Array, first: int, count: int, places: Array, tile: Array, width: int
) -> None:
    """Fill tile[:neurons, :width] with inputs first .. first + count - 1, then zeros.

    Neuron n goes to row places[n]; from the arena rows come as they are.
    """
    neurons = places.size
    if source.kind == ARENA:  # first: copies may run on into columns that are zeroed below
        load_parked(source.offset, source.stride, arena, first, count, neurons, tile)
    if source.kind == BITS or source.kind == CSR:
        for neuron in range(neurons):
            tile[neuron, :width] = 0
    else:
        for neuron in range(neurons):
            tile[neuron, count:width] = 0
    if source.kind == BITS:
        for column in range(count):
            row = source.bits[first + column]
            for position in range(row.size):
                byte = row[position]
                if byte:
                    for bit in range(8):
                        if byte & (128 >> bit):
                            tile[places[8 * position + bit], column] = 1
    elif source.kind == DENSE and source.dense.strides[0] == source.dense.itemsize:
        leading = source.dense.shape[0]
        granule = BLOCK_BYTES // tile.itemsize
        whole = count // granule * granule
        for neuron in range(neurons):
            ahead = min(neuron + ROWS_AHEAD, neurons - 1) * leading + first
            for column in range(0, whole, granule):
                prefetch(source.dense, ahead + column)
                place = places[neuron] * tile.shape[1] + column
                copy_granule(tile, place, source.dense, neuron * leading + first + column)
            for column in range(whole, count):
                tile[places[neuron], column] = source.dense[first + column, neuron]
    elif source.kind == DENSE:
        side = TRANSPOSE_BYTES // tile.itemsize
        rows = np.arange(first, first + count)
        square = count // side * side
        for column in range(0, square, side):
            for neuron in range(0, neurons // side * side, side):
                transpose_into_tile(tile, places, neuron, column, source.dense, rows)
        for column in range(count):
            begin = neurons // side * side if column < square else 0
            for neuron in range(begin, neurons):
                tile[places[neuron], column] = source.dense[first + column, neuron]
    elif source.kind == CSR:
        for column in range(count):
            for k in range(source.indptr[first + column], source.indptr[first + column + 1]):
                tile[places[source.indices[k]], column] = source.data[k]


@kernel
def load_bytes(bits: Array, first: int, count: int, places: Array, counted: Array) -> None:
    """Fill byte [places[neuron], column] with the bit of input first + column, 0 from `count` on.

    Eight inputs and eight neurons at a time: word [place, column / 8] holds one byte for each
    of eight inputs, and each word of eight packed bytes holds one bit of each in its bytes.
    """
    neurons, columns = counted.shape
    for position in range(bits.shape[1]):
        for column in range(columns):
            block = np.uint64(0)
            for member in range(min(8, count - 8 * column)):
                byte = np.uint64(bits[first + 8 * column + member, position])
                block |= byte << np.uint64(8 * member)
            for bit in range(min(8, neurons - 8 * position)):
                plane = block >> np.uint64(7 - bit)
                place = places[8 * position + bit]
                counted[place, column] = plane & np.uint64(0x0101010101010101)


@kernel
def close_up(tile: Array, neurons: int, live: Array, members: Array, count: int) -> None:
    """Move the last columns that are alive, and their members, to the places of dead ones."""
    alive = 0
    for column in range(count):
        alive += live[column] != 0
    holes = np.empty(count, np.int64)
    movers = np.empty(count, np.int64)
    moves = 0
    for column in range(alive):
        if live[column] == 0:
            holes[moves] = column
            moves += 1
    moves = 0
    for column in range(alive, count):
        if live[column] != 0:
            movers[moves] = column
            moves += 1
    for move in range(moves):
        members[holes[move]] = members[movers[move]]
    for neuron in range(neurons):
        for move in range(moves):
            tile[neuron, holes[move]] = tile[neuron, movers[move]]


@kernel
def parked_size(neurons: int, count: int, granule: int) -> int:
    """Return the room that a parked tile takes in the arena: copies may run on by a granule."""
    return neurons * count + granule


@kernel
def park_tile(tile: Array, neurons: int, count: int, arena: Array, place: int) -> None:
    """arena[place + neuron count + c] = tile[neuron, c] for the first `count` columns.

    Whole granules are copied: what runs over a row's end is overwritten by the next row.
    """
    granule = BLOCK_BYTES // tile.itemsize
    for neuron in range(neurons):
        for column in range(0, count, granule):
            copy_granule(
                arena, place + neuron * count + column, tile, neuron * tile.shape[1] + column
            )


@kernel
def load_parked(
    place: Array,
    stride: Array,
    arena: Array,
    first: int,
    count: int,
    neurons: int,
    tile: Array,
) -> None:
    """tile[n, c] = arena[place[first + c] + n stride[first + c]].

    Neighbours that were parked side by side are copied together, in whole granules: what runs
    over is overwritten by those that follow, from left to right.
    """
    granule = BLOCK_BYTES // tile.itemsize
    leading = tile.shape[1]
    begin = 0
    while begin < count:
        start, step = place[first + begin], stride[first + begin]
        end = begin + 1
        while (
            end < count
            and place[first + end] == start + end - begin
            and stride[first + end] == step
        ):
            end += 1
        whole = begin
        while whole < end and whole + granule <= leading:
            whole += granule
        for neuron in range(neurons):
            row = start + neuron * step - begin
            for column in range(begin, whole, granule):
                copy_granule(tile, neuron * leading + column, arena, row + column)
            for column in range(whole, end):
                tile[neuron, column] = arena[row + column]
        begin = end


@kernel
def store_tile(tile: Array, rows: Array, count: int, out: Array) -> None:
    """out[rows[c], :] = tile[:, c] for the first `count` columns.

    Into Fortran order rows must rise: tiles go there that no input has left.
    """
    neurons = out.shape[1]
    if out.strides[0] == out.itemsize:
        granule = BLOCK_BYTES // tile.itemsize
        neighbours = count > 0 and rows[count - 1] - rows[0] == count - 1
        whole = count // granule * granule if neighbours else 0
        for neuron in range(neurons):
            for column in range(0, whole, granule):
                place = neuron * out.shape[0] + rows[column]
                copy_granule(out, place, tile, neuron * tile.shape[1] + column)
            for column in range(whole, count):
                out[rows[column], neuron] = tile[neuron, column]
        return
    side = TRANSPOSE_BYTES // tile.itemsize
    square = count // side * side
    for column in range(0, square, side):
        for neuron in range(0, neurons // side * side, side):
            transpose_from_tile(tile, None, neuron, column, out, rows)
    for column in range(count):
        begin = neurons // side * side if column < square else 0
        for neuron in range(begin, neurons):
            out[rows[column], neuron] = tile[neuron, column]
