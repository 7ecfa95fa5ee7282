"""Rows of dense operands as microkernels read them: padded, on cache lines, K also transposed.

Or in place, where packing them would take longer than it saves.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from portable_spdnn_cpu.jit.compilation import Array, kernel, kernel_part, read_only
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.jit.jobs import LENGTH, address_of, array_at
from portable_spdnn_cpu.sddmm.microkernels import load_row
from portable_spdnn_cpu.sddmm.vectors import LANES
from portable_spdnn_cpu.tiles.copies import TRANSPOSE_BYTES, transpose_into_tile

ROWS_EACH = 256  # that a thread takes at a time; a whole number of panels
# Entries of a mask for each key up to which rows are read in place.
MOST_ENTRIES_PER_KEY = 8


# Where the rows of some heads lie in memory, which the caller keeps alive: a tuple of the address
# of the first item, the items from a head to the next, those from a row of a head to the next, how
# many a row has, and of a batch how many heads a member has, and the items from a member to the
# next. Items of a row are adjacent, and no others may be read: memory may end with the last row.
# Numba looks up the type of a tuple of integers in a quarter of the time of one with names.
ADDRESS, HEAD_STEP, ROW_STEP, COLUMNS, MEMBER_HEADS, MEMBER_STEP = range(6)
Heads: TypeAlias = tuple[int, int, int, int, int, int]


def few_entries(entries: int, keys: int) -> bool:
    """Whether a mask has so few entries that to pack rows of K would take longer than it saves."""
    return entries <= MOST_ENTRIES_PER_KEY * keys


def has_contiguous_rows(array: Array) -> bool:
    """Whether the items of each row are adjacent and aligned, and rows do not overlap.

    The array is of shape (heads, length, columns), or a batch of such. Heads, rows and members of a
    batch may be any number of items apart, as in a part of a larger array.
    """
    strides, item = array.strides, array.itemsize
    member, head, row = strides[0], strides[-3], strides[-2]  # of no batch the first two are one
    if strides[-1] != item or not array.flags.aligned:
        return False
    fine = member >= 0 and head >= 0 and row >= array.shape[-1] * item
    return fine and member % item == head % item == row % item == 0


def with_contiguous_rows(array: Array) -> Array:
    """Return an array as `has_contiguous_rows` takes it, or a copy if its rows are not so."""
    return array if has_contiguous_rows(array) else np.array(array, order="C")


def heads_of(array: Array) -> Heads:
    """Return where the rows of an array lie, which are contiguous."""
    strides, shape = array.strides, array.shape
    item = array.itemsize  # strides of an array without items may be 0
    head, row = strides[-3] // item, strides[-2] // item
    # Of no batch all heads are those of a member, and no other comes.
    return address_of(array), head, row, shape[-1], shape[-3], strides[0] // item


@kernel_part
def first_item(heads: Heads, head: int) -> int:
    """Return the number of a head's first item, heads being counted through a batch."""
    each = heads[MEMBER_HEADS]
    return head // each * heads[MEMBER_STEP] + head % each * heads[HEAD_STEP]


@kernel_part
def one_head(heads: Heads, head: int, itemsize: int) -> Heads:
    """Return a head alone."""
    address = heads[ADDRESS] + first_item(heads, head) * itemsize
    return address, 0, heads[ROW_STEP], heads[COLUMNS], 1, 0


@kernel_part
def rows_of_head(heads: Heads, head: int, length: int, dtype: Any) -> Array:
    """Return the rows of a head, with what lies between them as further columns."""
    address = one_head(heads, head, array_at(0, 1, dtype).itemsize)[ADDRESS]
    return array_at(address, (length, heads[ROW_STEP]), dtype)


def read_in_place(entries: int, *operands: Array) -> bool:
    """Whether a mask has few entries for each key, and rows of operands need no padding.

    Operands are of shape (heads, keys, columns).
    """
    if not few_entries(entries, operands[0].shape[1]):
        return False
    return all(
        K.shape[2] > 0 and K.shape[2] % LANES == 0 and has_contiguous_rows(K) for K in operands
    )


def in_place(array: Array) -> Array:
    """Return a read-only array of a row for each head, from its first item to the next one's.

    Kernels find rows of a head by the number of items between them, which may be beyond that.
    """
    heads, length, columns = array.shape
    if array.flags.c_contiguous:
        return read_only(array.reshape(heads, length * columns))
    head, _, item = array.strides
    return as_strided(array, (heads, head // item), (head, item), writeable=False)


@kernel
def pack_rows(counter: Array, sources: Heads, rows: Array, width: int) -> None:
    """Pack rows of heads: rows[h, width i ...] is row i of head h, padded to `width`."""
    heads, length = rows.shape[0], rows.shape[1] // width
    source = array_at(sources[ADDRESS], LENGTH, rows.dtype)
    chunks = (length + ROWS_EACH - 1) // ROWS_EACH
    while True:
        number = fetch_add(counter, 0, 1)
        if number >= heads * chunks:
            break
        head, first = number // chunks, number % chunks * ROWS_EACH
        start = first_item(sources, head)
        for row in range(first, min(first + ROWS_EACH, length)):
            begin = start + row * sources[ROW_STEP]
            load_row(source, begin, sources[COLUMNS], rows, (head * length + row) * width, width)


@kernel_part
def transpose_rows(
    source: Array, columns: int, first: int, end: int, panels: Array, width: int
) -> None:
    """panels[(width p + c) 16 + k] = source[16 p + k, c] for the panels of rows first .. end - 1.

    `first` is that of a panel; zeros stand for rows from `end` and columns from `columns` on.
    """
    side = TRANSPOSE_BYTES // panels.itemsize
    square = columns // side * side
    inputs = np.arange(first, first + LANES)
    for start in range(first, end, LANES):
        place = start * width
        panel = panels[place : place + LANES * width].reshape((width, LANES))
        count = min(LANES, end - start)
        done = 0
        if count == LANES:
            done = square
            for lane in range(LANES):
                inputs[lane] = start + lane
            for column in range(0, square, side):
                for lane in range(0, LANES, side):
                    transpose_into_tile(panel, None, column, lane, source, inputs)
        for column in range(done, columns):
            for lane in range(count):
                panel[column, lane] = source[start + lane, column]
            panel[column, count:] = 0
        panel[columns:] = 0
