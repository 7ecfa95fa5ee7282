"""C = A B by the stream kernel, in one of its variants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn_cpu.activations import RELU, activation_of
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.jobs import Job
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import aligned_empty
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.stream import kernel
from portable_spdnn_cpu.spmm.stream.packing import (
    StreamPart,
    divide_rows,
    may_be_short,
    pack_rows,
    unpacked_rows,
)

JOBS: dict[tuple[str, str], Job] = {
    ("float32", "uint16"): kernel.multiply_short_float32,
    ("float32", "int32"): kernel.multiply_float32,
    ("float64", "uint16"): kernel.multiply_short_float64,
    ("float64", "int32"): kernel.multiply_float64,
}


@dataclass(frozen=True)
class StreamVariant:
    """One way to run the stream kernel.

    Attributes
    ----------
    blocks : int
        Width of a panel in vector blocks.
    k_block : int
        Columns of A in a block; K or more for one block.
    parts : int
        Parts of A's rows, which threads take as they take panels.
    in_place : bool
        Whether panels are read in B, where they are whole vector blocks and B's rows lie together.
    """

    blocks: int
    k_block: int
    parts: int = 1
    in_place: bool = False


class StreamProduct:
    """C = A B, finished by an epilogue, for one variant of the kernel.

    Parameters
    ----------
    A : csr_array, shape (m, k), canonical, of float32 or float64
    epilogue : Epilogue
        Its bias is None, or an array of A's type with an entry for each row.
    variant : StreamVariant
    pack : bool
        Whether to bring A into the kernel's order; otherwise it is used as it is, in one block.
    """

    def __init__(
        self, A: sp.csr_array, epilogue: Epilogue, variant: StreamVariant, pack: bool = True
    ) -> None:
        self.shape, self.dtype, self.variant = A.shape, A.dtype, variant
        bounds = divide_rows(A, variant.parts)
        short = not variant.in_place and may_be_short(variant.k_block, variant.blocks)
        unit = variant.blocks if short else 0
        self.parts = [
            pack_rows(A, begin, end, variant.k_block, unit) if pack else unpacked_rows(A, begin, end)
            for begin, end in zip(bounds[:-1], bounds[1:], strict=True)
        ]
        self.job = JOBS[self.dtype.name, self.parts[0].offsets.dtype.name]
        self.bias = None if epilogue.bias is None else np.ascontiguousarray(epilogue.bias)
        self.most_rows = int(np.diff(bounds).max())
        self.words = self._words(bounds, epilogue)

    def _words(self, bounds: Array, epilogue: Epilogue) -> Array:
        """Return the words of a job that are the same in every call."""
        variant, activation = self.variant, activation_of(epilogue)
        words = np.zeros(kernel.FIRST_PART + kernel.PART_WORDS * len(self.parts), np.int64)
        words[kernel.PARTS] = len(self.parts)
        words[kernel.K] = self.shape[1]
        words[kernel.K_BLOCK] = min(variant.k_block, max(1, self.shape[1]))
        words[kernel.PANEL_STRIDE] = variant.blocks * BLOCK_BYTES // self.dtype.itemsize
        words[kernel.BIAS] = 0 if self.bias is None else self.bias.ctypes.data
        words[kernel.ACTIVATION] = activation.code
        words[[kernel.LOWER, kernel.UPPER]] = np.array(activation[1:], np.float64).view(np.int64)
        words[kernel.BOUNDED] = activation.code <= RELU and np.isfinite(activation[1:]).any()
        for number, part in enumerate(self.parts):
            first = kernel.FIRST_PART + kernel.PART_WORDS * number
            addresses = [array.ctypes.data for array in part.arrays]
            words[first : first + kernel.PART_WORDS] = (
                bounds[number], bounds[number + 1], part.blocks, *addresses,
            )  # fmt: skip
        return words

    def multiply(self, B: Array, out: Array, residual: Array | None, pool: ThreadPool) -> None:
        """Compute `out`.

        Parameters
        ----------
        B : ndarray, shape (k, n)
        out : ndarray, shape (m, n), C or Fortran order
        residual : ndarray, shape (m, n), optional
        pool : ThreadPool
        """
        columns = out.shape[1]
        if not out.size:
            return
        if residual is not None and not out.flags.c_contiguous:
            ordered = np.empty(out.shape, out.dtype)
            self.multiply(B, ordered, residual, pool)
            out[...] = ordered
            return
        if not _has_lines(B):
            B = np.ascontiguousarray(B)
        turned = B.strides[1] != B.itemsize and columns > 1
        out_turned = not out.flags.c_contiguous
        if residual is not None:
            residual = np.ascontiguousarray(residual)
        words = self.words.copy()
        lanes = BLOCK_BYTES // self.dtype.itemsize
        width = self.variant.blocks * lanes
        words[kernel.ITEMS] = -(-columns // width) * len(self.parts)
        words[kernel.COLUMNS], words[kernel.WIDTH] = columns, width
        words[kernel.IN_PLACE] = self.variant.in_place and not turned
        words[kernel.B], words[kernel.B_TURNED] = B.ctypes.data, turned
        words[kernel.B_STRIDE] = B.strides[1 if turned else 0] // B.itemsize
        words[kernel.OUT], words[kernel.OUT_TURNED] = out.ctypes.data, out_turned
        words[kernel.OUT_STRIDE] = out.strides[1 if out_turned else 0] // out.itemsize
        if residual is not None:
            words[kernel.RESIDUAL], words[kernel.RESIDUAL_STRIDE] = residual.ctypes.data, columns
        keeps_sums = out_turned or self.parts[0].blocks > 1
        sums = self.most_rows * width * self.dtype.itemsize if keeps_sums else 0
        panel = int(words[kernel.K_BLOCK]) * width * self.dtype.itemsize
        with spare_memory(pool.threads * (sums + panel)) as memory:
            words[kernel.WORKSPACE] = memory.ctypes.data
            words[kernel.WORKSPACE_BYTES], words[kernel.SUMS_BYTES] = sums + panel, sums
            pool.run_job(self.job, words)


def _has_lines(B: Array) -> bool:
    """Whether rows or columns of B lie in one piece each, none over another, in whole items."""
    row, column = B.strides
    item = B.itemsize
    ordered = (column == item and row >= B.shape[1] * item) or (
        row == item and column >= B.shape[0] * item
    )
    return ordered and row % item == 0 and column % item == 0


_spare: list[Array] = []


@contextmanager
def spare_memory(size: int) -> Iterator[Array]:
    """Lend at least `size` bytes that an earlier call left; concurrent calls get their own."""
    try:
        memory = _spare.pop()
    except IndexError:
        memory = aligned_empty((0,), np.uint8)
    if memory.size < size:
        memory = aligned_empty((size,), np.uint8)
    yield memory
    _spare[:] = [memory]
