"""Starting a job on arrays: one call of compiled code, which writes where they lie to its words.

In Python that would take as long as a small product.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from portable_spdnn_cpu.jit.compilation import Array, array_types, entry_point, kernel, kernel_part
from portable_spdnn_cpu.jit.jobs import LENGTH, array_at, run_share

# The first words of such a job: how many workers there are, and where among the words the counters
# of `next_task` are; addresses of what is read, of the result, of a residual or 0, and of the
# workers' memory. A kernel's own words follow, from FIRST_OWN on.
FIRST_WORDS = range(6)
WORKERS, COUNTERS, INPUT, OUT, RESIDUAL, WORKSPACE = FIRST_WORDS
FIRST_OWN = len(FIRST_WORDS)


@kernel_part
def address_if_any(array: Array) -> int:
    """Return the address of an array, 0 where it has no items."""
    address = np.int64(array.ctypes.data)  # else Numba makes a float of uint64 and 0
    return address if array.size else 0  # type: ignore[return-value]


@kernel
def start(
    job: int, words: int, workspace: int, operand: Array, out: Array, residual: Array
) -> bool:
    """Write where the arrays of a call lie, and run its job on the calling thread.

    Parameters
    ----------
    job : int
        The address of its machine code; 0 where it runs later, on several threads.
    words : int
        The address of the job's words.
    workspace : int
        The address of the workers' memory.
    operand, out, residual : ndarray
        A residual without items is none.

    Returns
    -------
    bool
        Whether the job failed.
    """
    at = array_at(words, LENGTH, np.int64)
    at[INPUT], at[OUT] = operand.ctypes.data, out.ctypes.data
    at[RESIDUAL], at[WORKSPACE] = address_if_any(residual), workspace
    for worker in range(at[WORKERS]):
        at[at[COUNTERS] + worker] = 0
    return bool(job != 0 and run_share(job, 0, words))


@functools.cache
def start_function(dtype: np.dtype[Any], dimensions: int) -> Callable[..., bool]:
    """Return `start` for Python, for arrays that have been found to be of type and dimensions."""
    read, written = array_types(dtype, dimensions)
    addresses = types.int64, types.int64, types.int64
    return entry_point(start, *addresses, read, written, read)
