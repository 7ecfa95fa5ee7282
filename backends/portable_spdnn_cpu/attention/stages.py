"""Stages of fused attention: the tiles of a block of queries, and what is in no tile.

A stage computes scores, makes them exponentials and adds up rows of V; see `attention.kernel` for
the idea and the bound. Arrays are arguments of their own: taken out of a tuple in a loop, each
would have its references counted anew.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from portable_spdnn_cpu.attention.microkernels import (
    add_rows,
    add_tiles,
    drop_last,
    score_tiles,
)
from portable_spdnn_cpu.jit.compilation import Array, kernel_part
from portable_spdnn_cpu.sddmm.microkernels import exponentials, largest, score_rows, store_row
from portable_spdnn_cpu.sddmm.register_tile import GROUP, RegisterTile
from portable_spdnn_cpu.sddmm.vectors import LANES

TILES_AT_ONCE = 48  # of a group: 24 KiB of scores in float32


@kernel_part
def attend_tiles(
    tile: RegisterTile,
    tiles: Array,
    numbers: Array,
    bits: Array,
    queries: Array,
    panels: Array,
    values: Array,
    d: int,
    d_v: int,
    scale: Any,
    scores: Array,
    starts: Array,
    counts: Array,
    most: Array,
    totals: Array,
    sums: Array,
) -> None:
    """Add the tiles of a block of queries; those of group g are tiles[g] .. tiles[g + 1] - 1."""
    rows, row_tiles, columns = len(tile.rows), len(tile.keys), LANES * len(tile.columns)
    for group in range(tiles.size - 1):
        last = tiles[group + 1]
        for first in range(tiles[group], last, TILES_AT_ONCE):
            end = min(first + TILES_AT_ONCE, last)
            length = LANES * (end - first)
            for row in range(0, GROUP, rows):
                q, s = (GROUP * group + row) * d, row * length
                number = first
                while number + row_tiles <= end:
                    score_tiles(
                        tile.rows, tile.keys, queries, q, d, panels, numbers, bits, number, row,
                        scale, scores, s + LANES * (number - first), length,
                    )  # fmt: skip
                    number += row_tiles
                while number < end:
                    score_tiles(
                        tile.rows, tile.one, queries, q, d, panels, numbers, bits, number, row,
                        scale, scores, s + LANES * (number - first), length,
                    )  # fmt: skip
                    number += 1
            for row in range(GROUP):
                starts[row], counts[row] = row * length, length
            normalize(most, totals, sums, scores, starts, counts, GROUP * group, GROUP, d_v)
            for row in range(0, GROUP, rows):
                column, o, s = 0, (GROUP * group + row) * d_v, row * length
                while column + columns <= d_v:
                    add_tiles(
                        tile.rows, tile.columns, scores, s, length, values, d_v, numbers, first,
                        end, column, sums, o,
                    )  # fmt: skip
                    column += columns
                while column < d_v:
                    add_tiles(
                        tile.rows, tile.one, scores, s, length, values, d_v, numbers, first,
                        end, column, sums, o,
                    )  # fmt: skip
                    column += LANES


@kernel_part
def attend_rows(
    tile: RegisterTile,
    begins: Array,
    lengths: Array,
    padding: Array,
    rest: Array,
    queries: Array,
    keys: Array,
    values: Array,
    d: int,
    d_v: int,
    key_step: int,
    value_step: int,
    scale: Any,
    scores: Array,
    starts: Array,
    counts: Array,
    most: Array,
    totals: Array,
    sums: Array,
) -> None:
    """Add what is in no tile, of a block of queries in some blocks of keys; see `PackedMask`.

    Rows of K are `key_step` items apart, those of V `value_step`.
    """
    key_part, value_part = LANES * tile.key_part, LANES * tile.value_part
    blocks, number = begins.shape
    used = 0
    for query in range(number):
        counts[query] = 0
        for block in range(blocks):
            counts[query] += lengths[block, query]
        starts[query] = used
        used += (counts[query] + LANES - 1) // LANES * LANES
    if used == 0:
        return
    for block in range(blocks):
        for query in range(number):
            begin, count, place = begins[block, query], lengths[block, query], starts[query]
            for column in range(0, d, key_part):
                score_rows(
                    tile.key_part, queries, query * d + column, keys, column, key_step,
                    rest, begin, count, scale, scores, place, column > 0,
                )  # fmt: skip
            drop_last(scores, place + count, padding[block, query])
            starts[query] += count  # where those of the next block go
    for query in range(number):
        starts[query] -= counts[query]
    normalize(most, totals, sums, scores, starts, counts, 0, number, d_v)
    for block in range(blocks):
        for query in range(number):
            begin, count, place = begins[block, query], lengths[block, query], starts[query]
            for column in range(0, d_v, value_part):
                add_rows(
                    tile.value_part, scores, place, values, column, value_step,
                    rest, begin, count, sums, query * d_v + column,
                )  # fmt: skip
            starts[query] += count


@kernel_part
def normalize(
    most: Array,
    totals: Array,
    sums: Array,
    scores: Array,
    starts: Array,
    counts: Array,
    first: int,
    number: int,
    d_v: int,
) -> None:
    """Make the scores of `number` queries exponentials, relative to the largest of each so far.

    What was added up before is scaled down where the largest is new. Where all so far are -inf, or
    there are none, all become 0; where one is NaN or +inf, the sum becomes NaN, and so the result.
    """
    for row in range(number):
        query, count = first + row, counts[row]
        if count == 0:
            continue
        before = most[query]
        level = max(before, largest(scores, starts[row], count))
        if level > before:
            most[query] = level
            if before > -np.inf:
                factor = totals.dtype.type(math.exp(before - level))
                totals[query] *= factor
                store_row(sums, query * d_v, factor, sums, query * d_v, d_v)
        if level == -np.inf:
            level = totals.dtype.type(0)
        totals[query] += exponentials(scores, starts[row], count, level)
