"""K and V of all heads as the kernels read them: packed, or in place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel, read_only
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.jit.jobs import LENGTH, array_at
from portable_spdnn_cpu.sddmm.microkernels import load_row
from portable_spdnn_cpu.sddmm.operands import (
    ADDRESS,
    COLUMNS,
    ROW_STEP,
    ROWS_EACH,
    Heads,
    first_item,
    in_place,
    rows_of_head,
    transpose_rows,
)


class Operands(NamedTuple):
    """K and V; `d` and `d_v` are their padded columns.

    Attributes
    ----------
    panels : ndarray, shape (heads, whole panels of keys x d), or (heads, 0)
        K transposed: for each panel of 16 keys, 16 neighbours for each column. For dense tiles.
    keys : ndarray, shape (heads, keys x d), or (heads, 0)
        Rows of K. For all other entries.
    values : ndarray, shape (heads, whole panels of keys x d_v); in place (heads, keys x d_v)
        Rows of V; packed, zeros for those that are flawed: what a tile computes for entries that
        the mask has not must not become NaN.
    flawed : ndarray of bool, shape (heads, keys); in place (0, 0), as it is not known
        Which rows of V are not finite, or so large that sums of them may not be. Queries that see
        one are computed once more.
    """

    panels: Array
    keys: Array
    values: Array
    flawed: Array


_UNKNOWN = read_only(np.empty((0, 0), np.bool_))


def operands_in_place(K: Array, V: Array) -> Operands:
    """Return K and V for a mask without dense tiles.

    Their rows need no padding: see `sddmm.operands.read_in_place`.
    """
    keys = in_place(K)
    return Operands(keys[:, :0], keys, in_place(V), _UNKNOWN)


@kernel
def pack_operands(counter: Array, K: Heads, V: Heads, packed: Operands, d: int, d_v: int) -> None:
    """Fill `packed` from K and V of as many heads."""
    panels, keys, values, flawed = packed.panels, packed.keys, packed.values, packed.flawed
    k = array_at(K[ADDRESS], LENGTH, values.dtype)
    v = array_at(V[ADDRESS], LENGTH, values.dtype)
    heads, length = flawed.shape
    chunks = (length + ROWS_EACH - 1) // ROWS_EACH
    whole = values.shape[1]
    while True:
        number = fetch_add(counter, 0, 1)
        if number >= heads * chunks:
            break
        head, first = number // chunks, number % chunks * ROWS_EACH
        end = min(first + ROWS_EACH, length)
        first_key, first_value = first_item(K, head), first_item(V, head)
        if keys.shape[1]:
            for key in range(first, end):
                begin = first_key + key * K[ROW_STEP]
                load_row(k, begin, K[COLUMNS], keys, (head * length + key) * d, d)
        if panels.shape[1]:
            rows = rows_of_head(K, head, length, values.dtype)
            transpose_rows(rows, K[COLUMNS], first, end, panels[head], d)
        for key in range(first, end):
            begin, place = first_value + key * V[ROW_STEP], head * whole + key * d_v
            flaw = load_row(v, begin, V[COLUMNS], values, place, d_v)
            flawed[head, key] = flaw != 0  # NaN
            if flaw != 0:
                values[head, key * d_v : (key + 1) * d_v] = 0
        if end == length:
            values[head, length * d_v :] = 0


@kernel
def attend_again(
    indptr: Array,
    indices: Array,
    Q: Heads,
    K: Heads,
    V: Heads,
    head: int,
    flawed: Array,
    scale: float,
    out: Array,
) -> None:
    """Compute the queries of a head that see a key whose row of V is flawed, entry by entry.

    NaN and infinities then reach the result through stored entries alone, as IEEE 754 says; and
    exponentials are divided by their sum before they are multiplied with V, so that a result is not
    finite only where V is not, or is within rounding of the largest number of its type.
    """
    q = rows_of_head(Q, head, out.shape[0], out.dtype)
    k = rows_of_head(K, head, flawed.size, out.dtype)
    v = rows_of_head(V, head, flawed.size, out.dtype)
    scores = np.empty(flawed.size, out.dtype)
    for query in range(out.shape[0]):
        keys = indices[indptr[query] : indptr[query + 1]]
        seen = False
        for key in keys:
            seen |= flawed[key]
        if not seen:
            continue
        most = out.dtype.type(-np.inf)
        for number, key in enumerate(keys):
            score = out.dtype.type(0)
            for column in range(Q[COLUMNS]):
                score += q[query, column] * k[key, column]
            scores[number] = score * scale
            if scores[number] > most:
                most = scores[number]
        if most == -np.inf:
            most = out.dtype.type(0)
        total = out.dtype.type(0)
        for number in range(keys.size):
            scores[number] = np.exp(scores[number] - most)
            total += scores[number]
        for column in range(V[COLUMNS]):
            value = out.dtype.type(0)
            for number, key in enumerate(keys):
                share = scores[number] if total == 0 else scores[number] / total
                value += share * v[key, column]
            out[query, column] = value
