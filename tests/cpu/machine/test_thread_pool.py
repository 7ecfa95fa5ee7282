"""Python callables on all threads of a pool: interrupts, and what the caller may let go of."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from portable_spdnn_cpu.machine.thread_pool import ThreadPool


def test_a_run_ends_when_its_threads_have_however_often_it_is_interrupted() -> None:
    pool, ended = ThreadPool(2), threading.Event()

    def work(worker: int) -> None:
        if worker == 1:
            time.sleep(0.4)
            ended.set()

    def interrupt() -> None:
        for _ in range(3):
            time.sleep(0.08)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        pool.run(work)
    assert ended.is_set()
    sender.join()
    pool.run(work)  # and the pool still serves


def test_a_share_whose_future_an_interrupt_took_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = [], []
    start = ThreadPoolExecutor._adjust_thread_count

    def interrupted(executor: ThreadPoolExecutor) -> None:
        start(executor)
        while not begun:
            time.sleep(0.001)
        raise KeyboardInterrupt  # as by a signal before `submit` has returned

    def work(worker: int) -> None:
        begun.append(worker)
        time.sleep(0.1)
        ended.append(worker)

    pool = ThreadPool(2)
    with monkeypatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "_adjust_thread_count", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.run(work)
    assert begun == ended == [1]
    pool.run(work)
    assert sorted(ended) == [0, 1, 1]


def test_where_no_thread_can_start_the_caller_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for polled in (False, True):
        pool, done, polls = ThreadPool(3), [], []
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            pool.run(done.append, (lambda seen=polls: seen.append(1)) if polled else None)
        assert done == [0, 1, 2]
        pool.run(done.append)  # threads start again
        assert sorted(done) == [0, 0, 1, 1, 2, 2]


def test_a_pool_serves_after_an_interrupt_at_any_moment() -> None:
    pool, done = ThreadPool(2), []

    def interrupted(worker: int) -> None:
        if worker == 0:
            raise KeyboardInterrupt

    for _ in range(50):
        with pytest.raises(KeyboardInterrupt):
            pool.run(interrupted)
        pool.run(done.append)
    assert len(done) == 100
