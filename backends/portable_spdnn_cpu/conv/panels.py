"""Kernel parts: what the positions of a panel see of images, and which pixels they are."""

from __future__ import annotations

from typing import NamedTuple

from portable_spdnn_cpu.conv.spans import copy_rows
from portable_spdnn_cpu.jit.compilation import Array, kernel_part


class Task(NamedTuple):
    """Shapes that all tasks share.

    Attributes
    ----------
    images, groups, parts, bands : int
        There is a task for each combination of these.
    channels, outputs : int
        Of a group.
    height, width : int
        Of an image.
    kernel, strides, dilation, padding : tuple of int
        Vertical and horizontal; the padding above and left of the image.
    rows, columns : int
        Of a result.
    pitch : int
        Positions from row to row, as of `ImageLayout`.
    copied : bool
        Whether phases are copied, as of `ImageLayout`.
    band_panels : int
        Panels of a band.
    first_seen, last_seen : int
        What pixels of row r see of a phase lies in rows r + first_seen .. r + last_seen.
    phase_stride : int
        Items from the start of one copied phase to the start of the next.
    """

    images: int
    groups: int
    parts: int
    bands: int
    channels: int
    outputs: int
    height: int
    width: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    rows: int
    columns: int
    pitch: int
    copied: bool
    band_panels: int
    first_seen: int
    last_seen: int
    phase_stride: int


@kernel_part
def copy_band(
    task: Task,
    phases: Array,
    images: Array,
    channel: int,
    first_row: int,
    last_row: int,
    copied: Array,
) -> None:
    """Copy the phases that pixels of rows first_row .. last_row see of a group's channels.

    Rows of a phase that are outside of the image are left as they are: masks keep them out, and
    `find_edges` refuses panels that see them.
    """
    down, right = task.strides
    rows = last_row - first_row + task.last_seen - task.first_seen + 1
    for number in range(task.channels):
        image = (channel + number) * task.height * task.width
        phase = 0
        while phase < phases.shape[0]:
            first_column = phases[phase, 1]
            # Two of the same rows, one of even columns and one of odd ones, are copied together.
            paired = right == 2 and first_column == 0 and phase + 1 < phases.shape[0]
            together = 2 if paired and phases[phase + 1, 0] == phases[phase, 0] else 1
            seen = (first_row + task.first_seen) * down + phases[phase, 0]
            above = min(max(0, -(seen // down)), rows)
            inside = min(max(0, (task.height - 1 - seen) // down + 1), rows) - above
            start = image + (seen + above * down) * task.width + first_column
            to = (number * phases.shape[0] + phase) * task.phase_stride + above * task.pitch
            copy_phases(
                right, together, copied, to, task.phase_stride, task.pitch, images, start,
                task.width * down, inside, task.width - first_column,
            )  # fmt: skip
            phase += together


@kernel_part
def copy_phases(
    stride: int,
    together: int,
    copied: Array,
    to: int,
    phase_stride: int,
    pitch: int,
    images: Array,
    start: int,
    width: int,
    rows: int,
    count: int,
) -> None:
    """Copy rows of one phase, or of two where the stride is 2, as `copy_rows` does."""
    if stride == 1:
        copy_rows((0,), (0,), copied, to, phase_stride, pitch, images, start, width, rows, count)
    elif stride == 2 and together == 2:
        copy_rows(
            (0, 0), (0, 0), copied, to, phase_stride, pitch, images, start, width, rows, count
        )
    elif stride == 2:
        copy_rows((0, 0), (0,), copied, to, phase_stride, pitch, images, start, width, rows, count)
    else:
        for row in range(rows):
            for column in range(pitch):
                place = start + row * width + column * stride
                inside = column * stride < count
                copied[to + row * pitch + column] = images[place] if inside else 0


@kernel_part
def visible_columns(task: Task, v: int) -> tuple[int, int]:
    """Return the first pixel of a row that sees the image by column v of the kernel, and the end.

    They are the pixels j with 0 <= j stride - shift < width of the image; there may be none.
    """
    shift, stride = task.padding[1] - v * task.dilation[1], task.strides[1]
    return max(0, -(-shift // stride)), -(-(task.width + shift) // stride)


@kernel_part
def mask_panel(task: Task, position: int, vectors: int, lanes: int, masks: Array) -> None:
    """Find which positions of a panel see the image, by each entry of the kernel.

    Bit l of masks[(u kernel width + v) vectors + n] is set where position l of vector n sees a row
    of the image by row u of the kernel, and a column by its column v. Behind these, `masks` has
    room for those of rows and of columns alone.
    """
    height, width = task.kernel
    row_masks = masks[height * width * vectors :]
    column_masks = row_masks[height * vectors :]
    row_masks[: (height + width) * vectors] = 0
    for vector in range(vectors):
        lane = 0
        while lane < lanes:  # a piece of the vector in one row after the other
            row, begin = divmod(position + vector * lanes + lane, task.pitch)
            if row >= task.rows:
                break
            end = min(begin + lanes - lane, task.pitch)
            for u in range(height):
                seen = row * task.strides[0] + u * task.dilation[0] - task.padding[0]
                if seen >= 0 and seen < task.height:
                    row_masks[u * vectors + vector] |= span_bits(lane, lane + end - begin)
            for v in range(width):
                first_seen, end_seen = visible_columns(task, v)
                first, last = max(begin, first_seen), min(end, end_seen)
                if first < last:
                    column_masks[v * vectors + vector] |= span_bits(
                        lane + first - begin, lane + last - begin
                    )
            lane += end - begin
    for u in range(height):
        for v in range(width):
            for vector in range(vectors):
                masks[(u * width + v) * vectors + vector] = (
                    row_masks[u * vectors + vector] & column_masks[v * vectors + vector]
                )


@kernel_part
def find_edges(task: Task, position: int, size: int, edges: Array) -> bool:
    """Find the positions of a panel that see nothing, if they are few and at the sides of images.

    Returns whether all rows that the panel sees are in the image, its last position is in a row of
    the result, and no column of the kernel sees nothing at more positions than `edges` has room
    for. Then edges[e, 0] is their number for entry e of the kernel, row x kernel width + column,
    and edges[e, 1 : 1 + edges[e, 0]] are these positions, from the panel's first one on. Those
    between rows of the result are among them: what is there may be anything, and subnormal numbers
    are slow to multiply.
    """
    height, width = task.kernel
    top, down = task.padding[0], task.strides[0]
    first_row, last_row = position // task.pitch, (position + size - 1) // task.pitch
    lowest = last_row * down + (height - 1) * task.dilation[0] - top
    if last_row >= task.rows or first_row * down < top or lowest >= task.height:
        return False
    for v in range(width):
        first_seen, end_seen = visible_columns(task, v)
        number = 0
        for row in range(first_row, last_row + 1):
            start = row * task.pitch
            begin, end = max(position, start), min(position + size, start + task.pitch)
            for first, stop in ((begin, start + first_seen), (start + end_seen, end)):
                for place in range(max(first, begin), min(stop, end)):
                    number += 1
                    if number == edges.shape[1]:
                        return False
                    edges[v, number] = place - position
        edges[v, 0] = number
        for entry in range(v + width, height * width, width):
            # Of an assignment of slices Numba compiles the error, too: its text takes four seconds.
            for item in range(1 + number):
                edges[entry, item] = edges[v, item]
    return True


@kernel_part
def span_bits(first: int, last: int) -> int:
    """Return a number whose bits first .. last - 1 are set."""
    return (1 << last) - (1 << first)


@kernel_part
def cut_rows(task: Task, position: int, count: int, spans: Array) -> int:
    """Cut a panel into spans of neighbouring pixels; returns how many.

    Fills `spans` with place in the panel, place among the pixels of a result, and length.
    """
    number, place = 0, 0
    while place < count:
        row, column = divmod(position + place, task.pitch)
        length = min(task.columns - column, count - place)
        if length > 0:
            to = row * task.columns + column
            if number and task.pitch == task.columns:  # rows follow each other
                spans[0, 2] += length
            else:
                spans[number, 0], spans[number, 1], spans[number, 2] = place, to, length
                number += 1
        place += task.pitch - column
    return number
