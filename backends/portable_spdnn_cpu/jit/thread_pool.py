"""Threads for kernels that run without the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from portable_spdnn.errors import InputError
from portable_spdnn.host import usable_cores

POLL_SECONDS = 0.1


class ThreadPool:
    """A fixed number of workers, the calling thread among them.

    Kernels share their work out themselves, by a counter: a worker that starts late finds less
    left to do.

    Parameters
    ----------
    threads : int
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def run(
        self,
        kernel: Callable[[int], None],
        poll: Callable[[], None] | None = None,
        stop: Callable[[], None] | None = None,
    ) -> None:
        """Call kernel(0) .. kernel(threads - 1) at once and return when all are done.

        Parameters
        ----------
        kernel : callable
        poll : callable, optional
            Called now and then while the workers run, by the calling thread, which then takes
            no share of the work.
        stop : callable, optional
            Tells the workers to come to an end; called when the caller is interrupted.

        Raises
        ------
        BaseException
            The first that a worker or `poll` raised.
        """
        if self.threads == 1 and poll is None:
            kernel(0)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="spdnn")
        mine = 1 if poll is None else 0
        futures = [self._pool.submit(kernel, worker) for worker in range(mine, self.threads)]
        try:
            if poll is None:
                kernel(0)
            else:
                while wait(futures, timeout=POLL_SECONDS).not_done:
                    poll()
        except BaseException:
            if stop is not None:
                stop()
            raise
        finally:
            wait(futures)
        for future in futures:
            future.result()


def default_threads() -> int:
    """Return NUMBA_NUM_THREADS where it is set, else the number of usable cores.

    Raises
    ------
    InputError
        If NUMBA_NUM_THREADS is not a positive integer.
    """
    asked = os.environ.get("NUMBA_NUM_THREADS", "")
    if not asked:
        return usable_cores()
    if not asked.isdecimal() or int(asked) < 1:
        raise InputError(f"NUMBA_NUM_THREADS is {asked!r}; it must be a positive integer")
    return int(asked)
