"""What the cupy backend says where CUDA is missing, and what it asks of the driver."""

from __future__ import annotations

import ctypes
import sys
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
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

    Its pool keeps 3,000 bytes of which an array may have 1,000, and may take 5,000 in all.
    """

    def __init__(self, limit: int = 5000) -> None:
        self.copies: list[Any] = []
        self.kept, self.limit = 3000, limit
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
            self.copies.pop()()

    def get_default_memory_pool(self) -> Any:
        def free() -> None:
            self.kept = 2000  # what belongs to blocks of which a part is in use

        return SimpleNamespace(
            free_all_blocks=free,
            free_bytes=lambda: self.kept,
            total_bytes=lambda: 1000 + self.kept,
            get_limit=lambda: self.limit,
        )

    def device(self) -> Any:
        device = object.__new__(CudaDevice)
        device._library, device._peak = self, 0
        device._device = SimpleNamespace(mem_info=(4000, 9000))
        return device


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.bool_])
def test_a_copy_is_done_when_it_is_returned(dtype: Any) -> None:
    device, rng = LateCupy().device(), np.random.default_rng(0)
    whole = rng.integers(0, 2, (5, 7)).astype(dtype)
    parts = whole[1:4, ::2], whole[::-1], whole[:, 3], whole[:0], whole[0, 0]
    for given in (whole, whole.T, *parts):
        host = np.asarray(given)
        found = device.upload(host).array
        np.testing.assert_array_equal(found, host)
        assert found.flags.c_contiguous or host.flags.f_contiguous
        assert found.flags.f_contiguous or not host.flags.f_contiguous
    assert device.peak_memory() == 4000


def test_what_the_pool_keeps_in_part_is_not_free() -> None:
    assert LateCupy(limit=0).device().free_memory() == 4000
    assert LateCupy(limit=5000).device().free_memory() == 2000


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
