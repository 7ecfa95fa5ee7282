"""Jobs on workers that spin: each share is done once, whoever calls, sleeps, forks or fails."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import portable_spdnn as ps
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.jit.jobs import array_at, job
from portable_spdnn_cpu.machine.spinning import ASLEEP, SPIN_VARIABLE, STRIDE, spin_nanoseconds
from portable_spdnn_cpu.machine.thread_pool import ThreadPool

COUNTER, TAKEN, SHARES, ITEMS, ROUNDS = range(5)


@job
def count(worker: int, words: Array) -> None:
    """Take items from the counter, count each, and count the worker's share."""
    counter = array_at(words[COUNTER], 1, np.int64)
    taken = array_at(words[TAKEN], words[ITEMS], np.int64)
    array_at(words[SHARES], worker + 1, np.int64)[worker] += 1
    while True:
        item = fetch_add(counter, 0, 1)
        if item >= words[ITEMS]:
            break
        for _ in range(words[ROUNDS]):
            taken[item] += 1


@job
def fail(worker: int, words: Array) -> None:
    if worker == words[0]:
        raise ValueError


def run_and_check(
    pool: ThreadPool, calls: int, items: int = 16, rounds: int = 3, whole: int = -1
) -> None:
    """Run the job `count` many times; each item and share must be done once a call."""
    counter, taken = np.zeros(1, np.int64), np.zeros(items, np.int64)
    shares = np.zeros(pool.threads, np.int64)
    words = np.array(
        [counter.ctypes.data, taken.ctypes.data, shares.ctypes.data, items, rounds], np.int64
    )
    for call in range(1, calls + 1):
        counter[0] = 0
        pool.run_job(count, words, whole)
        np.testing.assert_array_equal(taken, call * rounds)
        if whole < 0:
            np.testing.assert_array_equal(shares, call)
        else:
            assert shares[0] == call  # of those of others, the ones that were awake are done


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def asleep(pool: ThreadPool) -> bool:
    assert pool._spinning is not None
    return bool(np.all(pool._spinning._mailboxes[STRIDE + ASLEEP :: STRIDE]))


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("spin", ["0", "100", "100000"])
def test_each_share_is_done_once(threads: int, spin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPIN_VARIABLE, spin)
    pool = ThreadPool(threads)
    run_and_check(pool, 500)
    run_and_check(pool, 3, items=200, rounds=20_000)  # long enough that workers take part
    run_and_check(pool, 3, items=0)


def test_workers_take_part_and_go_to_sleep_and_wake() -> None:
    pool = ThreadPool(2)
    for _ in range(3):
        run_and_check(pool, 3)
        wait_until(lambda: asleep(pool))
    assert [thread.name for thread in threading.enumerate()].count("spdnn spinning 1") >= 1


def test_short_jobs_wake_workers_only_soon_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portable_spdnn_cpu.machine.spinning.usable_cores", lambda: 2)
    monkeypatch.setenv(SPIN_VARIABLE, "1000")
    pool = ThreadPool(2)
    for _ in range(3):
        run_and_check(pool, 1, whole=0)
        assert asleep(pool)
        time.sleep(0.002)
    assert pool._spinning is not None
    assert [thread.ident for thread in pool._spinning._threads] == [None]
    run_and_check(pool, 1)
    wait_until(lambda: asleep(pool))
    monkeypatch.setenv(SPIN_VARIABLE, "1000000")
    pool = ThreadPool(2)
    run_and_check(pool, 2, whole=0)
    wait_until(lambda: not asleep(pool))
    run_and_check(pool, 500, whole=0)
    monkeypatch.setenv(SPIN_VARIABLE, "0")
    pool = ThreadPool(2)
    run_and_check(pool, 100, whole=0)
    assert asleep(pool)


@pytest.mark.parametrize("threads", [2, 3])
def test_several_callers(threads: int) -> None:
    pool = ThreadPool(threads)
    failed: list[BaseException] = []

    def call() -> None:
        try:
            run_and_check(pool, 300, rounds=50)
        except BaseException as error:
            failed.append(error)
            raise

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failed


@pytest.mark.parametrize("worker", [0, 1])
def test_an_exception_reaches_the_caller_and_the_pool_goes_on(worker: int) -> None:
    pool = ThreadPool(2)
    for _ in range(100):
        with pytest.raises(RuntimeError, match="raised an exception on 1 of 2 threads"):
            pool.run_job(fail, np.array([worker]))
    pool.run_job(fail, np.array([2]))
    run_and_check(pool, 10)


def test_interrupts_leave_the_pool_usable() -> None:
    pool = ThreadPool(2)
    run_and_check(pool, 1)
    interrupted = 0

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        for delay in np.linspace(1e-4, 3e-3, 30):
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                for _ in range(10_000):
                    run_and_check(pool, 50)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert interrupted == 30
    run_and_check(pool, 50)


def test_an_interrupt_leaves_no_lock_closed_that_wakes_workers() -> None:
    lock = threading.Lock()

    class Interrupted:
        """A lock whose `acquire` is interrupted once it holds it."""

        locked, __enter__, __exit__ = lock.locked, lock.__enter__, lock.__exit__

        def acquire(self, blocking: bool = True) -> None:
            lock.acquire(blocking)
            raise KeyboardInterrupt

    pool = ThreadPool(2)
    run_and_check(pool, 10)
    pool._spinning._waking = Interrupted()
    with contextlib.suppress(KeyboardInterrupt):
        pool._spinning._wake()
    assert not lock.locked()


def test_workers_end_with_their_pool() -> None:
    pool = ThreadPool(2)
    run_and_check(pool, 2)
    assert pool._spinning is not None
    threads = list(pool._spinning._threads)
    assert [thread.is_alive() for thread in threads] == [True]
    del pool
    gc.collect()
    wait_until(lambda: not any(thread.is_alive() for thread in threads))


PROGRAM = """
import threading
import numpy as np
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from test_spinning import count, run_and_check

pool = ThreadPool(2)
run_and_check(pool, 20)
threading.Thread(target=run_and_check, args=(pool, 10**9), daemon=True).start()
run_and_check(pool, 20)
print("done")
"""


def test_a_process_ends_whatever_its_workers_do() -> None:
    folder = os.path.dirname(__file__)
    path = os.pathsep.join([folder, *sys.path])
    for spin in ("100", "1000000"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60,
            check=False, env={**os.environ, "PYTHONPATH": path, SPIN_VARIABLE: spin},
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_how_long_workers_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SPIN_VARIABLE, raising=False)
    monkeypatch.setattr("portable_spdnn_cpu.machine.spinning.usable_cores", lambda: 4)
    assert [spin_nanoseconds(threads) for threads in (1, 4, 5)] == [100_000, 100_000, 0]
    monkeypatch.setenv(SPIN_VARIABLE, "7")
    assert spin_nanoseconds(4) == 7000
    monkeypatch.setenv(SPIN_VARIABLE, "0000000100")
    assert spin_nanoseconds(4) == 100_000
    for wrong in ("many", "-1", "1.5", "2000000"):
        monkeypatch.setenv(SPIN_VARIABLE, wrong)
        with pytest.raises(ps.InputError, match=SPIN_VARIABLE):
            ThreadPool(2).run_job(count, np.zeros(5, np.int64))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be placed here")
def test_a_worker_leaves_the_core_of_its_caller() -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("there is one core only")
    pool = ThreadPool(2)
    run_and_check(pool, calls=1)
    spinning = pool._spinning
    assert spinning is not None
    worker, core = spinning._threads[0].native_id, min(cores)
    assert worker
    seen: list[set[int]] = []

    def call() -> None:
        os.sched_setaffinity(0, {core})  # of this thread, the caller, alone
        # It may be only now that the worker begins, and leaves the core of the first caller: wait
        # until it has passed its bell.
        run_and_check(pool, calls=1)
        for _ in range(3):
            wait_until(lambda: spinning._bells[0].locked() and asleep(pool))
            run_and_check(pool, calls=1)
            seen.append(os.sched_getaffinity(worker))

    caller = threading.Thread(target=call)
    caller.start()
    caller.join()
    assert seen == [cores - {core}] * 3
