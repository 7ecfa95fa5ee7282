"""A pool of threads for kernels, which run without the interpreter's lock."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.jobs import Job
from portable_spdnn_cpu.machine.spinning import SpinningWorkers

POLL_SECONDS = 0.1
LOST_SECONDS = 1e-3  # between two looks at shares whose futures an interrupt has taken
# Seconds from a call of `run` until other threads have taken over data and share the work.
WAKING = 8e-5
MULTIPLY_ADDS = 3e10  # of a thread in a second, about


class ThreadPool:
    """A fixed number of threads, the calling one among them.

    Kernels share their work out themselves, by counters in memory (`jobs.next_task`): a
    thread that starts late, or shares its core, finds less left to do.

    Parameters
    ----------
    threads : int
        How many run at once. All but the caller's are started by the first run that needs them.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._spinning: SpinningWorkers | None = None
        _POOLS.add(self)

    def run(
        self,
        kernel: Callable[[int], None],
        poll: Callable[[], None] | None = None,
        stop: Callable[[], None] | None = None,
    ) -> None:
        """Call kernel(0) .. kernel(threads - 1) at once, and return when all are done.

        Parameters
        ----------
        kernel : callable
            What each thread does; it takes the number of the thread.
        poll : callable, optional
            Called every tenth of a second meanwhile, by the calling thread, which then takes no
            share of the work.
        stop : callable, optional
            Tells the threads to come to an end. It is called when the caller's share or `poll`
            raises, and when the caller is interrupted.

        Raises
        ------
        BaseException
            The first that a thread or `poll` raised.
        """
        if self.threads == 1 and poll is None:
            kernel(0)
            return
        pool = self._pool
        if pool is None:
            pool = self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="spdnn")
        first = 1 if poll is None else 0  # the caller is thread 0, or none
        shares = _Shares(kernel)
        futures: list[Future[None]] = []
        left: Sequence[int] = ()
        try:
            for thread in range(first, self.threads):
                try:
                    futures.append(pool.submit(shares.do, thread))
                except RuntimeError:  # no thread can start: at the end of the process, say
                    self._pool = None
                    pool.shutdown(wait=False, cancel_futures=True)  # one may wait to start
                    futures = [future for future in futures if not future.cancelled()]
                    left = range(first + len(futures), self.threads)
                    break
            if poll is None:
                kernel(0)
            for thread in left:
                kernel(thread)
            while poll is not None and wait(futures, timeout=POLL_SECONDS).not_done:
                poll()
        except BaseException:
            # The executor is written in Python: an interrupt may have left a lock of it closed, or
            # have taken the future of what it was given.
            shares.closed = True
            self._pool = None
            if stop is not None:
                stop()
            raise
        finally:
            _wait_for_all(futures, shares)
        for future in futures:
            future.result()

    def run_job(self, job: Job, words: Array, whole: int = -1) -> None:
        """Run a compiled kernel for workers 0 .. threads - 1, and return when all are done.

        For short work: `run` takes 20 to 80 microseconds to start threads, this less than two as
        long as the workers spin; see `machine.spinning`. The caller is worker 0, and does the
        shares of workers that have not begun when its own is done: some or all may run by turns.
        Several threads may call it at once. An interrupt is raised when the job is done.

        Parameters
        ----------
        job : Job
            What each worker runs.
        words : ndarray of int64, C order
            What its kernel takes; the caller keeps alive the arrays that it names.
        whole : int
            Of a job so short that waking workers takes as long as they save, the share that is all
            of it: 0 where workers take tasks from each other. Workers that sleep are then woken
            only if another job ended within the time that they spin; else the caller runs this
            share alone. -1 for other jobs.

        Raises
        ------
        InputError
            If PORTABLE_SPDNN_SPIN_MICROSECONDS is no number of microseconds.
        RuntimeError
            If the kernel raised an exception.
        """
        if self._spinning is None:
            # Two callers that come here at once each make workers; those that are not kept end.
            self._spinning = SpinningWorkers(self.threads)
        self._spinning.run(job, words, whole)


class _Shares:
    """What threads do of a kernel; once it is `closed`, none begins."""

    def __init__(self, kernel: Callable[[int], None]) -> None:
        self.kernel = kernel
        self.closed = False
        self.begun: list[int] = []
        self.ended: list[int] = []

    def do(self, thread: int) -> None:
        """Do the share of a thread."""
        self.begun.append(thread)  # before `closed` is read, as who closes reads `begun` after
        try:
            if not self.closed:
                self.kernel(thread)
        finally:
            self.ended.append(thread)


def _wait_for_all(futures: list[Future[None]], shares: _Shares) -> None:
    """Return when all are done, however often the caller is interrupted; then raise that.

    What threads work on belongs to the caller, who would let go of it. An interrupt may have taken
    a future: whether its share has ended, `shares` tells.
    """
    interrupt: BaseException | None = None
    while True:
        try:
            wait(futures)
            while len(shares.ended) < len(shares.begun):
                time.sleep(LOST_SECONDS)
            break
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = error
    if interrupt is not None:
        raise interrupt


class ForkSafeLock:
    """A lock that is open in a forked child, whatever thread of the parent held it.

    Users take `lock` itself: in a method written in Python an interrupt could leave it closed.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        _LOCKS.add(self)


_POOLS: weakref.WeakSet[ThreadPool] = weakref.WeakSet()
_LOCKS: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _forget_threads() -> None:
    """Make pools and locks of a forked child anew: it has a copy of the forking thread alone."""
    for pool in _POOLS:
        pool._pool = pool._spinning = None
    for lock in _LOCKS:
        lock.lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_threads)


ALONE = ThreadPool(1)


def worth_waking(workers: ThreadPool, multiply_adds: int) -> ThreadPool:
    """Return the threads for a kernel that `run` starts: the caller's where it is soon done."""
    return workers if multiply_adds > 4 * WAKING * MULTIPLY_ADDS else ALONE
