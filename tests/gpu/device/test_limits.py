"""Kernels that measure the device: what they compute, are compiled to, and report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_emulation.device_at_hand import needs_device
from cuda_emulation.emulated_backend import EmulatedCupyBackend, cache_folder
from cuda_emulation.emulated_device import EmulatedDevice, compiler
from kernel_catalog import LIMITS
from nvrtc_architectures import EACH_ARCHITECTURE

from portable_spdnn.plans.machine_limits import cache_file, limits_of
from portable_spdnn_gpu.compile.catalog import (
    LIMIT_THREADS,
    LIMIT_VECTORS,
    limit_kernel,
)
from portable_spdnn_gpu.compile.nvrtc import kernel_folder
from portable_spdnn_gpu.device import limits
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.device.limits import (
    BLOCKS,
    CHAINS,
    READS,
    SHARED_READS,
    UNROLL,
    WrongAnswerError,
    filled_words,
    measure,
    shared_sums,
    total,
)


def words(count: int) -> np.ndarray:
    """Return the words that `fill_words` writes, in Python's own whole numbers."""
    return np.array([i * 2654435761 % 2**32 for i in range(count)], np.uint32)


@needs_device
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_chains_are_multiply_adds(device: Device, rounds: int) -> None:
    rng = np.random.default_rng(rounds)
    factor, term = np.float32(0.875), np.float32(0.4375)
    starts = rng.uniform(-1, 1, 2 * LIMIT_THREADS).astype(np.float32)
    results = device.empty(starts.shape, np.float32)
    arguments = [np.int32(rounds), factor, term, device.upload(starts), results]
    device.launch(limit_kernel("fma_chains"), (2, 1), arguments)
    values = starts[:, None].astype(np.float64) + np.arange(CHAINS)
    for _ in range(rounds * UNROLL):
        values = values * float(factor) + float(term)
    np.testing.assert_allclose(device.download(results), values.sum(axis=1), rtol=1e-5)


@needs_device
@pytest.mark.parametrize("rounds", [0, 1, 5, 70])
def test_shared_reads_are_those_of_every_round(device: Device, rounds: int) -> None:
    results = device.empty((2 * LIMIT_THREADS,), np.uint32)
    device.launch(limit_kernel("read_shared"), (2, 1), [np.int32(rounds), results])
    staged = words(4 * LIMIT_VECTORS).astype(object)
    expected = np.zeros(LIMIT_THREADS, np.uint32)
    for thread in (0, 1, 31, 100, LIMIT_THREADS - 1):
        total = 0
        for turn in range(rounds):
            for read in range(SHARED_READS):
                at = 4 * ((thread + 8 * turn) % 512 + 64 * read)
                total += sum(staged[at : at + 4])
        expected[thread] = total % 2**32
        assert device.download(results)[thread] == expected[thread]
        assert device.download(results)[LIMIT_THREADS + thread] == expected[thread]
    np.testing.assert_array_equal(
        device.download(results).reshape(2, -1), np.tile(shared_sums(rounds), (2, 1))
    )


@needs_device
@pytest.mark.parametrize("size", [1, 3 << 20])
def test_arrays_in_memory_are_filled_and_read_whole(device: Device, size: int) -> None:
    filled, chunks = filled_words(device, size)
    expected = words(filled.size)
    blocks = BLOCKS * device.multiprocessors
    assert filled.nbytes == blocks * chunks * LIMIT_THREADS * READS * 16
    np.testing.assert_array_equal(device.download(filled), expected)
    assert total(filled.size) == expected.sum(dtype=np.uint32)

    results = device.empty((blocks * LIMIT_THREADS,), np.uint32)
    for rounds in (0, 1, 3):
        arguments = [np.int32(rounds), np.int32(chunks), filled, results]
        device.launch(limit_kernel("read_global"), (blocks, 1), arguments)
        found = device.download(results)
        assert found.sum(dtype=np.uint32) == rounds * total(filled.size) % 2**32
        # In a round every block reads as much as the others, though not the same.
        assert rounds == 0 or len(np.unique(found.reshape(blocks, -1).sum(axis=1))) > 1


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_limits_are_positive_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    backend = EmulatedCupyBackend()
    monkeypatch.setattr(limits, "SECONDS", 0.002)
    found = limits_of(backend)
    assert found.l3 == found.memory
    assert all(value > 0 for value in dataclasses.asdict(found).values())
    (key,) = json.loads(cache_file().read_text())
    assert "emulated CUDA device" in key
    monkeypatch.setattr(EmulatedCupyBackend, "measure_limits", lambda self: pytest.fail("again"))
    assert limits_of(backend) == found


class Tampering(EmulatedDevice):
    """Leaves one kernel out: what a compiler that removes its work would give."""

    removed = ""

    def launch(self, kernel: Any, grid: Any, arguments: Any) -> None:
        if kernel.name == self.removed:
            results = arguments[-1]
            results.values[...] = 0
            return
        super().launch(kernel, grid, arguments)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", LIMITS)
def test_work_that_is_not_done_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SECONDS", 0.0)
    device = Tampering(cache_folder())
    device.removed = name
    with pytest.raises(WrongAnswerError, match="the answer is wrong, so that its time means"):
        measure(device)


def test_the_total_of_an_array_is_that_of_its_words() -> None:
    for count in (0, 1, 7, 100_003):
        assert total(count) == int(words(count).sum(dtype=np.uint32))


def test_constants_are_those_of_the_kernels() -> None:
    text = (kernel_folder() / "device" / "limits.cu").read_text()
    for name, value in {
        "THREADS": LIMIT_THREADS, "CHAINS": CHAINS, "UNROLL": UNROLL, "READS": READS,
        "SHARED_READS": SHARED_READS, "VECTORS": LIMIT_VECTORS, "WINDOW": limits.WINDOW,
        "SHARED_STEP": limits.SHARED_STEP, "SCATTER": f"{limits.SCATTER}u",
    }.items():  # fmt: skip
        assert f"#define {name} {value}\n" in text


# -- what the compiler makes of them --------------------------------------------------------


def virtual_code(name: str) -> str:
    """Return what NVRTC makes of a kernel for compute capability 9.0, before ptxas."""
    nvrtc = pytest.importorskip("cupy.cuda", reason="CuPy is not installed").nvrtc
    kernel = limit_kernel(name)
    source = (kernel_folder() / kernel.source).read_text()
    header = (kernel_folder() / "compile" / "common.cuh").read_bytes()
    try:
        program = nvrtc.createProgram(source, kernel.source, [header], [b"common.cuh"])
    except (RuntimeError, OSError) as error:
        pytest.skip(f"NVRTC cannot be loaded: {error}")
    options = ("--gpu-architecture=compute_90", "--std=c++17", *kernel.options)
    nvrtc.compileProgram(program, options)
    text = nvrtc.getPTX(program)
    text = text.decode() if isinstance(text, bytes) else text
    nvrtc.destroyProgram(program)
    return str(text).split(f".entry {name}(")[1].split(".entry")[0]


def test_every_multiply_add_and_load_is_compiled() -> None:
    # In whole steps: the compiler may repeat the loop's body.
    chains = virtual_code("fma_chains")
    assert chains.count("fma.rn.f32") % (CHAINS * UNROLL) == 0 < chains.count("fma.rn.f32")
    shared = virtual_code("read_shared")
    wide = shared.count("ld.shared.v4.")
    assert wide % SHARED_READS == 0 < wide
    assert shared.count("ld.shared.") == wide
    code = virtual_code("read_global")
    loads = code.count("ld.global.cg.v4.")
    assert loads % READS == 0 < loads
    assert code.count("ld.global") == loads
    assert code.count("st.global.v4.") == 0


@EACH_ARCHITECTURE
@pytest.mark.parametrize("name", LIMITS)
def test_all_blocks_of_a_launch_are_resident(name: str, architecture: int) -> None:
    pytest.importorskip("cupy.cuda", reason="CuPy is not installed")
    from ptxas_reports import compile_anew, resident_blocks, resources

    from portable_spdnn_gpu.compile.nvrtc import KernelCompilationError

    try:
        _, log = compile_anew(limit_kernel(name), architecture)
    except KernelCompilationError as error:
        if "NVRTC cannot be loaded" in str(error):
            pytest.skip(str(error))
        raise
    report = resources(log)[name]
    assert resident_blocks(limit_kernel(name), report, architecture) >= BLOCKS
