"""C = A B by the stream kernel, in one of its variants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn_cpu.activations import RELU, activation_of
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.job_start import start_function
from portable_spdnn_cpu.jit.jobs import COUNTER_PADDING, address_of, in_order
from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS
from portable_spdnn_cpu.layout.large_results import NONTEMPORAL_BYTES
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.buffers import WORKSPACES
from portable_spdnn_cpu.machine.spinning import job_failed
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.row_parts import divide
from portable_spdnn_cpu.spmm.stream import job_words, kernel
from portable_spdnn_cpu.spmm.stream.microkernels import last_is_halved, pairs
from portable_spdnn_cpu.spmm.stream.packing import (
    BEGUN,
    BY_OFFSETS,
    BY_ROWS,
    GIVEN,
    pack_rows,
    unit_of,
)
from portable_spdnn_cpu.spmm.stream.panels import copying_code
from portable_spdnn_cpu.spmm.stream.row_loops import finishing_code, summing_code
from portable_spdnn_cpu.spmm.transposes import loading_code, storing_code

# Multiply-adds of vectors, or a third as many copies: those of 10 microseconds, from which two
# threads that are awake take less time than one, and of 100, from which it pays to wake them.
SHARED_WORK, WAKING_WORK = 30_000, 300_000
# Bytes of a row of C from which panels that are copied begin where its cache lines do: of any C,
# and of one whose stores are then non-temporal. The first panel has fewer columns, and there may be
# a panel more: with 3,072 bytes products took 0.8 to 1.0 of the time on an Intel Xeon, with 2,048
# 0.97 to 1.2, with 1,024 1.05 to 1.2 times as long.
LEAST_ROW_ON_LINES, LEAST_NONTEMPORAL_ROW = 3072, 1024


class StreamVariant(NamedTuple):
    """One way to run the stream kernel.

    Attributes
    ----------
    vectors : int
        Width of a panel, in vectors of 64 bytes.
    k_block : int
        Columns of A in a block; K or more for one block.
    parts : int
        Parts of A's rows, which threads take as they take panels.
    panels : int
        Panels that a row of A meets one after the other, where they are read in place.
    in_place : bool
        Whether panels are read in B where its rows are whole cache lines long and apart; A then is
        one block.
    """

    vectors: int
    k_block: int
    parts: int = 1
    panels: int = 1
    in_place: bool = False

    def packs(self, inner: int) -> bool:
        """Whether A, of so many columns, is packed: its offsets have 16 bits.

        Else it stays as it is, in one block.
        """
        if self.in_place:
            return inner <= 1 << 16
        return unit_of(self.vectors * BLOCK_BYTES) * min(self.k_block, inner) <= 1 << 16


@dataclass
class _Call:
    """What calls share, one after the other, for results of one shape.

    Attributes
    ----------
    key : tuple
        What such calls have in common.
    words : ndarray of int64
    address : int
        Of the words.
    workspace_bytes, threads : int
    whole : int
        As `ThreadPool.run_job` has it.
    b_strides : tuple of int
        Of the B that the words tell of; none at first.
    """

    key: tuple[Any, ...]
    words: Array
    address: int
    workspace_bytes: int
    threads: int
    whole: int
    b_strides: tuple[int, ...] = ()


class StreamProduct:
    """C = A B, finished by an epilogue, for one variant of the kernel.

    Parameters
    ----------
    A : csr_array, shape (m, k), canonical, of float32 or float64
    epilogue : Epilogue
        Its bias is None, or an array of A's type with an entry for each row.
    variant : StreamVariant
    pack : bool
        Whether A is packed where the variant packs it, and else copied. Otherwise it is used as it
        is, in one block, and is not to be changed.
    """

    def __init__(
        self, A: sp.csr_array, epilogue: Epilogue, variant: StreamVariant, pack: bool = True
    ) -> None:
        self.shape, self.dtype, self.variant = A.shape, A.dtype, variant
        self.entries = A.nnz
        bounds = divide(A.indptr, variant.parts, BEGUN)
        self._unused: list[_Call] = []
        self._none = np.empty((0, 0), A.dtype)
        self._start = start_function(A.dtype, 2)
        self._kept: list[Array] = []  # what the words have addresses of
        words = np.zeros(job_words.FIRST_PART + job_words.PART_WORDS * variant.parts, np.int64)
        words[job_words.PARTS] = variant.parts
        words[job_words.K] = self.shape[1]
        inner = max(1, self.shape[1])
        self._form = GIVEN
        self.k_block = inner
        if pack and variant.packs(inner):
            self._form = BY_ROWS if variant.in_place else BY_OFFSETS
        if self._form == BY_OFFSETS:
            self.k_block = min(variant.k_block, inner)
        words[job_words.K_BLOCK] = self.k_block
        self.width = variant.vectors * BLOCK_BYTES // self.dtype.itemsize
        words[job_words.WIDTH] = self.width
        words[job_words.LINE] = BLOCK_BYTES // self.dtype.itemsize
        if epilogue.bias is not None:
            words[job_words.BIAS] = self._address(np.ascontiguousarray(epilogue.bias))
        code, *limits = activation_of(epilogue, A.dtype)
        words[job_words.ACTIVATION] = code
        words[job_words.LOWER : job_words.UPPER + 1].view(np.float64)[:] = limits
        words[job_words.BOUNDED] = any(map(math.isfinite, limits))
        self.blocks = -(-inner // self.k_block)
        table = words[job_words.FIRST_PART :].reshape(variant.parts, job_words.PART_WORDS)
        arrays: tuple[Array, ...]
        if self._form:
            unit = unit_of(variant.vectors * BLOCK_BYTES) if self._form == BY_OFFSETS else 1
            paired = pairs(variant.vectors)
            for begin, end, words_of_part in zip(bounds[:-1], bounds[1:], table, strict=True):
                arrays = pack_rows(A, begin, end, self.k_block, unit, paired)
                words_of_part[:] = begin, end, self.blocks, *map(self._address, arrays)
        else:
            # Users' arrays may be strided.
            kinds = (A.indptr, np.int64), (A.indices, np.int32), (A.data, self.dtype)
            arrays = tuple(in_order(array).astype(kind, copy=pack) for array, kind in kinds)
            indptr, columns, values = map(self._address, arrays)
            for part, words_of_part in enumerate(table):
                words_of_part[:] = *bounds[part : part + 2], 1, indptr, 0, 0, columns, values
        self.most_rows = max(map(int.__sub__, bounds[1:], bounds[:-1]))
        self.words = words

    def _address(self, array: Array) -> int:
        """Return where an array lies, and keep it alive."""
        self._kept.append(array)
        return address_of(array)

    def multiply(
        self, B: Array, out: Array, residual: Array | None, pool: ThreadPool, written: int = 0
    ) -> None:
        """Compute `out`.

        Parameters
        ----------
        B : ndarray, shape (k, n)
        out : ndarray, shape (m, n), C or Fortran order
        residual : ndarray, shape (m, n), optional
        pool : ThreadPool
        written : int
            As `spmm.handle.Kernel` has it.
        """
        if not out.size:
            return
        in_place = self.reads_in_place(B, out)
        shifted = self._begins_before(B, out, in_place, written)
        key = out.strides, out.shape, in_place, shifted, pool.threads, written
        try:
            call: _Call | None = self._unused.pop()  # concurrent calls each have their own
        except IndexError:
            call = None
        if call is None or call.key != key:
            threads = self.threads_used(pool.threads, out.shape[1])
            call = self._call_for(out, threads, in_place, shifted, written, key)
        if call.b_strides != B.strides:
            if B.size and not _has_contiguous_vectors(B):
                B = np.array(B, order="C")
            stride, fortran = _stride_and_order(B)
            call.words[job_words.B_STRIDE : job_words.B_FORTRAN + 1] = stride, fortran
            if fortran:
                call.words[job_words.LOAD_COLUMNS] = loading_code(self.dtype)
            call.b_strides = B.strides
        if residual is None:
            residual = self._none
        else:
            residual, apart = _with_stride(residual, bool(call.words[job_words.OUT_FORTRAN]))
            call.words[job_words.RESIDUAL_STRIDE] = apart
        workspace = WORKSPACES.take()
        memory = workspace.of_bytes(call.workspace_bytes)
        job = kernel.multiply_tasks.address if call.threads == 1 else 0
        if self._start(job, call.address, memory, B, out, residual):
            raise job_failed(1, 1)
        if call.threads > 1:
            pool.run_job(kernel.multiply_tasks, call.words, call.whole)
        WORKSPACES.give_back(workspace)
        self._unused.append(call)

    def reads_in_place(self, B: Array, out: Array | None = None) -> bool:
        """Whether panels are read in B, given an `out`; None: in C order."""
        if not self.variant.in_place or not has_whole_lines(B):
            return False
        if address_of(B) % BLOCK_BYTES == 0:
            return True
        # Sums that wait to be transposed begin with column 0.
        return HAS_FAST_MASKS and (out is None or not _stride_and_order(out)[1])

    def result_offset(self, B: Array) -> int:
        """Return how many bytes behind the start of a cache line a C in C order is best to begin.

        As many as B where panels are read in it, so that their columns of C are on lines too.
        """
        return address_of(B) % BLOCK_BYTES if self.reads_in_place(B) else 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory that A takes."""
        return sum(array.nbytes for array in self._kept)

    def threads_used(self, threads: int, columns: int) -> int:
        """Return how many of a pool's threads compute so many columns: one if that is soon done."""
        return threads if is_shared(self.entries, self.shape, columns, self.dtype.itemsize) else 1

    def _begins_before(self, B: Array, out: Array, in_place: bool, written: int) -> bool:
        """Whether the first panel begins before column 0, on a cache line of B, or of C."""
        if in_place:
            return address_of(B) % BLOCK_BYTES != 0
        (apart, item), row = out.strides, out.shape[1] * out.itemsize
        if apart < LEAST_NONTEMPORAL_ROW or (apart | row) % BLOCK_BYTES or item != out.itemsize:
            return False
        activation = self.words[job_words.ACTIVATION]
        is_vast = max(written, out.nbytes) >= NONTEMPORAL_BYTES
        is_nontemporal = is_vast and activation <= RELU
        least = LEAST_NONTEMPORAL_ROW if is_nontemporal else LEAST_ROW_ON_LINES
        return row >= least and address_of(out) % BLOCK_BYTES != 0

    def _call_for(
        self,
        out: Array,
        threads: int,
        in_place: bool,
        shifted: bool,
        written: int,
        key: tuple[Any, ...],
    ) -> _Call:
        """Return what calls with such results share."""
        columns = out.shape[1]
        stride, staged = _stride_and_order(out)
        panels = self.variant.panels if in_place and not staged else 1
        # Counters end the words, on a cache line of their own: words before them are read.
        words = np.zeros(self.words.size + COUNTER_PADDING + threads, np.int64)
        words[: self.words.size] = self.words
        words[job_words.WORKERS], words[job_words.COUNTERS] = threads, words.size - threads
        words[job_words.COLUMNS], words[job_words.PANELS] = columns, panels
        words[job_words.IN_PLACE], words[job_words.SHIFTED] = in_place, shifted
        words[job_words.OUT_STRIDE : job_words.OUT_FORTRAN + 1] = stride, staged
        if staged:
            words[job_words.LOAD_COLUMNS] = loading_code(self.dtype)  # C begins as the residual
            words[job_words.STORE_COLUMNS] = storing_code(self.dtype)
        # Where panels are shifted rows are whole lines, and take a vector more.
        rest = (columns + shifted) % self.width
        if columns >= self.width:
            self._set_panel(words, job_words.WHOLE, self.width, in_place, shifted)
        if rest:
            self._set_panel(words, job_words.REST, rest, in_place, shifted)
        row = self.width * self.dtype.itemsize
        sums = self.most_rows * row if staged or self.blocks > 1 else 0
        each = sums + (0 if in_place else self.k_block * row + BLOCK_BYTES * shifted)
        words[job_words.WORKSPACE_BYTES : job_words.SUMS_BYTES + 1] = each, sums
        words[job_words.OUT_BYTES] = max(written, out.nbytes)
        itemsize = self.dtype.itemsize
        whole = -1 if is_shared(self.entries, self.shape, columns, itemsize, WAKING_WORK) else 0
        return _Call(key, words, address_of(words), threads * each, threads, whole)

    def _set_panel(
        self, words: Array, at: int, columns: int, in_place: bool, shifted: bool
    ) -> None:
        """Write the words of panels of so many columns."""
        vectors = -(-columns * self.dtype.itemsize // BLOCK_BYTES)
        copied = self._form == BY_OFFSETS and not shifted
        halved = copied and last_is_halved(columns * self.dtype.itemsize, vectors)
        own = words[at : at + job_words.PANEL_WORDS]
        own[job_words.VECTORS] = vectors
        if not in_place:
            own[job_words.COPY_ROWS] = copying_code(vectors, self.dtype)
        if self.blocks > 1:
            own[job_words.SUM_ROWS] = summing_code(vectors, self.dtype, halved)
        finishing = finishing_code(vectors, self.dtype, self._form, shifted, halved)
        own[job_words.FINISH_ROWS] = finishing

    def describe(self) -> str:
        """Return what runs, for people."""
        parts, panels = self.variant.parts, self.variant.panels
        blocks = f"{self.blocks} blocks of up to" if self.blocks > 1 else "1 block of"
        return (
            f"weights streamed, panels of {self.width} columns"
            f"{f', {panels} of them for each row of A' if panels > 1 else ''}, "
            + (
                "read in place, from the start of a cache line on"
                if self.variant.in_place
                else f"{blocks} {self.k_block} rows of B"
            )
            + (f", {parts} parts of the rows of A" if parts > 1 else "")
        )


def is_shared(
    entries: int,
    shape: tuple[int, ...],
    columns: int,
    itemsize: int,
    least: int = SHARED_WORK,
) -> bool:
    """Whether a product is so much work that threads share it."""
    vectors = -(-columns * itemsize // BLOCK_BYTES)
    return vectors * (entries + 3 * sum(shape)) >= least


def has_whole_lines(B: Array) -> bool:
    """Whether rows of B are whole cache lines long and apart, wherever they begin."""
    (apart, item), row = B.strides, B.shape[1] * B.itemsize
    in_lines = apart % BLOCK_BYTES == 0 and row % BLOCK_BYTES == 0
    return in_lines and item == B.itemsize and apart >= row and address_of(B) % item == 0


def _has_contiguous_vectors(B: Array) -> bool:
    """Whether B's rows, or its columns, are contiguous, and none lies over another."""
    item = B.itemsize
    row, column = B.strides[0], B.strides[1] if B.shape[1] > 1 else item
    ordered = (column == item and row >= B.shape[1] * item) or (
        row == item and column >= B.shape[0] * item
    )
    return ordered and row % item == 0 and column % item == 0


def _with_stride(residual: Array, fortran: bool) -> tuple[Array, int]:
    """Return a residual, and the items from a row to the next; in Fortran order, from a column.

    It is copied if items of its rows, or columns, are not adjacent.
    """
    axis, item = int(fortran), residual.itemsize
    apart, adjacent = residual.strides[axis], residual.strides[1 - axis]
    if apart % item or (adjacent != item and residual.shape[1 - axis] > 1):
        residual = np.array(residual, order="F" if fortran else "C")
        apart = residual.strides[axis]
    return residual, apart // item


def _stride_and_order(array: Array) -> tuple[int, bool]:
    """Return the items from a row to the next, or a column, and whether order is Fortran's."""
    fortran = array.strides[1] != array.itemsize and array.shape[1] > 1
    return array.strides[fortran] // array.itemsize, fortran
