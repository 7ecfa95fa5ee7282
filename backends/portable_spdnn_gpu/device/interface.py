"""The interface of a device, which launch code is written against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt

from portable_spdnn.errors import SpdnnError
from portable_spdnn_gpu.compile.catalog import Kernel

Array = npt.NDArray[Any]  # in host memory
# The most blocks in a grid's second extent; the first goes to 2^31 - 1.
GRID_Y_LIMIT = 65535


class LaunchError(SpdnnError, RuntimeError):
    """A kernel could not be launched, or failed; nothing that it wrote is returned."""


class DeviceMemoryError(SpdnnError, MemoryError):
    """An array does not fit the device's memory; the message says how much would."""


class DeviceArray(Protocol):
    """An array in a device's memory; its attributes are as NumPy has them."""

    shape: tuple[int, ...]
    ndim: int
    size: int
    nbytes: int
    dtype: np.dtype[Any]
    flags: Any

    @property
    def T(self) -> DeviceArray:  # noqa: N802 - NumPy's name
        """The transpose, on the same memory."""

    def astype(self, dtype: npt.DTypeLike) -> DeviceArray:
        """Return a copy of another type, in the same order."""


Argument = DeviceArray | np.generic  # of a kernel


class Recording(Protocol):
    """Recorded launches that are started together, without the host between them."""

    def replay(self) -> None:
        """Start the launches on the current stream."""


class Device(Protocol):
    """Memory and launches: a CUDA device, or the emulated one of the tests.

    Copies and launches are in order on the current stream; streams are ordered among each other
    by events alone.

    Attributes
    ----------
    description : str
        The name and the architecture.
    architecture : int
        The compute capability times ten: 90 for sm_90.
    multiprocessors : int
    shared_limit : int
        The bytes of shared memory that a block may ask for.
    l2_bytes : int
        The size of the second-level cache.
    number : int
        The number of the device among those that the process may use.
    """

    description: str
    architecture: int
    multiprocessors: int
    shared_limit: int
    l2_bytes: int
    number: int

    def bound(self) -> AbstractContextManager[Any]:
        """Return a context in which the calling thread's current device is this one.

        Memory is allocated on the thread's current device, and launches need it to be this one.
        """

    def owns(self, array: object) -> TypeGuard[DeviceArray]:
        """Whether `array` lives on this kind of device."""

    def adopt(self, array: object) -> DeviceArray:
        """Return an array of this device on the memory of another library's array.

        Nothing is copied. What is started on it later waits for what its library has started. An
        array that is on another device, or that its library does not export, is an error of
        any of the types in `portable_spdnn.operations.operands.EXPORT_ERRORS`.
        """

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Return an array with unset content; raises DeviceMemoryError."""

    def upload(self, array: Array) -> DeviceArray:
        """Return a copy of a host array, in its order (C or F); it is complete on return."""

    def download(self, array: DeviceArray) -> Array:
        """Return a copy in host memory; waits for all that was started before."""

    def contiguous(self, array: DeviceArray) -> DeviceArray:
        """Return `array` itself where it is in C or F order, else a copy in C order."""

    def overlaps(self, one: DeviceArray, other: DeviceArray) -> bool:
        """Whether two arrays may share memory."""

    def launch(self, kernel: Kernel, grid: tuple[int, int], arguments: Sequence[Argument]) -> None:
        """Start a kernel on arrays and NumPy scalars of its parameters' types.

        A grid without blocks starts nothing. Raises LaunchError, also if an array is on another
        device.
        """

    def resident_blocks(self, kernel: Kernel) -> int:
        """Compile a kernel; return how many blocks of it are resident on the device at a time."""

    def capture(self, work: Callable[[], None]) -> Recording:
        """Record the work of a function, which only launches kernels and clears arrays.

        The kernels have been compiled before (`resident_blocks`).
        """

    def view(
        self, memory: DeviceArray, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike
    ) -> DeviceArray:
        """Return a part of a one-dimensional array of uint8 as an array in C order."""

    def pinned(self, nbytes: int) -> Array:
        """Return page-locked host memory, uint8, which is copied while the host goes on.

        It is given back with the last array on it.
        """

    def copy_in(self, host: Array, array: DeviceArray) -> None:
        """Start to copy host memory to an array of the same size, both without gaps.

        Pinned memory must stay as it is until the copy is done.
        """

    def clear(self, array: DeviceArray) -> None:
        """Start to set all bytes of an array without gaps to zero."""

    def new_stream(self) -> Any:
        """Return a stream, whose work runs beside that of other streams."""

    def on(self, stream: Any) -> AbstractContextManager[None]:
        """Make a stream the current one for a while."""

    def mark(self) -> Any:
        """Return an event that happens when the current stream has done its work so far."""

    def wait(self, event: Any) -> None:
        """Let the work that the current stream gets from now on begin after an event."""

    def seconds(self, first: Any, last: Any) -> float:
        """Wait for the last of two events; return the seconds between them."""

    def free_memory(self) -> int:
        """Return the bytes that arrays may still take; unused blocks are freed before."""

    def peak_memory(self) -> int:
        """Return the most bytes that arrays have taken at a time since `watch_memory`."""

    def watch_memory(self) -> None:
        """Let `peak_memory` count from what arrays take now."""

    def synchronize(self, event: Any = None) -> None:
        """Wait until an event, or all that the current stream was given, has happened.

        Raises LaunchError if any of it failed.
        """


def seconds_of(device: Device, work: Callable[[], None], calls: int = 1) -> float:
    """Return the seconds of some calls of `work`, which starts kernels, on the current stream."""
    start = device.mark()
    for _ in range(calls):
        work()
    return device.seconds(start, device.mark())


def check_home(kernel: Kernel, position: int, home: int, number: int) -> None:
    """Raise LaunchError for an argument, counted from 0, that is not on the launch's device.

    `home` is the number of the argument's device, `number` that of the launch's. CUDA itself may
    let a kernel read it there, slowly, or fail much later.
    """
    if home != number:
        raise LaunchError(
            f"{kernel.name}: argument {position} lives on device {home}, "
            f"the launch is on device {number}"
        )


def check_grid(kernel: Kernel, grid: tuple[int, int]) -> bool:
    """Return whether a grid has blocks; raise LaunchError for one beyond CUDA's limits."""
    if grid[0] > np.iinfo(np.int32).max or grid[1] > GRID_Y_LIMIT:
        raise LaunchError(
            f"{kernel.name}: a grid of {grid[0]} x {grid[1]} blocks is more than CUDA starts "
            f"({np.iinfo(np.int32).max} x {GRID_Y_LIMIT}); give fewer inputs at a time"
        )
    return grid[0] > 0 and grid[1] > 0
