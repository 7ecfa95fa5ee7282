"""Kernel of fused sparse attention: a block of queries of a head at a time, scores in a cache.

Idea: each query keeps its largest score, the sum of its exponentials and its sums over V, which are
scaled down where a larger score comes (online softmax: M. Milakov, N. Gimelshein, "Online
normalizer calculation for softmax", arXiv:1805.02867, 2018, algorithm 3). So scores live a stage
long: the tiles of a group of queries, or all other entries of a block of queries in some blocks of
keys. A stage of the latter has three passes: scores, exponentials, sums. In each, the rows of a
block of K, or of V, come from the second-level cache as often as they are seen.
Bound: that of the microkernels; for scattered entries two rows from that cache each, 512 bytes at
d = 64 in float32, and K and V from farther off once for each block of queries.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from portable_spdnn_cpu.attention.microkernels import (
    add_rows,
    add_tiles,
    drop_last,
    score_tiles,
)
from portable_spdnn_cpu.attention.operands import PackedOperands, attend_again, pack_operands
from portable_spdnn_cpu.attention.packing import PackedMask
from portable_spdnn_cpu.jit.compilation import Array, kernel, kernel_part
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.sddmm.microkernels import (
    exponentials,
    largest,
    load_row,
    score_rows,
    store_row,
)
from portable_spdnn_cpu.sddmm.register_tile import GROUP, RegisterTile
from portable_spdnn_cpu.sddmm.vectors import LANES

TILES_AT_ONCE = 48  # of a group: 24 KiB of scores in float32


class Workspace(NamedTuple):
    """Buffers of a thread for a block of queries, which is a whole number of groups.

    Attributes
    ----------
    queries, sums : ndarray
        Padded rows of Q, and of O.
    scores : ndarray
        Of a stage.
    starts, counts : ndarray of int64
        Where in `scores` those of a query begin, and how many they are.
    most, totals : ndarray
        Of each query: the largest score, and the sum of exponentials relative to it.
    """

    queries: Array
    sums: Array
    scores: Array
    starts: Array
    counts: Array
    most: Array
    totals: Array


@kernel
def attend(
    counter: Array,
    tile: RegisterTile,
    mask: PackedMask,
    stage: int,
    Q: Array,
    packed: PackedOperands,
    d: int,
    d_v: int,
    scale: Any,
    space: Workspace,
    out: Array,
) -> None:
    """Compute out, shape (heads, queries, columns of V), a block of queries at a time.

    Parameters
    ----------
    counter : ndarray of int64, shape (1,)
    tile, mask, packed, space
        As their classes say; one mask for all heads.
    stage : int
        Blocks of keys whose scores are held at once.
    Q : ndarray in C order, shape (heads, queries, columns of Q)
    d, d_v : int
        Padded columns of K and V.
    scale : of the type of Q
    out : ndarray in C order
    """
    # Taken out of their tuples here: each use of a tuple's array counts its references anew.
    rows, sums, scores = space.queries, space.sums, space.scores
    starts, counts, most, totals = space.starts, space.counts, space.most, space.totals
    group_tiles, numbers, bits = mask.group_tiles, mask.panels, mask.bits
    begins, lengths, padding, rest = mask.begins, mask.counts, mask.padding, mask.keys
    heads, queries, columns = Q.shape
    size = most.size
    blocks = (queries + size - 1) // size
    while True:
        number = fetch_add(counter, 0, 1)
        if number >= heads * blocks:
            break
        head, first = number // blocks, number % blocks * size
        end = min(first + size, queries)
        panels, keys, values = packed.panels[head], packed.keys[head], packed.values[head]
        for query in range(first, end):
            place = (head * queries + query) * columns
            load_row(Q, place, columns, rows, (query - first) * d, d)
        rows[(end - first) * d :] = 0
        sums[:] = 0
        most[:] = -np.inf
        totals[:] = 0
        if numbers.size:
            tiles = group_tiles[first // GROUP : (end + GROUP - 1) // GROUP + 1]
            attend_tiles(
                tile, tiles, numbers, bits, rows, panels, values, d, d_v, scale,
                scores, starts, counts, most, totals, sums,
            )  # fmt: skip
        if rest.size:
            for start in range(0, padding.shape[0], stage):
                part = slice(start, start + stage), slice(first, end)
                attend_rows(
                    tile, begins[part], lengths[part], padding[part], rest, rows, keys, values,
                    d, d_v, scale, scores, starts, counts, most, totals, sums,
                )  # fmt: skip
        for query in range(first, end):
            # A query without entries, or with scores of -inf alone, has a sum of 0, and stays 0.
            total = totals[query - first]
            share = total if total == 0 else 1 / total
            place = (head * queries + query) * out.shape[2]
            store_row(sums, (query - first) * d_v, share, out, place, out.shape[2])


@kernel
def attend_heads(
    counters: Array,
    tile: RegisterTile,
    mask: PackedMask,
    stage: int,
    indptr: Array,
    indices: Array,
    Q: Array,
    K: Array,
    V: Array,
    packed: PackedOperands,
    d: int,
    d_v: int,
    scale: Any,
    space: Workspace,
    out: Array,
) -> None:
    """Compute whole heads, each packed by the thread that takes it, in whose cache it then is.

    Parameters
    ----------
    counters : ndarray of int64, shape (1,)
        Shared by all threads.
    indptr, indices : ndarray
        The mask as it was.
    K, V : ndarray in C order, shape (heads, keys, columns)
    packed : PackedOperands
        Room for one head; a thread's own.
    tile, mask, stage, Q, d, d_v, scale, space, out
        As `attend` takes them.
    """
    own = np.zeros((2, 1), np.int64)
    while True:
        head = fetch_add(counters, 0, 1)
        if head >= Q.shape[0]:
            break
        one = slice(head, head + 1)
        own[:] = 0
        pack_operands(own[0], K[one], V[one], packed, d, d_v)
        attend(own[1], tile, mask, stage, Q[one], packed, d, d_v, scale, space, out[one])
        if packed.flawed[0].any():
            attend_again(
                indptr, indices, Q[head], K[head], V[head], packed.flawed[0], scale, out[head]
            )


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
    scale: Any,
    scores: Array,
    starts: Array,
    counts: Array,
    most: Array,
    totals: Array,
    sums: Array,
) -> None:
    """Add what is in no tile, of a block of queries in some blocks of keys; see `PackedMask`."""
    key_part, value_part = LANES * len(tile.key_part), LANES * len(tile.value_part)
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
                    tile.key_part, queries, query * d + column, keys, column, d,
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
                    tile.value_part, scores, place, values, column, d_v,
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
