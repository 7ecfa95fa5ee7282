"""Rows of dense operands as microkernels read them: padded, on cache lines, K also transposed.

Or in place, where packing them would take longer than it saves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from portable_spdnn_cpu.jit.compilation import Array, kernel, kernel_part, read_only
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.jit.jobs import array_at
from portable_spdnn_cpu.sddmm.microkernels import load_row
from portable_spdnn_cpu.sddmm.vectors import LANES
from portable_spdnn_cpu.tiles.copies import TRANSPOSE_BYTES, transpose_into_tile

ROWS_EACH = 256  # that a thread takes at a time; a whole number of panels
# Entries of a mask for each key up to which rows are read in place.
MOST_ENTRIES_PER_KEY = 8


def few_entries(entries: int, keys: int) -> bool:
    """Whether a mask has so few entries that to pack rows of K would take longer than it saves."""
    return entries <= MOST_ENTRIES_PER_KEY * keys


class Heads(NamedTuple):
    """Rows of some heads, where they lie in memory.

    Attributes
    ----------
    rows : ndarray, shape (heads, step from head to head), read-only, in C order
        From the first item of each head to where the next one begins. Row i of head h begins i
        times `step` items behind the first of rows[h], which may be beyond that, as where heads are
        interleaved.
    step : int
        Items from a row of a head to the next.
    columns : int
        Items of a row.
    """

    rows: Array
    step: int
    columns: int


def has_contiguous_rows(array: Array) -> bool:
    """Whether the items of each row are adjacent and aligned, and rows do not overlap.

    The array is of shape (heads, length, columns). Heads and rows may be any number of items apart,
    as in a part of a larger array.
    """
    (head, row, item), columns = array.strides, array.shape[2]
    if item != array.itemsize or not array.flags.aligned:
        return False
    return head >= 0 and row >= columns * item and head % item == row % item == 0


def heads_of(array: Array) -> Heads:
    """Return the rows of an array of shape (heads, length, columns).

    One whose rows are not contiguous is copied before.
    """
    heads, length, columns = array.shape
    in_c_order = array.flags.c_contiguous and array.flags.aligned
    if not (in_c_order or has_contiguous_rows(array)):
        array = np.array(array, order="C")
    if array.flags.c_contiguous:
        return Heads(read_only(array.reshape(heads, length * columns)), columns, columns)
    head, row, item = array.strides
    rows = as_strided(array, (heads, head // item), (head, item), writeable=False)
    return Heads(rows, row // item, columns)


@kernel_part
def one_head(heads: Heads, head: int) -> Heads:
    """Return a head alone."""
    return Heads(heads.rows[head : head + 1], heads.step, heads.columns)


@kernel_part
def rows_of_head(heads: Heads, head: int, length: int) -> Array:
    """Return the rows of a head, with what lies between them as further columns.

    Only the first `heads.columns` items of a row may be read: memory may end with the last row.
    """
    rows = heads.rows
    address = rows.ctypes.data + head * rows.shape[1] * rows.itemsize
    return array_at(address, (length, heads.step), rows.dtype)


def read_in_place(entries: int, *operands: Array) -> bool:
    """Whether a mask has few entries for each key, and rows of operands need no padding.

    Operands are of shape (heads, keys, columns).
    """
    if not few_entries(entries, operands[0].shape[1]):
        return False
    return all(
        K.shape[2] > 0 and K.shape[2] % LANES == 0 and has_contiguous_rows(K) for K in operands
    )


@kernel
def pack_rows(counter: Array, sources: Heads, rows: Array, width: int) -> None:
    """Pack rows of heads: rows[h, width i ...] is row i of head h, padded to `width`."""
    heads, length, source = rows.shape[0], rows.shape[1] // width, sources.rows
    chunks = (length + ROWS_EACH - 1) // ROWS_EACH
    while True:
        number = fetch_add(counter, 0, 1)
        if number >= heads * chunks:
            break
        head, first = number // chunks, number % chunks * ROWS_EACH
        for row in range(first, min(first + ROWS_EACH, length)):
            begin, place = (
                head * source.shape[1] + row * sources.step,
                (head * length + row) * width,
            )
            load_row(source, begin, sources.columns, rows, place, width)


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
