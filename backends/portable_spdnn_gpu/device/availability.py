"""Whether CUDA is available, and why not."""

from __future__ import annotations

from portable_spdnn.backend import Availability
from portable_spdnn_gpu.device.cuda_device import CudaDevice
from portable_spdnn_gpu.device.forks import FORKED, CudaProcess
from portable_spdnn_gpu.device.matrices import first_line

# cudaErrorInitializationError, cudaErrorInsufficientDriver and cudaErrorNoDevice.
NOT_INITIALIZED, INSUFFICIENT_DRIVER, NO_DEVICE = 3, 35, 100


def cuda_availability() -> Availability:
    """Return whether CuPy, NVRTC, a driver and a device are there; never raises."""
    if CudaProcess.forked:
        return Availability.no(FORKED)
    try:
        import cupy
    except ImportError as error:
        return Availability.no(
            f"CuPy does not import ({first_line(error)}); install the extra cuda12 or cuda13"
        )
    versions = {"cupy": str(cupy.__version__)}
    runtime = cupy.cuda.runtime
    try:
        runtime_version = runtime.runtimeGetVersion()
        driver_version = runtime.driverGetVersion()
        devices = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return Availability.no(
            _why_no_device(error.status, runtime_version, driver_version), versions
        )
    versions["cuda runtime"] = _version(runtime_version)
    versions["cuda driver"] = _version(driver_version)
    if not devices or not cupy.cuda.is_available():
        return Availability.no(_why_no_device(NO_DEVICE, runtime_version, driver_version), versions)
    try:
        versions["nvrtc"] = ".".join(map(str, cupy.cuda.nvrtc.getVersion()))
    except (RuntimeError, OSError) as error:
        return Availability.no(
            f"NVRTC cannot be loaded ({error}); install the extra cuda12 or cuda13", versions
        )
    try:
        return Availability.yes(CudaDevice().description, versions)
    except runtime.CUDARuntimeError as error:
        return Availability.no(f"the CUDA device cannot be used: {error}", versions)


def cuda_device_numbers() -> tuple[int, ...]:
    """Return the numbers of the devices that CUDA_VISIBLE_DEVICES leaves to this process."""
    import cupy

    return tuple(range(cupy.cuda.runtime.getDeviceCount()))


def _why_no_device(status: int, runtime_version: int, driver_version: int) -> str:
    if status == INSUFFICIENT_DRIVER and driver_version == 0:
        return "there is no CUDA driver on this machine"
    if status == INSUFFICIENT_DRIVER:
        return (
            f"the CUDA driver is for CUDA {_version(driver_version)}, older than CuPy's toolkit "
            f"{_version(runtime_version)}; update the driver, or install the extra for its version"
        )
    if status == NO_DEVICE:
        return "there is no CUDA device that this process may use (see CUDA_VISIBLE_DEVICES)"
    if status == NOT_INITIALIZED:  # by whichever library used CUDA before the fork
        return f"CUDA cannot be initialised (error {status}); perhaps {FORKED}"
    return f"the CUDA runtime answers with error {status}"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
