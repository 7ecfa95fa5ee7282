"""How pruned weights and images lie in memory, and which pixels see what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn_cpu.jit.compilation import read_only
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.spmm.stream.microkernels import pairs
from portable_spdnn_cpu.spmm.stream.packing import pack_rows, unit_of

# Columns of `PackedConv.blocks`.
FIRST_SOURCE, LAST_SOURCE, FIRST_VISIT, LAST_VISIT, FIRST_ENTRY = range(5)


@dataclass(frozen=True)
class ImageLayout:
    """Where images lie that panels are gathered from.

    With strides s, phase (p, q) of an image has the entries x[i s0 + p, j s1 + q]: what
    neighbouring pixels of a result see of a phase are neighbours. With strides of 1 the image is
    its only phase, and is read where it is unless rows of results are longer. Else phases are
    copied.

    Pixels are numbered by *positions*, as if rows of results were as long as rows of phases. So all
    that the pixels of a panel see by one entry of a kernel lies in one piece, but for what is
    outside of the image; zeros stand for that.

    Attributes
    ----------
    copied : bool
    pitch : int
        Items from row to row of a phase, and positions from row to row of pixels.
    phases : ndarray of int64, shape (phases, 2)
        Those that weights see.
    number, row, column : ndarray of int64, shape (kernel height, kernel width)
        Of the phase that an entry of the kernel sees, and where in it pixel (0, 0) sees: before the
        first row or column, perhaps.
    first, last : int
        The least and greatest of `row`.
    """

    copied: bool
    pitch: int
    phases: Array
    number: Array
    row: Array
    column: Array
    first: int
    last: int


def image_layout(matrices: Array, geometry: ConvGeometry) -> ImageLayout:
    """Return the layout for weights, a matrix for each group."""
    seen = (matrices != 0).any(axis=(0, 1)).reshape(-1, *geometry.kernel).any(axis=0)
    (down, row_phase), (right, column_phase) = (
        np.divmod(np.arange(kernel) * dilation - before, stride)
        for kernel, dilation, (before, _), stride in zip(
            geometry.kernel, geometry.dilation, geometry.padding, geometry.stride, strict=True
        )
    )
    shape = geometry.kernel
    row, column = np.broadcast_to(down[:, None], shape), np.broadcast_to(right, shape)
    both = np.broadcast_arrays(row_phase[:, None], column_phase)
    used = np.stack([each[seen] for each in both], axis=1).reshape(-1, 2)
    phases = np.unique(used, axis=0)
    number = np.zeros(shape, np.int64)
    for place, phase in enumerate(phases):
        number[(both[0] == phase[0]) & (both[1] == phase[1])] = place
    columns = geometry.output_size[1]
    pitch = max(-(-geometry.width // geometry.stride[1]), columns)
    copied = geometry.stride != (1, 1) or geometry.width < columns
    rows = row[seen] if seen.any() else np.zeros(1, np.int64)
    return ImageLayout(
        copied, pitch, read_only(phases.astype(np.int64)), number, row, column,
        int(rows.min()), int(rows.max()),
    )  # fmt: skip


class PackedConv(NamedTuple):
    """Pruned weights in the order in which the stream microkernel reads them.

    The outputs of a group are divided into parts of adjacent ones: part p begins with output
    p x outputs // parts. What kernels see of a group's channels, leaving out what no weight sees,
    is cut into blocks, each as long as a panel in the first-level cache may be.

    Attributes
    ----------
    sources : ndarray of int64
        For each group, what its kernels see: offsets from the first item of its images to what
        position 0 sees.
    kernel_entries : ndarray of uint32
        And by which entry of the kernel: row x kernel width + column.
    ranges : ndarray of int64, shape (groups x parts + 1,)
        Part p of group g has the blocks ranges[g parts + p] .. ranges[g parts + p + 1] - 1.
    blocks : ndarray of int64, shape (blocks, 5)
        A block's sources, visits and first entry.
    visits, offsets, values : ndarray
        What `spmm.stream.packing.StreamPart` has, of one part after the other. A visit is of an
        output, counted from the first one of its part.
    """

    sources: Array
    kernel_entries: Array
    ranges: Array
    blocks: Array
    visits: Array
    offsets: Array
    values: Array


def pack(matrices: Array, sources: Array, vectors: int, block: int, parts: int) -> PackedConv:
    """Pack the weights of all groups.

    Parameters
    ----------
    matrices : ndarray, shape (groups, outputs of a group, what one sees)
    sources : ndarray of int64, shape (channels of a group, entries of the kernel)
    vectors : int
        In a row of a panel.
    block : int
        Rows that a panel has at most; it has 512 KiB at most.
    parts : int
    """
    kernel = np.broadcast_to(np.arange(sources.shape[1]), sources.shape).ravel()
    seen, entries, ranges, blocks = [], [], [0], []
    streams: tuple[list[Array], ...] = [], [], []  # visits, offsets, values
    first_source = first_visit = first_entry = 0
    for matrix in matrices:
        used = np.flatnonzero((matrix != 0).any(axis=0))
        cuts = max(1, -(-used.size // block))
        length = max(1, -(-used.size // cuts))
        seen.append(sources.ravel()[used])
        entries.append(kernel[used])
        for part in range(parts):
            own = matrix[part * len(matrix) // parts : (part + 1) * len(matrix) // parts, used]
            packed = pack_rows(
                sp.csr_array(own), 0, len(own), length, unit_of(vectors * VECTOR_BYTES),
                pairs(vectors, VECTOR_BYTES),
            )  # fmt: skip
            for number in range(packed.first_visit.size - 1):
                begin = number * length
                blocks.append([
                    first_source + begin,
                    first_source + min(begin + length, used.size),
                    *(first_visit + packed.first_visit[number : number + 2]),
                    first_entry + packed.first_entry[number],
                ])  # fmt: skip
            arrays = packed.visits, packed.offsets, packed.values
            for stream, array in zip(streams, arrays, strict=True):
                stream.append(array)
            first_visit += len(packed.visits)
            first_entry += len(packed.offsets)
            ranges.append(len(blocks))
        first_source += used.size
    made = (
        np.concatenate(seen), np.concatenate(entries).astype(np.uint32),
        np.array(ranges, np.int64), np.array(blocks, np.int64).reshape(-1, 5),
        *(np.concatenate(arrays) for arrays in streams),
    )  # fmt: skip
    return PackedConv(*(read_only(array) for array in made))
