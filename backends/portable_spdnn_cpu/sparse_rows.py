"""Kernels: sparse x sparse, one row of the result at a time (Gustavson's algorithm).

A worker takes rows in chunks from a shared counter and adds the rows of B that a row of A
names into a dense accumulator of its own; a second array remembers which row touched a column
last, so nothing is cleared between rows. Columns come out sorted: from a scan of the
accumulator where a row is dense, by sorting where it is sparse; see `masked_rows` for a third way.

Bound: the scattered additions, served by the cache level that holds the accumulator.

Source: F. G. Gustavson, "Two Fast Algorithms for Sparse Matrices: Multiplication and Permuted
Transposition", ACM TOMS 4 (1978); the two phases as in Kokkos Kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu.compiled import kernel
from portable_spdnn_cpu.machine_instructions import fetch_add

Array = npt.NDArray[Any]


class Rows(NamedTuple):
    """A sparse matrix by rows: offsets int64, columns uint32 or uint64, all read-only.

    Unsigned columns spare the kernels Numba's check for indices that count from the end.

    Attributes
    ----------
    indptr, indices, data : ndarray
        CSR, without duplicates.
    columns : int
    """

    indptr: Array
    indices: Array
    data: Array
    columns: int


# Scanning n columns costs about as much as sorting n / 8 of them.
SCAN_FROM = 8


@kernel
def count_rows(
    counter: Array,
    chunk: int,
    A: Rows,
    B: Rows,
    counts: Array,
) -> None:
    """counts[i] = number of columns that row i of A B can have; shared by all workers."""
    rows = A.indptr.size - 1
    seen = np.full(B.columns, -1, np.int64)
    while True:
        first = fetch_add(counter, 0, 1) * chunk
        if first >= rows:
            break
        for row in range(first, min(first + chunk, rows)):
            count = 0
            for k in range(A.indptr[row], A.indptr[row + 1]):
                middle = A.indices[k]
                for q in range(B.indptr[middle], B.indptr[middle + 1]):
                    column = B.indices[q]
                    if seen[column] != row:
                        seen[column] = row
                        count += 1
            counts[row] = count


@kernel
def accumulate_row(
    row: int,
    A: Rows,
    B: Rows,
    seen: Array,
    sums: Array,
    touched: Array,
) -> int:
    """Add up one row of A B; returns how many columns it touched, listed in `touched`, sorted."""
    count = 0
    for k in range(A.indptr[row], A.indptr[row + 1]):
        middle = A.indices[k]
        factor = A.data[k]
        for q in range(B.indptr[middle], B.indptr[middle + 1]):
            column = B.indices[q]
            term = factor * B.data[q]
            if seen[column] == row:
                sums[column] += term
            else:
                seen[column] = row
                sums[column] = term
                touched[count] = column
                count += 1
    if count * SCAN_FROM >= seen.size:
        count = 0
        for column in range(seen.size):
            if seen[column] == row:
                touched[count] = column
                count += 1
    else:
        touched[:count].sort()
    return count


@kernel
def fill_rows(
    counter: Array,
    chunk: int,
    A: Rows,
    B: Rows,
    C_indptr: Array,
    C_indices: Array,
    C_data: Array,
) -> None:
    """Write columns and values of A B into rows whose sizes are known."""
    rows = A.indptr.size - 1
    seen = np.full(B.columns, -1, np.int64)
    sums = np.empty(B.columns, C_data.dtype)
    touched = np.empty(B.columns, np.int64)
    while True:
        first = fetch_add(counter, 0, 1) * chunk
        if first >= rows:
            break
        for row in range(first, min(first + chunk, rows)):
            count = accumulate_row(row, A, B, seen, sums, touched)
            place = C_indptr[row]
            for position in range(count):
                C_indices[place + position] = touched[position]
                C_data[place + position] = sums[touched[position]]


@kernel
def add_row(row: int, A: Rows, B: Rows, weight: Any, sums: Array) -> None:
    """Add row `row` of A B to `sums`; `weight` is the one value that all of B has, or None."""
    for k in range(A.indptr[row], A.indptr[row + 1]):
        middle = A.indices[k]
        factor = A.data[k]
        if weight is not None:
            term = factor * weight
            for q in range(B.indptr[middle], B.indptr[middle + 1]):
                sums[B.indices[q]] += term
        else:
            for q in range(B.indptr[middle], B.indptr[middle + 1]):
                sums[B.indices[q]] += factor * B.data[q]


@kernel
def refill_rows(
    counter: Array,
    chunk: int,
    A: Rows,
    B: Rows,
    weight: Any,
    C_indptr: Array,
    C_indices: Array,
    C_data: Array,
) -> None:
    """Write the values of A B where the columns are already known; `weight` as in `add_row`."""
    rows = A.indptr.size - 1
    sums = np.zeros(B.columns, C_data.dtype)
    while True:
        first = fetch_add(counter, 0, 1) * chunk
        if first >= rows:
            break
        for row in range(first, min(first + chunk, rows)):
            add_row(row, A, B, weight, sums)
            for k in range(C_indptr[row], C_indptr[row + 1]):
                C_data[k] = sums[C_indices[k]]
                sums[C_indices[k]] = 0


@kernel
def layer_rows(
    counter: Array,
    chunk: int,
    Y: Rows,
    W: Rows,
    bias: Array,
    y_max: Any,
    owner: Array,
    place: Array,
    counts: Array,
    worker: int,
) -> tuple[Array, Array]:
    """Y' = min(max(Y W + bias, 0), y_max), zeros left out, into buffers of the worker's own.

    Returns the buffers of columns and values; owner, place and counts say for each row which
    worker has it, where, and how many entries it has.
    """
    rows = Y.indptr.size - 1
    seen = np.full(W.columns, -1, np.int64)
    sums = np.empty(W.columns, Y.data.dtype)
    touched = np.empty(W.columns, np.int64)
    indices = np.empty(max(W.columns, 1 << 12), W.indices.dtype)
    data = np.empty(indices.size, Y.data.dtype)
    used = 0
    while True:
        first = fetch_add(counter, 0, 1) * chunk
        if first >= rows:
            break
        for row in range(first, min(first + chunk, rows)):
            if used + W.columns > indices.size:
                more_indices = np.empty(2 * indices.size, W.indices.dtype)
                more_data = np.empty(2 * indices.size, Y.data.dtype)
                for k in range(used):
                    more_indices[k] = indices[k]
                    more_data[k] = data[k]
                indices, data = more_indices, more_data
            owner[row] = worker
            place[row] = used
            count = accumulate_row(row, Y, W, seen, sums, touched)
            for position in range(count):
                column = touched[position]
                value = sums[column] + bias[column]
                # Comparisons are false for NaN, which therefore stays.
                if value <= 0:
                    continue
                if value > y_max:
                    value = y_max
                indices[used] = column
                data[used] = value
                used += 1
            counts[row] = used - place[row]
    return indices, data


@kernel
def join_rows(
    worker: int,
    indices: Array,
    data: Array,
    owner: Array,
    place: Array,
    indptr: Array,
    C_indices: Array,
    C_data: Array,
) -> None:
    """Copy the rows that `worker` owns from its buffers to their places in the result."""
    for row in range(owner.size):
        if owner[row] == worker:
            source, target = place[row], indptr[row]
            for k in range(indptr[row + 1] - target):
                C_indices[target + k] = indices[source + k]
                C_data[target + k] = data[source + k]
