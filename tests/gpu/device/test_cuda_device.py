"""What the cupy backend says where CUDA is missing, and what it asks of the driver."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cuda_emulation.device_at_hand import ON_GPU
from cuda_emulation.emulated_backend import EmulatedCupyBackend, cache_folder
from cuda_emulation.emulated_device import EmulatedDevice, compiler

import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan
from portable_spdnn_gpu.compile.catalog import Kernel
from portable_spdnn_gpu.cupy_backend import CupyBackend
from portable_spdnn_gpu.device import cuda_device, matrices
from portable_spdnn_gpu.device.availability import cuda_availability
from portable_spdnn_gpu.device.cuda_device import CudaDevice, memory_error
from portable_spdnn_gpu.device.interface import DeviceMemoryError, LaunchError
from portable_spdnn_gpu.device.matrices import upload_csr

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++, clang++)")


class CudaError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


def fake_cupy(status: int, driver: int, devices: int = 0, nvrtc: str = "") -> Any:
    """Return what `cuda_availability` asks of CuPy, on a machine of a given state."""

    def device_count() -> int:
        if status:
            raise CudaError(status)
        return devices

    def nvrtc_version() -> tuple[int, int]:
        if nvrtc:
            raise RuntimeError(nvrtc)
        return (13, 0)

    runtime = SimpleNamespace(
        CUDARuntimeError=CudaError,
        runtimeGetVersion=lambda: 13000,
        driverGetVersion=lambda: driver,
        getDeviceCount=device_count,
    )
    cuda = SimpleNamespace(
        runtime=runtime,
        is_available=lambda: devices > 0,
        nvrtc=SimpleNamespace(getVersion=nvrtc_version),
    )
    return SimpleNamespace(__version__="14.0", cuda=cuda)


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (fake_cupy(35, 0), "no CUDA driver on this machine"),
        (
            fake_cupy(35, 12040),
            r"driver is for CUDA 12\.4, older than CuPy's toolkit 13\.0; update the driver",
        ),
        (fake_cupy(100, 13000), "no CUDA device that this process may use"),
        (fake_cupy(0, 13000, 0), "no CUDA device that this process may use"),
        (fake_cupy(999, 13000), "answers with error 999"),
        (fake_cupy(3, 13000), r"cannot be initialised \(error 3\); perhaps .*'spawn'"),
        (fake_cupy(0, 13000, 1, "libnvrtc.so.13: not found"), r"NVRTC cannot be loaded \(libnv"),
    ],
    ids=[
        "no driver", "old driver", "no device", "none visible", "unknown", "forked", "no compiler",
    ],
)  # fmt: skip
def test_unavailable_says_why(monkeypatch: pytest.MonkeyPatch, machine: Any, reason: str) -> None:
    monkeypatch.setitem(sys.modules, "cupy", machine)
    availability = cuda_availability()
    assert not availability.available
    assert availability.versions == {"cupy": "14.0"} | availability.versions
    with pytest.raises(ps.BackendUnavailable, match=reason):
        ps.get_backend("cupy")


def test_a_failed_capture_tells_its_cause() -> None:
    class Stream(AbstractContextManager):  # type: ignore[type-arg]
        def begin_capture(self) -> None: ...

        def end_capture(self) -> None:
            raise CudaError(901)  # the capture was invalidated

        def __exit__(self, *error: object) -> None: ...

    device = object.__new__(CudaDevice)
    runtime = SimpleNamespace(CUDARuntimeError=CudaError)
    device._library = SimpleNamespace(
        cuda=SimpleNamespace(runtime=runtime, Stream=lambda non_blocking: Stream())
    )

    def fail() -> None:
        raise ValueError("the cause")

    with pytest.raises(ValueError, match="the cause"):
        device.capture(fail)
    with pytest.raises(CudaError, match="status 901"):
        device.capture(lambda: None)


class LateCupy:
    """What `upload` and `free_memory` ask of CuPy; copies are done when the stream is waited for.

    The pool holds 3,000 idle bytes, of which `free_all_blocks` releases 1,000.
    """

    def __init__(self, limit: int = 0) -> None:
        self.copies: list[Any] = []
        self.idle, self.limit = 3000, limit
        self.cuda = SimpleNamespace(
            get_current_stream=lambda: SimpleNamespace(synchronize=self.wait),
            memory=SimpleNamespace(OutOfMemoryError=MemoryError),
            runtime=SimpleNamespace(CUDARuntimeError=CudaError),
        )

    def empty(self, shape: Any, dtype: Any, order: str) -> Any:
        array = np.empty(shape, dtype, order)

        def copy(source: int, nbytes: int, stream: Any) -> None:
            assert nbytes == array.nbytes
            self.copies.append(lambda: ctypes.memmove(array.ctypes.data, source, nbytes))

        data = SimpleNamespace(copy_from_host_async=copy)
        return SimpleNamespace(data=data, nbytes=array.nbytes, array=array)

    def wait(self) -> None:
        while self.copies:
            self.copies.pop(0)()

    def get_default_memory_pool(self) -> Any:
        def free() -> None:
            self.idle = 2000

        return SimpleNamespace(
            free_all_blocks=free,
            total_bytes=lambda: 1000 + self.idle,
            used_bytes=lambda: 1000,
            get_limit=lambda: self.limit,
        )

    def device(self) -> Any:
        device = object.__new__(CudaDevice)
        device._library, device._peak = self, 0
        device._device = SimpleNamespace(mem_info=(4000, 9000))
        return device


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.bool_])
@pytest.mark.parametrize(
    ("part", "order"),
    [
        (np.s_[:], "C"), (np.s_[1:4, ::2], "C"), (np.s_[::-1], "C"), (np.s_[:, 3], "C"),
        (np.s_[:0], "C"), (np.s_[0, 0], "C"), (np.s_[:], "F"), (np.s_[:, 2:4], "F"),
    ],
)  # fmt: skip
def test_a_copy_is_complete_on_return(dtype: Any, part: Any, order: Any) -> None:
    device, rng = LateCupy().device(), np.random.default_rng(0)
    host = np.asarray(np.asarray(rng.integers(0, 2, (5, 7)), dtype, order=order)[part])
    found = device.upload(host).array
    np.testing.assert_array_equal(found, host)
    assert found.flags.f_contiguous if order == "F" else found.flags.c_contiguous
    assert device.peak_memory() == 1000  # 3,000 more are kept for further arrays


def test_free_memory_is_what_the_device_has_when_the_pool_has_given_back() -> None:
    assert LateCupy().device().free_memory() == 4000
    assert LateCupy(limit=5000).device().free_memory() == 2000
    assert LateCupy(limit=9000).device().free_memory() == 4000
    assert LateCupy(limit=2000).device().free_memory() == 0


@pytest.mark.skipif(
    ON_GPU or compiler() is None, reason="a GPU is used, or no C++ compiler is there"
)
def test_plans_and_handles_through_cupy() -> None:
    """`CudaDevice` itself, where the emulated device does what it asks of CuPy."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    tests = Path(__file__).resolve().parents[2]
    files = ("gpu/test_cupy_backend.py", "gpu/network/test_plan.py", "gpu/spmm/test_launch.py")
    chosen = "ready or beyond_the_limit or recording or widths or begin_anywhere"
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "cuda_emulation.emulated_cupy",
            "-p", "no:xdist", "-p", "no:cacheprovider", "-k", chosen, *(tests / f for f in files),
        ],
        capture_output=True, text=True, check=False, cwd=tests.parent,
        env={**os.environ, "PYTHONPATH": str(tests)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_unavailable_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    availability = CupyBackend.availability()
    assert not availability.available
    assert "CuPy does not import" in availability.reason
    assert "extra cuda12 or cuda13" in availability.reason


def test_available_with_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(0, 13010, 1))
    monkeypatch.setattr(
        "portable_spdnn_gpu.device.availability.CudaDevice",
        lambda: SimpleNamespace(description="one, sm_90"),
    )
    availability = cuda_availability()
    assert availability.available
    assert availability.device == "one, sm_90"
    assert availability.versions["cuda driver"] == "13.1"


def test_a_device_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(0, 13010, 1))

    def busy() -> None:
        raise CudaError(46)

    monkeypatch.setattr("portable_spdnn_gpu.device.availability.CudaDevice", busy)
    assert "device cannot be used: status 46" in cuda_availability().reason


@needs_compiler
def test_more_columns_than_kernels_count_are_refused() -> None:
    A, backend = sp.csr_array(np.ones((1, 1), np.float32)), EmulatedCupyBackend()
    matrices.check_size("A", (1, 2**31 - 1025))
    wide = np.broadcast_to(np.float32(1), (1, 2**31 - 1024))  # of one number in memory
    for handle in (None, backend.spmm_handle(A)):
        with pytest.raises(ps.InputError, match=r"spmm: B: 1 x 2147482624 is too large"):
            backend.spmm(A, wide) if handle is None else handle.multiply(wide)
    with pytest.raises(ps.InputError, match=r"layer: features: 2147482624 x 1 is too large"):
        backend.layer(A, wide.T)


def test_what_does_not_fit_says_what_would() -> None:
    error = memory_error((60000, 65536), np.float32, 3 * 2**30, 8 * 2**30)
    assert isinstance(error, DeviceMemoryError)
    assert isinstance(error, MemoryError)
    assert "60000 x 65536 float32 (15000 MiB) does not fit" in str(error)
    assert "3072 of the device's 8192 MiB are free, about 20 % of it would fit" in str(error)
    assert "smaller batch_size" in str(error)
    assert "but not in one piece" in str(memory_error((10,), np.float64, 100, 200))


def device_of(monkeypatch: pytest.MonkeyPatch, driver: Any) -> cuda_device.CudaDevice:
    """Return a device of CuPy's whose kernels are never launched, with two multiprocessors."""
    module = SimpleNamespace(
        load=lambda code: None, get_function=lambda name: SimpleNamespace(ptr="function")
    )
    properties = {
        "name": b"one",
        "multiProcessorCount": 2,
        "sharedMemPerBlockOptin": 232448,
        "l2CacheSize": 1 << 20,
    }
    cuda = SimpleNamespace(
        Device=lambda number=0: SimpleNamespace(id=0, compute_capability="90"),
        runtime=SimpleNamespace(getDeviceProperties=lambda number: properties),
        function=SimpleNamespace(Module=lambda: module),
        driver=driver,
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(cuda_device, "machine_code", lambda kernel, architecture: b"")
    return cuda_device.CudaDevice()


@pytest.mark.parametrize(("dynamic", "asked"), [(48 << 10, []), (65536, [("function", 8, 65536)])])
def test_shared_memory_beyond_the_usual_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, dynamic: int, asked: list[tuple[str, int, int]]
) -> None:
    calls: list[tuple[str, int, int]] = []
    driver = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
        funcSetAttribute=lambda *arguments: calls.append(arguments),
    )
    device = device_of(monkeypatch, driver)
    assert device.shared_limit == 227 << 10
    kernel = Kernel("k", "k.cu", 512, (), 128, dynamic_shared=dynamic)
    for _ in range(2):  # once for each function
        device._function(kernel)
    assert calls == asked


def test_occupancy_is_asked_once_for_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int, int]] = []

    def occupancy(*arguments: Any) -> int:
        calls.append(arguments)
        return 1024 // arguments[1]

    driver = SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=occupancy)
    device = device_of(monkeypatch, driver)
    kernels = [Kernel("k", "k.cu", threads, (), 128) for threads in (256, 512, 2048)]
    # The last fits no multiprocessor: a launch takes a block each all the same.
    for _ in range(2):
        assert [device.resident_blocks(kernel) for kernel in kernels] == [8, 4, 2]
    assert calls == [("function", 256, 0), ("function", 512, 0), ("function", 2048, 0)]


@needs_compiler
def test_a_failed_launch_gives_no_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = EmulatedCupyBackend()

    def fail(*arguments: Any) -> None:
        raise LaunchError("csr_spmm: the launch failed")

    monkeypatch.setattr(backend.cuda, "launch", fail)
    network = ps.Network([ps.Layer(np.eye(4), -0.1)])
    with pytest.raises(LaunchError):
        backend.spmm(sp.csr_array(np.eye(4)), np.ones((4, 2)))
    with pytest.raises(LaunchError):
        make_plan(backend, network).run(np.ones((3, 4)))


@needs_compiler
def test_a_matrix_beyond_32_bit_indices_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrices, "INDEX_LIMIT", 5)
    device = EmulatedDevice(cache_folder())
    with pytest.raises(ps.InputError, match="3 x 3 with 6 entries is too large for the cupy"):
        upload_csr(device, sp.csr_array(np.triu(np.ones((3, 3)))))
    assert upload_csr(device, sp.csr_array(np.eye(3))).nnz == 3


@needs_compiler
def test_out_in_host_memory_is_refused() -> None:
    backend = EmulatedCupyBackend()
    handle = backend.spmm_handle(sp.csr_array(np.eye(3, dtype=np.float32)))
    with pytest.raises(ps.InputError, match="spmm: out is ndarray, not on the device; give a cupy"):
        handle.multiply(np.ones((3, 2), np.float32), np.empty((3, 2), np.float32))


@needs_compiler
def test_plan_of_a_challenge_like_network_clusters_its_neurons() -> None:
    # 64 neurons in which each sixteen share their inputs: the launches are of clusters alone.
    ring = np.zeros((64, 64), np.float32)
    for j in range(64):
        ring[[(j % 4 + 4 * k + s) % 64 for k in range(8) for s in (0, 1)], j] = 1 / 8
    network = ps.Network([ps.Layer(ring, -0.3)] * 3, y_max=32)
    rng = np.random.default_rng(0)
    Y = rng.random((40, 64)) < 0.6 * rng.random((40, 1))
    backend = EmulatedCupyBackend()
    result = make_plan(backend, network, ps.PlanOptions(path="spmm")).run(Y)
    expected = make_plan(ps.get_backend("scipy"), network).run(Y)
    assert 0 < expected.categories.size < 40
    np.testing.assert_array_equal(result.categories, expected.categories)
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-5)
    assert "clustered_spmm" in backend.cuda.launches
    assert "csr_spmm" not in backend.cuda.launches
