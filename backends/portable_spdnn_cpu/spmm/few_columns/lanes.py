"""A packed in lanes: rows of like length in the lanes of a vector.

The arrays, for slices of `lanes` rows and chunks of STEPS steps::

    values   (chunks, STEPS, lanes)  of A; 0 where a lane is idle
    places   (chunks, lanes, STEPS)  positions in the step's window, uint8
    windows  (chunks, STEPS / shared_steps)  where windows begin, in units of `window_step`
    starts   (slices + 1)            the first chunk of each slice
    rows     (slices x lanes)        rows of C, -1 where a lane has none
    bias     (slices x lanes)        of these rows
    parts    (parts + 1)             the first slice of each part, which one thread does
"""

from __future__ import annotations

import numpy as np

from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.jit.compilation import Array, kernel, kernel_part
from portable_spdnn_cpu.machine.cpu_info import CACHE_LINE, aligned_empty
from portable_spdnn_cpu.spmm.few_columns.packing import PackedProduct
from portable_spdnn_cpu.spmm.few_columns.slices import (
    ROWS_SORTED,
    SliceLayout,
    filled_up,
    order_by_length,
    packed_slices,
)
from portable_spdnn_cpu.spmm.few_columns.specs import STEPS, LanesSpec

MAX_WINDOWS = 1 << 16  # that are numbered in two bytes
# About so many sets of rows of like length, in which rows are ordered by where their entries are.
LIKE_SETS = 32
# The position of the next entry of a lane that has none left: behind all others.
NOWHERE = np.iinfo(np.int64).max


class LanesLayout(SliceLayout):
    """That of lanes; `starts` counts chunks."""

    chunk = STEPS
    spec: LanesSpec


def lay_out_lanes(A: SparseOperand, spec: LanesSpec) -> LanesLayout:
    """Decide on slices, and count their steps."""
    order = order_rows(A, spec.lanes)
    starts = np.zeros(len(order) // spec.lanes + 1, np.int64)
    none = np.empty((0, 0, 0), A.dtype), np.empty((0, 0, 0), np.uint8), np.empty(0, np.uint16)
    _go_through(A, LanesLayout(spec, order, starts), *none, False)
    return LanesLayout(spec, order, starts)


def _go_through(
    A: SparseOperand, layout: LanesLayout, values: Array, places: Array, windows: Array, fill: bool
) -> None:
    spec = layout.spec
    count_or_fill(
        A.indptr, A.indices, A.data, layout.order,
        spec.lanes, spec.window, spec.window_step, spec.shared_steps,
        layout.starts, values, places, windows, fill,
    )  # fmt: skip


def pack_lanes(
    A: SparseOperand, layout: LanesLayout, epilogue: tuple[Array, Array], parts: int
) -> PackedProduct:
    """Pack A in lanes.

    Parameters
    ----------
    A : csr_array, canonical
    layout : LanesLayout
    epilogue, parts
        As in `packed_slices`.
    """
    spec, chunks = layout.spec, int(layout.starts[-1])
    values = aligned_empty((chunks, STEPS, spec.lanes), A.dtype)
    places = aligned_empty((chunks, spec.lanes, STEPS), np.uint8)
    kind = np.dtype(f"u{spec.window_bytes}")
    windows = aligned_empty((chunks * STEPS // spec.shared_steps,), kind)
    _go_through(A, layout, values, places, windows, True)
    # A window may begin within the last aligned one, and end beyond it: one more.
    windows_of_plane = -(-A.shape[1] // (spec.window - 1)) + 1
    plane = windows_of_plane * spec.window * spec.itemsize + CACHE_LINE  # not all in one cache set
    arrays = {"values": values, "places": places, "windows": windows}
    scratch = plane * spec.columns
    return packed_slices(A, layout, epilogue, parts, scratch, arrays, {"plane": plane})


def window_bytes(depth: int, spec: LanesSpec) -> int:
    """Return in how many bytes the windows of A's columns can be numbered."""
    windows = (depth // (spec.window - 1) + 1) * (spec.window // spec.window_step)
    return 2 if windows < MAX_WINDOWS else 4


def order_rows(A: SparseOperand, lanes: int) -> Array:
    """Return the rows of A, those of like length together, and -1 to fill up to whole slices.

    In each of about LIKE_SETS sets of like length, those come together that have their entries
    more to the left: they go through windows at a more even pace.
    """
    height, order = A.shape[0], order_by_length(A)
    sums = np.concatenate(([0.0], np.cumsum(A.indices, dtype=np.float64)))
    centers = (sums[A.indptr[1:]] - sums[A.indptr[:-1]]) / np.maximum(np.diff(A.indptr), 1)
    together = max(1, min(height, ROWS_SORTED) // (LIKE_SETS * lanes)) * lanes
    order = order[np.lexsort((centers[order], np.arange(height) // together))]
    return filled_up(order, lanes)


@kernel_part
def _place(indices: Array, at: int, end: int, held: int) -> int:
    """Return the position of an entry's column, with a zero after every `held` columns.

    NOWHERE where `at` is the end.
    """
    if at >= end:
        return NOWHERE
    column = int(indices[at])
    return column + column // held


@kernel
def count_or_fill(
    indptr: Array,
    indices: Array,
    data: Array,
    order: Array,
    lanes: int,
    window: int,
    window_step: int,
    shared: int,
    starts: Array,
    values: Array,
    places: Array,
    windows: Array,
    fill: bool,
) -> None:
    """Go through the rows of A, slice by slice; `starts` takes the chunks, the others entries.

    A window begins with the leftmost entry still to do, rounded down to a multiple of its step.
    Column k is entry k % (window - 1) of aligned window k // (window - 1).
    """
    held, total = window - 1, 0
    at, end = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    next_place = np.empty(lanes, np.int64)  # of each lane
    for slice_ in range(starts.size - 1):
        starts[slice_] = total
        for lane in range(lanes):
            row = order[slice_ * lanes + lane]
            at[lane] = indptr[row] if row >= 0 else 0
            end[lane] = indptr[row + 1] if row >= 0 else 0
            next_place[lane] = _place(indices, at[lane], end[lane], held)
        step = 0
        while True:
            begin = NOWHERE
            for lane in range(lanes):
                begin = min(begin, next_place[lane])
            if begin == NOWHERE:
                if step % STEPS == 0:
                    break
                begin = 0
            begin = begin // window_step * window_step
            zero = begin + window - 1 - begin % window
            if fill:
                windows[(total * STEPS + step) // shared] = begin // window_step
            for _ in range(shared):
                chunk, within = total + step // STEPS, step % STEPS
                for lane in range(lanes):
                    place, value = zero, data.dtype.type(0)
                    if next_place[lane] < begin + window:
                        place, value = next_place[lane], data[at[lane]]
                        at[lane] += 1
                        next_place[lane] = _place(indices, at[lane], end[lane], held)
                    if fill:
                        values[chunk, within, lane] = value
                        places[chunk, lane, within] = place - begin
                step += 1
        total += step // STEPS
    starts[-1] = total
