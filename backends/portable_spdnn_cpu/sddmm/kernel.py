"""Kernels of sampled products and of the sparse softmax: a thread takes some rows at a time.

Bound of sampled products: that of the microkernel; a row of K for each entry from the second-level
cache, where K is larger block by block. Of the softmax: reading and writing the entries once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.jit.jobs import LENGTH, array_at
from portable_spdnn_cpu.sddmm.microkernels import exponentials, largest, load_row, score_rows
from portable_spdnn_cpu.sddmm.operands import ADDRESS, COLUMNS, ROW_STEP, Heads, first_item
from portable_spdnn_cpu.sddmm.register_tile import RegisterTile
from portable_spdnn_cpu.sddmm.vectors import LANES

QUERIES_EACH = 256  # that a thread takes at a time


@kernel
def sample(
    counter: Array,
    tile: RegisterTile,
    indptr: Array,
    indices: Array,
    Q: Heads,
    keys: Array,
    length: int,
    step: int,
    block: int,
    d: int,
    scale: Any,
    scores: Array,
) -> None:
    """scores[h, e] = scale Q[h, i] . K[h, j] for each entry e, at (i, j), of a mask.

    Row h of `keys` begins with those of head h of K, `length` of them, each padded to `d` columns
    and `step` items after the one before; `block` is how many of them a cache holds.
    """
    source = array_at(Q[ADDRESS], LENGTH, scores.dtype)
    heads, queries = scores.shape[0], indptr.size - 1
    chunks = (queries + QUERIES_EACH - 1) // QUERIES_EACH
    rows = np.empty(QUERIES_EACH * d, scores.dtype)
    places = np.empty(QUERIES_EACH, np.int64)
    part = LANES * tile.key_part
    while True:
        number = fetch_add(counter, 0, 1)
        if number >= heads * chunks:
            break
        head, first = number // chunks, number % chunks * QUERIES_EACH
        end = min(first + QUERIES_EACH, queries)
        first_query = first_item(Q, head)
        for query in range(first, end):
            begin = first_query + query * Q[ROW_STEP]
            load_row(source, begin, Q[COLUMNS], rows, (query - first) * d, d)
            places[query - first] = indptr[query]
        for limit in range(block, length + block, block):
            for query in range(first, end):
                begin = places[query - first]
                stop = indptr[query + 1]
                if limit < length:
                    stop = begin
                    while stop < indptr[query + 1] and indices[stop] < limit:
                        stop += 1
                places[query - first] = stop
                for column in range(0, d, part):
                    score_rows(
                        tile.key_part, rows, (query - first) * d + column, keys[head], column, step,
                        indices, begin, stop - begin, scale, scores[head], begin, column > 0,
                    )  # fmt: skip


@kernel
def softmax_rows(counter: Array, indptr: Array, values: Array, out: Array) -> None:
    """out = the softmax of each row's values; zeros where all of a row are -inf."""
    rows = indptr.size - 1
    longest: Any = 0
    for row in range(rows):  # NumPy would take 9 microseconds more
        longest = max(longest, np.int64(indptr[row + 1]) - np.int64(indptr[row]))
    buffer = np.empty((longest + LANES - 1) // LANES * LANES, values.dtype)
    while True:
        first = fetch_add(counter, 0, 1) * QUERIES_EACH
        if first >= rows:
            break
        for row in range(first, min(first + QUERIES_EACH, rows)):
            begin, end = indptr[row], indptr[row + 1]
            if begin == end:
                continue
            given, result, count = values[begin:end], out[begin:end], end - begin
            for entry in range(given.size):  # see `conv.panels.find_edges`
                buffer[entry] = given[entry]
            most = largest(buffer, 0, count)
            if most == -np.inf:
                most = values.dtype.type(0)
            total = exponentials(buffer, 0, count, most)
            share = total if total == 0 else 1 / total
            for entry in range(count):
                result[entry] = buffer[entry] * share
