"""Uploads in chunks of page-locked memory: threads fill some while earlier ones are copied.

Copies from page-locked memory run beside the host, but to lock memory costs more time than to copy
it, and what is locked is lost to others: so a few chunks are filled again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from portable_spdnn.features import PackedFeatures
from portable_spdnn.host import map_in_threads, usable_cores
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.interface import Array, Device, DeviceArray, LaunchError

# Bytes of a chunk, unless a row takes more: to hand less to a thread costs as much as it gains.
CHUNK_BYTES = 8 << 20
FILLERS = 6  # threads; one fills about 9 GB/s, and PCI Express takes 25 (version 4) or 50
PLACES = 2  # for parts on the device: kernels read one while the other is written
ALIGNMENT = 16  # bytes, of arrays in a chunk
ROWS = 64  # parts have multiples of as many rows, or fewer: whole cache lines on the device
Placed = tuple[int, tuple[int, ...], np.dtype[Any]]  # offset in a part, shape, type


class Part(NamedTuple):
    """Neighbouring rows: arrays of the host that hold them, and the types wanted on the device."""

    first: int
    rows: int
    arrays: list[tuple[Array, np.dtype[Any]]]


Start = Callable[[Part, list[DeviceArray]], None]  # starts the kernels that use a part's arrays


class ChunkedUpload:
    """Brings rows to a device part by part; one upload at a time.

    Parameters
    ----------
    device : Device
    memory : device array of uint8
        Where parts arrive, by turns: it holds nothing else meanwhile. At least `PLACES` x
        `row_bytes`.
    row_bytes : int
        The most bytes of a part that is one row.

    Attributes
    ----------
    device : Device
    limit : int
        The most bytes of a part.
    """

    def __init__(self, device: Device, memory: DeviceArray, row_bytes: int) -> None:
        self.device, self._memory = device, memory
        most = min(max(CHUNK_BYTES, row_bytes), memory.size // PLACES)
        self.limit = most // ALIGNMENT * ALIGNMENT
        self._fillers = min(FILLERS, usable_cores())
        # `map_in_threads` holds a part more than it has threads; one more is being copied.
        self._chunks = [device.pinned(self.limit) for _ in range(self._fillers + 2)]
        # When each has been copied; the host does not wait for the last copies of an upload.
        self._copied = [device.mark()] * len(self._chunks)
        self._stream = device.new_stream()

    def run(self, parts: Sequence[Part], start: Start, held: DeviceArray | None = None) -> None:
        """Copy parts to the device, and use each there; the host goes on before the last is.

        Where anything fails, nothing of the upload is going on any more when the error is raised,
        apart from kernels on the current stream.

        Parameters
        ----------
        parts : sequence of Part
        start : callable
            Starts the kernels that use a part, on the current stream, given its arrays.
        held : device array of uint8, optional
            Where the parts stay, one behind the other; else each makes room for a later one.
        """
        device, chunks, end = self.device, self._chunks, 0
        used = [device.mark()] * PLACES  # when the part before in each place has been used

        def parts_and_chunks() -> Iterator[tuple[Part, Array]]:
            for number, part in enumerate(parts):
                device.synchronize(self._copied[number % len(chunks)])
                yield part, chunks[number % len(chunks)]

        work = parts_and_chunks()
        ahead = map_in_threads(_fill, work, self._fillers) if len(parts) > 1 else None
        try:
            with closing(ahead or (_fill(one) for one in work)) as filled:
                for number, (part, memory, placed) in enumerate(filled):
                    place = number % PLACES
                    if held is None:
                        to = device.view(self._memory, place * self.limit, memory.shape, np.uint8)
                    else:
                        to, end = device.view(held, end, memory.shape, np.uint8), end + memory.size
                    with device.on(self._stream):
                        device.wait(used[place])
                        device.copy_in(memory, to)
                        copied = self._copied[number % len(chunks)] = device.mark()
                    device.wait(copied)
                    start(part, [device.view(to, *array) for array in placed])
                    used[place] = device.mark()
        except BaseException:
            with device.on(self._stream), suppress(LaunchError):
                device.synchronize()
            raise


def _fill(work: tuple[Part, Array]) -> tuple[Part, Array, list[Placed]]:
    """Copy a part into a chunk; return the memory used, and where each array lies in it."""
    part, chunk = work
    placed, end = list[Placed](), 0
    for array, dtype in part.arrays:
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        end = begin + array.size * dtype.itemsize
        to = chunk[begin:end].view(dtype).reshape(array.shape)
        np.copyto(to, array, casting="same_kind")
        placed.append((begin, array.shape, dtype))
    return part, chunk[:end], placed


def row_bytes(columns: int, dtype: np.dtype[Any]) -> int:
    """Return the most bytes of a row of features in a chunk: sparse, with all of its entries."""
    return columns * (4 + dtype.itemsize) + 4 * ALIGNMENT


def host_rows(
    features: PackedFeatures | Array, precision: Precision
) -> tuple[Array, np.dtype[Any]]:
    """Return features of the host as rows, and their type on a device: of bits or of sums."""
    if isinstance(features, PackedFeatures):
        return features.bits, np.dtype(np.uint8)
    return features, precision.sums


def parts_of_rows(rows: Array, dtype: np.dtype[Any], limit: int) -> list[Part]:
    """Cut the rows of a 2-D array into parts of no more than `limit` bytes."""
    width, count = max(1, rows.shape[1] * dtype.itemsize), rows.shape[0]
    step = max(1, limit // width)
    step = step // ROWS * ROWS or step
    blocks = ((first, rows[first : first + step]) for first in range(0, count, step))
    return [Part(first, block.shape[0], [(block, dtype)]) for first, block in blocks]


def parts_of_csr(matrix: sp.csr_array, dtype: np.dtype[Any], limit: int) -> list[Part]:
    """Cut the rows of a matrix into parts: offsets from 0, columns and entries of each."""
    index, parts, first = np.dtype(np.int32), list[Part](), 0
    entries, rows = matrix.indptr.astype(np.int64), matrix.shape[0]
    # The bytes of all rows before each, and after the last.
    before = (index.itemsize + dtype.itemsize) * entries + index.itemsize * np.arange(rows + 1)
    most = limit - 4 * ALIGNMENT
    while first < rows:
        end = int(np.searchsorted(before, before[first] + most, "right")) - 1
        end = max(end, first + 1)
        begin, stop = entries[first], entries[end]
        arrays = [
            (entries[first : end + 1] - begin, index),
            (matrix.indices[begin:stop], index),
            (matrix.data[begin:stop], dtype),
        ]
        parts.append(Part(first, end - first, arrays))
        first = end
    return parts
