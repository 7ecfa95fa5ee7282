"""Kernels of a single product: threads share rows of a CSR, and columns are done by panels."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numba
import numpy as np
from numba.core import types

from portable_spdnn_cpu.jit.compilation import Array, kernel, kernel_part
from portable_spdnn_cpu.jit.jobs import Job, array_at, job, next_task, run_share
from portable_spdnn_cpu.jit.target import has_fast_gathers
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.direct.job_words import (
    B_ROW,
    COLUMNS,
    COUNTERS,
    ENTRIES,
    INDICES,
    INDPTR,
    OUT,
    OUT_ROW,
    REFUSED,
    ROWS,
    TASKS,
    VALUES,
    WORKERS,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.direct.job_words import B as B_AT
from portable_spdnn_cpu.spmm.direct.microkernels import CSC, CSR, multiply
from portable_spdnn_cpu.spmm.stream.microkernels import MAX_VECTORS

GATHERS = has_fast_gathers()
TASKS_PER_WORKER = 4  # of equal numbers of rows, whose entries may differ


@kernel_part
def multiply_csr(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    """Compute tasks, each some rows of C, until none is left or A is refused."""
    rows, tasks = words[ROWS], words[TASKS]
    while not words[REFUSED]:
        task = next_task(words, COUNTERS, worker, words[WORKERS], tasks)
        if task < 0:
            break
        begin, end = task * rows // tasks, (task + 1) * rows // tasks
        if not multiply_columns(CSR, words, begin, end, dtype, index_dtype):
            words[REFUSED] = (
                1  # read by others late or never: they then do what is left for nothing
            )


@kernel_part
def multiply_csc(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    """Compute C, by one worker; where its rows are no whole vectors, in an array whose rows are."""
    rows, n = words[ROWS], words[COLUMNS]
    itemsize = array_at(0, 1, dtype).itemsize
    width = whole_vectors(n, itemsize)
    out, sums = array_at(words[OUT], (rows, n), dtype), np.empty((0, 0), dtype)
    if width > n:
        sums = np.empty((rows, width), dtype)
        words[OUT], words[OUT_ROW] = sums.ctypes.data, width * itemsize
    if not multiply_columns(CSC, words, 0, words[K], dtype, index_dtype):
        words[REFUSED] = 1
    for row in range(sums.shape[0]):
        for column in range(n):
            out[row, column] = sums[row, column]


@kernel_part
def whole_vectors(columns: int, itemsize: int) -> int:
    """Return the columns of the vectors that `multiply_columns` takes for so many."""
    size = columns * itemsize
    vector = itemsize if columns == 1 else 16 if size <= 16 else 32 if size <= 32 else BLOCK_BYTES
    return -(-size // vector) * vector // itemsize


@kernel_part
def multiply_columns(
    form: tuple[int, ...], words: Any, begin: int, end: int, item: Any, index: Any
) -> Any:
    """Multiply as `microkernels.multiply` does, all columns of B, in panels."""
    itemsize = array_at(0, 1, item).itemsize
    lanes, n = BLOCK_BYTES // itemsize, words[COLUMNS]
    if n == 1 and (len(form) or GATHERS):
        return multiply(form, 0, 0, item, index, words, begin, end, 0, n)
    if n * itemsize <= 16:
        return multiply(form, 1, 16, item, index, words, begin, end, 0, n)
    if n * itemsize <= 32:
        return multiply(form, 1, 32, item, index, words, begin, end, 0, n)
    valid, first = True, 0
    # In CSC both a row of B and one of C are in registers.
    widest = (MAX_VECTORS // 2 if len(form) else MAX_VECTORS) * lanes
    while first < n:
        width = min(n - first, widest)
        vectors = -(-width // lanes)
        if vectors == 1:
            valid &= multiply(form, 1, 64, item, index, words, begin, end, first, width)
        elif vectors == 2:
            valid &= multiply(form, 2, 64, item, index, words, begin, end, first, width)
        elif vectors == 3:
            valid &= multiply(form, 3, 64, item, index, words, begin, end, first, width)
        elif vectors == 4:
            valid &= multiply(form, 4, 64, item, index, words, begin, end, first, width)
        elif vectors == 5:
            valid &= multiply(form, 5, 64, item, index, words, begin, end, first, width)
        elif vectors == 6:
            valid &= multiply(form, 6, 64, item, index, words, begin, end, first, width)
        elif vectors == 7:
            valid &= multiply(form, 7, 64, item, index, words, begin, end, first, width)
        else:
            valid &= multiply(form, 8, 64, item, index, words, begin, end, first, width)
        first += width
    return valid


@job
def csr_float32(worker: int, words: Any) -> None:
    """Multiply float32, with indices of 32 bits."""
    multiply_csr(worker, words, np.float32, np.int32)


@job
def csr_float64(worker: int, words: Any) -> None:
    """Multiply float64, with indices of 32 bits."""
    multiply_csr(worker, words, np.float64, np.int32)


@job
def csr_long_float32(worker: int, words: Any) -> None:
    """Multiply float32, with indices of 64 bits."""
    multiply_csr(worker, words, np.float32, np.int64)


@job
def csr_long_float64(worker: int, words: Any) -> None:
    """Multiply float64, with indices of 64 bits."""
    multiply_csr(worker, words, np.float64, np.int64)


@job
def csc_float32(worker: int, words: Any) -> None:
    """Multiply float32, with indices of 32 bits."""
    multiply_csc(worker, words, np.float32, np.int32)


@job
def csc_float64(worker: int, words: Any) -> None:
    """Multiply float64, with indices of 32 bits."""
    multiply_csc(worker, words, np.float64, np.int32)


@job
def csc_long_float32(worker: int, words: Any) -> None:
    """Multiply float32, with indices of 64 bits."""
    multiply_csc(worker, words, np.float32, np.int64)


@job
def csc_long_float64(worker: int, words: Any) -> None:
    """Multiply float64, with indices of 64 bits."""
    multiply_csc(worker, words, np.float64, np.int64)


# By the form of A, and the bytes of a value and of an index.
JOBS: dict[tuple[str, int, int], Job] = {
    ("csr", 4, 4): csr_float32,
    ("csr", 8, 4): csr_float64,
    ("csr", 4, 8): csr_long_float32,
    ("csr", 8, 8): csr_long_float64,
    ("csc", 4, 4): csc_float32,
    ("csc", 8, 4): csc_float64,
    ("csc", 4, 8): csc_long_float32,
    ("csc", 8, 8): csc_long_float64,
}


@kernel_part
def describe(
    words: Any, workers: int, indptr: Array, indices: Array, values: Array, B: Array, out: Array
) -> bool:
    """Fill the words of a job.

    Returns false where an array is strided or misaligned, where indices are too narrow for the
    shape, or where offsets do not begin with 0.
    """
    words[REFUSED], words[WORKERS] = 0, workers
    for worker in range(workers):
        words[COUNTERS + worker] = 0
    rows = out.shape[0]
    columns = B.size // B.shape[0]
    words[TASKS] = 1 if workers == 1 else workers * TASKS_PER_WORKER
    words[ROWS], words[COLUMNS], words[K] = rows, columns, B.shape[0]
    words[ENTRIES] = min(indices.size, values.size)
    words[INDPTR], words[INDICES] = indptr.ctypes.data, indices.ctypes.data
    words[VALUES], words[B_AT], words[OUT] = values.ctypes.data, B.ctypes.data, out.ctypes.data
    words[B_ROW], words[OUT_ROW] = B.strides[0], out.strides[0]
    step = B.strides[0 if columns == 1 else -1]
    fine = (step == B.itemsize or B.size <= 1) and B.ctypes.data % B.itemsize == 0
    for array in (indptr, indices):
        fine &= array.strides[0] == array.itemsize or array.size <= 1
        fine &= array.ctypes.data % array.itemsize == 0
        fine &= array.itemsize == 8 or max(rows, B.shape[0]) < 1 << 31
    fine &= values.strides[0] == values.itemsize or values.size <= 1
    return fine and indptr[0] == 0


class Kernels(NamedTuple):
    """Compiled code for arrays of some types.

    Attributes
    ----------
    job : Job
        For several workers.
    describe : callable
        Takes (words, workers, indptr, indices, values, B, out); see `describe`.
    run_alone : callable
        Takes (address of the job, indptr, indices, values, B, out), and computes C on the calling
        thread. Returns false where the arrays are not what they should be.
    """

    job: Job
    describe: Any
    run_alone: Any


def compiled(
    form: str, dtype: np.dtype[Any], index_dtype: np.dtype[Any], dimensions: int
) -> Kernels:
    """Return the kernels for A in a form, "csr" or "csc", and B of one dimension or two."""

    @kernel
    def run_alone(
        address: int, indptr: Array, indices: Array, values: Array, B: Array, out: Array
    ) -> bool:
        words = np.empty(COUNTERS + 1, np.int64)
        if not describe(words, 1, indptr, indices, values, B, out):
            return False
        failed = run_share(address, 0, words.ctypes.data)
        return bool(not failed and words[REFUSED] == 0)

    @kernel
    def described(
        words: Array, workers: int, indptr: Array, indices: Array, values: Array, B: Array,
        out: Array,
    ) -> bool:  # fmt: skip
        return describe(words, workers, indptr, indices, values, B, out)

    item, index = numba.from_dtype(dtype), numba.from_dtype(index_dtype)
    indices, values = (types.Array(kind, 1, "A", True, aligned=False) for kind in (index, item))
    B = types.Array(item, dimensions, "A", True, aligned=False)
    arrays = indices, indices, values, B, types.Array(item, dimensions, "C")
    words = types.Array(types.int64, 1, "C")
    for function, first in ((run_alone, (types.int64,)), (described, (words, types.int64))):
        dispatcher = cast(Any, function)
        dispatcher.compile((*first, *arrays))
        dispatcher.disable_compile()  # one signature: arrays in C order convert to it
    return Kernels(JOBS[form, dtype.itemsize, index_dtype.itemsize], described, run_alone)
