"""A job over images, whose words are kept for the next call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from portable_spdnn_cpu.conv.images import channels_first
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.job_start import WORKERS, start_function
from portable_spdnn_cpu.jit.jobs import Job, address_of
from portable_spdnn_cpu.machine.buffers import WORKSPACES
from portable_spdnn_cpu.machine.spinning import job_failed
from portable_spdnn_cpu.machine.thread_pool import ThreadPool


class ImageJob:
    """A job whose words are used again by the next call; concurrent calls each have their own.

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
        self._start = start_function(dtype, 4)
        self._none = np.empty((0, 0, 0, 0), dtype)
        self._unused: list[tuple[Array, int]] = []

    def run(
        self,
        pool: ThreadPool,
        workspace_bytes: int,
        arrays: tuple[Array, Array, Array | None],
        updates: Iterable[tuple[int, int]],
    ) -> None:
        """Run the job on all threads of a pool.

        Parameters
        ----------
        pool : ThreadPool
        workspace_bytes : int
            Memory that all workers need together.
        arrays : tuple
            Images, the result, and a residual or None, of four dimensions; the result in C order.
        updates : iterable
            Pairs of a place among the words and what this call has there.
        """
        try:
            words, address = self._unused.pop()
        except IndexError:
            words = self._words.copy()
            address = address_of(words)
        words[WORKERS] = pool.threads
        for place, word in updates:
            words[place] = word
        images, out, residual = arrays
        images = channels_first(images, pool)  # a copy has to live until the job is done
        added = self._none if residual is None else channels_first(residual, pool)
        workspace = WORKSPACES.take()
        job = self._address if pool.threads == 1 else 0
        memory = workspace.of_bytes(workspace_bytes)
        if self._start(job, address, memory, images, out, added):
            raise job_failed(1, 1)
        if pool.threads > 1:
            pool.run_job(self._job, words)
        WORKSPACES.give_back(workspace)
        self._unused.append((words, address))
