"""Kernel of fused sparse attention: a block of queries of a head at a time, scores in a cache.

Idea: each query keeps its largest score, the sum of its exponentials and its sums over V, which are
scaled down where a larger score comes (online softmax: M. Milakov, N. Gimelshein, "Online normalizer
calculation for softmax", arXiv:1805.02867, 2018, algorithm 3; T. Dao et al., "FlashAttention",
NeurIPS 2022). So scores live a stage long: the tiles of a group of queries, or all other entries of a
block of queries in some blocks of keys. A stage of the latter has three passes: scores, exponentials,
sums; rows of a block of K, then of V, come from the second-level cache as often as they are seen.
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
    starts : ndarray of int64
        Where in `scores` those of a query begin.
    most, totals : ndarray
        Of each query: the largest score, and the sum of exponentials relative to it.
    high : ndarray, shape (8 x 16,)
        Of each query of a group, the largest score in each lane.
    """

    queries: Array
    sums: Array
    scores: Array
    starts: Array
    most: Array
    totals: Array
    high: Array


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
    # Taken out of their tuples once: each use of a tuple's array counts its references anew.
    rows, sums, most, totals = space.queries, space.sums, space.most, space.totals
    heads, queries, columns = Q.shape
    size = most.size
    blocks = (queries + size - 1) // size
    while True:
        number = fetch_add(counter, 0, 1)
        if number >= heads * blocks:
            break
        head, first = number // blocks, number % blocks * size
        end = min(first + size, queries)
        for query in range(first, end):
            place = (head * queries + query) * columns
            load_row(Q, place, columns, rows, (query - first) * d, d)
        rows[(end - first) * d :] = 0
        sums[:] = 0
        most[:] = -np.inf
        totals[:] = 0
        for group in range(first // GROUP, (end + GROUP - 1) // GROUP):
            attend_tiles(tile, mask, group, group - first // GROUP, packed, head, d, d_v, scale, space)
        for start in range(0, mask.splits.shape[1] - 1, stage):
            stop = min(start + stage, mask.splits.shape[1] - 1)
            attend_rows(tile, mask, first, end, start, stop, packed, head, d, d_v, scale, space)
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
    mask: PackedMask,
    group: int,
    place: int,
    packed: PackedOperands,
    head: int,
    d: int,
    d_v: int,
    scale: Any,
    space: Workspace,
) -> None:
    """Add the tiles of a group of queries, the group number `place` of the block."""
    rows, row_tiles = len(tile.rows), len(tile.keys)
    panels, values = packed.panels[head], packed.values[head]
    numbers, bits, group_tiles = mask.panels, mask.bits, mask.group_tiles
    queries, sums, scores, high = space.queries, space.sums, space.scores, space.high
    most, totals = space.most, space.totals
    last = group_tiles[group + 1]
    for first in range(group_tiles[group], last, TILES_AT_ONCE):
        end = min(first + TILES_AT_ONCE, last)
        length = LANES * (end - first)
        high[:] = -np.inf
        for row in range(0, GROUP, rows):
            q = (GROUP * place + row) * d
            number = first
            while number + row_tiles <= end:
                score_tiles(
                    tile.rows, tile.keys, queries, q, d, panels, numbers, bits,
                    number, row, scale, scores, row * length + LANES * (number - first),
                    length, high,
                )  # fmt: skip
                number += row_tiles
            while number < end:
                score_tiles(
                    tile.rows, tile.one, queries, q, d, panels, numbers, bits,
                    number, row, scale, scores, row * length + LANES * (number - first),
                    length, high,
                )  # fmt: skip
                number += 1
        for row in range(GROUP):
            found = largest(high, LANES * row, LANES)
            normalize(most, totals, sums, scores, GROUP * place + row, found, row * length, length, d_v)
        for row in range(0, GROUP, rows):
            column, o = 0, (GROUP * place + row) * d_v
            while column + LANES * len(tile.columns) <= d_v:
                add_tiles(
                    tile.rows, tile.columns, scores, row * length, length, values, d_v,
                    numbers, first, end, column, sums, o,
                )  # fmt: skip
                column += LANES * len(tile.columns)
            while column < d_v:
                add_tiles(
                    tile.rows, tile.one, scores, row * length, length, values, d_v,
                    numbers, first, end, column, sums, o,
                )  # fmt: skip
                column += LANES


@kernel_part
def attend_rows(
    tile: RegisterTile,
    mask: PackedMask,
    first: int,
    end: int,
    start: int,
    stop: int,
    packed: PackedOperands,
    head: int,
    d: int,
    d_v: int,
    scale: Any,
    space: Workspace,
) -> None:
    """Add the entries of queries first .. end - 1 that are in no tile, in some blocks of keys."""
    keys, values = packed.keys[head], packed.values[head]
    part, value_part = LANES * len(tile.key_part), LANES * len(tile.value_part)
    splits, padding, rest = mask.splits, mask.padding, mask.keys
    queries, sums, scores, starts = space.queries, space.sums, space.scores, space.starts
    most, totals = space.most, space.totals
    used = 0
    for query in range(first, end):
        starts[query - first] = used
        count = splits[query, stop] - splits[query, start]
        used += (count + LANES - 1) // LANES * LANES
    if used == 0:
        return
    for block in range(start, stop):
        for query in range(first, end):
            begin = splits[query, block]
            count = splits[query, block + 1] - begin
            place = starts[query - first] + begin - splits[query, start]
            for column in range(0, d, part):
                score_rows(
                    tile.key_part, queries, (query - first) * d + column, keys, column, d,
                    rest, begin, count, scale, scores, place, column > 0,
                )  # fmt: skip
            drop_last(scores, place + count, padding[query, block])
    for query in range(first, end):
        count = splits[query, stop] - splits[query, start]
        if count:
            place = starts[query - first]
            found = largest(scores, place, count)
            normalize(most, totals, sums, scores, query - first, found, place, count, d_v)
    for block in range(start, stop):
        for query in range(first, end):
            begin = splits[query, block]
            count = splits[query, block + 1] - begin
            place = starts[query - first] + begin - splits[query, start]
            for column in range(0, d_v, value_part):
                add_rows(
                    tile.value_part, scores, place, values, column, d_v,
                    rest, begin, count, sums, (query - first) * d_v + column,
                )  # fmt: skip


@kernel_part
def normalize(
    most: Array,
    totals: Array,
    sums: Array,
    scores: Array,
    query: int,
    found: Any,
    place: int,
    count: int,
    d_v: int,
) -> None:
    """Make scores into exponentials, relative to the largest so far; scale down what was before.

    `found` is the largest of the scores from `place` on. Where all so far are -inf, or not stored,
    all are zeros; where one is NaN or +inf, the sum becomes NaN, and with it the result.
    """
    before = most[query]
    level = max(before, found)
    if level > before:
        most[query] = level
        if before > -np.inf:
            factor = totals.dtype.type(math.exp(before - level))
            totals[query] *= factor
            store_row(sums, query * d_v, factor, sums, query * d_v, d_v)
    if level == -np.inf:
        level = totals.dtype.type(0)
    totals[query] += exponentials(scores, place, count, level)
