"""Kernels: sparse x sparse, one row of the result at a time (Gustavson's algorithm).

Here are the phases around the additions: counting the entries of rows, and filling rows whose
columns are known. `row_accumulators` adds up rows whose columns are not, and `masked_rows` has a
way for dense rows in few columns. Workers take chunks of rows from a shared counter.

Source: F. G. Gustavson, "Two Fast Algorithms for Sparse Matrices: Multiplication and Permuted
Transposition", ACM TOMS 4 (1978); the two phases as in Kokkos Kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu.jit.compilation import kernel
from portable_spdnn_cpu.jit.intrinsics import bit_length, fetch_add, prefetch

Array = npt.NDArray[Any]

# 2^64 over the golden ratio: spreads columns in arithmetic progressions, which layers have.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
ONE, SIX, LOW_SIX = np.uint64(1), np.uint64(6), np.uint64(63)


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


class Share(NamedTuple):
    """Rows that are treated in one way, in chunks of about equally many multiply-adds.

    Attributes
    ----------
    rows : ndarray of int64
    edges : ndarray of int64, shape (chunks + 1,)
        Chunk i is rows[edges[i] : edges[i + 1]].
    rooms : ndarray of int64, shape (chunks,)
        The most entries that the rows of a chunk may have together.
    longest : int
        The most that one row may have: products where they are sorted, else entries.
    """

    rows: Array
    edges: Array
    rooms: Array
    longest: int


@kernel
def fetch_ahead(k: int, A_indices: Array, B_indptr: Array, B_indices: Array, B_data: Array) -> None:
    """Ask for the row of B that a later entry of A names, and before that for its offset."""
    last = A_indices.size - 1
    prefetch(B_indptr, np.int64(A_indices[min(k + 16, last)]))
    first = B_indptr[A_indices[min(k + 8, last)]]
    prefetch(B_indices, first)
    if B_data.size:
        prefetch(B_data, first)


@kernel
def count_products(counter: Array, chunk: int, A: Rows, B_indptr: Array, products: Array) -> None:
    """products[i] = multiply-adds of row i of A B; shared by all workers."""
    indptr, indices = A.indptr, A.indices
    rows = indptr.size - 1
    while True:
        first = fetch_add(counter, 0, 1) * chunk
        if first >= rows:
            break
        for row in range(first, min(first + chunk, rows)):
            count = 0
            for k in range(indptr[row], indptr[row + 1]):
                middle = indices[k]
                count += B_indptr[middle + 1] - B_indptr[middle]
            products[row] = count


@kernel
def count_dense_rows(
    counter: Array, share: Share, A: Rows, B: Rows, products: Array, bits: Array, counts: Array
) -> None:
    """counts[i] = columns that row i of A B can have, by a bit for each, zero before and after."""
    A_indptr, A_indices = A.indptr, A.indices
    B_indptr, B_indices = B.indptr, B.indices
    rows, edges = share.rows, share.edges
    while True:
        chunk = fetch_add(counter, 0, 1)
        if chunk >= share.rooms.size:
            break
        for number in range(edges[chunk], edges[chunk + 1]):
            row = rows[number]
            if A_indptr[row + 1] - A_indptr[row] == 1:
                counts[row] = products[row]
                continue
            count = 0
            for k in range(A_indptr[row], A_indptr[row + 1]):
                fetch_ahead(k, A_indices, B_indptr, B_indices, B_indices)
                middle = A_indices[k]
                for q in range(B_indptr[middle], B_indptr[middle + 1]):
                    column = np.uint64(B_indices[q])
                    word = bits[column >> SIX]
                    count += word >> (column & LOW_SIX) & ONE == 0
                    bits[column >> SIX] = word | ONE << (column & LOW_SIX)
            if bits.size <= products[row]:
                for position in range(bits.size):
                    bits[position] = 0
            else:
                for k in range(A_indptr[row], A_indptr[row + 1]):
                    middle = A_indices[k]
                    for q in range(B_indptr[middle], B_indptr[middle + 1]):
                        bits[np.uint64(B_indices[q]) >> SIX] = 0
            counts[row] = count


@kernel
def count_hash_rows(
    counter: Array,
    share: Share,
    A: Rows,
    B: Rows,
    products: Array,
    keys: Array,
    slots: Array,
    counts: Array,
) -> None:
    """Do what `count_dense_rows` does by a hash table, as `add_hash_rows` has it."""
    A_indptr, A_indices = A.indptr, A.indices
    B_indptr, B_indices = B.indptr, B.indices
    rows, edges = share.rows, share.edges
    while True:
        chunk = fetch_add(counter, 0, 1)
        if chunk >= share.rooms.size:
            break
        for number in range(edges[chunk], edges[chunk + 1]):
            row = rows[number]
            if A_indptr[row + 1] - A_indptr[row] == 1:
                counts[row] = products[row]
                continue
            bound = min(products[row], B.columns)
            length = np.uint64(bit_length(np.uint64(2 * bound - 1)))
            mask = (ONE << length) - ONE
            shift = np.uint64(64) - length
            count = 0
            for k in range(A_indptr[row], A_indptr[row + 1]):
                fetch_ahead(k, A_indices, B_indptr, B_indices, B_indices)
                middle = A_indices[k]
                for q in range(B_indptr[middle], B_indptr[middle + 1]):
                    column = np.uint64(B_indices[q])
                    key = column + ONE
                    slot = (column * GOLDEN) >> shift
                    while True:
                        found = keys[slot]
                        if found == key:
                            break
                        if found == 0:
                            keys[slot] = key
                            slots[count] = slot
                            count += 1
                            break
                        slot = (slot + ONE) & mask
            for k in range(count):
                keys[slots[k]] = 0
            counts[row] = count


@kernel
def add_row(row: int, A: Rows, B: Rows, weight: Any, sums: Array) -> None:
    """Add row `row` of A B to `sums`; `weight` is the one value that all of B has, or NaN."""
    A_indptr, A_indices, A_data = A.indptr, A.indices, A.data
    B_indptr, B_indices, B_data = B.indptr, B.indices, B.data
    if np.isnan(weight):
        for k in range(A_indptr[row], A_indptr[row + 1]):
            middle = A_indices[k]
            factor = A_data[k]
            for q in range(B_indptr[middle], B_indptr[middle + 1]):
                sums[B_indices[q]] += factor * B_data[q]
    else:
        for k in range(A_indptr[row], A_indptr[row + 1]):
            middle = A_indices[k]
            term = A_data[k] * weight
            for q in range(B_indptr[middle], B_indptr[middle + 1]):
                sums[B_indices[q]] += term


@kernel
def refill_dense_rows(
    counter: Array,
    share: Share,
    A: Rows,
    B: Rows,
    weight: Any,
    sums: Array,
    C_indptr: Array,
    C_indices: Array,
    C_data: Array,
) -> None:
    """Write values of A B where the columns are known; `weight` as in `add_row`."""
    rows, edges = share.rows, share.edges
    while True:
        chunk = fetch_add(counter, 0, 1)
        if chunk >= share.rooms.size:
            break
        for number in range(edges[chunk], edges[chunk + 1]):
            row = rows[number]
            add_row(row, A, B, weight, sums)
            for k in range(C_indptr[row], C_indptr[row + 1]):
                C_data[k] = sums[C_indices[k]]
                sums[C_indices[k]] = 0


@kernel
def refill_hash_rows(
    counter: Array,
    share: Share,
    A: Rows,
    B: Rows,
    keys: Array,
    sums: Array,
    slots: Array,
    C_indptr: Array,
    C_indices: Array,
    C_data: Array,
) -> None:
    """Enter the known columns of a row into the table, then add products, which all find one."""
    A_indptr, A_indices, A_data = A.indptr, A.indices, A.data
    B_indptr, B_indices, B_data = B.indptr, B.indices, B.data
    rows, edges = share.rows, share.edges
    while True:
        chunk = fetch_add(counter, 0, 1)
        if chunk >= share.rooms.size:
            break
        for number in range(edges[chunk], edges[chunk + 1]):
            row = rows[number]
            place = C_indptr[row]
            entries = C_indptr[row + 1] - place
            length = np.uint64(bit_length(np.uint64(2 * entries - 1)))
            mask = (ONE << length) - ONE
            shift = np.uint64(64) - length
            for k in range(entries):
                column = np.uint64(C_indices[place + k])
                slot = (column * GOLDEN) >> shift
                while keys[slot] != 0:
                    slot = (slot + ONE) & mask
                keys[slot] = column + ONE
                sums[slot] = 0
                slots[k] = slot
            for k in range(A_indptr[row], A_indptr[row + 1]):
                fetch_ahead(k, A_indices, B_indptr, B_indices, B_data)
                middle = A_indices[k]
                factor = A_data[k]
                for q in range(B_indptr[middle], B_indptr[middle + 1]):
                    column = np.uint64(B_indices[q])
                    slot = (column * GOLDEN) >> shift
                    while keys[slot] != column + ONE:
                        slot = (slot + ONE) & mask
                    sums[slot] += factor * B_data[q]
            for k in range(entries):
                C_data[place + k] = sums[slots[k]]
                keys[slots[k]] = 0
