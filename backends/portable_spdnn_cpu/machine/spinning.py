"""Workers that spin for a while before they sleep: jobs of 30 microseconds pay on two threads.

To wake a thread takes 20 to 80 microseconds, and Python's lock must come round to it. A worker
that has just been of use therefore stays in compiled code, without that lock, and looks for the
next job in its mailbox, which takes well under a microsecond. After some 100 microseconds without
one it returns to Python and sleeps.

A short job, which takes no longer than waking, wakes workers only if the last job ended at most
the spinning time ago: in a loop the second job wakes them, and after a pause the caller does all.

No caller waits for a worker that has not begun: what is left of a job when the caller's own share
is done, the caller takes back and does itself. So late, sleeping or missing workers cost speed
alone, never a result, and a machine with fewer cores than threads does not stall. A caller that
finds the workers taken does all of its job by itself.

The system may put a thread that wakes on the core of the caller, where it waits for milliseconds;
and a spinning one would stay there, for both are always ready to run: each job would then take
three times as long as on one thread. So a worker is kept off the caller's core when it is woken,
and moves away where it meets the caller later.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref

import numpy as np

from portable_spdnn.arguments import checked_count
from portable_spdnn.host import usable_cores
from portable_spdnn_cpu.jit.atomics import (
    compare_exchange,
    current_core,
    give_way,
    load_acquire,
    nanoseconds,
    pause,
    store_release,
)
from portable_spdnn_cpu.jit.compilation import Array, kernel
from portable_spdnn_cpu.jit.jobs import Job, run_share
from portable_spdnn_cpu.machine.cpu_info import aligned_empty

SPIN_VARIABLE = "PORTABLE_SPDNN_SPIN_MICROSECONDS"
DEFAULT_MICROSECONDS = "100"
# Words of a mailbox, which belongs to a worker and lies in cache lines of its own: two, because
# some processors fetch them in pairs. Nobody posts to worker 0, the caller: its BUSY is for all,
# its CORE is where the last caller ran, and LAST_END when the last job ended. STOP ends a worker.
STATE, ASLEEP, ADDRESS, WORDS, STOP, BUSY, CORE, LAST_END = range(8)
STRIDE = 16
# States of a mailbox: IDLE or FAILED -> POSTED (by the caller) -> RUNNING (by the worker) -> IDLE,
# or FAILED where the kernel raised; POSTED -> IDLE where the caller takes the share back.
IDLE, POSTED, RUNNING, FAILED = range(4)
SLEEPERS = -1  # what `execute` returns where workers are to be woken first
LAST_LOOK = 2000  # nanoseconds that a worker still looks after it set ASLEEP: a post may come then
PAUSES = 1000  # until a waiting caller gives way to others each time


@kernel
def serve(mailboxes: Array, worker: int, patience: int, moves: bool) -> bool:
    """Run a worker's share of each job that comes, until none came for `patience` nanoseconds.

    Returns early, and true, where it finds itself on the caller's core and `moves`.
    """
    at = worker * STRIDE
    store_release(mailboxes, at + ASLEEP, 0)
    deadline = nanoseconds() + patience
    while not mailboxes[at + STOP]:
        if moves and current_core() == load_acquire(mailboxes, CORE):
            return True
        if load_acquire(mailboxes, at + STATE) == POSTED:
            if compare_exchange(mailboxes, at + STATE, POSTED, RUNNING):
                failed = run_share(mailboxes[at + ADDRESS], worker, mailboxes[at + WORDS])
                store_release(mailboxes, at + STATE, FAILED if failed else IDLE)
                store_release(mailboxes, at + ASLEEP, 0)
                deadline = nanoseconds() + patience
        elif nanoseconds() > deadline:
            if mailboxes[at + ASLEEP]:
                break
            store_release(mailboxes, at + ASLEEP, 1)
            deadline += LAST_LOOK
        pause()
    return False


@kernel
def caller_core() -> int:
    """Return the number of the core that runs the calling thread."""
    core: int = current_core()
    return core


@kernel
def execute(
    mailboxes: Array, address: int, words: Array, wakes: bool, patience: int, whole: int
) -> int:
    """Run a job's kernel for all workers, and return how many of them raised an exception.

    A short job names in `whole` the share that is all of it, others -1. Returns SLEEPERS, and does
    nothing, where some sleep and the caller `wakes` them; but a short job is done by the caller
    where the last one ended more than `patience` nanoseconds ago.
    """
    workers, job = mailboxes.size // STRIDE, words.ctypes.data
    failed: int = 0
    alone = False
    if wakes:
        for worker in range(1, workers):
            if load_acquire(mailboxes, worker * STRIDE + ASLEEP) == 1:
                idle = nanoseconds() - load_acquire(mailboxes, LAST_END)
                alone = whole >= 0 and idle > patience
                if not alone:
                    return SLEEPERS
                break
    if alone or not compare_exchange(mailboxes, BUSY, 0, 1):
        if whole >= 0:
            failed += run_share(address, whole, job)
        else:
            for worker in range(workers):
                failed += run_share(address, worker, job)
        store_release(mailboxes, LAST_END, nanoseconds())
        return failed
    store_release(mailboxes, CORE, current_core())
    for worker in range(1, workers):
        at = worker * STRIDE
        mailboxes[at + ADDRESS], mailboxes[at + WORDS] = address, job
        store_release(mailboxes, at + STATE, POSTED)
    failed += run_share(address, 0, job)
    for worker in range(1, workers):
        if compare_exchange(mailboxes, worker * STRIDE + STATE, POSTED, IDLE):
            failed += run_share(address, worker, job)
    for worker in range(1, workers):
        polls = 0
        while load_acquire(mailboxes, worker * STRIDE + STATE) == RUNNING:
            polls += 1
            if polls < PAUSES:
                pause()
            else:
                give_way()
        failed += mailboxes[worker * STRIDE + STATE] == FAILED
    store_release(mailboxes, LAST_END, nanoseconds())
    store_release(mailboxes, BUSY, 0)
    return failed


class SpinningWorkers:
    """Threads that serve mailboxes; they start at the first job, and end with this object.

    Parameters
    ----------
    threads : int
        Those that run a job, the caller's among them.
    """

    def __init__(self, threads: int) -> None:
        patience = self._patience = spin_nanoseconds(threads)
        self._mailboxes = aligned_empty((threads * STRIDE,), np.int64)
        self._mailboxes[:] = 0
        self._mailboxes[STRIDE + ASLEEP :: STRIDE] = 1
        self._mailboxes[CORE] = -1
        self._bells = [threading.Lock() for _ in range(1, threads)]
        for bell in self._bells:
            bell.acquire()
        self._threads = [
            threading.Thread(
                target=_work, args=(self._mailboxes, worker, patience, bell),
                name=f"spdnn spinning {worker}", daemon=True,
            )
            for worker, bell in enumerate(self._bells, 1)
        ]  # fmt: skip
        self._waking = threading.Lock()
        self._moves = patience > 0 and hasattr(os, "sched_setaffinity")
        if threads > 1:
            # Compiled here, lest the process ends while a worker does.
            serve(self._mailboxes, 0, 0, False)
        weakref.finalize(self, _end, self._mailboxes, self._bells, self._threads)

    def run(self, job: Job, words: Array, whole: int) -> None:
        """Run a job; see `ThreadPool.run_job`."""
        failed = execute(self._mailboxes, job.address, words, True, self._patience, whole)
        if failed == SLEEPERS:
            self._wake()
            failed = execute(self._mailboxes, job.address, words, False, self._patience, whole)
        if failed:
            raise job_failed(failed, len(self._threads) + 1)

    def _wake(self) -> None:
        """Start or wake all that sleep; whatever fails or is interrupted, the caller does."""
        if self._waking.locked():
            return  # another caller is about it
        with self._waking:  # an interrupt after `acquire` could leave it closed
            asleep = self._mailboxes[STRIDE + ASLEEP :: STRIDE]
            for thread, bell, sleeps in zip(self._threads, self._bells, asleep, strict=True):
                # It was rung before and is about to wake, or the system starts no more threads.
                with contextlib.suppress(RuntimeError):
                    if thread.ident is None:
                        thread.start()
                    elif sleeps:
                        if self._moves:
                            _leave_core(thread.native_id or 0, caller_core())
                        bell.release()


def job_failed(failed: int, threads: int) -> RuntimeError:
    """Return the error of a job whose kernel raised an exception on some threads."""
    return RuntimeError(
        f"a compiled kernel raised an exception on {failed} of {threads} threads, most likely for "
        "want of memory; its results are not complete"
    )


def spin_nanoseconds(threads: int) -> int:
    """Return how long workers spin: PORTABLE_SPDNN_SPIN_MICROSECONDS, or 100 microseconds.

    Not at all where there are more threads than cores: they would keep each other from working.

    Raises
    ------
    InputError
        If the variable is no number of microseconds, at most a second.
    """
    asked = os.environ.get(SPIN_VARIABLE) or DEFAULT_MICROSECONDS
    number = int(asked) if asked.isdecimal() and len(asked) < 20 else asked
    spin = checked_count(SPIN_VARIABLE, number, least=0, most=10**6)
    return 1000 * spin if threads <= usable_cores() else 0


def _work(mailboxes: Array, worker: int, patience: int, bell: threading.Lock) -> None:
    """Serve and sleep by turns, until the bell rings for the end."""
    moves = patience > 0 and hasattr(os, "sched_setaffinity")
    while not mailboxes[worker * STRIDE + STOP]:
        if serve(mailboxes, worker, patience, moves):
            moves = _leave_core(0, int(mailboxes[CORE]))
        else:
            bell.acquire()


def _leave_core(thread: int, core: int) -> bool:
    """Move a thread of this process, 0 for the calling one, off a core; return whether it can go.

    It may use all other cores that the process may use.
    """
    others = os.sched_getaffinity(os.getpid()) - {core}
    if others:
        with contextlib.suppress(OSError):  # it has ended, or these cores were just taken away
            os.sched_setaffinity(thread, others)
    return bool(others)


def _end(mailboxes: Array, bells: list[threading.Lock], threads: list[threading.Thread]) -> None:
    """Let the workers return from compiled code and end: with their pool, or with the process."""
    mailboxes[STOP::STRIDE] = 1
    for bell, thread in zip(bells, threads, strict=True):
        with contextlib.suppress(RuntimeError):  # it is rung already, or never started
            bell.release()
        with contextlib.suppress(RuntimeError):  # never started, or it is this one
            thread.join(timeout=1)
