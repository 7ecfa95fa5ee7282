"""Limits of the machine: measured once, kept, and turned into bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.kernel_model import KernelModel, Limits
from portable_spdnn.plans.machine_limits import cache_file, limits_of
from portable_spdnn_cpu.cost_models import product_model, sparse_product_model, tile_model
from portable_spdnn_cpu.jit.peaks import FMA_CHAINS, LANES, fma_chains, measure, read_all
from portable_spdnn_cpu.jit.thread_pool import ThreadPool
from portable_spdnn_cpu.numba_backend import NumbaBackend

SOME = Limits(flops=400e9, l1=800e9, l2=200e9, l3=80e9, memory=20e9)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_smaller_of_bandwidth_and_peak_binds() -> None:
    assert KernelModel({"l2": 4}, 2).bound(SOME) == (50e9, "l2")
    assert KernelModel({"l1": 5}, 2).bound(SOME) == (160e9, "l1")
    assert KernelModel({"l2": 0.5}, 2).bound(SOME) == (200e9, "flops")
    assert KernelModel({"l1": 8, "memory": 1, "l3": 0}, 2).bound(SOME) == (20e9, "memory")
    with pytest.raises(ps.InputError, match="level is 'l4'; choose one of l1, l2, l3, memory"):
        KernelModel({"l4": 4}, 2)


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
    limits_of(one, refresh=True)
    assert measured == [1, 2, 1]
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
    from portable_spdnn_cpu.jit.compilation import kernel

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
    from portable_spdnn_cpu.jit import peaks as limit_kernels

    monkeypatch.setattr(limit_kernels, "SECONDS", 1e-4)
    monkeypatch.setattr(limit_kernels, "BEYOND_CACHE", 1 << 20)
    limits = measure(ThreadPool(2))
    for value in (limits.flops, limits.l1, limits.l2, limits.l3, limits.memory):
        assert 1e6 < value < 1e16  # rates per second, whatever the machine


def test_the_tile_kernel_is_served_by_the_level_that_holds_its_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from portable_spdnn_cpu import cost_models as kernel_models

    sizes = {1: 1 << 15, 2: 1 << 19, 3: 1 << 25}
    monkeypatch.setattr(kernel_models, "cache_bytes", sizes.__getitem__)
    single = np.dtype(np.float32)
    for neurons, level in ((64, "l1"), (1024, "l2"), (16384, "l3"), (1 << 20, "memory")):
        assert tile_model(neurons, single, 64).bytes_per_edge == {level: 4}
    assert tile_model(64, np.dtype(np.float64), 64, 0.25).bytes_per_edge == {"l2": 2}


def test_a_product_also_moves_its_operands_and_a_sparse_one_its_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from portable_spdnn_cpu import cost_models as kernel_models

    sizes = {1: 1 << 15, 2: 1 << 19, 3: 1 << 25}
    monkeypatch.setattr(kernel_models, "cache_bytes", sizes.__getitem__)
    single = np.dtype(np.float32)
    # 32 edges an output, 4 bytes a load; in once and out twice: 12 bytes for 32 edges.
    small = product_model((1024, 1024), 32 * 1024, 64, single, 64).bytes_per_edge
    assert small == {"l2": 4 + 12 / 32}
    large = product_model((1024, 1024), 32 * 1024, 65536, single, 64, 0.5).bytes_per_edge
    assert large == {"l2": 2, "memory": 12 / 32}
    A = sp.csr_array(np.ones((3, 4), np.float32))
    B = sp.csr_array(np.ones((4, 5), np.float32))
    # 60 multiply-adds on 12 entries of A, 20 of B and 15 of C, 8 bytes each.
    assert sparse_product_model(A, B, 15).bytes_per_edge == {
        "l1": 8 + 8,
        "memory": 8 * (12 + 2 * 15) / 60,
    }
