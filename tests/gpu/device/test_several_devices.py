"""CUDA devices by number: a mix-up of devices shows, and each is asked for what is its own."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_emulation.emulated_backend import cache_folder
from cuda_emulation.emulated_device import EmulatedDevice, compiler

from portable_spdnn_gpu.compile.catalog import feature_rows
from portable_spdnn_gpu.device.availability import cuda_device_numbers
from portable_spdnn_gpu.device.cuda_device import CudaDevice
from portable_spdnn_gpu.device.interface import LaunchError

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++, clang++)")


@needs_compiler
def test_a_launch_refuses_arrays_of_another_device() -> None:
    devices = [EmulatedDevice(cache_folder(), number=number) for number in range(2)]
    kernel = feature_rows("transpose", np.dtype(np.float32))

    def transpose(number: int, matrix: Any, out: Any) -> None:
        shape = [np.int32(extent) for extent in matrix.shape]
        devices[number].launch(kernel, (1, 1), [matrix, *shape, out])

    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    homes: list[Any] = []
    for device in devices:
        with device.bound():
            homes.append((device.upload(values), device.empty((3, 2), np.float32)))
    for number, device in enumerate(devices):
        with device.bound():
            transpose(number, *homes[number])
            np.testing.assert_array_equal(device.download(homes[number][1]), values.T)
            for own, other in itertools.permutations(range(2)):
                wrong = (homes[own][0], homes[other][1])
                position = 0 if own != number else 3
                message = (
                    f"argument {position} lives on device {1 - number}, "
                    f"the launch is on device {number}"
                )
                with pytest.raises(LaunchError, match=message):
                    transpose(number, *wrong)
            with pytest.raises(LaunchError, match=f"lives on device {1 - number}"):
                transpose(number, homes[1 - number][0].T.T, homes[number][1].reshape(3, 2))
    with pytest.raises(LaunchError, match="current device is 0, the launch is on device 1"):
        transpose(1, *homes[1])


class FakeArray:
    """What `CudaDevice` asks of a CuPy array."""

    def __init__(self, device: int) -> None:
        self.device = SimpleNamespace(id=device)


def test_cuda_devices_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]

    class Device:
        compute_capability = "90"

        def __init__(self, number: int | None = None) -> None:
            self.id = current[-1] if number is None else number

        def __enter__(self) -> None:
            current.append(self.id)

        def __exit__(self, *error: object) -> None:
            current.pop()

    launched: list[Any] = []
    asked: list[Any] = []

    def set_attribute(function: Any, attribute: int, value: int) -> None:
        asked.append((function, attribute, value))
        if value > 227 << 10:
            raise OSError("invalid value")

    def function(*arguments: Any, **options: Any) -> None:
        launched.append(current[-1])

    function.ptr = 5  # type: ignore[attr-defined]
    runtime = SimpleNamespace(
        getDeviceProperties=lambda number: {
            "name": b"GPU %d" % number,
            "multiProcessorCount": 1,
            "l2CacheSize": 1 << 20,
            "sharedMemPerBlockOptin": 227 << 10,
        },
        getDeviceCount=lambda: 2,
    )
    module = SimpleNamespace(
        load=lambda code: None,
        get_function=lambda name: function,
    )
    cuda = SimpleNamespace(
        Device=Device,
        runtime=runtime,
        function=SimpleNamespace(Module=lambda: module),
        driver=SimpleNamespace(
            CUDADriverError=OSError,
            funcSetAttribute=set_attribute,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
        ),
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, ndarray=FakeArray))
    monkeypatch.setattr("portable_spdnn_gpu.device.cuda_device.machine_code", lambda *_: b"")
    assert cuda_device_numbers() == (0, 1)
    assert CudaDevice().number == 0
    device = CudaDevice(1)
    assert device.number == 1
    assert device.description == "GPU 1, sm_90"
    kernel = feature_rows("transpose", np.dtype(np.float32))
    with device.bound():
        assert CudaDevice().number == 1
        device.launch(kernel, (1, 1), [FakeArray(1), np.int32(1), np.int32(1), FakeArray(1)])
        with pytest.raises(LaunchError, match="argument 3 lives on device 0, the launch is on d"):
            device.launch(kernel, (1, 1), [FakeArray(1), np.int32(1), np.int32(1), FakeArray(0)])
    assert launched == [1]
    assert current == [0]
    # Shared memory beyond 48 KiB is asked for, once, and no other.
    assert asked == []
    wide = replace(kernel, dynamic_shared=100 << 10)
    for _ in range(2):
        device.launch(wide, (1, 1), [])
    assert asked == [(5, 8, 100 << 10)]
    with pytest.raises(LaunchError, match="refused; GPU 1, sm_90 gives 232448 at most"):
        device.launch(replace(kernel, dynamic_shared=300 << 10), (1, 1), [])
