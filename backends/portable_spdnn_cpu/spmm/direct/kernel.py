"""Kernels of a single product: threads share rows of a CSR, and columns are done by panels."""

from __future__ import annotations

import functools
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
TASKS_PER_WORKER = 4  # of like many rows, which may have unlike many entries


@kernel_part
def multiply_csr(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    """Compute tasks, each some rows of C, until none is left or A is refused."""
    rows, tasks = words[ROWS], words[TASKS]
    while not words[REFUSED]:
        task = next_task(words, COUNTERS, worker, words[WORKERS], tasks)
        if task < 0:
            break
        begin, end = task * rows // tasks, (task + 1) * rows // tasks
        if not by_panels(CSR, words, begin, end, dtype, index_dtype):
            words[REFUSED] = 1


@kernel_part
def multiply_csc(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    """Compute C, by one worker."""
    if not by_panels(CSC, words, 0, words[K], dtype, index_dtype):
        words[REFUSED] = 1


@kernel_part
def by_panels(
    form: tuple[int, ...], words: Any, begin: int, end: int, item: Any, index: Any
) -> Any:
    """Multiply as `microkernels.multiply` does, all columns."""
    itemsize = array_at(0, 1, item).itemsize
    lanes, n = BLOCK_BYTES // itemsize, words[COLUMNS]
    if n == 1 and (len(form) or GATHERS):
        return multiply(form, 0, 0, item, index, words, begin, end, 0, n)
    if n * itemsize <= 16:
        return multiply(form, 1, 16, item, index, words, begin, end, 0, n)
    if n * itemsize <= 32:
        return multiply(form, 1, 32, item, index, words, begin, end, 0, n)
    fine, first = True, 0
    while first < n:
        width = min(n - first, MAX_VECTORS * lanes)
        vectors = -(-width // lanes)
        if vectors == 1:
            fine &= multiply(form, 1, 64, item, index, words, begin, end, first, width)
        elif vectors == 2:
            fine &= multiply(form, 2, 64, item, index, words, begin, end, first, width)
        elif vectors == 3:
            fine &= multiply(form, 3, 64, item, index, words, begin, end, first, width)
        elif vectors == 4:
            fine &= multiply(form, 4, 64, item, index, words, begin, end, first, width)
        elif vectors == 5:
            fine &= multiply(form, 5, 64, item, index, words, begin, end, first, width)
        elif vectors == 6:
            fine &= multiply(form, 6, 64, item, index, words, begin, end, first, width)
        elif vectors == 7:
            fine &= multiply(form, 7, 64, item, index, words, begin, end, first, width)
        else:
            fine &= multiply(form, 8, 64, item, index, words, begin, end, first, width)
        first += width
    return fine


@job
def csr_float32(worker: int, words: Any) -> None:
    """Multiply float32, with places of 32 bits."""
    multiply_csr(worker, words, np.float32, np.int32)


@job
def csr_float64(worker: int, words: Any) -> None:
    """Multiply float64, with places of 32 bits."""
    multiply_csr(worker, words, np.float64, np.int32)


@job
def csr_long_float32(worker: int, words: Any) -> None:
    """Multiply float32, with places of 64 bits."""
    multiply_csr(worker, words, np.float32, np.int64)


@job
def csr_long_float64(worker: int, words: Any) -> None:
    """Multiply float64, with places of 64 bits."""
    multiply_csr(worker, words, np.float64, np.int64)


@job
def csc_float32(worker: int, words: Any) -> None:
    """Multiply float32, with places of 32 bits."""
    multiply_csc(worker, words, np.float32, np.int32)


@job
def csc_float64(worker: int, words: Any) -> None:
    """Multiply float64, with places of 32 bits."""
    multiply_csc(worker, words, np.float64, np.int32)


@job
def csc_long_float32(worker: int, words: Any) -> None:
    """Multiply float32, with places of 64 bits."""
    multiply_csc(worker, words, np.float32, np.int64)


@job
def csc_long_float64(worker: int, words: Any) -> None:
    """Multiply float64, with places of 64 bits."""
    multiply_csc(worker, words, np.float64, np.int64)


# By the form of A, and the bytes of a value and of a place.
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
    """Fill the words of a job; returns false where an array has another order than they say."""
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
    fine = step == B.itemsize or B.size <= 1
    for array in (indptr, indices):
        fine &= array.strides[0] == array.itemsize or array.size <= 1
        fine &= array.ctypes.data % array.itemsize == 0
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


@functools.cache
def compiled(
    form: str, dtype: np.dtype[Any], index_dtype: np.dtype[Any], dimensions: int
) -> Kernels:
    """Return what multiplies A in a form, "csr" or "csc", and B of one dimension or two."""

    @kernel
    def run_alone(
        address: int, indptr: Array, indices: Array, values: Array, B: Array, out: Array
    ) -> bool:
        words = np.empty(COUNTERS + 1, np.int64)
        if not describe(words, 1, indptr, indices, values, B, out):
            return False
        run_share(address, 0, words.ctypes.data)
        return bool(words[REFUSED] == 0)

    @kernel
    def described(
        words: Array, workers: int, indptr: Array, indices: Array, values: Array, B: Array,
        out: Array,
    ) -> bool:  # fmt: skip
        return describe(words, workers, indptr, indices, values, B, out)

    item, index = numba.from_dtype(dtype), numba.from_dtype(index_dtype)
    places, data = (types.Array(kind, 1, "A", True, aligned=False) for kind in (index, item))
    B = types.Array(item, dimensions, "A", True, aligned=False)
    arrays = places, places, data, B, types.Array(item, dimensions, "C")
    words = types.Array(types.int64, 1, "C")
    for function, first in ((run_alone, (types.int64,)), (described, (words, types.int64))):
        dispatcher = cast(Any, function)
        dispatcher.compile((*first, *arrays))
        dispatcher.disable_compile()  # arrays of any order are then taken as these
    return Kernels(JOBS[form, dtype.itemsize, index_dtype.itemsize], described, run_alone)
