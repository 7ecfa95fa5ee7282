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
    band_rows : int
        Rows of each phase that are copied.
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
    band_rows: int


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

    Rows of a phase that are outside of the image are left as they are: masks keep them out. Up to a
    vector behind the last row is written.
    """
    down, right = task.strides
    rows = last_row - first_row + task.last_seen - task.first_seen + 1
    for number in range(task.channels):
        image = (channel + number) * task.height * task.width
        for phase in range(phases.shape[0]):
            plane = (number * phases.shape[0] + phase) * task.band_rows * task.pitch
            first_column = phases[phase, 1]
            columns = max(0, (task.width - first_column + right - 1) // right)
            seen = (first_row + task.first_seen) * down + phases[phase, 0]
            above = min(max(0, -(seen // down)), rows)
            inside = min(max(0, (task.height - 1 - seen) // down + 1), rows) - above
            start = image + (seen + above * down) * task.width + first_column
            copy_phase(
                right, copied, plane + above * task.pitch, task.pitch, images, start,
                task.width * down, inside, columns,
            )  # fmt: skip


@kernel_part
def copy_phase(
    stride: int,
    copied: Array,
    to: int,
    pitch: int,
    images: Array,
    start: int,
    width: int,
    rows: int,
    count: int,
) -> None:
    """Copy rows of a phase, as `copy_rows` does, with any step."""
    if stride == 1:
        copy_rows((0,), copied, to, pitch, images, start, width, rows, count)
    elif stride == 2:
        copy_rows((0, 0), copied, to, pitch, images, start, width, rows, count)
    else:
        for row in range(rows):
            for column in range(pitch):
                place = start + row * width + column * stride
                copied[to + row * pitch + column] = images[place] if column < count else 0


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
                # Pixels j of a row with 0 <= j stride - shift < width of the image.
                shift, stride = task.padding[1] - v * task.dilation[1], task.strides[1]
                first = max(begin, -(-shift // stride))
                last = min(end, -(-(task.width + shift) // stride))
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
