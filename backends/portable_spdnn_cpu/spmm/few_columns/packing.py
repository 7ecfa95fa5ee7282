"""A packed for few columns: in lanes, or row by row, with the table that the kernel reads.

Arrays of the form in lanes, for slices of `lanes` rows and chunks of STEPS steps::

    values   (chunks, STEPS, lanes)  of A; 0 where a lane is idle
    places   (chunks, lanes, STEPS)  positions in the step's window, uint8
    windows  (chunks, STEPS / shared_steps)  where windows begin, in units of `window_step`
    starts   (slices + 1)            the first chunk of each slice
    rows     (slices x lanes)        rows of C, -1 where a lane has none
    bias     (slices x lanes)        of these rows
    parts    (parts + 1)             the first slice of each part, which one thread does

and of the form row by row, where a visit is a row in a block of columns and a word ENTRIES entries::

    values   (words, ENTRIES)        of A; 0 beyond the entries of a row
    places   (words, ENTRIES)        rows of B in the block, in units of 8 bytes, uint16
    starts, first_words              the first visit, and word, of each block of each part
    rows, words  (visits)            the row of C, and how many words it has
    bias     (rows of A)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel
from portable_spdnn_cpu.machine.cpu_info import CACHE_LINE, aligned_empty, cache_bytes
from portable_spdnn_cpu.spmm.few_columns.microkernels import UNIT
from portable_spdnn_cpu.spmm.few_columns.operands import TABLE
from portable_spdnn_cpu.spmm.few_columns.specs import ENTRIES, STEPS, LanesSpec, RowsSpec

MAX_WINDOWS = 1 << 16  # that are numbered in two bytes
MAX_PLACES = 1 << 16
L1_SHARE = 1.0  # of the first-level cache for the rows of B of a block
LIKE_ROWS = 32  # sets of rows of like length, in which rows are ordered by where their entries are


@dataclass(frozen=True)
class PackedProduct:
    """A, ready for the kernel.

    Attributes
    ----------
    spec : LanesSpec or RowsSpec
    table : ndarray of int64
        As `operands.TABLE`; addresses in it are of arrays that this object keeps.
    arrays : dict of str to ndarray
    parts : int
        Of the rows, of about as many entries each.
    scratch_bytes : int
        That a call needs for its copy of B and for sums, zero before the first call.
    slots : int
        Entries with those that pad.
    visits : int
        Slices, or rows in blocks.
    """

    spec: LanesSpec | RowsSpec
    table: Array
    arrays: dict[str, Array]
    parts: int
    scratch_bytes: int
    slots: int
    visits: int


@dataclass(frozen=True)
class LanesLayout:
    """Which rows share a slice, and how many steps that takes.

    Attributes
    ----------
    spec : LanesSpec
    order : ndarray of int64
        Rows of A, -1 for none, a whole number of slices.
    starts : ndarray of int64
        The first chunk of each slice, and where the last ends.
    """

    spec: LanesSpec
    order: Array
    starts: Array


def lay_out_lanes(A: Any, spec: LanesSpec) -> LanesLayout:
    """Decide on slices, and count their steps."""
    order = alike(A, spec.lanes)
    starts = np.zeros(len(order) // spec.lanes + 1, np.int64)
    none = np.empty((0, 0, 0), A.dtype), np.empty((0, 0, 0), np.uint8), np.empty(0, np.uint16)
    _go_through(A, LanesLayout(spec, order, starts), *none, False)
    return LanesLayout(spec, order, starts)


def _go_through(
    A: Any, layout: LanesLayout, values: Array, places: Array, windows: Array, fill: bool
) -> None:
    spec = layout.spec
    count_or_fill(
        A.indptr, A.indices, A.data, layout.order,
        spec.lanes, spec.window, spec.window_step, spec.shared_steps,
        layout.starts, values, places, windows, fill,
    )  # fmt: skip


def pack_lanes(
    A: Any, layout: LanesLayout, epilogue: tuple[Array, Array], parts: int
) -> PackedProduct:
    """Pack A in lanes.

    Parameters
    ----------
    A : csr_array, canonical
    layout : LanesLayout
    epilogue : ndarray, ndarray
        The bias of each row, and both bounds, of A's type.
    parts : int
        How many parts to divide the rows into, at most.
    """
    bias, bounds = epilogue
    height, depth = A.shape
    spec, order, starts = layout.spec, layout.order, layout.starts
    lanes, slices, chunks = spec.lanes, len(starts) - 1, int(starts[-1])
    values = aligned_empty((chunks, STEPS, lanes), A.dtype)
    places = aligned_empty((chunks, lanes, STEPS), np.uint8)
    kind = np.dtype(f"u{spec.window_bytes}")
    windows = aligned_empty((chunks * STEPS // spec.shared_steps,), kind)
    _go_through(A, layout, values, places, windows, True)
    planes_windows = -(-depth // (spec.window - 1)) + 1  # the last window may begin in the last
    plane = planes_windows * spec.window * spec.itemsize + CACHE_LINE  # not all in one cache set
    divided = divide(starts, parts)
    arrays = {
        "values": values, "places": places, "windows": windows, "starts": starts,
        "rows": order.astype(np.int32), "parts": divided, "bounds": bounds,
        "bias": np.append(bias, A.dtype.type(0))[order],
    }  # fmt: skip
    numbers = {"height": height, "depth": depth, "plane": plane}
    return PackedProduct(
        spec, table_of(arrays, numbers), arrays, len(divided) - 1,
        plane * spec.columns, chunks * STEPS * lanes, slices,
    )  # fmt: skip


def pack_rows(A: Any, spec: RowsSpec, epilogue: tuple[Array, Array], parts: int) -> PackedProduct:
    """Pack A row by row.

    Parameters
    ----------
    A : csr_array, canonical
    spec : RowsSpec
    epilogue, parts
        As in `pack_lanes`.
    """
    bias, bounds = epilogue
    height, depth = A.shape
    blocks = max(1, -(-depth // most_rows_of_block(spec)))
    block_rows = max(1, -(-depth // blocks))
    ends = np.empty((height, blocks + 1), np.int64)
    block_bounds(A.indptr, A.indices, block_rows, ends)
    counts = np.diff(ends, axis=1)
    divided = divide(A.indptr, parts)
    visited, starts = [], [0]
    for first, end in zip(divided[:-1], divided[1:], strict=True):
        for block in range(blocks):
            rows = first + np.argsort(counts[first:end, block], kind="stable")
            if 0 < block < blocks - 1:  # the first begins the sums of a row, the last ends them
                rows = rows[counts[rows, block] > 0]
            visited.append(rows)
            starts.append(starts[-1] + len(rows))
    rows = np.concatenate((np.empty(0, np.int64), *visited))
    block_of = np.repeat(np.tile(np.arange(blocks), len(divided) - 1), np.diff(starts))
    words = -(-counts[rows, block_of] // ENTRIES)
    before = np.concatenate(([0], np.cumsum(words)))
    values = aligned_empty((int(before[-1]), ENTRIES), A.dtype)
    places = aligned_empty((int(before[-1]), ENTRIES), np.uint16)
    scale = spec.row_bytes // UNIT
    fill_rows(A.indices, A.data, ends, rows, block_of, block_rows, scale, before, values, places)
    arrays = {
        "values": values, "places": places, "starts": np.array(starts, np.int64),
        "first_words": before[starts].astype(np.int64), "rows": rows.astype(np.int32),
        "words": words.astype(np.uint16), "bias": bias, "bounds": bounds,
    }  # fmt: skip
    copied = blocks * (block_rows + 1) * spec.row_bytes
    numbers = {"depth": depth, "blocks": blocks, "block_rows": block_rows, "sums": copied}
    sums = height * spec.row_bytes if blocks > 1 else 0
    return PackedProduct(
        spec, table_of(arrays, numbers), arrays, len(divided) - 1,
        copied + sums, values.size, len(rows),
    )  # fmt: skip


def window_bytes(depth: int, spec: LanesSpec) -> int:
    """Return in how many bytes the windows of A's columns can be numbered."""
    windows = (depth // (spec.window - 1) + 1) * (spec.window // spec.window_step)
    return 2 if windows < MAX_WINDOWS else 4


def most_rows_of_block(spec: RowsSpec) -> int:
    """Return how many rows of B are near at a time, and have a place in two bytes."""
    near = int(L1_SHARE * cache_bytes(1)) // spec.row_bytes
    return max(1, min(near, MAX_PLACES * UNIT // spec.row_bytes) - 1)


def alike(A: Any, lanes: int) -> Array:
    """Return the rows of A, those of like length together, and -1 to fill up to whole slices.

    In each of up to LIKE_ROWS sets of like length those come together that have their entries
    more to the left: they go through windows at a more even pace.
    """
    height = A.shape[0]
    lengths = np.diff(A.indptr)
    order = np.argsort(lengths, kind="stable")
    sums = np.concatenate(([0.0], np.cumsum(A.indices, dtype=np.float64)))
    centers = (sums[A.indptr[1:]] - sums[A.indptr[:-1]]) / np.maximum(lengths, 1)
    together = max(1, height // (LIKE_ROWS * lanes)) * lanes
    order = order[np.lexsort((centers[order], np.arange(height) // together))]
    return np.concatenate((order, np.full(-height % lanes, -1)))


def divide(offsets: Array, parts: int) -> Array:
    """Divide rows, or slices, into at most so many parts of about as many entries."""
    offsets = offsets.astype(np.int64)
    wanted = offsets[-1] * np.arange(1, parts) // parts
    return np.unique(np.concatenate(([0], np.searchsorted(offsets, wanted), [len(offsets) - 1])))


def table_of(arrays: dict[str, Array], numbers: dict[str, int]) -> Array:
    """Return the table of `operands.TABLE`, with 0 for what a form does not have."""
    found = {name: array.ctypes.data for name, array in arrays.items()} | numbers
    return np.array([found.get(name, 0) for name in TABLE], np.int64)


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
    for slice_ in range(starts.size - 1):
        starts[slice_] = total
        for lane in range(lanes):
            row = order[slice_ * lanes + lane]
            at[lane] = indptr[row] if row >= 0 else 0
            end[lane] = indptr[row + 1] if row >= 0 else 0
        step = 0
        while True:
            begin = -1
            for lane in range(lanes):
                if at[lane] < end[lane]:
                    column = np.int64(indices[at[lane]])
                    place = column + column // held
                    begin = place if begin < 0 else min(begin, place)
            if begin < 0 and step % STEPS == 0:
                break
            begin = max(begin, 0) // window_step * window_step
            zero = window - 1 - begin % window
            if fill:
                windows[(total * STEPS + step) // shared] = begin // window_step
            for _ in range(shared):
                chunk, within = total + step // STEPS, step % STEPS
                for lane in range(lanes):
                    place, value = begin + window, data.dtype.type(0)
                    if at[lane] < end[lane]:
                        column = np.int64(indices[at[lane]])
                        place = column + column // held
                    if place < begin + window:
                        value = data[at[lane]]
                        at[lane] += 1
                    else:
                        place = begin + zero
                    if fill:
                        values[chunk, within, lane] = value
                        places[chunk, lane, within] = place - begin
                step += 1
        total += step // STEPS
    starts[-1] = total


@kernel
def block_bounds(indptr: Array, indices: Array, block_rows: int, ends: Array) -> None:
    """Find where the entries of each row in each block of columns begin, and the last end."""
    for row in range(ends.shape[0]):
        at = indptr[row]
        for block in range(ends.shape[1] - 1):
            ends[row, block] = at
            while at < indptr[row + 1] and indices[at] < (block + 1) * block_rows:
                at += 1
        ends[row, -1] = at


@kernel
def fill_rows(
    indices: Array,
    data: Array,
    ends: Array,
    rows: Array,
    block_of: Array,
    block_rows: int,
    scale: int,
    before: Array,
    values: Array,
    places: Array,
) -> None:
    """Write the entries of each visit; what fills it up is 0 times the block's row of zeros."""
    for visit in range(rows.size):
        row, block = rows[visit], block_of[visit]
        at, end = ends[row, block], ends[row, block + 1]
        for word in range(before[visit], before[visit + 1]):
            for entry in range(ENTRIES):
                if at < end:
                    values[word, entry] = data[at]
                    place = indices[at] - block * block_rows + 1
                    places[word, entry] = place * scale
                    at += 1
                else:
                    values[word, entry] = 0
                    places[word, entry] = 0
