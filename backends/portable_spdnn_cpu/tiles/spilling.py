"""Spilling: what becomes of tiles of which some inputs have become inactive.

Columns of inactive inputs are closed up where that frees a vector block. A tile that has wasted
enough time on inactive columns is *spilled*: its survivors are copied to the spill buffer, to be
regrouped with those of other tiles, and its worker takes another tile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel, kernel_part
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.tiles.copies import copy_block

MAX_SURVIVORS = 0.75  # of a tile that is spilled: a fuller one has little to gain


class SpillCosts(NamedTuple):
    """What decides when tiles are spilled; answers do not depend on it.

    Attributes
    ----------
    per_edge : ndarray of float64, shape (blocks + 1,)
        Seconds for an edge on a tile of so many vector blocks.
    per_edge_full : float
        Seconds for an edge and an input of a full tile.
    per_feature : float
        Seconds to spill a feature and to load it again.
    edges_from : ndarray of int64, shape (layers + 1,)
        Edges of each layer and of all that follow.
    """

    per_edge: Array
    per_edge_full: float
    per_feature: float
    edges_from: Array


@kernel_part
def wasted_seconds(costs: SpillCosts, edges: int, blocks: int, active: int) -> float:
    """Return what `edges` take longer on `blocks` vector blocks, of which `active` inputs gain.

    That is beyond what as many inputs would take as a part of a full tile.
    """
    return float(edges * (costs.per_edge[blocks] - active * costs.per_edge_full))


@kernel_part
def should_spill(
    costs: SpillCosts, wasted: float, edges_ahead: int, neurons: int, active: int, lanes: int
) -> bool:
    r"""Whether to spill a tile now that a layer is done: the rule of ski rental.

    Going on with a half-empty tile is a rent, paid layer by layer; spilling it is a price, paid
    once. Who rents until the rents add up to the price, and then buys, never pays more than twice
    what knowing the future would have cost. With

    ======= =========================================================================
    a       inputs of the tile that are active
    w       vector blocks in which they fit: a inputs, at `lanes` a block, rounded up
    c(w)    seconds for an edge on a tile of w blocks (`costs.per_edge`, measured)
    c1      seconds for an edge and an input of a full tile (`costs.per_edge_full`)
    e(l)    edges of layer l
    R       rent so far: the sum over the layers done of e(l) (c(w) - a c1), each
            with the w and the a of its time (`wasted`)
    E       edges of all layers ahead (`edges_ahead`)
    P       price: n a times the seconds to spill and load a feature, for n neurons
    ======= =========================================================================

    the tile is spilled where

        R >= P   and   E (c(w) - a c1) >= P:

    the rent has reached the price, and as much would still be paid if all others stayed active.
    """
    price = costs.per_feature * neurons * active
    blocks = (active + lanes - 1) // lanes
    return wasted >= price and wasted_seconds(costs, edges_ahead, blocks, active) >= price


@kernel_part
def compact_columns(
    tile: Array, neurons: int, active: Array, inputs: Array, active_count: int
) -> None:
    """Move the last of `active_count` active columns, and their inputs, to where inactive ones are.

    No column moves that need not; rows are gone through once, in the order of memory.
    """
    targets = np.empty(active_count, np.int64)
    sources = np.empty(active_count, np.int64)
    moves, source = 0, active_count
    for column in range(active_count):
        if active[column] == 0:
            while active[source] == 0:
                source += 1
            targets[moves], sources[moves] = column, source
            moves += 1
            source += 1
    for move in range(moves):
        inputs[targets[move]] = inputs[sources[move]]
    for neuron in range(neurons):
        for move in range(moves):
            tile[neuron, targets[move]] = tile[neuron, sources[move]]


@kernel
def spilled_size(neurons: int, count: int, lanes: int) -> int:
    """Return the room that a spilled tile takes: copies may run on by a vector block."""
    return neurons * count + lanes


@kernel_part
def spill_tile(tile: Array, neurons: int, count: int, buffer: Array, position: int) -> None:
    """buffer[position + neuron count + c] = tile[neuron, c] for the first `count` columns.

    Whole vector blocks are copied: what runs over a row's end is overwritten by the next row.
    """
    lanes = BLOCK_BYTES // tile.itemsize
    for neuron in range(neurons):
        for column in range(0, count, lanes):
            to = position + neuron * count + column
            copy_block(buffer, to, tile, neuron * tile.shape[1] + column)


@kernel_part
def load_spilled(
    position: Array, stride: Array, buffer: Array, first: int, count: int, neurons: int, tile: Array
) -> None:
    """tile[n, c] = buffer[position[first + c] + n stride[first + c]].

    Neighbours that were spilled side by side are copied together, in whole vector blocks: what
    runs over is overwritten by those that follow, from left to right.
    """
    lanes = BLOCK_BYTES // tile.itemsize
    leading = tile.shape[1]
    begin = 0
    while begin < count:
        start, step = position[first + begin], stride[first + begin]
        end = begin + 1
        while (
            end < count
            and position[first + end] == start + end - begin
            and stride[first + end] == step
        ):
            end += 1
        whole = begin
        while whole < end and whole + lanes <= leading:
            whole += lanes
        for neuron in range(neurons):
            row = start + neuron * step - begin
            for column in range(begin, whole, lanes):
                copy_block(tile, neuron * leading + column, buffer, row + column)
            for column in range(whole, end):
                tile[neuron, column] = buffer[row + column]
        begin = end
