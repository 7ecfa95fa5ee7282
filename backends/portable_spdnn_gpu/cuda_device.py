"""A CUDA device through CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.backend import Availability
from portable_spdnn_gpu.device import DeviceMemoryError, LaunchError, check_grid
from portable_spdnn_gpu.kernel_catalog import Kernel
from portable_spdnn_gpu.nvrtc_compiler import compile_source

Array = npt.NDArray[Any]
MIB = 2**20
# cudaErrorInsufficientDriver and cudaErrorNoDevice.
INSUFFICIENT_DRIVER, NO_DEVICE = 35, 100


class CudaDevice:
    """The current CUDA device and stream of CuPy; see `portable_spdnn_gpu.device.Device`.

    Arrays are `cupy.ndarray` from CuPy's memory pool. Kernels are compiled for the device when
    they are first launched.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device()
        self._architecture = int(self._device.compute_capability)
        self._functions: dict[Kernel, Any] = {}
        name = cupy.cuda.runtime.getDeviceProperties(self._device.id)["name"].decode()
        self.description = f"{name}, sm_{self._architecture}"

    def owns(self, array: Any) -> bool:
        """Whether `array` is CuPy's."""
        return isinstance(array, self._cupy.ndarray)

    def adopt(self, array: Any) -> Any:
        """Return a cupy.ndarray on the memory of an array of another library."""
        # PyTorch's interface names no stream while its DLPack export orders the two streams.
        names_stream = "stream" in getattr(array, "__cuda_array_interface__", {})
        if hasattr(array, "__dlpack__") and not names_stream:
            adopted = self._cupy.from_dlpack(array)
        else:
            adopted = self._cupy.asarray(array)
        if adopted.device.id != self._device.id:
            raise ValueError(
                f"it is on CUDA device {adopted.device.id} and the backend on device "
                f"{self._device.id}; copy it there"
            )
        return adopted

    def empty(self, shape: tuple[int, ...], dtype: Any, order: str = "C") -> Any:
        """Return an array of any content."""
        try:
            return self._cupy.empty(shape, dtype, order)
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise self._too_large(shape, dtype) from error

    def upload(self, array: Array) -> Any:
        """Return a copy of a host array, in its order."""
        try:
            return self._cupy.array(array, order="K")
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise self._too_large(array.shape, array.dtype) from error

    def download(self, array: Any) -> Array:
        """Return a copy in host memory."""
        return np.asarray(self._cupy.asnumpy(array, order="A"))

    def contiguous(self, array: Any) -> Any:
        """Return `array` itself where it is in C or F order, else a copy in C order."""
        if array.flags.c_contiguous or array.flags.f_contiguous:
            return array
        return self._cupy.ascontiguousarray(array)

    def overlaps(self, one: Any, other: Any) -> bool:
        """Whether two arrays may share memory."""
        return bool(self._cupy.may_share_memory(one, other))

    def launch(self, kernel: Kernel, grid: tuple[int, int], arguments: Sequence[Any]) -> None:
        """Start a kernel on the current stream."""
        if not check_grid(kernel, grid):
            return
        function = self._functions.get(kernel)
        if function is None:
            code, _ = compile_source(kernel, self._architecture)
            module = self._cupy.cuda.function.Module()
            module.load(code)
            function = self._functions[kernel] = module.get_function(kernel.name)
        try:
            function(grid, (kernel.threads,), tuple(arguments), shared_mem=kernel.dynamic_shared)
        except self._cupy.cuda.driver.CUDADriverError as error:
            raise LaunchError(f"{kernel.name}: the launch failed: {error}") from error

    def synchronize(self) -> None:
        """Return when the current stream is done."""
        try:
            self._cupy.cuda.get_current_stream().synchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise LaunchError(f"a kernel failed: {error}") from error

    def _too_large(self, shape: tuple[int, ...], dtype: Any) -> DeviceMemoryError:
        free, total = self._device.mem_info
        free += self._cupy.get_default_memory_pool().free_bytes()
        return memory_error(shape, dtype, free, total)


def memory_error(shape: tuple[int, ...], dtype: Any, free: int, total: int) -> DeviceMemoryError:
    """Return the error for an array that does not fit, with the part of it that would."""
    needed = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    part = f"about {100 * free // needed} % of it would" if free < needed else "in one piece"
    return DeviceMemoryError(
        f"an array of {' x '.join(map(str, shape))} {np.dtype(dtype)} ({needed // MIB} MiB) does "
        f"not fit: {free // MIB} of the device's {total // MIB} MiB are free, {part}; run "
        "with a smaller batch of inputs (batch size)"
    )


def cuda_availability() -> Availability:
    """Say whether CuPy, NVRTC, a driver and a device are there; never raises."""
    try:
        import cupy
    except ImportError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "ImportError"
        return Availability.no(
            f"CuPy does not import ({reason}); install the extra cuda12 or cuda13"
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
    return f"the CUDA runtime answers with error {status}"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
