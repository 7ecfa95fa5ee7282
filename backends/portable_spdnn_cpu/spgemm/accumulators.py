"""Kernels: three ways to add up rows of a sparse product.

- *Dense*: a sum for every column of B, and a bit for every column that was touched; scanning the
  bits gives the columns in order.
- *Hash*: open addressing with linear probing in a power of two of slots, at least twice as many
  as the row may have entries, so that it stays in the first caches however wide B is. What was
  inserted is sorted by column.
- *Sorted*: the products are listed, sorted by column, and neighbours in one column added up.

All begin a sum with 0 and add to it in the order of A's columns: the answers are equal to the
bit. Columns come out sorted. A kernel takes chunks of rows from a shared counter until none is
left; `row_shares` says which rows go where.

Bound: the scattered additions, served by the cache level that holds the accumulator.

Sources: the accumulators of Kokkos Kernels, and of Y. Nagasaka, S. Matsuoka, A. Azad, A. Buluc,
"Performance Optimization, Modeling and Analysis of Sparse Matrix-Matrix Products on Multi-Core
and Many-Core Processors", Parallel Computing 90 (2019); multiplicative hashing as in D. E. Knuth,
The Art of Computer Programming 3, section 6.4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu.jit.compilation import kernel
from portable_spdnn_cpu.jit.intrinsics import bit_length, fetch_add, trailing_zeros
from portable_spdnn_cpu.spgemm.epilogue import Target, finish_row
from portable_spdnn_cpu.spgemm.gustavson import GOLDEN, LOW_SIX, ONE, SIX, Rows, Share, fetch_ahead
from portable_spdnn_cpu.spgemm.radix_sort import sort_keys

Array = npt.NDArray[Any]


@kernel
def add_dense_rows(
    counter: Array,
    share: Share,
    A: Rows,
    B: Rows,
    bits: Array,
    sums: Array,
    target: Target,
    used: int,
    chunk: int,
) -> tuple[int, int]:
    """Write rows of A B, added up densely.

    Parameters
    ----------
    counter : ndarray
        The chunks of the share that have been handed out.
    share : Share
    A, B : Rows
    bits, sums : ndarray
        A bit and a sum for each column of B, zero before and after.
    target : Target
    used : int
        Where the first row goes, if rows are finished.
    chunk : int
        To begin with; -1 for one that the counter gives.

    Returns
    -------
    used, chunk : int
        After the last row; the chunk that has no room in the target, or one beyond the last.
    """
    A_indptr, A_indices, A_data = A.indptr, A.indices, A.data
    B_indptr, B_indices, B_data = B.indptr, B.indices, B.data
    rows, edges, places = share.rows, share.edges, target.places
    columns, values = target.columns, target.values
    while True:
        if chunk < 0:
            chunk = fetch_add(counter, 0, 1)
        if chunk >= share.rooms.size or used + share.rooms[chunk] > columns.size:
            return used, chunk
        for number in range(edges[chunk], edges[chunk + 1]):
            row = rows[number]
            for k in range(A_indptr[row], A_indptr[row + 1]):
                fetch_ahead(k, A_indices, B_indptr, B_indices, B_data)
                middle = A_indices[k]
                factor = A_data[k]
                for q in range(B_indptr[middle], B_indptr[middle + 1]):
                    column = np.uint64(B_indices[q])
                    sums[column] += factor * B_data[q]
                    bits[column >> SIX] |= ONE << (column & LOW_SIX)
            start = used if target.finish else places[row]
            place = start
            for position in range(bits.size):
                word = bits[position]
                if word:
                    bits[position] = 0
                    while word:
                        column = np.uint64(64 * position + trailing_zeros(word))
                        word &= word - ONE
                        columns[place] = column
                        values[place] = sums[column]
                        sums[column] = 0
                        place += 1
            if target.finish:
                used = finish_row(row, target, start, place)
        chunk = -1


@kernel
def add_hash_rows(
    counter: Array,
    share: Share,
    A: Rows,
    B: Rows,
    bounds: Array,
    keys: Array,
    sums: Array,
    order: Array,
    spare: Array,
    starts: Array,
    target: Target,
    used: int,
    chunk: int,
) -> tuple[int, int]:
    """Do what `add_dense_rows` does in a hash table.

    Parameters
    ----------
    bounds : ndarray of int64
        The most entries that each row may have.
    keys : ndarray
        Of the slots: the column + 1; 0, as before and after, where a slot is free.
    sums : ndarray
        Of the slots.
    order, spare, starts : ndarray
        For `sort_keys`: a column and, in the low bits, its slot.
    """
    A_indptr, A_indices, A_data = A.indptr, A.indices, A.data
    B_indptr, B_indices, B_data = B.indptr, B.indices, B.data
    rows, edges, places = share.rows, share.edges, target.places
    columns, values = target.columns, target.values
    zero = values.dtype.type(0)
    while True:
        if chunk < 0:
            chunk = fetch_add(counter, 0, 1)
        if chunk >= share.rooms.size or used + share.rooms[chunk] > columns.size:
            return used, chunk
        for number in range(edges[chunk], edges[chunk + 1]):
            row = rows[number]
            length = np.uint64(bit_length(np.uint64(2 * bounds[row] - 1)))
            mask = (ONE << length) - ONE
            shift = np.uint64(64) - length
            count = 0
            for k in range(A_indptr[row], A_indptr[row + 1]):
                fetch_ahead(k, A_indices, B_indptr, B_indices, B_data)
                middle = A_indices[k]
                factor = A_data[k]
                for q in range(B_indptr[middle], B_indptr[middle + 1]):
                    column = np.uint64(B_indices[q])
                    term = factor * B_data[q]
                    key = column + ONE
                    slot = (column * GOLDEN) >> shift
                    while True:
                        found = keys[slot]
                        if found == key:
                            sums[slot] += term
                            break
                        if found == 0:
                            keys[slot] = key
                            sums[slot] = zero + term
                            order[count] = np.int64(column << length | slot)
                            count += 1
                            break
                        slot = (slot + ONE) & mask
            sort_keys(order, spare, starts, count, length)
            place = used if target.finish else places[row]
            for k in range(count):
                key = np.uint64(order[k])
                slot = key & mask
                columns[place + k] = key >> length
                values[place + k] = sums[slot]
                keys[slot] = 0
            if target.finish:
                used = finish_row(row, target, place, place + count)
        chunk = -1


@kernel
def add_sorted_rows(
    counter: Array,
    share: Share,
    A: Rows,
    B: Rows,
    terms: Array,
    order: Array,
    spare: Array,
    starts: Array,
    target: Target,
    used: int,
    chunk: int,
) -> tuple[int, int]:
    """Do what `add_dense_rows` does by sorting the products.

    Parameters
    ----------
    terms : ndarray
        The products of a row.
    order, spare, starts : ndarray
        For `sort_keys`: a column and, in the low bits, the number of its product, which keeps
        those of one column in their order.
    """
    A_indptr, A_indices, A_data = A.indptr, A.indices, A.data
    B_indptr, B_indices, B_data = B.indptr, B.indices, B.data
    rows, edges, places = share.rows, share.edges, target.places
    columns, values = target.columns, target.values
    zero = values.dtype.type(0)
    length = np.uint64(bit_length(np.uint64(terms.size)))
    mask = (ONE << length) - ONE
    while True:
        if chunk < 0:
            chunk = fetch_add(counter, 0, 1)
        if chunk >= share.rooms.size or used + share.rooms[chunk] > columns.size:
            return used, chunk
        for number in range(edges[chunk], edges[chunk + 1]):
            row = rows[number]
            count = 0
            for k in range(A_indptr[row], A_indptr[row + 1]):
                fetch_ahead(k, A_indices, B_indptr, B_indices, B_data)
                middle = A_indices[k]
                factor = A_data[k]
                for q in range(B_indptr[middle], B_indptr[middle + 1]):
                    column = np.uint64(B_indices[q])
                    order[count] = np.int64(column << length | np.uint64(count))
                    terms[count] = factor * B_data[q]
                    count += 1
            if A_indptr[row + 1] - A_indptr[row] > 1:  # a row of B is in order
                sort_keys(order, spare, starts, count, length)
            start = used if target.finish else places[row]
            place = start - 1
            last = ~np.uint64(0)
            for k in range(count):
                key = np.uint64(order[k])
                column = key >> length
                term = terms[key & mask]
                if column != last:
                    last = column
                    place += 1
                    columns[place] = column
                    values[place] = zero + term
                else:
                    values[place] += term
            if target.finish:
                used = finish_row(row, target, start, place + 1)
        chunk = -1
