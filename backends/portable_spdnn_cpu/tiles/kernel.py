"""Kernel of depth-first tiles.

Tiles of inputs pass through several layers while they stay in a core's cache.

A tile holds up to `tile width` inputs, innermost: ``tile[place of neuron, input]``. A worker takes
the next tile from a shared counter, loads it, and alternates between two buffers, layer after
layer. Inputs that die leave the tile (their columns are closed up); once what is wasted on a
half-empty tile has reached the price of moving it, the rest is *parked* in an arena, to be
regrouped with the rests of other tiles. What finishes is written to the output.

Everything here computes on validated arrays and runs without the interpreter's lock.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu.jit.compilation import kernel
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.layout.packing import (
    EDGES,
    FIRST_INPUT_ROW,
    NEURONS_IN,
    NEURONS_OUT,
    PackedLayers,
)
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.tiles.copies import (
    BITS,
    Source,
    close_up,
    load_bytes,
    load_tile,
    park_tile,
    parked_size,
    store_tile,
)
from portable_spdnn_cpu.tiles.layer import activate, apply_layer, multiply_columns

Array = npt.NDArray[Any]

# Entries of the shared counters.
NEXT_TILE, ARENA_TOP, FINISHED, WORK_DONE, EXECUTED_EDGES = range(5)
COUNTERS = 5
LARGEST_REST = 0.75  # of a tile that stops of itself: a fuller one has little to gain


class Tiles(NamedTuple):
    """One launch: inputs cut into tiles, and where their rests go.

    Attributes
    ----------
    inputs : ndarray of int64
        Input of each column of the source, in the batch.
    layer : int
        First layer to run.
    until : int
        Layer before which all stop; the number of layers for none.
    width : int
        Columns of a full tile.
    parks : bool
        Whether tiles may stop of themselves.
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
    until: int
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
    granule = BLOCK_BYTES // front.itemsize
    layer_count = layers.table.shape[0]
    total = tiles.inputs.size
    tile_count = (total + tiles.width - 1) // tiles.width
    began = layers.table[tiles.layer]
    places = layers.input_rows[began[FIRST_INPUT_ROW] : began[FIRST_INPUT_ROW] + began[NEURONS_IN]]
    members = np.empty(tiles.width, np.int64)
    rows = np.empty(tiles.width, np.int64)
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
            load_bytes(source.bits, first, count, places, counted)
        else:
            load_tile(source, arena, first, count, places, front, width)
        for column in range(count):
            members[column] = tiles.inputs[first + column]
        executed = 0
        waste = 0.0
        layer = tiles.layer
        parked = False
        while layer < layer_count and count > 0 and not parked:
            live[:] = 0
            if counts and layer == 0:
                whole = (count + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
                features = counted.view(np.uint8)
                multiply_columns(layers, layer, features, back, live, 0, whole, 0, None)
                activate(layers, layer, back, live, 0, width, 0)
            else:
                apply_layer(layers, layer, front, back, live, 0, width, 0)
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
                parked = (layer < layer_count and layer == tiles.until) or (
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
                for column in range(count):
                    rows[column] = tiles.place[tile] + column
                store_tile(front, rows, count, out)
            else:
                store_tile(front, members, count, out)
            done = started * (layer_count - tiles.layer)
        tiles.rest_count[tile] = count
        for column in range(count):
            tiles.rest[tile, column] = members[column]
        fetch_add(counters, EXECUTED_EDGES, executed)
        fetch_add(counters, WORK_DONE, done)
