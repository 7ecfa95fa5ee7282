"""Starting the job of a single product: arrays are looked at, and become words."""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
from numba.core import types

from portable_spdnn.caching import cached_property
from portable_spdnn_cpu.activations import NONE
from portable_spdnn_cpu.jit.compilation import Array, entry_point, kernel, kernel_part
from portable_spdnn_cpu.jit.jobs import Job, array_at, run_share
from portable_spdnn_cpu.layout.canonical import INDEX_TYPES, VALUE_TYPES, offsets_are_valid
from portable_spdnn_cpu.layout.csc_to_csr import fill_rows
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.direct import kernel as columns_kernel
from portable_spdnn_cpu.spmm.direct import vectors
from portable_spdnn_cpu.spmm.direct.copies import columns_together, scratch_bytes
from portable_spdnn_cpu.spmm.direct.job_words import (
    ACCUMULATES,
    ACTIVATION,
    B_FORTRAN,
    B_ROW,
    BIAS,
    BIAS_STEP,
    COLUMNS,
    COUNTERS,
    ENTRIES,
    HAS_EPILOGUE,
    INDICES,
    INDPTR,
    LOWER,
    OUT,
    OUT_FORTRAN,
    OUT_ROW,
    REFUSED,
    ROWS,
    SCRATCH,
    TASKS,
    TOGETHER,
    UPPER,
    VALUES,
    WORKERS,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.direct.job_words import B as B_AT

# By the form of A: kernels for several columns of B, and for a single one.
KERNELS = {
    "csr": (columns_kernel.multiply_csr, vectors.multiply_csr),
    "csc": (columns_kernel.multiply_csc, vectors.multiply_csc),
}
# Of what `fill_epilogue` takes after the words.
EPILOGUE_TYPES = (
    types.boolean, types.int64, types.Array(types.float64, 1, "C", True), types.float64,
    types.float64,
)  # fmt: skip
TASKS_PER_WORKER = 4  # of equal numbers of rows, whose entries may differ


@kernel_part
def is_fortran(array: Array) -> bool:
    """Whether columns of B or C are taken as they lie in memory, and not rows."""
    return array.ndim > 1 and array.shape[-1] > 1 and array.strides[-1] != array.itemsize


@kernel_part
def fill_words(
    words: Any, workers: int, indptr: Array, indices: Array, values: Array, B: Array, out: Array
) -> bool:
    """Fill the words of a job but for SCRATCH, and what `fill_epilogue` fills.

    Returns false where items of an array (of B in Fortran order, those of a column) are apart or
    misaligned, where C has gaps, where indices are too narrow for the shape, or where offsets do
    not rise from 0 to at most the number of entries.
    """
    words[REFUSED], words[WORKERS] = 0, workers
    for worker in range(workers):
        words[COUNTERS + worker] = 0
    rows = out.shape[0]
    columns = B.shape[-1] if B.ndim > 1 else 1
    words[TASKS] = 1 if workers == 1 else workers * TASKS_PER_WORKER
    words[ROWS], words[COLUMNS], words[K] = rows, columns, B.shape[0]
    words[ENTRIES] = min(indices.size, values.size)
    words[TOGETHER] = columns_together(words[ENTRIES], words[K])
    words[INDPTR], words[INDICES] = indptr.ctypes.data, indices.ctypes.data
    words[VALUES], words[B_AT], words[OUT] = values.ctypes.data, B.ctypes.data, out.ctypes.data
    fortran, out_fortran = is_fortran(B), is_fortran(out)
    words[B_FORTRAN], words[B_ROW] = fortran, B.strides[-1 if fortran else 0]
    words[OUT_FORTRAN], words[OUT_ROW] = out_fortran, out.strides[-1 if out_fortran else 0]
    if not out_fortran and (rows <= 1 or columns == 0):
        words[OUT_ROW] = columns * out.itemsize  # the stride of a single row, or none, may be any
    step = B.strides[0 if columns == 1 or fortran else -1]
    fine = (step == B.itemsize or B.size <= 1) and B.ctypes.data % B.itemsize == 0
    step = out.strides[0 if columns == 1 or out_fortran else -1]
    fine &= step == out.itemsize or out.size <= 1
    # Rows of C follow each other without a gap.
    fine &= out_fortran or out.size == 0 or words[OUT_ROW] == columns * out.itemsize
    if fortran:
        fine &= B.strides[-1] >= B.shape[0] * B.itemsize and B.strides[-1] % B.itemsize == 0
    for array in (indptr, indices):
        fine &= array.strides[0] == array.itemsize or array.size <= 1
        fine &= array.ctypes.data % array.itemsize == 0
        fine &= array.itemsize == 8 or max(rows, B.shape[0]) < 1 << 31
    fine &= values.strides[0] == values.itemsize or values.size <= 1
    return fine and offsets_are_valid(indptr, words[ENTRIES])


@kernel_part
def fill_epilogue(
    words: Any, accumulates: bool, code: int, bias: Array, lower: float, upper: float
) -> None:
    """Let a job finish C, and add to what it holds where it accumulates.

    There is a bias for each row of C, or one for all. `code` is that of an `Activation`.
    """
    changes = accumulates or code != NONE or bias.size != 1 or bias[0] != 0
    words[HAS_EPILOGUE] = changes or lower > -np.inf or upper < np.inf
    words[ACCUMULATES], words[ACTIVATION] = accumulates, code
    words[BIAS], words[BIAS_STEP] = bias.ctypes.data, bias.itemsize if bias.size > 1 else 0
    limits = words[LOWER : UPPER + 1].view(np.float64)
    limits[0], limits[1] = lower, upper


@kernel_part
def aligned(address: int) -> int:
    """Return the first address from this one on where a vector may begin."""
    return (address + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


@kernel_part
def words_for_one(
    is_csc: bool, converts: bool, indices: Array, values: Array, B: Array, out: Array
) -> Array:
    """Return the words of a job for one worker, which the memory that it needs follows.

    The memory holds A in CSR where CSC is converted, and rows of B and C that are in Fortran order.
    """
    columns, rows, k = B.shape[-1] if B.ndim > 1 else 1, out.shape[0], B.shape[0]
    entries = min(indices.size, values.size)
    by_columns = is_csc and not converts
    size = BLOCK_BYTES + scratch_bytes(
        by_columns, rows, k, columns, B.itemsize, is_fortran(B), is_fortran(out)
    )
    if converts:
        size += (entries + 1) * values.itemsize + (rows + 2 + entries) * indices.itemsize
        size += BLOCK_BYTES
    words = np.empty(COUNTERS + 1 + size // 8, np.int64)
    words[SCRATCH] = aligned(words.ctypes.data + 8 * (COUNTERS + 1))
    return words


@kernel_part
def fill_words_for_one(
    words: Any, converts: bool, indptr: Array, indices: Array, values: Array, B: Array, out: Array
) -> bool:
    """Do what `fill_words` does for one worker, and convert A if it is to be."""
    if not fill_words(words, 1, indptr, indices, values, B, out):
        return False
    return bool(not converts or bring_into_csr(words, indptr, indices, values))


@kernel_part
def bring_into_csr(words: Any, indptr: Array, indices: Array, values: Array) -> bool:
    """Let a job have A in CSR, which is given in CSC with valid offsets; see `fill_rows`."""
    rows, entries = words[ROWS], indptr[-1]
    at = words[SCRATCH]
    copies = array_at(at, entries, values.dtype)
    at += (entries * values.itemsize + 7) // 8 * 8
    places = array_at(at, rows + 2, indices.dtype)
    at += (rows + 2) * indices.itemsize
    columns = array_at(at, entries, indices.dtype)
    words[VALUES], words[INDPTR], words[INDICES] = words[SCRATCH], places.ctypes.data, at
    words[ENTRIES] = entries
    words[SCRATCH] = aligned(at + entries * indices.itemsize)
    places[:] = 0
    return fill_rows(indptr, indices, values, rows, places, columns, copies)


class EntryPoints:
    """What starts a job for arrays of some types, which callers have checked.

    Functions are compiled when they are first asked for.

    Attributes
    ----------
    job, vector_job : Job
        For several columns of B, and for a single one.
    """

    def __init__(
        self, jobs: tuple[Job, Job], kernels: tuple[Any, Any, Any], arrays: tuple[Any, ...]
    ) -> None:
        self.job, self.vector_job = jobs
        self._run_alone, self._run_alone_with_epilogue, self._fill_words = kernels
        self._arrays = arrays

    @cached_property
    def run_alone(self) -> Any:
        """The function that computes C on the calling thread.

        It takes (address of the job, indptr, indices, values, B, out, whether A in CSC is converted
        before, whether `out` holds zeros). The job is that of CSR where A is converted. It
        returns false where the arrays are not what they should be.
        """
        flags = types.boolean, types.boolean
        return entry_point(self._run_alone, types.int64, *self._arrays, *flags)

    @cached_property
    def run_alone_with_epilogue(self) -> Any:
        """The same for products with an epilogue.

        It takes what `fill_epilogue` does in place of the last argument.
        """
        flag = types.boolean
        return entry_point(
            self._run_alone_with_epilogue, types.int64, *self._arrays, flag, *EPILOGUE_TYPES
        )

    @cached_property
    def fill_words(self) -> Any:
        """The function that fills the words of a job for any number of workers.

        It takes (words, workers, indptr, indices, values, B, out), B in C order, and what
        `fill_epilogue` takes.
        """
        words = types.Array(types.int64, 1, "C")
        return entry_point(self._fill_words, words, types.int64, *self._arrays, *EPILOGUE_TYPES)


@functools.cache
def compiled(
    form: str, dtype: np.dtype[Any], index_dtype: np.dtype[Any], dimensions: int
) -> EntryPoints | None:
    """Return what starts jobs for A in a form, "csr" or "csc", and B of one dimension or two.

    None for types that are not taken.
    """
    if dtype not in VALUE_TYPES or index_dtype not in INDEX_TYPES:
        return None
    is_csc = form == "csc"

    @kernel
    def run_alone(
        address: int, indptr: Array, indices: Array, values: Array, B: Array, out: Array,
        converts: bool, zeroed: bool,
    ) -> bool:  # fmt: skip
        if indptr.size != (B.shape[0] if is_csc else out.shape[0]) + 1:
            return False
        words = words_for_one(is_csc, converts, indices, values, B, out)
        words[ACCUMULATES], words[HAS_EPILOGUE] = zeroed, 0
        if not fill_words_for_one(words, converts, indptr, indices, values, B, out):
            return False
        failed = run_share(address, 0, words.ctypes.data)
        return bool(not failed and words[REFUSED] == 0)

    @kernel
    def run_alone_with_epilogue(
        address: int, indptr: Array, indices: Array, values: Array, B: Array, out: Array,
        converts: bool, accumulates: bool, code: int, bias: Array, lower: float, upper: float,
    ) -> bool:  # fmt: skip
        words = words_for_one(is_csc, converts, indices, values, B, out)
        if not fill_words_for_one(words, converts, indptr, indices, values, B, out):
            return False
        fill_epilogue(words, accumulates, code, bias, lower, upper)
        failed = run_share(address, 0, words.ctypes.data)
        return bool(not failed and words[REFUSED] == 0)

    @kernel
    def fill_all_words(
        words: Array, workers: int, indptr: Array, indices: Array, values: Array, B: Array,
        out: Array, accumulates: bool, code: int, bias: Array, lower: float, upper: float,
    ) -> bool:  # fmt: skip
        fill_epilogue(words, accumulates, code, bias, lower, upper)
        return fill_words(words, workers, indptr, indices, values, B, out)

    item, index = numba.from_dtype(dtype), numba.from_dtype(index_dtype)
    indices, values = (types.Array(kind, 1, "A", True, aligned=False) for kind in (index, item))
    B = types.Array(item, dimensions, "A", True, aligned=False)
    arrays = indices, indices, values, B, types.Array(item, dimensions, "A")
    several, single = (Job(each, dtype.type, index_dtype.type) for each in KERNELS[form])
    kernels = run_alone, run_alone_with_epilogue, fill_all_words
    return EntryPoints((several, single), kernels, arrays)
