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
from numba.np.numpy_support import carray

from portable_spdnn_cpu.activations import RELU, activate_span
from portable_spdnn_cpu.jit.compilation import Array, kernel_part
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.jit.jobs import array_at, float_of, job
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.stream.microkernels import copy_row, finish_row, sum_row
from portable_spdnn_cpu.tiles.copies import (
    TRANSPOSE_BYTES,
    transpose_from_tile,
    transpose_into_tile,
)

# Words of a job. Addresses are of the first item; strides count items; 0 is no address.
(
    WORKERS, COUNTERS, TASKS, PARTS, K, COLUMNS, WIDTH, PANELS, K_BLOCK, IN_PLACE,
    B, B_STRIDE, B_FORTRAN, OUT, OUT_STRIDE, OUT_FORTRAN, RESIDUAL, RESIDUAL_STRIDE,
    BIAS, ACTIVATION, LOWER, UPPER, BOUNDED, WORKSPACE, WORKSPACE_BYTES, SUMS_BYTES, FIRST_PART,
) = range(27)  # fmt: skip
# Words of each part, from FIRST_PART on. Where ROWS is 0, A is not packed: there is one block, and
# COUNTS is A's indptr.
BEGIN, END, BLOCKS, ROWS, COUNTS, FIRST_ROW, FIRST_ENTRY, OFFSETS, VALUES, PART_WORDS = range(10)

# Arrays at addresses have no known length; this bounds any slice of one.
LENGTH = 1 << 48


@kernel_part
def multiply_tasks(worker: int, words: Array, dtype: Any, offset_dtype: Any) -> None:
    """Compute tasks, each some panels of C for a part of its rows, until none is left.

    Each worker has a range of tasks, the same in every call, so that it finds in its caches what
    it left there, and then helps the others with theirs. Task i is group i % GROUPS of panels of
    part i // GROUPS, so that threads share rows where there is a part for each: a cache line of C
    that several write to goes to and fro between them.

    Words
    -----
    WORKERS, COUNTERS, TASKS, PARTS
        How many there are; where among the words those are in which each worker counts, from 0,
        what was taken of its tasks.
    K, COLUMNS, WIDTH, PANELS
        Rows of B, its columns, those of a panel, and panels of a group.
    K_BLOCK
        Rows of B in a block.
    IN_PLACE
        Whether panels are read in B, which has rows of whole vectors, and A is one block.
    B, B_STRIDE, B_FORTRAN
        Item (k, j) lies at k x stride + j, or j x stride + k in Fortran order.
    OUT, OUT_STRIDE, OUT_FORTRAN
        C, likewise.
    RESIDUAL, RESIDUAL_STRIDE
        Never in Fortran order, and then C is not.
    BIAS
        An item for each row of C.
    ACTIVATION, LOWER, UPPER, BOUNDED
        The activation's code, the bits of its bounds as float64, and whether they are finite.
    WORKSPACE, WORKSPACE_BYTES, SUMS_BYTES
        Memory, aligned on vectors, so much of it for each worker: sums, and then the panels.
    """
    workers = words[WORKERS]
    counters, taken = words[COUNTERS], carray(words, 1)  # type: ignore[call-overload]
    for step in range(workers):
        whose = (worker + step) % workers
        first, end = whose * words[TASKS] // workers, (whose + 1) * words[TASKS] // workers
        while True:
            task = first + fetch_add(taken, counters + whose, 1)
            if task >= end:
                break
            multiply_task(task, worker, words, dtype, offset_dtype)


@kernel_part
def multiply_task(task: int, worker: int, words: Array, dtype: Any, offset_dtype: Any) -> None:
    """Compute a group of panels of C, for one part of its rows."""
    groups = words[TASKS] // words[PARTS]
    part = FIRST_PART + PART_WORDS * (task // groups)
    width = words[WIDTH]
    column = task % groups * words[PANELS] * width
    columns = min(words[PANELS] * width, words[COLUMNS] - column)
    panels, rest = columns // width, columns % width
    if panels:
        multiply_columns(panels, worker, words, part, column, panels * width, dtype, offset_dtype)
    if rest:
        column += panels * width
        multiply_columns(1, worker, words, part, column, rest, dtype, offset_dtype)


@kernel_part
def multiply_columns(
    panels: int,
    worker: int,
    words: Array,
    part: int,
    column: int,
    columns: int,
    dtype: Any,
    offset_dtype: Any,
) -> None:
    """Compute `columns` columns of C from `column` on, by a kernel whose width is a constant."""
    args = panels, worker, words, part, column, columns, dtype, offset_dtype
    lanes = BLOCK_BYTES // array_at(0, 1, dtype).itemsize
    vectors = -(-columns // panels // lanes)
    if vectors == 1:
        multiply_panels((0,), *args)
    elif vectors == 2:
        multiply_panels((0,) * 2, *args)
    elif vectors == 3:
        multiply_panels((0,) * 3, *args)
    elif vectors == 4:
        multiply_panels((0,) * 4, *args)
    elif vectors == 5:
        multiply_panels((0,) * 5, *args)
    elif vectors == 6:
        multiply_panels((0,) * 6, *args)
    elif vectors == 7:
        multiply_panels((0,) * 7, *args)
    else:
        multiply_panels((0,) * 8, *args)


@kernel_part
def multiply_panels(
    vectors: tuple[int, ...],
    panels: int,
    worker: int,
    words: Array,
    part: int,
    column: int,
    columns: int,
    dtype: Any,
    offset_dtype: Any,
) -> None:
    """Compute `columns` columns of C from `column` on, for the rows of one part.

    Rows are the outer loop: a row's entries serve one panel after the other from the first-level
    cache, and its count is predicted but for the first.
    """
    itemsize = array_at(0, 1, dtype).itemsize
    lanes = BLOCK_BYTES // itemsize
    width = len(vectors) * lanes
    kept = columns - (panels - 1) * width  # of the last panel, which alone may have less
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
    has_bias = words[BIAS] != 0
    residual = array_at(words[RESIDUAL], LENGTH, dtype)
    residual_stride = words[RESIDUAL_STRIDE]
    code = words[ACTIVATION]
    low, high = float_of(words[LOWER]), float_of(words[UPPER])
    lower, upper = dtype(low), dtype(high)
    bounded = words[BOUNDED] != 0 and code <= RELU  # otherwise bounds follow the activation
    own = words[WORKSPACE] + worker * words[WORKSPACE_BYTES]
    sums = array_at(own, LENGTH, dtype)
    stride, source = words[WIDTH], own + words[SUMS_BYTES]
    panel_step = words[K_BLOCK] * stride
    if words[IN_PLACE]:
        stride, source, panel_step = words[B_STRIDE], words[B] + column * itemsize, width
    source_items = array_at(source, LENGTH, dtype)
    sums_step = (end - begin) * width
    # C in Fortran order is stored where sums wait, and transposed at the end.
    to_sums = words[OUT_FORTRAN] != 0
    out, out_stride, out_step, first_out = sums, width, sums_step, -begin * width
    if not to_sums:
        out, out_stride = array_at(words[OUT], LENGTH, dtype), words[OUT_STRIDE]
        out_step, first_out = width, column
    has_residual = words[RESIDUAL] != 0
    adds = has_bias or has_residual
    last = words[part + BLOCKS] - 1
    for block in range(last + 1):
        if not words[IN_PLACE]:
            first = block * words[K_BLOCK]
            stop = min(first + words[K_BLOCK], words[K])
            for panel in range(panels):
                copy_panel(
                    vectors, words, source + panel * panel_step * itemsize, first, stop,
                    column + panel * width, width if panel < panels - 1 else kept, dtype,
                )  # fmt: skip
        top, bottom, entry = 0, end - begin, 0
        if packed:
            top, bottom, entry = first_row[block], first_row[block + 1], first_entry[block]
        later = block > 0
        if block < last:
            for place in range(np.uintp(top), np.uintp(bottom)):
                count, waiting = int(counts[place]), (rows[place] - begin) * width
                for panel in range(panels):
                    sum_row(
                        vectors, source_items, panel * panel_step, stride, offsets, values,
                        entry, count, sums, waiting + panel * sums_step, later,
                    )  # fmt: skip
                entry += count
            continue
        for place in range(np.uintp(top), np.uintp(bottom)):
            if packed:
                row, count = np.uintp(rows[place]), int(counts[place])
            else:
                row = np.uintp(begin) + place
                entry, count = indptr[row], indptr[row + np.uintp(1)] - indptr[row]
            waiting = (int(row) - begin) * width
            to = int(row) * out_stride + first_out
            residual_at = int(row) * residual_stride + column if has_residual else -1
            added = bias[row] if has_bias else dtype(0)
            for panel in range(panels):
                stored = kept if panel == panels - 1 and not to_sums else width
                finish_row(
                    vectors, source_items, panel * panel_step, stride, offsets, values,
                    entry, count, sums, waiting, later, adds, added, residual, residual_at,
                    out, to, stored, lower, upper, bounded,
                )  # fmt: skip
                if code > RELU:
                    activate_span(out, to, to + stored, code, low, high)
                waiting += sums_step
                to += out_step
                if has_residual:
                    residual_at += width
            entry += count
    if to_sums:
        for panel in range(panels):
            store_columns(
                words, own + (panel * sums_step - begin * width) * itemsize, width, begin, end,
                column + panel * width, width if panel < panels - 1 else kept, dtype,
            )  # fmt: skip


@kernel_part
def copy_panel(
    vectors: tuple[int, ...],
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
    stride = words[WIDTH]
    if not words[B_FORTRAN]:
        panel, B_items = array_at(address, LENGTH, dtype), array_at(words[B], LENGTH, dtype)
        for k in range(first, stop):
            start = k * words[B_STRIDE] + column
            copy_row(vectors, panel, (k - first) * stride, B_items, start, columns)
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
    width = len(vectors) * BLOCK_BYTES // itemsize
    if columns < width:
        for k in range(first, stop):
            tile[k, columns:width] = 0


@kernel_part
def store_columns(
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
    multiply_tasks(worker, words, np.float32, np.uint16)


@job
def multiply_float32(worker: int, words: Array) -> None:
    """Multiply float32 with rows of B as offsets."""
    multiply_tasks(worker, words, np.float32, np.int32)


@job
def multiply_short_float64(worker: int, words: Array) -> None:
    """Multiply float64 with offsets of 16 bits."""
    multiply_tasks(worker, words, np.float64, np.uint16)


@job
def multiply_float64(worker: int, words: Array) -> None:
    """Multiply float64 with rows of B as offsets."""
    multiply_tasks(worker, words, np.float64, np.int32)
