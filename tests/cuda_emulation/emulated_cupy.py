"""CuPy on the emulated device, so that `CudaDevice` itself runs without a GPU.

``pytest -p cuda_emulation.emulated_cupy`` runs tests as on a machine with one. What `CudaDevice`
asks of CuPy is replaced in CuPy itself, where it must exist. Launches and copies are done as late
as waits allow: what is read or freed too early is wrong.
"""

from __future__ import annotations

import ctypes
from typing import Any

import cupy
import numpy as np
from cuda_emulation.emulated_backend import cache_folder
from cuda_emulation.emulated_device import EmulatedArray, EmulatedDevice
from cuda_emulation.emulated_streams import EmulatedEvent, EmulatedStream

from portable_spdnn_gpu.compile.catalog import Kernel
from portable_spdnn_gpu.device import cuda_device
from portable_spdnn_gpu.device.cuda_device import CudaDevice

DEVICE = EmulatedDevice(cache_folder(), number=0, launches_late=True)
LIMIT = 8 << 30  # bytes of its memory


class Memory:
    """A `cupy.cuda.MemoryPointer`: an address within an array's memory, which it keeps."""

    def __init__(self, owner: np.ndarray, address: int) -> None:
        self.owner, self.ptr = owner, address

    def __add__(self, distance: int) -> Memory:
        return Memory(self.owner, self.ptr + distance)

    def bytes(self, count: int) -> np.ndarray:
        start = self.ptr - self.owner.ctypes.data
        assert 0 <= start <= start + count <= self.owner.nbytes
        return self.owner[start : start + count]

    def copy_from_host_async(self, address: int, size: int, stream: Stream) -> None:
        if not size:
            return
        locked = DEVICE.pinned_memory.items()
        holding = [memory for start, memory in locked if 0 <= address - start < memory.nbytes]
        source = np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)
        if not holding:
            source = source.copy()  # the driver has staged it when the call returns
        to = self.bytes(size)
        stream.work.add(lambda kept=holding: np.copyto(to, source))  # type: ignore[misc]

    def memset_async(self, value: int, size: int, stream: Stream) -> None:
        assert value == 0
        DEVICE.clear(EmulatedArray(self.owner, self.bytes(size)))


class NdArray(type):
    """`cupy.ndarray`: a class of the emulated device's arrays, which it can make of memory."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, EmulatedArray)

    def __call__(cls, shape: tuple[int, ...], dtype: Any, memptr: Memory) -> EmulatedArray:
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return EmulatedArray(memptr.owner, memptr.bytes(count).view(dtype).reshape(shape))


def empty(shape: tuple[int, ...], dtype: Any, order: str) -> EmulatedArray:
    if DEVICE._taken + int(np.prod(shape)) * np.dtype(dtype).itemsize > LIMIT:
        raise cupy.cuda.memory.OutOfMemoryError(0, 0, 0)
    made = DEVICE.empty(tuple(reversed(shape)) if order == "F" else shape, dtype)
    return made.T if order == "F" else made


class Stream:
    """A `cupy.cuda.Stream`."""

    def __init__(self, non_blocking: bool = True, work: EmulatedStream | None = None) -> None:
        self.work = work or DEVICE.new_stream()
        self.contexts: list[Any] = []

    def __enter__(self) -> Stream:
        self.contexts.append(DEVICE.on(self.work))
        self.contexts[-1].__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.contexts.pop().__exit__(*error)

    def begin_capture(self) -> None:
        DEVICE._recorded = []

    def end_capture(self) -> Graph:
        recorded, DEVICE._recorded = DEVICE._recorded, None
        assert recorded is not None
        return Graph(recorded)

    def synchronize(self) -> None:
        DEVICE._not_recording("synchronize")
        self.work.drain()

    def wait_event(self, event: Event) -> None:
        self.work.add(event.emulated.happened)


class Graph:
    """A `cupy.cuda.Graph`."""

    def __init__(self, recorded: list[Any]) -> None:
        self.recorded, self.uploaded = recorded, False

    def upload(self, stream: Stream) -> None:
        self.uploaded = True

    def launch(self, stream: Stream) -> None:
        assert self.uploaded
        for launch in self.recorded:
            launch()


class Event:
    """A `cupy.cuda.Event`."""

    emulated: EmulatedEvent

    def record(self, stream: Stream) -> None:
        self.emulated = EmulatedEvent.on(stream.work)

    def synchronize(self) -> None:
        self.emulated.happened()


class Function:
    """A `cupy.cuda.Function`; what is asked of its pointer is asked of its kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.ptr = kernel

    def __call__(self, grid: Any, block: Any, arguments: tuple[Any, ...], shared_mem: int) -> None:
        assert block == (self.ptr.threads,)
        assert shared_mem == self.ptr.dynamic_shared
        DEVICE.launch(self.ptr, grid, arguments)


class Module:
    """A `cupy.cuda.function.Module`; its code is a kernel that is not compiled yet."""

    def load(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def get_function(self, name: str) -> Function:
        assert name == self.kernel.name
        DEVICE.resident_blocks(self.kernel)  # builds it
        return Function(self.kernel)


class Pool:
    """A `cupy.cuda.MemoryPool` that keeps nothing."""

    def free_all_blocks(self) -> None: ...

    def total_bytes(self) -> int:
        return DEVICE._taken

    def used_bytes(self) -> int:
        return DEVICE._taken

    def get_limit(self) -> int:
        return 0


class CurrentDevice:
    """A `cupy.cuda.Device`."""

    compute_capability, id = "90", 0

    def __init__(self, number: int | None = None) -> None:
        self.context = DEVICE.bound()

    def __enter__(self) -> CurrentDevice:
        self.context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.context.__exit__(*error)

    @property
    def mem_info(self) -> tuple[int, int]:
        return LIMIT - DEVICE._taken, LIMIT


def seconds_between(first: Event, last: Event) -> float:
    return 1e3 * DEVICE.seconds(first.emulated, last.emulated)


def pinned(size: int, flags: int) -> np.ndarray:
    return DEVICE.pinned(size)


def install() -> None:
    """Replace what `CudaDevice` asks of CuPy."""
    cuda = cupy.cuda
    properties = {
        "name": b"emulated through CuPy",
        "multiProcessorCount": DEVICE.multiprocessors,
        "l2CacheSize": DEVICE.l2_bytes,
        "sharedMemPerBlockOptin": DEVICE.shared_limit,
    }
    replaced: list[tuple[Any, dict[str, Any]]] = [
        (cupy, {
            "ndarray": NdArray("ndarray", (), {}), "empty": empty,
            "asnumpy": lambda array, order: DEVICE.download(array),
            "ascontiguousarray": DEVICE.contiguous, "may_share_memory": DEVICE.overlaps,
            "asarray": DEVICE.adopt, "from_dlpack": DEVICE.adopt,
            "get_default_memory_pool": Pool,
        }),
        (cuda, {
            "Device": CurrentDevice, "Stream": Stream, "Event": Event,
            "get_current_stream": lambda: Stream(work=DEVICE._current),
            "get_elapsed_time": seconds_between, "is_available": lambda: True,
            "PinnedMemory": pinned, "PinnedMemoryPointer": lambda memory, offset: memory,
        }),
        (cuda.function, {"Module": Module}),
        (cuda.runtime, {
            "getDeviceCount": lambda: 1, "driverGetVersion": lambda: 13000,
            "getDeviceProperties": lambda number: properties,
        }),
        (cuda.driver, {
            "funcSetAttribute": lambda function, attribute, value: None,
            "occupancyMaxActiveBlocksPerMultiprocessor": lambda function, threads, shared: 2,
        }),
    ]  # fmt: skip
    for module, names in replaced:
        for name, value in names.items():
            assert hasattr(module, name), name
            setattr(module, name, value)
    EmulatedArray.data = property(  # type: ignore[attr-defined]
        lambda array: Memory(array.memory, array.values.ctypes.data)
    )
    EmulatedArray.device = property(lambda array: CurrentDevice())  # type: ignore[attr-defined]
    cuda_device.machine_code = lambda kernel, architecture: kernel  # type: ignore[assignment,return-value]
    assert CudaDevice().architecture == DEVICE.architecture


install()
