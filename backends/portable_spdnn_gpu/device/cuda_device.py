"""A CUDA device through CuPy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeGuard

import numpy as np
import numpy.typing as npt

from portable_spdnn_gpu.compile.cache import machine_code
from portable_spdnn_gpu.compile.catalog import SHARED_UNASKED, Kernel
from portable_spdnn_gpu.device.forks import CudaProcess, check_process
from portable_spdnn_gpu.device.interface import (
    Argument,
    Array,
    DeviceArray,
    DeviceMemoryError,
    LaunchError,
    Recording,
    check_grid,
    check_home,
)

MIB = 2**20
Order = Literal["C", "F"]


class CudaDevice:
    """A CUDA device and the current stream of CuPy; see `interface.Device`.

    Arrays are `cupy.ndarray` from CuPy's memory pool. Kernels are compiled for the device when
    they are first launched or asked about.

    Parameters
    ----------
    number : int, optional
        The number of the device. By default it is the current device of the calling thread.

    Raises
    ------
    BackendUnavailable
        If this process was forked from one that had opened a device; so does every use of a
        device that was opened there.
    """

    def __init__(self, number: int | None = None) -> None:
        check_process()
        import cupy

        CudaProcess.opened = True
        self._library = cupy
        self._device = cupy.cuda.Device(number)
        self.number = int(self._device.id)
        self.architecture = int(self._device.compute_capability)
        self._functions: dict[Kernel, Any] = {}
        self._occupancy: dict[Kernel, int] = {}
        properties = cupy.cuda.runtime.getDeviceProperties(self._device.id)
        self.description = f"{properties['name'].decode()}, sm_{self.architecture}"
        self.multiprocessors = int(properties["multiProcessorCount"])
        self.l2_bytes = int(properties["l2CacheSize"])
        self.shared_limit = int(properties["sharedMemPerBlockOptin"])
        self._peak = 0

    @property
    def _cupy(self) -> Any:
        """CuPy, through which every use of the device goes."""
        check_process()
        return self._library

    def bound(self) -> AbstractContextManager[Any]:
        """Return a context in which the calling thread's current device is this one."""
        # Each context has a Device of its own, which keeps the device to go back to.
        context: AbstractContextManager[Any] = self._cupy.cuda.Device(self.number)
        return context

    def owns(self, array: object) -> TypeGuard[DeviceArray]:
        """Whether `array` is a cupy.ndarray."""
        return isinstance(array, self._cupy.ndarray)

    def adopt(self, array: object) -> DeviceArray:
        """Return a cupy.ndarray on the memory of an array of another library."""
        # PyTorch's interface names no stream while its DLPack export orders the two streams.
        names_stream = "stream" in getattr(array, "__cuda_array_interface__", {})
        by_dlpack = hasattr(array, "__dlpack__") and not names_stream
        adopted = self._cupy.from_dlpack(array) if by_dlpack else self._cupy.asarray(array)
        if adopted.device.id != self._device.id:
            raise ValueError(
                f"it is on CUDA device {adopted.device.id} and the backend on device "
                f"{self._device.id}; copy it there"
            )
        mine: DeviceArray = adopted
        return mine

    def empty(
        self, shape: tuple[int, ...], dtype: npt.DTypeLike, order: Order = "C"
    ) -> DeviceArray:
        """Return an array with unset content."""
        pool = self._cupy.get_default_memory_pool()
        try:
            array: DeviceArray = self._cupy.empty(shape, dtype, order)
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            _, total = self._device.mem_info
            raise memory_error(shape, dtype, self.free_memory(), total) from error
        self._peak = max(self._peak, int(pool.used_bytes()))
        return array

    def upload(self, array: Array) -> DeviceArray:
        """Return a copy of a host array, in its order; it is complete on return."""
        order: Order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        # `cupy.array` would stage the data in page-locked memory, which its pool keeps.
        copy, host = self.empty(array.shape, array.dtype, order), np.asarray(array, order=order)
        self.copy_in(host, copy)
        # The caller may change its memory, which may be page-locked, and another stream may read
        # the copy.
        self.synchronize()
        return copy

    def download(self, array: DeviceArray) -> Array:
        """Return a copy in host memory."""
        with self._faults():
            return np.asarray(self._cupy.asnumpy(array, order="A"))

    def contiguous(self, array: DeviceArray) -> DeviceArray:
        """Return `array` itself where it is in C or F order, else a copy in C order."""
        if array.flags.c_contiguous or array.flags.f_contiguous:
            return array
        copy: DeviceArray = self._cupy.ascontiguousarray(array)
        return copy

    def overlaps(self, one: DeviceArray, other: DeviceArray) -> bool:
        """Whether two arrays may share memory."""
        return bool(self._cupy.may_share_memory(one, other))

    def launch(self, kernel: Kernel, grid: tuple[int, int], arguments: Sequence[Argument]) -> None:
        """Start a kernel on the current stream."""
        if not check_grid(kernel, grid):
            return
        device_array = self._cupy.ndarray
        for position, argument in enumerate(arguments):
            if isinstance(argument, device_array):
                check_home(kernel, position, argument.device.id, self.number)
        function = self._function(kernel)
        try:
            function(grid, (kernel.threads,), tuple(arguments), shared_mem=kernel.dynamic_shared)
        except self._cupy.cuda.driver.CUDADriverError as error:
            raise LaunchError(f"{kernel.name}: the launch failed: {error}") from error

    def _function(self, kernel: Kernel) -> Any:
        function = self._functions.get(kernel)
        if function is None:
            module = self._cupy.cuda.function.Module()
            module.load(machine_code(kernel, self.architecture))
            function = module.get_function(kernel.name)
            if kernel.shared > SHARED_UNASKED:
                driver = self._cupy.cuda.driver
                most = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                try:
                    driver.funcSetAttribute(function.ptr, most, kernel.dynamic_shared)
                except driver.CUDADriverError as error:
                    raise LaunchError(
                        f"{kernel.name}: {kernel.dynamic_shared} bytes of shared memory for a "
                        f"block were refused; {self.description} gives {self.shared_limit} at most"
                    ) from error
            self._functions[kernel] = function
        return function

    def resident_blocks(self, kernel: Kernel) -> int:
        """Compile a kernel; return how many blocks of it are resident on the device at a time."""
        blocks = self._occupancy.get(kernel)
        if blocks is None:
            each = self._cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
                self._function(kernel).ptr, kernel.threads, kernel.dynamic_shared
            )
            blocks = max(1, int(each)) * self.multiprocessors
            self._occupancy[kernel] = blocks
        return blocks

    def capture(self, work: Callable[[], None]) -> Recording:
        """Record launches as a CUDA graph."""
        stream = self.new_stream()
        with stream:
            stream.begin_capture()
            try:
                work()
            except BaseException:
                # A failure inside may have ended the capture: to end it then fails as well, and
                # would hide the cause.
                with contextlib.suppress(self._cupy.cuda.runtime.CUDARuntimeError):
                    stream.end_capture()
                raise
            graph = stream.end_capture()
            graph.upload(stream)  # so that the first launch need not upload it
        return _Graph(self._cupy, graph)

    def view(
        self, memory: Any, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike
    ) -> DeviceArray:
        """Return a part of an array of uint8 as an array in C order."""
        part: DeviceArray = self._cupy.ndarray(shape, dtype, memptr=memory.data + offset)
        return part

    def pinned(self, nbytes: int) -> Array:
        """Return page-locked host memory, which is given back with the last array on it."""
        cuda = self._cupy.cuda  # whose pool of such memory would keep what is given back
        memory = cuda.PinnedMemory(nbytes, cuda.runtime.hostAllocPortable)
        return np.frombuffer(cuda.PinnedMemoryPointer(memory, 0), np.uint8, nbytes)

    def copy_in(self, host: Array, array: Any) -> None:
        """Start to copy host memory to an array."""
        stream = self._cupy.cuda.get_current_stream()
        array.data.copy_from_host_async(host.ctypes.data, array.nbytes, stream)

    def clear(self, array: Any) -> None:
        """Start to set all bytes of an array to zero."""
        array.data.memset_async(0, array.nbytes, self._cupy.cuda.get_current_stream())

    def new_stream(self) -> Any:
        """Return a stream that does not wait for the null stream."""
        return self._cupy.cuda.Stream(non_blocking=True)

    def on(self, stream: Any) -> AbstractContextManager[None]:
        """Make a stream the current one for a while."""
        context: AbstractContextManager[None] = stream
        return context

    def mark(self) -> Any:
        """Return an event of the current stream."""
        event = self._cupy.cuda.Event()
        event.record(self._cupy.cuda.get_current_stream())
        return event

    def wait(self, event: Any) -> None:
        """Let the current stream wait for an event."""
        self._cupy.cuda.get_current_stream().wait_event(event)

    def seconds(self, first: Any, last: Any) -> float:
        """Wait for the last of two events; return the seconds between them."""
        with self._faults():
            last.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(first, last)) / 1e3

    def free_memory(self) -> int:
        """Return the bytes that arrays may still take, after the pool's unused blocks are freed."""
        pool = self._cupy.get_default_memory_pool()
        # A block that the pool keeps may be too small for the next array.
        pool.free_all_blocks()
        free, _ = self._device.mem_info
        limit = pool.get_limit()  # 0: none
        return max(0, int(min(free, limit - pool.total_bytes()) if limit else free))

    def peak_memory(self) -> int:
        """Return the most bytes that arrays of the memory pool have taken since `watch_memory`."""
        return self._peak

    def watch_memory(self) -> None:
        """Let `peak_memory` count from what arrays take now."""
        self._peak = int(self._cupy.get_default_memory_pool().used_bytes())

    def synchronize(self, event: Any = None) -> None:
        """Wait until an event has happened, or the current stream has done its work."""
        with self._faults():
            (event or self._cupy.cuda.get_current_stream()).synchronize()

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Raise LaunchError where a wait for the device finds that a kernel failed."""
        runtime = self._cupy.cuda.runtime
        try:
            yield
        except runtime.CUDARuntimeError as error:
            raise LaunchError(f"a kernel failed: {error}") from error


class _Graph:
    """A CUDA graph; see `portable_spdnn_gpu.device.interface.Recording`."""

    def __init__(self, cupy: Any, graph: Any) -> None:
        self._cupy, self._graph = cupy, graph

    def replay(self) -> None:
        """Start the launches on the current stream."""
        try:
            self._graph.launch(self._cupy.cuda.get_current_stream())
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise LaunchError(f"a graph of kernels could not be started: {error}") from error


def memory_error(
    shape: tuple[int, ...], dtype: npt.DTypeLike, free: int, total: int
) -> DeviceMemoryError:
    """Return the error for an array that does not fit, with the part of it that would."""
    needed = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    part = f"about {100 * free // needed} % of it would fit"
    if free >= needed:
        part = "but not in one piece"
    return DeviceMemoryError(
        f"an array of {' x '.join(map(str, shape))} {np.dtype(dtype)} ({needed // MIB} MiB) does "
        f"not fit: {free // MIB} of the device's {total // MIB} MiB are free, {part}; give a "
        "smaller batch_size"
    )
