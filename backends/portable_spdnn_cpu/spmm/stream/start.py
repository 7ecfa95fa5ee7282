"""Starting the stream kernel: one call of compiled code, which looks at the arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from portable_spdnn_cpu.jit.compilation import Array, array_types, entry_point, kernel
from portable_spdnn_cpu.jit.jobs import array_at, run_share
from portable_spdnn_cpu.spmm.stream import job_words


@kernel
def start(job: int, at: int, workspace: int, B: Array, out: Array, residual: Array) -> bool:
    """Write where the arrays of a call lie, and run its job on the calling thread.

    Parameters
    ----------
    job, at, workspace : int
        Addresses: of the job, which is run later where that is 0, of its words, and of memory.
    B : ndarray, shape (K, N)
    out : ndarray, shape (M, N)
    residual : ndarray, shape (M, N), in the order of C, or (0, 0) where there is none

    Returns
    -------
    bool
        Whether the job failed.
    """
    words = array_at(at, job_words.LENGTH, np.int64)
    words[job_words.B], words[job_words.OUT] = B.ctypes.data, out.ctypes.data
    words[job_words.RESIDUAL] = residual.ctypes.data if residual.size else 0
    words[job_words.RESIDUAL_STRIDE] = residual.shape[0 if words[job_words.OUT_FORTRAN] else 1]
    words[job_words.WORKSPACE] = workspace
    for worker in range(words[job_words.WORKERS]):
        words[words[job_words.COUNTERS] + worker] = 0
    return bool(job != 0 and run_share(job, 0, at))


@functools.cache
def start_function(dtype: np.dtype[Any]) -> Callable[..., bool]:
    """Return `start` for Python, of arrays that have been found to be of a type."""
    read, written = array_types(dtype, 2)
    addresses = types.int64, types.int64, types.int64
    return entry_point(start, *addresses, read, written, read)
