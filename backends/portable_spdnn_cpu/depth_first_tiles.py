"""Kernels: tiles of inputs pass through several layers while they stay in a core's cache.

A tile holds up to `tile width` inputs, innermost: ``tile[neuron, input]``. A worker takes the
next tile from a shared counter, loads it, and alternates between two buffers, layer after
layer. Inputs that die leave the tile (their columns are closed up); when half of a tile's
inputs have left, the rest is *parked* in an arena, to be regrouped with the rests of other
tiles. What finishes is written to the output.

Bound: the gather of tile rows, one vector load an edge and granule, served by the second-level
cache; a tile is as wide as two buffers fit there.

Everything here computes on validated arrays and runs without the interpreter's lock.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu.compiled import kernel
from portable_spdnn_cpu.packed_network import (
    FIRST_BIAS,
    FIRST_INDEX,
    FIRST_OFFSET,
    FIRST_VALUE,
    NEURONS_IN,
    NEURONS_OUT,
    ROW_LENGTH,
    PackedLayers,
)
from portable_spdnn_cpu.vector_strips import (
    GRANULE_BYTES,
    TRANSPOSE_BYTES,
    copy_granule,
    double_strip,
    fetch_add,
    prefetch,
    single_strip,
    transpose_from_tile,
    transpose_into_tile,
)

Array = npt.NDArray[Any]

# Kinds of Source.
BITS, DENSE, CSR, ARENA = range(4)
# Entries of the shared counters.
NEXT_TILE, ARENA_TOP, FINISHED, WORK_DONE, EXECUTED_EDGES = range(5)
COUNTERS = 5
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


class Tiles(NamedTuple):
    """One launch: inputs cut into tiles, and where their rests go.

    Attributes
    ----------
    inputs : ndarray of int64
        Input of each column of the source, in the batch.
    layer : int
        First layer to run.
    width : int
        Columns of a full tile.
    parks : bool
        Whether tiles may stop early.
    packs : bool
        Whether inputs that finish are written one after the other, not each in its own row.
    prunable : ndarray of bool, shape (layers,)
        Whether dead inputs may leave after each layer.
    next_layer, place : ndarray of int64, shape (tiles,)
        Written by the kernel: where a parked tile goes on (0: it finished), and where it is:
        in the arena, or the first of its rows of the output.
    rest_count : ndarray of int64, shape (tiles,), and rest : ndarray of int64, (tiles, width)
        Written by the kernel: the inputs of the batch that were left at that point.
    """

    inputs: Array
    layer: int
    width: int
    parks: bool
    packs: bool
    prunable: Array
    next_layer: Array
    place: Array
    rest_count: Array
    rest: Array


@kernel
def run_tiles(
    counters: Array,
    source: Source,
    tiles: Tiles,
    layers: PackedLayers,
    lowest: Any,
    highest: Any,
    front: Array,
    back: Array,
    live: Array,
    alive_per_layer: Array,
    arena: Array,
    out: Array,
) -> None:
    """Take tiles from the counter until none is left; one call a worker.

    Parameters
    ----------
    counters : ndarray of int64, shape (COUNTERS,)
        Shared by all workers.
    source : Source
    tiles : Tiles
    layers : PackedLayers
    lowest, highest : float
        Clamp of every layer; -inf and inf for none.
    front, back : ndarray, shape (widest, tile width), and live : ndarray, shape (tile width,)
        The worker's own buffers, 64-byte aligned.
    alive_per_layer : ndarray of int64, shape (layers,)
        The worker's own counts; added to.
    arena : ndarray
        Takes the rests of tiles that stop early, [neuron][input] for each.
    out : ndarray, shape (inputs, neurons_out), C or Fortran order
        Takes the features of inputs that finish. Packed, no memory is touched for those that die.
    """
    granule = GRANULE_BYTES // front.itemsize
    layer_count = layers.table.shape[0]
    total = tiles.inputs.size
    tile_count = (total + tiles.width - 1) // tiles.width
    members = np.empty(tiles.width, np.int64)
    while True:
        tile = fetch_add(counters, NEXT_TILE, 1)
        if tile >= tile_count:
            break
        first = tile * tiles.width
        started = min(tiles.width, total - first)
        count = started
        width = (count + granule - 1) // granule * granule
        load_tile(source, arena, first, count, layers.table[tiles.layer, NEURONS_IN], front, width)
        for column in range(count):
            members[column] = tiles.inputs[first + column]
        executed = 0
        layer = tiles.layer
        parked = False
        while layer < layer_count and count > 0 and not parked:
            live[:width] = 0
            apply_layer(layers, layer, front, back, live, width, lowest, highest)
            front, back = back, front
            executed += count * layer_edges(layers, layer)
            alive = 0
            for column in range(count):
                alive += live[column] != 0
            alive_per_layer[layer] += alive
            layer += 1
            if alive < count and tiles.prunable[layer - 1]:
                parked = (
                    tiles.parks and layer < layer_count and started > granule
                    and 2 * alive <= started
                )  # fmt: skip
                narrow = (alive + granule - 1) // granule * granule
                if narrow < width or parked:
                    neurons = layers.table[layer - 1, NEURONS_OUT]
                    close_up(front, neurons, live, members, count)
                    count, width = alive, narrow
        if parked and count > 0:
            neurons = layers.table[layer - 1, NEURONS_OUT]
            place = fetch_add(counters, ARENA_TOP, neurons * count)
            for neuron in range(neurons):
                for column in range(count):
                    arena[place + neuron * count + column] = front[neuron, column]
            tiles.next_layer[tile] = layer
            tiles.place[tile] = place
            done = count * (layer - tiles.layer) + (started - count) * (layer_count - tiles.layer)
        else:
            if tiles.packs:
                tiles.place[tile] = fetch_add(counters, FINISHED, count)
                rows = tiles.place[tile] + np.arange(count)
            else:
                rows = members
            store_tile(front, rows, count, out)
            done = started * (layer_count - tiles.layer)
        tiles.rest_count[tile] = count
        tiles.rest[tile, :count] = members[:count]
        fetch_add(counters, EXECUTED_EDGES, executed)
        fetch_add(counters, WORK_DONE, done)


@kernel
def layer_edges(layers: PackedLayers, layer: int) -> int:
    """Return the number of weights of a layer."""
    following = layer + 1
    if following < layers.table.shape[0]:
        end = layers.table[following, FIRST_INDEX]
    else:
        end = layers.indices.size
    return int(end - layers.table[layer, FIRST_INDEX])


@kernel
def apply_layer(
    layers: PackedLayers,
    layer: int,
    src: Array,
    dst: Array,
    live: Array,
    width: int,
    lowest: Any,
    highest: Any,
) -> None:
    """Run one layer on a tile, in the form that planning chose for it."""
    row = layers.table[layer]
    outputs = row[NEURONS_OUT]
    edges = layer_edges(layers, layer)
    indices = layers.indices[row[FIRST_INDEX] : row[FIRST_INDEX] + edges]
    bias = layers.bias[row[FIRST_BIAS] : row[FIRST_BIAS] + outputs]
    weight = layers.weight[layer]
    length = row[ROW_LENGTH]
    if row[FIRST_VALUE] < 0:
        if length >= 0:
            layer_tile(
                src, dst, live, width, indices, None, length, None, weight, bias, lowest, highest
            )
        else:
            offsets = layers.offsets[row[FIRST_OFFSET] : row[FIRST_OFFSET] + outputs + 1]
            layer_tile(
                src, dst, live, width, indices, offsets, 0, None, weight, bias, lowest, highest
            )
    else:
        values = layers.values[row[FIRST_VALUE] : row[FIRST_VALUE] + edges]
        if length >= 0:
            layer_tile(
                src, dst, live, width, indices, None, length, values, weight, bias, lowest, highest
            )
        else:
            offsets = layers.offsets[row[FIRST_OFFSET] : row[FIRST_OFFSET] + outputs + 1]
            layer_tile(
                src, dst, live, width, indices, offsets, 0, values, weight, bias, lowest, highest
            )


@kernel
def layer_tile(
    src: Array,
    dst: Array,
    live: Array,
    width: int,
    indices: Array,
    offsets: Array | None,
    length: int,
    values: Array | None,
    weight: Any,
    bias: Array,
    lowest: Any,
    highest: Any,
) -> None:
    """dst = clamp(W^T src + bias) on the first `width` columns, a whole number of granules.

    `offsets` is None where every output has `length` inputs, `values` None where every weight
    is `weight`: each of the four cases compiles to its own code.
    """
    granule = GRANULE_BYTES // src.itemsize
    for output in range(bias.size):
        if offsets is None:
            begin = output * length
            end = begin + length
        else:
            begin = offsets[output]
            end = offsets[output + 1]
        column = 0
        while column + 2 * granule <= width:
            double_strip(
                dst, src, live, indices, values, begin, end, output, column,
                weight, bias[output], lowest, highest,
            )  # fmt: skip
            column += 2 * granule
        if column < width:
            single_strip(
                dst, src, live, indices, values, begin, end, output, column,
                weight, bias[output], lowest, highest,
            )  # fmt: skip


@kernel
def load_tile(
    source: Source, arena: Array, first: int, count: int, neurons: int, tile: Array, width: int
) -> None:
    """Fill tile[:neurons, :width] with inputs first .. first + count - 1, then zeros."""
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
                            tile[8 * position + bit, column] = 1
    elif source.kind == DENSE and source.dense.strides[0] == source.dense.itemsize:
        leading = source.dense.shape[0]
        granule = GRANULE_BYTES // tile.itemsize
        whole = count // granule * granule
        for neuron in range(neurons):
            ahead = min(neuron + ROWS_AHEAD, neurons - 1) * leading + first
            for column in range(0, whole, granule):
                prefetch(source.dense, ahead + column)
                place = neuron * tile.shape[1] + column
                copy_granule(tile, place, source.dense, neuron * leading + first + column)
            for column in range(whole, count):
                tile[neuron, column] = source.dense[first + column, neuron]
    elif source.kind == DENSE:
        side = TRANSPOSE_BYTES // tile.itemsize
        rows = np.arange(first, first + count)
        square = count // side * side
        for column in range(0, square, side):
            for neuron in range(0, neurons // side * side, side):
                transpose_into_tile(tile, neuron, column, source.dense, rows)
        for column in range(count):
            begin = neurons // side * side if column < square else 0
            for neuron in range(begin, neurons):
                tile[neuron, column] = source.dense[first + column, neuron]
    elif source.kind == CSR:
        for column in range(count):
            for k in range(source.indptr[first + column], source.indptr[first + column + 1]):
                tile[source.indices[k], column] = source.data[k]
    else:
        for neuron in range(neurons):
            for column in range(count):
                place = source.offset[first + column] + neuron * source.stride[first + column]
                tile[neuron, column] = arena[place]


@kernel
def close_up(tile: Array, neurons: int, live: Array, members: Array, count: int) -> None:
    """Move the columns that are alive to the front, and their members with them."""
    chosen = np.empty(count, np.int64)
    alive = 0
    for column in range(count):
        if live[column] != 0:
            chosen[alive] = column
            members[alive] = members[column]
            alive += 1
    for neuron in range(neurons):
        for position in range(alive):
            tile[neuron, position] = tile[neuron, chosen[position]]


@kernel
def store_tile(tile: Array, rows: Array, count: int, out: Array) -> None:
    """out[rows[c], :] = tile[:, c] for the first `count` columns."""
    neurons = out.shape[1]
    if out.strides[0] == out.itemsize:
        granule = GRANULE_BYTES // tile.itemsize
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
            transpose_from_tile(tile, neuron, column, out, rows)
    for column in range(count):
        begin = neurons // side * side if column < square else 0
        for neuron in range(begin, neurons):
            out[rows[column], neuron] = tile[neuron, column]
