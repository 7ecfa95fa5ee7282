"""Python callables on all threads of a pool: interrupts, and what the caller may let go of."""

from __future__ import annotations

import signal
import threading
import time

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
