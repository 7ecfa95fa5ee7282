"""The device that tests use: a GPU where there is one, else the emulated one."""

from __future__ import annotations

import pytest
from cuda_emulation.emulated_backend import cache_folder
from cuda_emulation.emulated_device import EmulatedDevice, compiler

from portable_spdnn_gpu.device.availability import cuda_availability
from portable_spdnn_gpu.device.cuda_device import CudaDevice
from portable_spdnn_gpu.device.interface import Device

ON_GPU = cuda_availability().available
needs_device = pytest.mark.skipif(
    not ON_GPU and compiler() is None, reason="neither a GPU nor a C++ compiler"
)


@pytest.fixture(scope="module", params=["device"] if ON_GPU else ["rising", "falling"])
def device(request: pytest.FixtureRequest) -> Device:
    """The GPU; or the emulated device, whose lanes and warps run in either order."""
    if ON_GPU:
        return CudaDevice()
    return EmulatedDevice(cache_folder(), request.param == "falling")
