"""Limits of the machine: measured once, kept, and turned into bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portable_spdnn as ps
from portable_spdnn.kernel_model import Limits
from portable_spdnn.plans.machine_limits import cache_file, limits_of
from portable_spdnn_cpu.jit.compilation import kernel
from portable_spdnn_cpu.machine import peaks
from portable_spdnn_cpu.machine.peaks import FMA_CHAINS, LANES, fma_chains, measure, read_all
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.numba_backend import NumbaBackend

SOME = Limits(flops=400e9, l1=800e9, l2=200e9, l3=80e9, memory=20e9)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_limits_are_measured_once_for_a_backend_and_its_threads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def fake(self: ps.Backend) -> Limits:
        measured.append(self.threads)
        return SOME

    monkeypatch.setattr(NumbaBackend, "measure_limits", fake)
    one, two = (ps.get_backend("numba", threads=threads) for threads in (1, 2))
    assert limits_of(one) == limits_of(one) == SOME
    assert measured == [1]
    assert limits_of(two) == SOME
    assert measured == [1, 2]
    assert len(json.loads(cache_file().read_text())) == 2
    assert cache_file().is_relative_to(folder)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}', '{"a": {"flops": 1}}'])
def test_a_file_that_is_no_cache_is_measured_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(NumbaBackend, "measure_limits", lambda self: SOME)
    cache_file().parent.mkdir()
    cache_file().write_text(content)
    assert limits_of(ps.get_backend("numba")) == SOME
    assert len(json.loads(cache_file().read_text())) == 1


def test_a_backend_that_measures_nothing_says_so(folder: Path) -> None:
    with pytest.raises(NotImplementedError, match="backend scipy does not measure its limits"):
        limits_of(ps.get_backend("scipy"))
    assert not cache_file().exists()


def test_kernels_do_the_work_they_are_timed_for() -> None:
    @kernel
    def both(rounds: int, factor: Any, term: Any, array: Any) -> Any:
        return fma_chains(rounds, factor, term), read_all(array)

    # Chain c starts at c and halves, plus one: after 3 rounds it is c / 8 + 1.75.
    data = np.zeros(8 * LANES * 5, np.float32)
    data[::LANES] = np.arange(40)
    fma, read = both(3, np.float32(0.5), np.float32(1), data)
    assert fma == pytest.approx(sum(c / 8 + 1.75 for c in range(FMA_CHAINS)))
    assert read == sum(range(40))


def test_measuring_gives_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "SECONDS", 1e-4)
    monkeypatch.setattr(peaks, "BEYOND_CACHE", 1 << 20)
    limits = measure(ThreadPool(2))
    for value in (limits.flops, limits.l1, limits.l2, limits.l3, limits.memory):
        assert 1e6 < value < 1e16  # rates per second, whatever the machine
