"""The stream kernel: C = A B for pruned weights A, panel by panel of B's columns.

For each block of A's columns, the rows of B in it, as wide as a panel, are copied together so that
they stay in a cache: rows of B itself lie apart, so that they compete for the same sets of it, and
rarely start on a cache line. Then all rows of A are multiplied with them. Between blocks sums wait
in memory; the last block finishes them. Very sparse weights use few of the rows that a copy would
bring near: where rows of B start on cache lines, those are read in place, from the second level.

Bound, besides that of the microkernel: what is not an entry's work. Each vector of B is copied,
each of C is written, and between blocks each of the sums is read and written, at the rate of the
second-level cache: about 4 cycles each, as many as eight multiply-adds take.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from portable_spdnn_cpu.activations import RELU, activate_span
from portable_spdnn_cpu.jit.compilation import Array, kernel_part
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.jit.jobs import array_at, float_of, job
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.stream.microkernels import copy_row, stream_row
from portable_spdnn_cpu.tiles.copies import (
    TRANSPOSE_BYTES,
    transpose_from_tile,
    transpose_into_tile,
)

# Words of a job. Addresses are of the first item; strides count items; 0 is no address.
(
    WORKERS, COUNTERS, ITEMS, PARTS, K, COLUMNS, WIDTH, K_BLOCK, PANEL_STRIDE, IN_PLACE,
    B, B_STRIDE, B_TURNED, OUT, OUT_STRIDE, OUT_TURNED, RESIDUAL, RESIDUAL_STRIDE,
    BIAS, ACTIVATION, LOWER, UPPER, BOUNDED, WORKSPACE, WORKSPACE_BYTES, SUMS_BYTES, FIRST_PART,
) = range(27)  # fmt: skip
# Words of each part, from FIRST_PART on. Where ROWS is 0, A is not packed: there is one block, and
# COUNTS is A's indptr.
BEGIN, END, BLOCKS, ROWS, COUNTS, FIRST_ROW, FIRST_ENTRY, OFFSETS, VALUES, PART_WORDS = range(10)

# Arrays at addresses have no known length; this bounds any slice of one.
LENGTH = 1 << 48


@kernel_part
def multiply_items(worker: int, words: Array, dtype: Any, offset_dtype: Any) -> None:
    """Compute panels of C, each for a part of its rows, until none is left.

    Each worker has a range of items, the same in every call, so that it finds in its caches what
    it left there, and then helps the others with theirs. Item i is part i % PARTS of panel
    i // PARTS.

    Words
    -----
    WORKERS, COUNTERS, ITEMS, PARTS
        How many there are; of each worker the items that it has taken of its range, from 0.
    K, COLUMNS, WIDTH
        Rows of B, its columns, and those of a panel.
    K_BLOCK, PANEL_STRIDE
        Rows of B in a block; items from a row of a copied panel to the next.
    IN_PLACE
        Whether panels are read in B, which has rows of whole vector blocks, and A one block.
    B, B_STRIDE, B_TURNED
        Item (k, j) lies at k x stride + j, or j x stride + k where it is turned.
    OUT, OUT_STRIDE, OUT_TURNED
        C, likewise.
    RESIDUAL, RESIDUAL_STRIDE
        Never turned, and then C is not.
    BIAS
        An item for each row of C.
    ACTIVATION, LOWER, UPPER, BOUNDED
        The activation's code, the bits of its bounds as float64, and whether they are finite.
    WORKSPACE, WORKSPACE_BYTES, SUMS_BYTES
        Memory, aligned on vector blocks, so much of it for each worker: sums, and then a panel.
    """
    workers = words[WORKERS]
    counters = array_at(words[COUNTERS], workers, np.int64)
    for step in range(workers):
        whose = (worker + step) % workers
        first, end = whose * words[ITEMS] // workers, (whose + 1) * words[ITEMS] // workers
        while True:
            item = first + fetch_add(counters, whose, 1)
            if item >= end:
                break
            multiply_item(item, worker, words, dtype, offset_dtype)


@kernel_part
def multiply_item(item: int, worker: int, words: Array, dtype: Any, offset_dtype: Any) -> None:
    """Compute one panel of C, for one part of its rows."""
    part = FIRST_PART + PART_WORDS * (item % words[PARTS])
    column = item // words[PARTS] * words[WIDTH]
    columns = min(words[WIDTH], words[COLUMNS] - column)
    lanes = BLOCK_BYTES // array_at(0, 1, dtype).itemsize
    blocks = -(-columns // lanes)
    # A width that the compiler knows.
    if blocks == 1:
        multiply_panel((0,), worker, words, part, column, columns, dtype, offset_dtype)
    elif blocks == 2:
        multiply_panel((0,) * 2, worker, words, part, column, columns, dtype, offset_dtype)
    elif blocks == 3:
        multiply_panel((0,) * 3, worker, words, part, column, columns, dtype, offset_dtype)
    elif blocks == 4:
        multiply_panel((0,) * 4, worker, words, part, column, columns, dtype, offset_dtype)
    elif blocks == 5:
        multiply_panel((0,) * 5, worker, words, part, column, columns, dtype, offset_dtype)
    elif blocks == 6:
        multiply_panel((0,) * 6, worker, words, part, column, columns, dtype, offset_dtype)
    elif blocks == 7:
        multiply_panel((0,) * 7, worker, words, part, column, columns, dtype, offset_dtype)
    else:
        multiply_panel((0,) * 8, worker, words, part, column, columns, dtype, offset_dtype)


@kernel_part
def multiply_panel(
    blocks: tuple[int, ...],
    worker: int,
    words: Array,
    part: int,
    column: int,
    columns: int,
    dtype: Any,
    offset_dtype: Any,
) -> None:
    """Compute `columns` columns of C from `column` on, for the rows of one part."""
    itemsize = array_at(0, 1, dtype).itemsize
    lanes = BLOCK_BYTES // itemsize
    width = len(blocks) * lanes
    begin, end = words[part + BEGIN], words[part + END]
    packed = words[part + ROWS] != 0
    rows = array_at(words[part + ROWS], LENGTH, np.int32)
    counts = array_at(words[part + COUNTS], LENGTH, np.int32)
    indptr = array_at(words[part + COUNTS], LENGTH, np.int64)
    first_row = array_at(words[part + FIRST_ROW], LENGTH, np.int64)
    first_entry = array_at(words[part + FIRST_ENTRY], LENGTH, np.int64)
    offsets = array_at(words[part + OFFSETS], LENGTH, offset_dtype)
    values = array_at(words[part + VALUES], LENGTH, dtype)
    bias = array_at(words[BIAS], LENGTH, dtype)
    residual = array_at(words[RESIDUAL], LENGTH, dtype)
    code = words[ACTIVATION]
    low, high = float_of(words[LOWER]), float_of(words[UPPER])
    lower, upper = dtype(low), dtype(high)
    bounded = words[BOUNDED] != 0 and code <= RELU
    own = words[WORKSPACE] + worker * words[WORKSPACE_BYTES]
    sums = array_at(own, LENGTH, dtype)
    stride, source = words[PANEL_STRIDE], own + words[SUMS_BYTES]
    if words[IN_PLACE]:
        stride, source = words[B_STRIDE], words[B] + column * itemsize
    panel = array_at(source, LENGTH, dtype)
    out = sums if words[OUT_TURNED] else array_at(words[OUT], LENGTH, dtype)
    last = words[part + BLOCKS] - 1
    for block in range(last + 1):
        if not words[IN_PLACE]:
            first = block * words[K_BLOCK]
            stop = min(first + words[K_BLOCK], words[K])
            copy_panel(blocks, words, source, first, stop, column, columns, dtype)
        top, bottom, entry = 0, end - begin, 0
        if packed:
            top, bottom, entry = first_row[block], first_row[block + 1], first_entry[block]
        for place in range(top, bottom):
            if packed:
                row, count = int(rows[place]), int(counts[place])
            else:
                row = begin + place
                entry, count = indptr[row], indptr[row + 1] - indptr[row]
            waiting = (row - begin) * width
            sums_at = waiting if block else -1
            residual_at = -1
            if words[RESIDUAL]:
                residual_at = row * words[RESIDUAL_STRIDE] + column
            added = bias[row] if words[BIAS] else dtype(0)
            if block < last:
                stream_row(
                    blocks, panel, stride, offsets, values, entry, count, sums, sums_at, added,
                    residual, residual_at, sums, waiting, width, lower, upper, False,
                )  # fmt: skip
            else:
                to, kept = row * words[OUT_STRIDE] + column, columns
                if words[OUT_TURNED]:
                    to, kept = waiting, width
                stream_row(
                    blocks, panel, stride, offsets, values, entry, count, sums, sums_at, added,
                    residual, residual_at, out, to, kept, lower, upper, bounded,
                )  # fmt: skip
                if code > RELU:
                    activate_span(out, to, to + columns, code, low, high)
            entry += count
    if words[OUT_TURNED]:
        store_turned(
            words, own - begin * width * itemsize, width, begin, end, column, columns, dtype
        )


@kernel_part
def copy_panel(
    blocks: tuple[int, ...],
    words: Array,
    address: int,
    first: int,
    stop: int,
    column: int,
    columns: int,
    dtype: Any,
) -> None:
    """Copy rows first .. stop - 1 of B, from `column` on, to a panel at an address."""
    itemsize = array_at(0, 1, dtype).itemsize
    stride = words[PANEL_STRIDE]
    if not words[B_TURNED]:
        panel, B_items = array_at(address, LENGTH, dtype), array_at(words[B], LENGTH, dtype)
        for k in range(first, stop):
            start = k * words[B_STRIDE] + column
            copy_row(blocks, panel, (k - first) * stride, B_items, start, columns)
        return
    # Squares are turned in registers, and what is left over at two sides item by item. Row k of B
    # is row k of a tile that would begin `first` rows before the panel.
    tile = array_at(address - first * stride * itemsize, (stop, stride), dtype)
    side = TRANSPOSE_BYTES // itemsize
    lines = array_at(
        words[B] + column * words[B_STRIDE] * itemsize, (columns, words[B_STRIDE]), dtype
    )
    numbers = np.arange(columns)
    square, whole = columns // side * side, first + (stop - first) // side * side
    for c in range(0, square, side):
        for k in range(first, whole, side):
            transpose_into_tile(tile, None, k, c, lines, numbers)
    for c in range(columns):
        for k in range(whole if c < square else first, stop):
            tile[k, c] = lines[c, k]
    width = len(blocks) * BLOCK_BYTES // itemsize
    if columns < width:
        for k in range(first, stop):
            tile[k, columns:width] = 0


@kernel_part
def store_turned(
    words: Array,
    address: int,
    width: int,
    begin: int,
    end: int,
    column: int,
    columns: int,
    dtype: Any,
) -> None:
    """Write rows begin .. end - 1 of a tile of sums to C, whose columns lie together.

    The tile would begin at an address; it is `width` items wide.
    """
    itemsize = array_at(0, 1, dtype).itemsize
    tile = array_at(address, (end, width), dtype)
    lines = array_at(
        words[OUT] + column * words[OUT_STRIDE] * itemsize, (columns, words[OUT_STRIDE]), dtype
    )
    side = TRANSPOSE_BYTES // itemsize
    numbers = np.arange(columns)
    square, whole = columns // side * side, begin + (end - begin) // side * side
    for c in range(0, square, side):
        for row in range(begin, whole, side):
            transpose_from_tile(tile, None, row, c, lines, numbers)
    for c in range(columns):
        for row in range(whole if c < square else begin, end):
            lines[c, row] = tile[row, c]


@job
def multiply_short_float32(worker: int, words: Array) -> None:
    """Multiply float32 with offsets of 16 bits."""
    multiply_items(worker, words, np.float32, np.uint16)


@job
def multiply_float32(worker: int, words: Array) -> None:
    """Multiply float32 with rows of B as offsets."""
    multiply_items(worker, words, np.float32, np.int32)


@job
def multiply_short_float64(worker: int, words: Array) -> None:
    """Multiply float64 with offsets of 16 bits."""
    multiply_items(worker, words, np.float64, np.uint16)


@job
def multiply_float64(worker: int, words: Array) -> None:
    """Multiply float64 with rows of B as offsets."""
    multiply_items(worker, words, np.float64, np.int32)
