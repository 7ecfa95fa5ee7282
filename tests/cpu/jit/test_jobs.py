"""Kernels that run by address: what they make of their words, and what they may not be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import types

from portable_spdnn_cpu.jit.compilation import Array, job_kernel, kernel, kernel_part
from portable_spdnn_cpu.jit.jobs import (
    Job,
    array_at,
    call_code,
    call_code_for_integer,
    float_of,
    job,
    machine_code,
    run_share,
)

X, Y, ROWS, COLUMNS, FACTOR = range(5)


@job_kernel
def scale(worker: int, words: Array, dtype: Any) -> None:
    shape = words[ROWS], words[COLUMNS]
    x, y = array_at(words[X], shape, dtype), array_at(words[Y], shape, dtype)
    for column in range(shape[1]):
        y[worker, column] = dtype(float_of(words[FACTOR])) * x[worker, column]


@job
def divide(worker: int, words: Array) -> None:
    words[0] = words[0] // worker


@job_kernel
def count_up(first: int, is_twice: int) -> int:
    return first + 1 + is_twice


@job
def call_count_up(worker: int, words: Array) -> None:
    words[1] = call_code_for_integer(words[0], (words[1], words[1] > 5))


@job_kernel
def write_numbers(address: int, first: int, second: float, third: float) -> None:
    numbers = array_at(address, 3, np.float64)
    numbers[0], numbers[1], numbers[2] = first, second, third


@job
def call_write_numbers(worker: int, words: Array) -> None:
    call_code(words[0], (words[1], np.int32(-5), np.float32(0.25), float_of(words[2])))


@kernel
def run(address: int, worker: int, words: Array) -> bool:
    return run_share(address, worker, words.ctypes.data)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_words_become_arrays_and_floats(dtype: Any) -> None:
    x = np.random.default_rng(1).random((3, 7)).astype(dtype)
    y = np.zeros_like(x)
    words = np.array([x.ctypes.data, y.ctypes.data, *x.shape, 0])
    words[FACTOR:].view(np.float64)[0] = -0.3
    assert not run(Job(scale, dtype).address, 2, words)
    np.testing.assert_array_equal(y[:2], 0)
    np.testing.assert_array_equal(y[2], dtype(-0.3) * x[2])


def test_an_exception_is_told() -> None:
    words = np.array([7])
    assert run(divide.address, 0, words)
    assert not run(divide.address, 2, words)
    assert words[0] == 3


def test_a_kernel_is_called_by_its_address_with_integers_and_floats() -> None:
    signature = types.void(types.intp, types.intp, types.float64, types.float64)
    found = np.zeros(3)
    words = np.array([machine_code(write_numbers, signature), found.ctypes.data, 0])
    words[2:].view(np.float64)[0] = 1e300
    assert not run(call_write_numbers.address, 0, words)
    assert found.tolist() == [-5, 0.25, 1e300]


def test_a_kernel_returns_an_integer_to_one_that_calls_it_by_its_address() -> None:
    words = np.array([machine_code(count_up, types.intp(types.intp, types.intp)), 5])
    for expected in (6, 8):
        assert not run(call_count_up.address, 0, words)
        assert words[1] == expected


def test_a_closure_is_no_job() -> None:
    number = 3

    def add(worker: int, words: Array) -> None:
        words[0] += number

    with pytest.raises(TypeError, match=r"add is a closure; a job takes all from its words"):
        job(add)


def test_a_kernel_part_is_no_job() -> None:
    @kernel_part
    def add_one(worker: int, words: Array) -> None:
        words[0] += 1

    with pytest.raises(TypeError, match=r"add_one is a kernel_part, which has no address"):
        Job(add_one)


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from job_at_hand import JOBS, np, run
words = np.zeros(2, np.int64)
for kept in JOBS:
    assert not run(kept.address, 0, words)
    print(words[0], len(kept._compiled.stats.cache_hits))
"""
KEPT = """
import numpy as np
from portable_spdnn_cpu.jit.compilation import job_kernel, kernel
from portable_spdnn_cpu.jit.jobs import Job, job, run_share

@kernel
def run(address, worker, words):
    return run_share(address, worker, words.ctypes.data)

@job
def set_one(worker, words):
    words[worker] = 1

@job_kernel
def set_size(worker, words, vector, dtype):
    words[worker] = len(vector) * np.zeros(1, dtype).itemsize

JOBS = [
    set_one, Job(set_size, (0,) * 3, np.float32), Job(set_size, (0,) * 3, np.float64),
    Job(set_size, (0,) * 5, np.float32),
]
"""


def test_machine_code_is_kept(tmp_path: Path) -> None:
    (tmp_path / "job_at_hand.py").write_text(KEPT)

    def results_and_hits() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=False,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    # Of `set_size` they are hits of one function.
    assert results_and_hits() == ["1 0", "12 0", "24 0", "20 0"]
    assert results_and_hits() == ["1 1", "12 1", "24 2", "20 3"]
