"""Kernel of depth-first tiles: inputs pass through several layers while they stay in a cache.

A tile holds up to `tile width` inputs, innermost: ``tile[row of neuron, input]``. A worker takes
the next tile from a shared counter, loads it, and alternates between two buffers, layer after
layer. Inactive inputs leave the tile, or the tile is spilled and its survivors are regrouped with
those of others; see `spilling`. What finishes is written to the output.

Bound: `layer`, by arithmetic or by loads from the cache that holds the two buffers. Loading,
spilling and storing move features through main memory, once for all layers between them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.layout.packing import (
    EDGES,
    FIRST_INPUT_ROW,
    NEURONS_IN,
    NEURONS_OUT,
    PackedLayers,
)
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.tiles.copies import store_tile
from portable_spdnn_cpu.tiles.layer import activate, apply_layer, multiply_columns
from portable_spdnn_cpu.tiles.sources import BITS, TileSource, load_bytes, load_tile
from portable_spdnn_cpu.tiles.spilling import (
    MAX_SURVIVORS,
    SpillCosts,
    compact_columns,
    should_spill,
    spill_tile,
    spilled_size,
    wasted_seconds,
)

# Entries of the shared counters.
NEXT_TILE, SPILL_TOP, FINISHED, WORK_DONE, EXECUTED_EDGES = range(5)
COUNTERS = 5


class Tiles(NamedTuple):
    """One launch: inputs cut into tiles, and where their survivors go.

    Attributes
    ----------
    inputs : ndarray of int64
        Input of each column of the source, in the batch.
    layer : int
        First layer to run.
    stop_layer : int
        Layer before which all stop; the number of layers for none.
    width : int
        Columns of a full tile.
    may_spill : bool
        Whether tiles may be spilled where they have wasted enough.
    packs : bool
        Whether inputs that finish are written one after the other, not each in its own row.
    may_drop : ndarray of bool, shape (layers,)
        Whether inactive inputs may leave after each layer.
    next_layer, position : ndarray of int64, shape (tiles,)
        Written by the kernel: where a spilled tile goes on (0: it finished), and where it is:
        in the spill buffer, or the first of its rows of the output.
    survivor_count : ndarray of int64, shape (tiles,)
    survivors : ndarray of int64, shape (tiles, width)
        Written by the kernel: the inputs of the batch that were left at that point.
    """

    inputs: Array
    layer: int
    stop_layer: int
    width: int
    may_spill: bool
    packs: bool
    may_drop: Array
    next_layer: Array
    position: Array
    survivor_count: Array
    survivors: Array


class Buffers(NamedTuple):
    """What a worker computes in, 64-byte aligned.

    Attributes
    ----------
    counted : ndarray of uint64, shape (neurons, tile width / 8)
        Binary features as bytes; without rows where the first layer takes them as any others.
    front, back : ndarray, shape (widest, tile width)
        Features before and after a layer, by turns.
    active : ndarray, shape (tile width,)
        A number for each input, zero only where all its features are.
    """

    counted: Array
    front: Array
    back: Array
    active: Array


@kernel
def run_tiles(
    counters: Array,
    source: TileSource,
    tiles: Tiles,
    costs: SpillCosts,
    layers: PackedLayers,
    buffers: Buffers,
    active_per_layer: Array,
    spill_buffer: Array,
    out: Array,
) -> None:
    """Take tiles from the counter until none is left; one call a worker.

    Parameters
    ----------
    counters : ndarray of int64, shape (COUNTERS,)
        Shared by all workers.
    source : TileSource
    tiles : Tiles
    costs : SpillCosts
    layers : PackedLayers
    buffers : Buffers
        The worker's own.
    active_per_layer : ndarray of int64, shape (layers,)
        The worker's own counts of active inputs; added to.
    spill_buffer : ndarray
        Takes the survivors of tiles that stop early, [neuron][input] for each.
    out : ndarray in C order, shape (inputs, neurons_out)
        Takes the features of inputs that finish. Packed, no memory is touched for those that leave.
    """
    counted, front, back, active = buffers
    lanes = BLOCK_BYTES // front.itemsize
    layer_count = layers.table.shape[0]
    total = tiles.inputs.size
    tile_count = (total + tiles.width - 1) // tiles.width
    first_row = layers.table[tiles.layer, FIRST_INPUT_ROW]
    rows = layers.input_rows[first_row : first_row + layers.table[tiles.layer, NEURONS_IN]]
    inputs = np.empty(tiles.width, np.int64)
    out_rows = np.empty(tiles.width, np.int64)
    while True:
        tile = fetch_add(counters, NEXT_TILE, 1)
        if tile >= tile_count:
            break
        first = tile * tiles.width
        started = min(tiles.width, total - first)
        count = started
        width = (count + lanes - 1) // lanes * lanes
        # Load: inputs become columns of the tile, or of the bytes that the first layer counts.
        counts = source.kind == BITS and counted.size > 0
        if counts:
            load_bytes(source.bits, first, count, rows, counted)
        else:
            load_tile(source, spill_buffer, first, count, rows, front, width)
        for column in range(count):
            inputs[column] = tiles.inputs[first + column]
        # Layers, until the last, or no input is active, or the tile is to be spilled.
        executed = 0
        wasted = 0.0
        layer = tiles.layer
        spilled = False
        while layer < layer_count and count > 0 and not spilled:
            active[:] = 0
            if counts and layer == 0:  # in bytes: 64 inputs to a block, not 16 or 8
                whole = (count + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
                features = counted.view(np.uint8)
                multiply_columns(layers, layer, features, back, active, 0, whole, 0, None)
                activate(layers, layer, back, active, 0, width, 0)
            else:
                apply_layer(layers, layer, front, back, active, 0, width, 0)
            front, back = back, front  # the tile never leaves this pair of buffers
            edges, neurons = layers.table[layer, EDGES], layers.table[layer, NEURONS_OUT]
            executed += count * edges
            # Drop: which inputs are still active, and whether it pays that the others leave.
            active_count = 0
            for column in range(count):
                active_count += active[column] != 0
            active_per_layer[layer] += active_count
            wasted += wasted_seconds(costs, edges, width // lanes, active_count)
            layer += 1
            if tiles.may_drop[layer - 1] and layer < layer_count:
                ahead = costs.edges_from[layer]
                spilled = layer == tiles.stop_layer or (
                    tiles.may_spill
                    and active_count <= MAX_SURVIVORS * started
                    and should_spill(costs, wasted, ahead, neurons, active_count, lanes)
                )
                narrow = (active_count + lanes - 1) // lanes * lanes
                # Few columns move, in the cache: that costs less than one layer saves.
                if spilled or narrow < width:
                    compact_columns(front, neurons, active, inputs, active_count)
                    count, width = active_count, narrow
        # Spill: survivors wait for others at `layer`; `position` is the place reserved for them.
        if spilled and count > 0:
            position = fetch_add(counters, SPILL_TOP, spilled_size(neurons, count, lanes))
            spill_tile(front, neurons, count, spill_buffer, position)
            tiles.next_layer[tile], tiles.position[tile] = layer, position
            done = count * (layer - tiles.layer) + (started - count) * (layer_count - tiles.layer)
        else:  # store: all layers are done, or no input is left
            if tiles.packs:
                tiles.position[tile] = fetch_add(counters, FINISHED, count)
                for column in range(count):
                    out_rows[column] = tiles.position[tile] + column
                store_tile(front, out_rows, count, out)
            else:
                store_tile(front, inputs, count, out)
            done = started * (layer_count - tiles.layer)
        # What the caller collects, and the counters that progress and the report read.
        tiles.survivor_count[tile] = count
        for column in range(count):
            tiles.survivors[tile, column] = inputs[column]
        fetch_add(counters, EXECUTED_EDGES, executed)
        fetch_add(counters, WORK_DONE, done)
