"""The kernel of convolutions with pruned weights: panels of pixels against streamed entries.

Pixels of a result are cut into panels of a few vectors, the last one of as many as it needs, and
panels into bands. A worker takes the next task: a band of one image, for one group of
channels and a part of its outputs. Where strides are not 1 it copies the phases that the band sees.
Then, for each panel and each block of what kernels see, it gathers a panel into the first-level
cache and streams the block's entries against it. Sums wait in a tile; when they are complete, bias,
residual and activation follow on their way to the result: out of registers where the panel is one
piece of the result, and else from the tile. Where a panel's pixels see what is outside of the
image, zeros are put: there is no padded copy.

Bound: that of `spmm.stream.microkernels`; besides, each entry that kernels see costs a copy to the
panel, shared by all outputs, and each output is written, out of registers or from the tile.

Sources: loops, and the order of rows, as in T. Gale et al., "Sparse GPU Kernels for Deep Learning",
SC 2020, and E. Elsen et al., "Fast Sparse ConvNets", CVPR 2020.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from portable_spdnn_cpu.activations import RELU, activate_span
from portable_spdnn_cpu.conv.gathers import MAX_EDGES
from portable_spdnn_cpu.conv.packing import (
    FIRST_ENTRY,
    FIRST_SOURCE,
    FIRST_VISIT,
    LAST_SOURCE,
    LAST_VISIT,
)
from portable_spdnn_cpu.conv.panels import (
    Task,
    copy_band,
    cut_rows,
    find_edges,
    mask_panel,
)
from portable_spdnn_cpu.conv.spans import finish_span
from portable_spdnn_cpu.jit.compilation import Array, job_kernel, kernel_part
from portable_spdnn_cpu.jit.intrinsics import stay_apart
from portable_spdnn_cpu.jit.job_start import (
    COUNTERS,
    FIRST_OWN,
    INPUT,
    OUT,
    RESIDUAL,
    WORKERS,
    WORKSPACE,
)
from portable_spdnn_cpu.jit.jobs import (
    LENGTH,
    Job,
    array_at,
    call_code,
    call_code_for_integer,
    float_of,
    next_task,
)
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.layout.canonical import VALUE_TYPES
from portable_spdnn_cpu.layout.large_results import PREFETCH_BYTES, prefetch_items_to_write

# Words of a job after those of `jit.job_start`: addresses of the arrays of `ImageLayout` and
# `PackedConv`, and of biases; the code of `Activation` and the bits of its bounds; the least and
# the greatest of the sources; how much memory each worker has, and where in it the panel and so on
# are; how many items a whole panel's row has, by which rows of all panels are apart; PANEL_WORDS
# words about whole panels, from WHOLE on, and as many about the last, narrower one, from REST on;
# then the numbers of `Task`. Images are of shape (images, groups, channels, height, width), results
# (images, groups, outputs, rows, columns).
(
    PHASES, PHASE_COUNT,
    SOURCES, KERNEL_ENTRIES, RANGES, BLOCKS, VISITS, OFFSETS, VALUES, BIAS,
    ACTIVATION, LOWER, UPPER,
    MIN_SOURCE, MAX_SOURCE, WORKSPACE_BYTES, PANEL_AT, SUMS_AT, MASKS_AT, SPANS_AT, EDGES_AT,
    PANEL_ITEMS, WHOLE,
) = range(FIRST_OWN, FIRST_OWN + 23)  # fmt: skip
# Of panels: their vectors, and the addresses of the code for so many of them, of `gathers` and
# `spmm.stream.row_loops`; 0 where that is never called.
VECTORS, GATHER_MASKED, GATHER_WHOLE, SUM_ROWS, FINISH_ROWS, PANEL_WORDS = range(6)
REST = WHOLE + PANEL_WORDS
TASK = REST + PANEL_WORDS
# Vectors of a whole panel, where an image has as many: 7 of 16 pixels are two rows of 56, or four
# of 28. What is left of an image is a panel of as many as it needs.
WIDTHS = 2, 4, 7


@kernel_part
def task_of(words: Array) -> Task:
    """Return the shapes that a job's words have."""
    n = TASK
    return Task(
        words[n], words[n + 1], words[n + 2], words[n + 3], words[n + 4], words[n + 5],
        words[n + 6], words[n + 7], (words[n + 8], words[n + 9]), (words[n + 10], words[n + 11]),
        (words[n + 12], words[n + 13]), (words[n + 14], words[n + 15]), words[n + 16],
        words[n + 17], words[n + 18], words[n + 19], words[n + 20], words[n + 21], words[n + 22],
        words[n + 23],
    )  # fmt: skip


@job_kernel
def convolve_tasks(worker: int, words: Array, dtype: Any) -> None:
    """Compute tasks, each a band of panels for a part of a group's outputs, until none is left."""
    task, size = task_of(words), words[PANEL_ITEMS]
    phases = array_at(words[PHASES], (words[PHASE_COUNT], 2), np.int64)
    images = array_at(words[INPUT], LENGTH, dtype)
    copied = array_at(words[WORKSPACE] + worker * words[WORKSPACE_BYTES], LENGTH, dtype)
    positions = (task.rows - 1) * task.pitch + task.columns
    tasks = task.images * task.groups * task.bands * task.parts
    while True:
        number = next_task(words, words[COUNTERS], worker, words[WORKERS], tasks)
        if number < 0:
            break
        number, part = divmod(number, task.parts)
        number, band = divmod(number, task.bands)
        image, group = divmod(number, task.groups)
        channel = number * task.channels
        begin = band * task.band_panels * size
        end = min(begin + task.band_panels * size, positions)
        base = channel * task.height * task.width
        if task.copied:
            first_row = begin // task.pitch
            copy_band(task, phases, images, channel, first_row, (end - 1) // task.pitch, copied)
            base = -first_row * task.pitch
        whole = end - (end - begin) % size
        if begin < whole:
            convolve_panels(worker, words, WHOLE, image, group, part, base, begin, whole, dtype)
        if whole < end:
            convolve_panels(worker, words, REST, image, group, part, base, whole, end, dtype)


@kernel_part
def convolve_panels(
    worker: int,
    words: Any,
    kind: int,
    image: int,
    group: int,
    part: int,
    base: int,
    begin: int,
    end: int,
    dtype: Any,
) -> None:
    """Compute the positions begin .. end - 1 of a result for a part of a group's outputs.

    They are whole panels, or the one that is left, whose last vector may be partly filled: `kind`,
    WHOLE or REST, is where the words are of such panels. `base` is where in images,
    or in what was copied of them, position 0 begins.
    """
    stay_apart()  # so that there is one copy of it, for both kinds
    task = task_of(words)
    ranges = array_at(words[RANGES], LENGTH, np.int64)
    blocks = array_at(words[BLOCKS], (LENGTH, 5), np.int64)
    bias = array_at(words[BIAS], LENGTH, dtype)
    residual = array_at(words[RESIDUAL], LENGTH, dtype)
    out = array_at(words[OUT], LENGTH, dtype)
    own = words[WORKSPACE] + worker * words[WORKSPACE_BYTES]
    # Phases begin a worker's memory, and the panel follows.
    seen = own if task.copied else words[INPUT]
    readable_items = task.images * task.groups * task.channels * task.height * task.width
    if task.copied:
        readable_items = words[PANEL_AT] // out.itemsize
    panel_at, sums_at, apart = own + words[PANEL_AT], own + words[SUMS_AT], words[PANEL_ITEMS]
    sums = array_at(sums_at, LENGTH, dtype)
    masks = array_at(own + words[MASKS_AT], LENGTH, np.uint32)
    spans = array_at(own + words[SPANS_AT], (LENGTH, 3), np.int64)
    edges = array_at(own + words[EDGES_AT], (LENGTH, 1 + MAX_EDGES), np.int64)
    code, lower, upper = words[ACTIVATION], float_of(words[LOWER]), float_of(words[UPPER])
    low, high = (lower, upper) if code <= RELU else (-np.inf, np.inf)
    bounded = low > -np.inf or high < np.inf
    lanes = VECTOR_BYTES // out.itemsize
    vectors = words[kind + VECTORS]
    size = vectors * lanes
    plane = task.rows * task.columns
    prefetches = task.images * task.groups * task.outputs * plane * out.itemsize > PREFETCH_BYTES
    # Of `finish_rows`: the stride is of no account for a panel that is gathered, of which there is
    # one, and none of its columns is skipped.
    stride, panels, skipped = 0, 1, 0
    # Whether pixels of panels follow each other in the result: sums are finished in registers then.
    is_contiguous = task.pitch == task.columns
    first_output = part * task.outputs // task.parts
    last_output = (part + 1) * task.outputs // task.parts
    first_bias = group * task.outputs + first_output
    first_plane = (image * task.groups * task.outputs + first_bias) * plane
    bias_at = words[BIAS] + first_bias * out.itemsize
    first_block = ranges[group * task.parts + part]
    last_block = ranges[group * task.parts + part + 1] - 1
    for position in range(begin, end, size):
        count = min(size, end - position)
        source = base + position
        # Whether whole vectors may be loaded: all lie in memory, and few lanes see nothing. Not in
        # the last panel if it is narrower: ten convolutions took 0.99 to 1.02 of the time so.
        is_readable = source + words[MIN_SOURCE] >= 0
        is_readable &= source + words[MAX_SOURCE] + size <= readable_items
        is_whole = apart == size and is_readable and find_edges(task, position, size, edges)
        if not is_whole:
            mask_panel(task, position, vectors, lanes, masks)
        target = first_plane + position
        for block in range(first_block, last_block + 1):
            one = blocks[block]
            unseen = words[EDGES_AT] if is_whole else words[MASKS_AT]
            gathered = (
                panel_at, apart, seen, source, words[SOURCES], words[KERNEL_ENTRIES],
                one[FIRST_SOURCE], one[LAST_SOURCE], own + unseen,
            )  # fmt: skip
            call_code(words[kind + (GATHER_WHOLE if is_whole else GATHER_MASKED)], gathered)
            later = block != first_block
            if block < last_block or not is_contiguous:
                summed = (
                    words[VISITS], one[FIRST_VISIT], one[LAST_VISIT], words[OFFSETS],
                    words[VALUES], one[FIRST_ENTRY], panel_at, sums_at, later, False,
                )  # fmt: skip
                call_code(words[kind + SUM_ROWS], summed)
                continue
            residual_at = words[RESIDUAL]
            if residual_at:
                residual_at += target * out.itemsize
            finished = (
                words[VISITS], one[FIRST_VISIT], one[LAST_VISIT], words[OFFSETS], words[VALUES],
                one[FIRST_ENTRY], panel_at, stride, panels, count, skipped, sums_at, later, False,
                words[OUT] + target * out.itemsize, plane, bias_at, residual_at, plane, bounded,
                low, high, False, prefetches,
            )  # fmt: skip
            call_code_for_integer(words[kind + FINISH_ROWS], finished)
        if is_contiguous and code <= RELU:
            continue
        pieces = cut_rows(task, position, count, spans)
        for row in range(last_output - first_output):
            for n in range(pieces):
                to, length = first_plane + row * plane + spans[n, 1], spans[n, 2]
                if not is_contiguous:
                    if prefetches and row + 1 < last_output - first_output:
                        prefetch_items_to_write(out, to + plane, length)
                    finish_span(
                        out, to, sums, row * size + spans[n, 0], length, bias[first_bias + row],
                        residual, words[RESIDUAL], dtype(low), dtype(high),
                    )  # fmt: skip
                if code > RELU:
                    activate_span(out, to, to + length, code, lower, upper)


JOBS = {dtype.name: Job(convolve_tasks, dtype.type) for dtype in VALUE_TYPES}
