"""Rows of dense operands as microkernels read them: padded, on cache lines, K also transposed.

Or in place, where packing them would take longer than it saves.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from portable_spdnn_cpu.jit.compilation import Array, kernel, kernel_part, read_only
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.sddmm.microkernels import load_row
from portable_spdnn_cpu.sddmm.vectors import LANES
from portable_spdnn_cpu.tiles.copies import TRANSPOSE_BYTES, transpose_into_tile

ROWS_EACH = 256  # that a thread takes at a time; a whole number of panels
# Entries of a mask for each key up to which rows are read in place.
MOST_ENTRIES_PER_KEY = 8


def few_entries(entries: int, keys: int) -> bool:
    """Whether a mask has so few entries that to pack rows of K would take longer than it saves."""
    return entries <= MOST_ENTRIES_PER_KEY * keys


def read_in_place(entries: int, *operands: Array) -> bool:
    """Whether a mask has few entries for each key, and rows of operands need no padding.

    Operands are of shape (heads, keys, columns); heads and keys may be any number of items apart,
    as those of a part of a larger array are.
    """
    if not few_entries(entries, operands[0].shape[1]):
        return False
    for K in operands:
        columns, (head, key, item) = K.shape[2], K.strides
        if columns == 0 or columns % LANES or item != K.itemsize or not K.flags.aligned:
            return False
        if min(head, key) < 0 or head % item or key % item:
            return False
    return True


def heads_in_place(K: Array) -> Array:
    """Return a read-only array in C order, in which row h begins where head h of K does.

    It may end before the head does: kernels find rows of K by the number of items between them.
    """
    heads, length, columns = K.shape
    if K.flags.c_contiguous:
        return read_only(K.reshape(heads, length * columns))
    head, _, item = K.strides
    return as_strided(K, (heads, head // item), (head, item), writeable=False)


@kernel
def pack_rows(counter: Array, sources: Array, rows: Array, width: int) -> None:
    """rows[h, width i ...] = sources[h, i], padded to `width`; both in C order."""
    heads, length, columns = sources.shape
    chunks = (length + ROWS_EACH - 1) // ROWS_EACH
    while True:
        number = fetch_add(counter, 0, 1)
        if number >= heads * chunks:
            break
        head, first = number // chunks, number % chunks * ROWS_EACH
        for row in range(head * length + first, head * length + min(first + ROWS_EACH, length)):
            load_row(sources, row * columns, columns, rows, row * width, width)


@kernel_part
def transpose_rows(source: Array, first: int, end: int, panels: Array, width: int) -> None:
    """panels[(width p + c) 16 + k] = source[16 p + k, c] for the panels of rows first .. end - 1.

    `first` is that of a panel; zeros stand for rows from `end` and columns from source's width on.
    """
    columns = source.shape[1]
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
