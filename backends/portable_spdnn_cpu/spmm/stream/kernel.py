"""The stream kernel: C = A B for pruned weights A, panel by panel of B's columns.

For each block of A's columns, the rows of B in it, as wide as a panel, are copied together so that
they stay in a cache: rows of B itself lie apart, so that they compete for the same sets of it, and
rarely start on a cache line. Then all rows of A are multiplied with them. Between blocks sums wait
in memory; the last block finishes them. Very sparse weights use few of the rows that a copy would
bring near: where rows of B are whole cache lines long and apart, they are read in place, from the
second level.

This code is compiled once; what knows a panel's width, and the type of items, it calls by address:
`panels.copy_rows`, `row_loops.sum_rows` and `row_loops.finish_rows`.

Bound, besides that of the microkernel: what is not an entry's work. Each vector of B is copied,
each of C is written, and between blocks each of the sums is read and written, at the rate of the
second-level cache: about 4 cycles each, as many as eight multiply-adds take.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from portable_spdnn_cpu.activations import RELU
from portable_spdnn_cpu.jit.compilation import Array, kernel_part
from portable_spdnn_cpu.jit.intrinsics import stay_apart
from portable_spdnn_cpu.jit.jobs import (
    LENGTH,
    array_at,
    call_code,
    call_code_for_integer,
    float_of,
    job,
    next_task,
)
from portable_spdnn_cpu.layout.large_results import (
    NONTEMPORAL_BYTES,
    PREFETCH_BYTES,
    PREFETCH_ROW_BYTES,
    store_fence,
)
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.spmm.stream.job_words import (
    ACTIVATION,
    B_STRIDE,
    BEGIN,
    BIAS,
    BLOCKS,
    BOUNDED,
    COLUMNS,
    COUNTERS,
    END,
    FINISH_ROWS,
    FIRST_ENTRY,
    FIRST_PART,
    FIRST_VISIT,
    IN_PLACE,
    K_BLOCK,
    LINE,
    LOAD_COLUMNS,
    LOWER,
    OFFSETS,
    OUT,
    OUT_BYTES,
    OUT_FORTRAN,
    OUT_STRIDE,
    PANELS,
    PART_WORDS,
    PARTS,
    RESIDUAL,
    RESIDUAL_STRIDE,
    REST,
    SHIFTED,
    STORE_COLUMNS,
    SUM_ROWS,
    SUMS_BYTES,
    UPPER,
    VALUES,
    VECTORS,
    VISITS,
    WHOLE,
    WIDTH,
    WORKERS,
    WORKSPACE,
    WORKSPACE_BYTES,
    B,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.stream.packing import PAIR
from portable_spdnn_cpu.spmm.stream.panels import copy_panel

# Bytes of sums between blocks beyond which the sums of the rows that come next, and in the last
# block their rows of C, are prefetched: rows of a block come in the order of their counts, which no
# processor predicts. When it was one row, 2,048 rows took four fifths of the time on a Zen 3 so;
# 256 would have taken a twentieth more.
FAR_SUMS = cache_bytes(2) // 4
ACTIVATED_ROWS = 32  # written, and then activated, before those that follow


@job
def multiply_tasks(worker: int, words: Array) -> None:
    """Compute tasks, each some panels of C for a part of its rows, until none is left.

    Tasks are numbered part by part: task i is group i % g of part i // g, for g groups of panels.
    So threads share rows where there is a part for each. `job_words` says what the words are.

    Where SHIFTED says so, the first panel begins before column 0.
    """
    skipped = 0
    if words[SHIFTED]:
        begin = words[B] if words[IN_PLACE] else words[OUT]
        skipped = words[LINE] * (begin % BLOCK_BYTES) // BLOCK_BYTES
    width, together = words[WIDTH], words[WIDTH] * words[PANELS]
    groups = (words[COLUMNS] + skipped + together - 1) // together
    while True:
        task = next_task(words, words[COUNTERS], worker, words[WORKERS], groups * words[PARTS])
        if task < 0:
            break
        part = FIRST_PART + PART_WORDS * (task // groups)
        column = task % groups * together - skipped
        columns = min(together, words[COLUMNS] - column)
        rest = columns % width
        if columns > rest:
            multiply_panels(worker, words, WHOLE, part, column, columns - rest)
        if rest:
            multiply_panels(worker, words, REST, part, column + columns - rest, rest)


@kernel_part
def multiply_panels(
    worker: int, words: Any, kind: int, part: int, column: int, columns: int
) -> None:
    """Compute `columns` columns of C from `column` on, for the rows of one part.

    The columns are one or more whole panels, or one panel whose last vector is partly filled:
    `kind`, WHOLE or REST, is where the words are of such panels. There are several where B is read
    in place: then rows are the outer loop, so that a row's entries serve one panel after the other
    from the first-level cache, its count is predicted but for the first, and C is written in long
    pieces. Columns before 0 are fewer than a vector has, and not stored.
    """
    stay_apart()  # so that there is one copy of it, for both kinds
    itemsize = BLOCK_BYTES // words[LINE]
    width = words[kind + VECTORS] * words[LINE]
    skipped = max(0, -column)
    panels, stored = max(1, columns // width), min(columns, width)  # how many, and of each
    begin, end = words[part + BEGIN], words[part + END]
    is_packed = words[part + FIRST_VISIT] != 0
    visits = array_at(words[part + VISITS], LENGTH, np.int32)
    first_visit = array_at(words[part + FIRST_VISIT], LENGTH, np.int64)
    first_entry = array_at(words[part + FIRST_ENTRY], LENGTH, np.int64)
    offsets, values = words[part + OFFSETS], words[part + VALUES]
    residual, residual_stride = words[RESIDUAL], words[RESIDUAL_STRIDE]
    if residual:
        residual += column * itemsize
    code = words[ACTIVATION]
    lower, upper = float_of(words[LOWER]), float_of(words[UPPER])
    bounded = words[BOUNDED] != 0 and code <= RELU  # otherwise bounds follow the activation
    own = words[WORKSPACE] + worker * words[WORKSPACE_BYTES]
    stride, panel = words[WIDTH], own + words[SUMS_BYTES]
    if words[IN_PLACE]:
        stride, panel = words[B_STRIDE], words[B] + column * itemsize
    # C in Fortran order is staged where sums wait, and transposed at the end; a residual, which is
    # in the same order, is what sums begin with.
    stages = words[OUT_FORTRAN] != 0
    begun = stages and residual != 0
    if begun:
        residual = 0
        start = words[RESIDUAL] + column * residual_stride * itemsize
        copied = start, residual_stride, own, width, width, begin, end, columns
        call_code(words[LOAD_COLUMNS], copied)
    tile = own - begin * width * itemsize
    out, out_stride = tile, width
    if stages:
        stored = width
    else:
        out, out_stride = words[OUT] + column * itemsize, words[OUT_STRIDE]
    sums_are_far = words[SUMS_BYTES] > FAR_SUMS
    size, row_bytes = 0 if stages else words[OUT_BYTES], out_stride * itemsize
    is_aligned = out % BLOCK_BYTES == 0 and row_bytes % BLOCK_BYTES == 0
    nontemporal = size >= NONTEMPORAL_BYTES and is_aligned and code <= RELU
    is_wide = row_bytes >= PREFETCH_ROW_BYTES
    prefetches = size > PREFETCH_BYTES and (is_wide or sums_are_far) and not nontemporal
    last = words[part + BLOCKS] - 1
    for block in range(last + 1):
        if not words[IN_PLACE]:
            first = block * words[K_BLOCK]
            until = min(first + words[K_BLOCK], words[K])
            copy_panel(words, kind, panel, first, until, column, columns)
        top, bottom, entry = begin, end, 0
        if is_packed:
            top, bottom, entry = first_visit[block], first_visit[block + 1], first_entry[block]
        later = begun or block > 0
        if block < last:
            summed = (
                words[part + VISITS], top, bottom, offsets, values, entry, panel, tile, later,
                sums_are_far,
            )  # fmt: skip
            call_code(words[kind + SUM_ROWS], summed)
            continue
        while top < bottom:
            stop = bottom if code <= RELU else min(top + ACTIVATED_ROWS, bottom)
            finished = (
                words[part + VISITS], top, stop, offsets, values, entry, panel, stride, panels,
                stored, skipped, tile, later, sums_are_far, out, out_stride, words[BIAS], residual,
                residual_stride, bounded, lower, upper, nontemporal, prefetches,
            )  # fmt: skip
            stop = call_code_for_integer(words[kind + FINISH_ROWS], finished)
            if code > RELU:
                for place in range(top, stop):
                    row = place
                    if is_packed:
                        row = visits[2 * place]
                        entry += visits[2 * place + 1] & ~PAIR
                    for number in range(panels):
                        before = 0 if number else skipped
                        start = row * out_stride + number * width + before
                        # Not what is staged beyond the columns, which may be anything.
                        span = out + start * itemsize, min(stored, columns) - before, lower, upper
                        call_code(code, span)
            top = stop
    if nontemporal:
        store_fence()
    if stages:
        target = words[OUT] + column * words[OUT_STRIDE] * itemsize
        written = target, words[OUT_STRIDE], tile, width, begin, end, columns, words[OUT_BYTES]
        call_code(words[STORE_COLUMNS], written)
