"""Plans and handles in a forked child: the threads of the parent are not there."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.jobs import job
from portable_spdnn_cpu.machine.thread_pool import ThreadPool

HOST_BACKENDS = [
    info.name
    for info in ps.backends()
    if info.availability.available and info.memory_space == "host"
]


def in_forked_child(action: Callable[[], Any]) -> Any:
    """Return what an action gives in a forked child; fail where it does not end."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(action()))
    child.start()
    try:
        assert receiver.poll(60), "the child gives no answer"
        return receiver.recv()
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize("name", HOST_BACKENDS)
def test_plans_and_handles_give_the_same_in_a_child(name: str) -> None:
    backend = ps.get_backend(name, threads=2)
    A = sp.random_array((90, 90), density=0.3, rng=np.random.default_rng(1), dtype=np.float32)
    network, features = ps.radixnet(64, 6), ps.digits_features(64)[:300]
    plan = ps.plan(network, backend)
    B = np.ones((90, 70), np.float32)
    spmm, layer, spgemm = (
        backend.spmm_handle(A),
        backend.layer_handle(A),
        backend.spgemm_handle(A, A),
    )

    def everything() -> list[Any]:
        return [
            plan.run(features).categories,
            spmm.multiply(B),
            layer.apply(B.T),
            spgemm.numeric().toarray(),
            ps.infer(network, features, backend).categories,
        ]

    before = everything()
    for mine, of_child in zip(before, in_forked_child(everything), strict=True):
        np.testing.assert_array_equal(mine, of_child)


def test_a_plan_that_runs_while_its_process_forks() -> None:
    network = ps.radixnet(64, 6)
    plan = ps.plan(network, "numba", threads=2)
    features = ps.digits_features(64)
    expected = plan.run(features).categories
    end = threading.Event()

    def keep_running() -> None:
        while not end.is_set():
            plan.run(features)

    thread = threading.Thread(target=keep_running)
    thread.start()
    try:
        for _ in range(5):
            found = in_forked_child(lambda: plan.run(features).categories)
            np.testing.assert_array_equal(found, expected)
    finally:
        end.set()
        thread.join()


@job
def count_share(worker: int, words: Array) -> None:
    words[worker] += 1


def test_jobs_of_a_pool_that_runs_one_while_its_process_forks() -> None:
    pool = ThreadPool(3)
    end = threading.Event()

    def run_jobs(times: int) -> Array:
        words = np.zeros(3, np.int64)
        for _ in range(times):
            pool.run_job(count_share, words)
        return words

    def keep_running() -> None:
        while not end.is_set():
            run_jobs(100)

    run_jobs(1)
    thread = threading.Thread(target=keep_running)
    thread.start()
    try:
        for _ in range(10):
            np.testing.assert_array_equal(in_forked_child(lambda: run_jobs(1000)), 1000)
    finally:
        end.set()
        thread.join()
    np.testing.assert_array_equal(run_jobs(1000), 1000)
