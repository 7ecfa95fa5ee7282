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

from typing import Any, NamedTuple

import numpy as np

from portable_spdnn_cpu.attention.operands import Operands, attend_again, pack_operands
from portable_spdnn_cpu.attention.packing import PackedMask
from portable_spdnn_cpu.attention.stages import attend_rows, attend_tiles
from portable_spdnn_cpu.jit.compilation import Array, kernel
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.jit.jobs import LENGTH, array_at
from portable_spdnn_cpu.sddmm.microkernels import load_row, store_row
from portable_spdnn_cpu.sddmm.operands import (
    ADDRESS,
    COLUMNS,
    ROW_STEP,
    Heads,
    first_item,
    one_head,
)
from portable_spdnn_cpu.sddmm.register_tile import GROUP, RegisterTile


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
    Q: Heads,
    operands: Operands,
    d: int,
    d_v: int,
    key_step: int,
    value_step: int,
    scale: Any,
    space: Workspace,
    out: Array,
) -> None:
    """Compute out, shape (heads, queries, columns of V), a block of queries at a time.

    Parameters
    ----------
    counter : ndarray of int64, shape (1,)
    tile, mask, operands, space
        As their classes say; one mask for all heads. Arrays of `operands` are read-only, as the
        caller's are: so they are of one type, and this is compiled once.
    stage : int
        Blocks of keys whose scores are held at once.
    Q : tuple of int
        Where queries lie, as `Heads` has it.
    d, d_v : int
        Padded columns of K and V.
    key_step, value_step : int
        How many items apart rows of K and of V are.
    scale : of the operands' type
    out : ndarray in C order
    """
    # Taken out of their tuples here: each use of a tuple's array counts its references anew.
    rows, sums, scores = space.queries, space.sums, space.scores
    starts, counts, most, totals = space.starts, space.counts, space.most, space.totals
    group_tiles, numbers, bits = mask.group_tiles, mask.panels, mask.bits
    begins, lengths, padding, rest = mask.begins, mask.counts, mask.padding, mask.keys
    source = array_at(Q[ADDRESS], LENGTH, out.dtype)
    heads, queries = out.shape[:2]
    size = most.size
    blocks = (queries + size - 1) // size
    while True:
        number = fetch_add(counter, 0, 1)
        if number >= heads * blocks:
            break
        head, first = number // blocks, number % blocks * size
        end = min(first + size, queries)
        panels, keys, values = operands.panels[head], operands.keys[head], operands.values[head]
        first_query = first_item(Q, head)
        for query in range(first, end):
            begin = first_query + query * Q[ROW_STEP]
            load_row(source, begin, Q[COLUMNS], rows, (query - first) * d, d)
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
                    d, d_v, key_step, value_step, scale, scores, starts, counts, most, totals, sums,
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
    Q: Heads,
    K: Heads,
    V: Heads,
    packed: Operands,
    readable: Operands,
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
    Q, K, V : tuple of int
        As `Heads` has them.
    packed, readable : Operands
        Room for one head, a thread's own, and read-only views of it.
    tile, mask, stage, d, d_v, scale, space, out
        As `attend` takes them.
    """
    own = np.zeros((2, 1), np.int64)
    while True:
        head = fetch_add(counters, 0, 1)
        if head >= out.shape[0]:
            break
        own[:] = 0
        queries = one_head(Q, head, out.itemsize)
        keys, values = one_head(K, head, out.itemsize), one_head(V, head, out.itemsize)
        pack_operands(own[0], keys, values, packed, d, d_v)
        attend(
            own[1], tile, mask, stage, queries, readable, d, d_v, d, d_v, scale, space,
            out[head : head + 1],
        )  # fmt: skip
        if packed.flawed[0].any():
            attend_again(indptr, indices, Q, K, V, head, packed.flawed[0], scale, out[head])
