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
from portable_spdnn_cpu.machine_instructions import fetch_add, prefetch
from portable_spdnn_cpu.output_strips import (
    CLUSTER,
    CLUSTER_GRANULES,
    cluster_strip,
    double_strip,
    single_strip,
    wide_cluster_strip,
)
from portable_spdnn_cpu.packed_network import (
    CLUSTERS,
    EDGES,
    FIRST_INDEX,
    FIRST_OFFSET,
    FIRST_ROW,
    FIRST_VALUE,
    NEURONS_IN,
    NEURONS_OUT,
    PackedLayers,
)
from portable_spdnn_cpu.tile_moves import (
    GRANULE_BYTES,
    TRANSPOSE_BYTES,
    copy_granule,
    transpose_from_tile,
    transpose_into_tile,
)

Array = npt.NDArray[Any]

# Kinds of Source.
BITS, DENSE, CSR, ARENA = range(4)
# Entries of the shared counters.
NEXT_TILE, ARENA_TOP, FINISHED, WORK_DONE, EXECUTED_EDGES = range(5)
COUNTERS = 5
# Of a tile that is regrouped: with it, all rests together are at most three times the inputs.
LARGEST_REST = 0.75
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


class Costs(NamedTuple):
    """What decides when tiles are regrouped; answers do not depend on it.

    Attributes
    ----------
    per_edge : ndarray of float64, shape (granules + 1,)
        Seconds for an edge on a tile of so many granules.
    per_edge_full : float
        Seconds for an edge and an input of a full tile.
    per_feature : float
        Seconds to park a feature and to load it again.
    edges_from : ndarray of int64, shape (layers + 1,)
        Edges of each layer and of all that follow.
    """

    per_edge: Array
    per_edge_full: float
    per_feature: float
    edges_from: Array


class Buffers(NamedTuple):
    """What a worker computes in, 64-byte aligned.

    Attributes
    ----------
    counted : ndarray of uint64, shape (neurons, tile width / 8)
        Binary features as bytes; without rows where the first layer takes them as any others.
    front, back : ndarray, shape (widest, tile width)
        Features before and after a layer, by turns.
    live : ndarray, shape (tile width,)
        Sums of the features of each input.
    """

    counted: Array
    front: Array
    back: Array
    live: Array


@kernel
def run_tiles(
    counters: Array,
    source: Source,
    tiles: Tiles,
    costs: Costs,
    layers: PackedLayers,
    lowest: Any,
    highest: Any,
    buffers: Buffers,
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
    costs : Costs
    layers : PackedLayers
    lowest, highest : float
        Clamp of every layer; -inf and inf for none.
    buffers : Buffers
        The worker's own.
    alive_per_layer : ndarray of int64, shape (layers,)
        The worker's own counts; added to.
    arena : ndarray
        Takes the rests of tiles that stop early, [neuron][input] for each.
    out : ndarray, shape (inputs, neurons_out), C or Fortran order
        Takes the features of inputs that finish. Packed, no memory is touched for those that die.
    """
    counted, front, back, live = buffers
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
        counts = source.kind == BITS and counted.size > 0
        if counts:
            load_bytes(source.bits, first, count, counted)
        else:
            neurons = layers.table[tiles.layer, NEURONS_IN]
            load_tile(source, arena, first, count, neurons, front, width)
        for column in range(count):
            members[column] = tiles.inputs[first + column]
        executed = 0
        waste = 0.0
        layer = tiles.layer
        parked = False
        while layer < layer_count and count > 0 and not parked:
            live[:] = 0
            if counts and layer == 0:
                whole = (count + GRANULE_BYTES - 1) // GRANULE_BYTES * GRANULE_BYTES
                features = counted.view(np.uint8)
                layer_tile(layers, layer, features, back, live, 0, whole, None, lowest, highest)
            else:
                apply_layer(layers, layer, front, back, live, 0, width, lowest, highest)
            front, back = back, front
            executed += count * layers.table[layer, EDGES]
            alive = 0
            for column in range(count):
                alive += live[column] != 0
            alive_per_layer[layer] += alive
            neurons = layers.table[layer, NEURONS_OUT]
            now = costs.per_edge[width // granule]
            waste += layers.table[layer, EDGES] * (now - alive * costs.per_edge_full)
            layer += 1
            if tiles.prunable[layer - 1]:
                narrow = (alive + granule - 1) // granule * granule
                then = costs.per_edge[narrow // granule]
                ahead = costs.edges_from[layer]
                move = costs.per_feature * neurons * alive
                # As in ski rental: what was lost has reached the price, and may be lost again.
                parked = (
                    tiles.parks and layer < layer_count and alive <= LARGEST_REST * started
                    and waste >= move and ahead * (then - alive * costs.per_edge_full) >= move
                )  # fmt: skip
                # Closing up moves few columns in the cache: it costs less than a layer saves.
                if parked or (narrow < width and layer < layer_count):
                    close_up(front, neurons, live, members, count)
                    count, width = alive, narrow
        if parked and count > 0:
            place = fetch_add(counters, ARENA_TOP, parked_size(neurons, count, granule))
            park_tile(front, neurons, count, arena, place)
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
def run_columns(
    counters: Array,
    layers: PackedLayers,
    src: Array,
    dst: Array,
    live: Array,
    width: int,
    lowest: Any,
    highest: Any,
) -> None:
    """Take `width` columns at a time from the counter and run the first layer straight through.

    `src` (neurons_in, columns) and `dst` (neurons_out, columns) are in C order, which is a tile's
    own; `live`, shape (columns,), is scratch. Columns are a whole number of granules.
    """
    columns = src.shape[1]
    while True:
        begin = fetch_add(counters, NEXT_TILE, 1) * width
        if begin >= columns:
            break
        end = min(begin + width, columns)
        apply_layer(layers, 0, src, dst, live, begin, end, lowest, highest)


@kernel
def apply_layer(
    layers: PackedLayers,
    layer: int,
    src: Array,
    dst: Array,
    live: Array,
    begin: int,
    end: int,
    lowest: Any,
    highest: Any,
) -> None:
    """Run one layer on columns of features, with or without values as planning found them."""
    first = layers.table[layer, FIRST_VALUE]
    if first < 0:
        layer_tile(layers, layer, src, dst, live, begin, end, None, lowest, highest)
    else:
        values = layers.values[first : first + layers.table[layer, EDGES]]
        layer_tile(layers, layer, src, dst, live, begin, end, values, lowest, highest)


@kernel
def layer_tile(
    layers: PackedLayers,
    layer: int,
    src: Array,
    dst: Array,
    live: Array,
    begin: int,
    end: int,
    values: Array | None,
    lowest: Any,
    highest: Any,
) -> None:
    """dst = clamp(W^T src + bias) on columns begin .. end - 1, a whole number of granules.

    `src` holds features, or bytes that are 0 or 1. `values` is None where all weights are equal:
    each case compiles to its own code.
    """
    row = layers.table[layer]
    outputs, clusters = row[NEURONS_OUT], row[CLUSTERS]
    bounds = (CLUSTER + 1) * clusters + outputs - CLUSTER * clusters + 1
    offsets = layers.offsets[row[FIRST_OFFSET] : row[FIRST_OFFSET] + bounds]
    indices = layers.indices[row[FIRST_INDEX] : row[FIRST_INDEX] + offsets[bounds - 1]]
    rows = layers.rows[row[FIRST_ROW] : row[FIRST_ROW] + outputs]
    bias = layers.bias[row[FIRST_ROW] : row[FIRST_ROW] + outputs]
    weight = layers.weight[layer]
    granule = GRANULE_BYTES // src.itemsize
    wide = CLUSTER_GRANULES * granule
    first_value = 0
    for cluster in range(clusters):
        at = (CLUSTER + 1) * cluster
        row = CLUSTER * cluster
        column = begin
        while column + wide <= end:
            wide_cluster_strip(
                dst, src, live, indices, values, first_value, offsets, at, rows, row, column,
                weight, bias, lowest, highest,
            )  # fmt: skip
            column += wide
        if CLUSTER_GRANULES > 1 and column < end:
            cluster_strip(
                dst, src, live, indices, values, first_value, offsets, at, rows, row, column,
                weight, bias, lowest, highest,
            )  # fmt: skip
        common = offsets[at + 1] - offsets[at]
        first_value += (CLUSTER - 1) * common + offsets[at + CLUSTER + 1] - offsets[at]
    at = (CLUSTER + 1) * clusters
    for row in range(CLUSTER * clusters, outputs):
        column = begin
        while column + 2 * granule <= end:
            double_strip(
                dst, src, live, indices, values, first_value, offsets, at, rows, row, column,
                weight, bias, lowest, highest,
            )  # fmt: skip
            column += 2 * granule
        if column < end:
            single_strip(
                dst, src, live, indices, values, first_value, offsets, at, rows, row, column,
                weight, bias, lowest, highest,
            )  # fmt: skip
        first_value += offsets[at + 1] - offsets[at]
        at += 1


@kernel
def load_tile(
    source: Source, arena: Array, first: int, count: int, neurons: int, tile: Array, width: int
) -> None:
    """Fill tile[:neurons, :width] with inputs first .. first + count - 1, then zeros."""
    if source.kind == ARENA:
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


@kernel
def load_bytes(bits: Array, first: int, count: int, counted: Array) -> None:
    """Fill byte [neuron, column] with the bit of input first + column, 0 beyond `count`.

    Eight inputs and eight neurons at a time: word [neuron, column / 8] holds one byte for each
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
                counted[8 * position + bit, column] = plane & np.uint64(0x0101010101010101)


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
    granule = GRANULE_BYTES // tile.itemsize
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
    granule = GRANULE_BYTES // tile.itemsize
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
