"""A job over images: the words that all kernels of convolutions have, and how it is started."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numba
import numpy as np
from numba.core import types

from portable_spdnn_cpu.jit.compilation import Array, entry_point, kernel
from portable_spdnn_cpu.jit.jobs import Job, address_of, array_at, in_order, run_share
from portable_spdnn_cpu.machine.buffers import WORKSPACES
from portable_spdnn_cpu.machine.spinning import job_failed
from portable_spdnn_cpu.machine.thread_pool import ThreadPool

# The first words: how many workers there are, and where among the words the counters of `next_task`
# are; addresses of images, of the result and of a residual or 0, all in C order, and of the
# workers' memory. A kernel's own words follow, from FIRST_OWN on.
WORKERS, COUNTERS, IMAGES, OUT, RESIDUAL, WORKSPACE, FIRST_OWN = range(7)


class ImageJob:
    """A job whose words calls use one after the other; concurrent calls each have their own.

    Parameters
    ----------
    job : Job
    words : ndarray of int64
        All but what changes from call to call.
    dtype : dtype
        Of images and results.
    """

    def __init__(self, job: Job, words: Array, dtype: np.dtype[Any]) -> None:
        self._job, self._address, self._words = job, job.address, words
        self._start = _start_function(dtype)
        self._none = np.empty((0, 0, 0, 0), dtype)
        self._unused: list[tuple[Array, int]] = []

    def run(
        self,
        pool: ThreadPool,
        memory: int,
        arrays: tuple[Array, Array, Array | None],
        own: Iterable[tuple[int, int]],
    ) -> None:
        """Run the job on all threads of a pool.

        Parameters
        ----------
        pool : ThreadPool
        memory : int
            Bytes that all workers need.
        arrays : tuple
            Images, the result, and a residual or None, of four dimensions; the result in C order.
        own : iterable
            Pairs of a place and a word, of those that change from call to call.
        """
        try:
            words, address = self._unused.pop()
        except IndexError:
            words = self._words.copy()
            address = address_of(words)
        words[WORKERS] = pool.threads
        for place, word in own:
            words[place] = word
        images, out, residual = arrays
        images = in_order(images)  # a copy has to live until the job is done
        added = self._none if residual is None else in_order(residual)
        workspace = WORKSPACES.take()
        job = self._address if pool.threads == 1 else 0
        if self._start(job, address, workspace.of_bytes(memory), images, out, added):
            raise job_failed(1, 1)
        if pool.threads > 1:
            pool.run_job(self._job, words)
        WORKSPACES.give_back(workspace)
        self._unused.append((words, address))


@kernel
def start(job: int, at: int, workspace: int, images: Array, out: Array, residual: Array) -> bool:
    """Write where the arrays of a call lie, and run its job on the calling thread.

    Parameters
    ----------
    job, at, workspace : int
        Addresses: of the job, which is run later where that is 0, of its words, and of memory.
    images, out, residual : ndarray
        In C order; a residual without items is none.

    Returns
    -------
    bool
        Whether the job failed.
    """
    words = array_at(at, 1 << 40, np.int64)
    words[IMAGES], words[OUT] = images.ctypes.data, out.ctypes.data
    words[RESIDUAL] = residual.ctypes.data if residual.size else 0
    words[WORKSPACE] = workspace
    for worker in range(words[WORKERS]):
        words[words[COUNTERS] + worker] = 0
    return bool(job != 0 and run_share(job, 0, at))


@functools.cache
def _start_function(dtype: np.dtype[Any]) -> Callable[..., bool]:
    """Return `start` for Python, of arrays that have been found to be of a type."""
    item = numba.from_dtype(dtype)
    read, written = (types.Array(item, 4, "C", readonly) for readonly in (True, False))
    addresses = types.int64, types.int64, types.int64
    return entry_point(start, *addresses, read, written, read)
