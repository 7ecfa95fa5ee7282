"""Kernels of the numeric phase: rows of a product added up, in one accumulator each.

They take some rows of the result by their numbers, the product, the accumulator's memory, and the
sink that rows go to. Where that is fused, they begin at `used`, apply the epilogue, and return
where the next row goes. Those named `refill` find the columns in the sink, and write values alone.

Bound: as in `symbolic`, with the values of B to be read as well. An addition reads and writes a
scattered place of the accumulator; the multiplication costs little beside it. On top of that come,
for each row, a scan of n / 64 words of bits (dense), probes and a sort of the columns found
(hash), or a sort of all products (sorted). `row_bins` has what they cost.

Numbers of B's entries are unsigned (see `jit.compilation`), as its indices are: a twentieth of the
time.
"""

from __future__ import annotations

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel_part
from portable_spdnn_cpu.jit.intrinsics import bit_length, trailing_zeros
from portable_spdnn_cpu.spgemm.accumulators import (
    GOLDEN,
    RowWorkspace,
    hash_shape,
    prefetch_ahead,
    unite_bitmaps,
)
from portable_spdnn_cpu.spgemm.epilogue import RowSink, apply_epilogue
from portable_spdnn_cpu.spgemm.operands import LOW_SIX, ONE, SIX, CsrOperand, Product
from portable_spdnn_cpu.spgemm.radix_sort import sort_keys


@kernel_part
def add_to_sums(row: int, A: CsrOperand, B: CsrOperand, sums: Array) -> None:
    """Add a row of A B to the sums of its columns; values of B that are all one are not read."""
    A_indptr, A_indices, A_data = A.indptr, A.indices, A.data
    B_indptr, B_indices, B_data = B.indptr, B.indices, B.data
    if np.isnan(B.uniform):
        for k in range(A_indptr[row], A_indptr[row + 1]):
            middle = A_indices[k]
            factor = A_data[k]
            for q in range(np.uint64(B_indptr[middle]), np.uint64(B_indptr[middle + 1])):
                sums[B_indices[q]] += factor * B_data[q]
    else:
        for k in range(A_indptr[row], A_indptr[row + 1]):
            middle = A_indices[k]
            term = A_data[k] * B.uniform
            for q in range(np.uint64(B_indptr[middle]), np.uint64(B_indptr[middle + 1])):
                sums[B_indices[q]] += term


@kernel_part
def add_dense(rows: Array, product: Product, work: RowWorkspace, sink: RowSink, used: int) -> int:
    """Add up rows densely; bits marked on the way, or bitmaps of B, tell the columns."""
    A, B, _ = product
    A_indptr, A_indices, A_data = A.indptr, A.indices, A.data
    B_indptr, B_indices, B_data = B.indptr, B.indices, B.data
    bits, sums = work.bits, work.sums
    starts, columns, values = sink.starts, sink.columns, sink.values
    for row in rows:
        if B.bitmaps.size:
            unite_bitmaps(A_indptr[row], A_indptr[row + 1], A_indices, B.bitmaps, bits)
            add_to_sums(row, A, B, sums)
        else:
            for k in range(A_indptr[row], A_indptr[row + 1]):
                prefetch_ahead(k, A_indices, B_indptr, B_indices, B_data)
                middle = A_indices[k]
                factor = A_data[k]
                for q in range(np.uint64(B_indptr[middle]), np.uint64(B_indptr[middle + 1])):
                    column = np.uint64(B_indices[q])
                    sums[column] += factor * B_data[q]
                    bits[column >> SIX] |= ONE << (column & LOW_SIX)
        start = used if sink.fused else starts[row]
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
        if sink.fused:
            used = apply_epilogue(row, sink, start, place)
    return used


@kernel_part
def refill_dense(rows: Array, product: Product, work: RowWorkspace, sink: RowSink) -> None:
    """Add up rows densely, then read the sums of the known columns."""
    A, B, entries = product
    sums = work.sums
    starts, columns, values = sink.starts, sink.columns, sink.values
    for row in rows:
        add_to_sums(row, A, B, sums)
        for k in range(starts[row], starts[row] + entries[row]):
            column = np.uint64(columns[k])
            values[k] = sums[column]
            sums[column] = 0


@kernel_part
def add_hash(rows: Array, product: Product, work: RowWorkspace, sink: RowSink, used: int) -> int:
    """Add up rows in a hash table, and sort what was inserted."""
    A, B, bounds = product
    A_indptr, A_indices, A_data = A.indptr, A.indices, A.data
    B_indptr, B_indices, B_data = B.indptr, B.indices, B.data
    keys, sums, order, spare, digits = work.keys, work.sums, work.order, work.spare, work.digits
    starts, columns, values = sink.starts, sink.columns, sink.values
    zero = values.dtype.type(0)
    for row in rows:
        length, mask, shift = hash_shape(bounds[row])
        count = 0
        for k in range(A_indptr[row], A_indptr[row + 1]):
            prefetch_ahead(k, A_indices, B_indptr, B_indices, B_data)
            middle = A_indices[k]
            factor = A_data[k]
            for q in range(np.uint64(B_indptr[middle]), np.uint64(B_indptr[middle + 1])):
                column = np.uint64(B_indices[q])
                term = factor * B_data[q]
                key = column + ONE
                slot = (column * GOLDEN) >> shift
                # A branch for each outcome: a loop that ends on both and a test after it are
                # predicted worse, and take a third longer where hardly two products meet.
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
        sort_keys(order, spare, digits, count, length)
        start = used if sink.fused else starts[row]
        for k in range(count):
            key = np.uint64(order[k])
            slot = key & mask
            columns[start + k] = key >> length
            values[start + k] = sums[slot]
            keys[slot] = 0
        if sink.fused:
            used = apply_epilogue(row, sink, start, start + count)
    return used


@kernel_part
def refill_hash(rows: Array, product: Product, work: RowWorkspace, sink: RowSink) -> None:
    """Enter the known columns of a row into the table, then add products, which all find one."""
    A, B, entries = product
    A_indptr, A_indices, A_data = A.indptr, A.indices, A.data
    B_indptr, B_indices, B_data = B.indptr, B.indices, B.data
    keys, sums, slots = work.keys, work.sums, work.order
    starts, columns, values = sink.starts, sink.columns, sink.values
    for row in rows:
        start = starts[row]
        _, mask, shift = hash_shape(entries[row])
        for k in range(entries[row]):
            column = np.uint64(columns[start + k])
            slot = (column * GOLDEN) >> shift
            while keys[slot] != 0:
                slot = (slot + ONE) & mask
            keys[slot] = column + ONE
            sums[slot] = 0
            slots[k] = slot
        for k in range(A_indptr[row], A_indptr[row + 1]):
            prefetch_ahead(k, A_indices, B_indptr, B_indices, B_data)
            middle = A_indices[k]
            factor = A_data[k]
            for q in range(np.uint64(B_indptr[middle]), np.uint64(B_indptr[middle + 1])):
                column = np.uint64(B_indices[q])
                slot = (column * GOLDEN) >> shift
                while keys[slot] != column + ONE:
                    slot = (slot + ONE) & mask
                sums[slot] += factor * B_data[q]
        for k in range(entries[row]):
            values[start + k] = sums[slots[k]]
            keys[slots[k]] = 0


@kernel_part
def add_sorted(rows: Array, product: Product, work: RowWorkspace, sink: RowSink, used: int) -> int:
    """List the products of a row, sort them by column, and add up neighbours in one column."""
    A, B, _ = product
    A_indptr, A_indices, A_data = A.indptr, A.indices, A.data
    B_indptr, B_indices, B_data = B.indptr, B.indices, B.data
    terms, order, spare, digits = work.sums, work.order, work.spare, work.digits
    starts, columns, values = sink.starts, sink.columns, sink.values
    zero = values.dtype.type(0)
    length = np.uint64(bit_length(np.uint64(terms.size)))
    mask = (ONE << length) - ONE
    for row in rows:
        count = 0
        for k in range(A_indptr[row], A_indptr[row + 1]):
            prefetch_ahead(k, A_indices, B_indptr, B_indices, B_data)
            middle = A_indices[k]
            factor = A_data[k]
            for q in range(np.uint64(B_indptr[middle]), np.uint64(B_indptr[middle + 1])):
                column = np.uint64(B_indices[q])
                # The number of the product keeps those of one column in the order of A's columns.
                order[count] = np.int64(column << length | np.uint64(count))
                terms[count] = factor * B_data[q]
                count += 1
        if A_indptr[row + 1] - A_indptr[row] > 1:  # a row of B is in order
            sort_keys(order, spare, digits, count, length)
        start = used if sink.fused else starts[row]
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
        if sink.fused:
            used = apply_epilogue(row, sink, start, place + 1)
    return used
