"""What launch code asks of a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from portable_spdnn.errors import SpdnnError
from portable_spdnn_gpu.kernel_catalog import Kernel

Array = npt.NDArray[Any]
# A grid's second and third extent; the first goes to 2^31 - 1.
GRID_Y_LIMIT = 65535


class LaunchError(SpdnnError, RuntimeError):
    """A kernel could not be launched or failed; nothing that it wrote is given out."""


class DeviceMemoryError(SpdnnError, MemoryError):
    """An array does not fit the device's memory; the message says what would."""


class Device(Protocol):
    """Memory and launches: a CUDA device, or what stands for one in tests.

    Arrays are the device's own type, with `shape`, `ndim`, `size`, `dtype`, `nbytes`, `flags`,
    `T` and `reshape` as NumPy's have them. Copies and launches are in order, as on one stream.
    """

    description: str

    def owns(self, array: Any) -> bool:
        """Whether `array` lives on this kind of device."""
        ...

    def adopt(self, array: Any) -> Any:
        """Return an array of this device on the memory of one of another library, uncopied.

        What is started on it later waits for what its library has started. An array that is
        on another device, or that its library does not give away, is an error of any of
        `portable_spdnn.array_exchange.EXPORT_ERRORS`.
        """
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any, order: str = "C") -> Any:
        """Return an array of any content; raises DeviceMemoryError."""
        ...

    def upload(self, array: Array) -> Any:
        """Return a copy of a host array, in its order (C or F)."""
        ...

    def download(self, array: Any) -> Array:
        """Return a copy in host memory, when all that was started before is done."""
        ...

    def contiguous(self, array: Any) -> Any:
        """Return `array` itself where it is in C or F order, else a copy in C order."""
        ...

    def overlaps(self, one: Any, other: Any) -> bool:
        """Whether two arrays may share memory."""
        ...

    def launch(self, kernel: Kernel, grid: tuple[int, int], arguments: Sequence[Any]) -> None:
        """Start a kernel on arrays and NumPy scalars of its parameters' types.

        A grid without blocks is no launch. Raises LaunchError.
        """
        ...

    def synchronize(self) -> None:
        """Return when all that was started is done; raises LaunchError if any of it failed."""
        ...


def check_grid(kernel: Kernel, grid: tuple[int, int]) -> bool:
    """Whether there is anything to launch; raises LaunchError for a grid beyond the limits."""
    if grid[0] > np.iinfo(np.int32).max or grid[1] > GRID_Y_LIMIT:
        raise LaunchError(
            f"{kernel.name}: a grid of {grid[0]} x {grid[1]} blocks is more than CUDA starts "
            f"({np.iinfo(np.int32).max} x {GRID_Y_LIMIT}); give fewer inputs at a time"
        )
    return grid[0] > 0 and grid[1] > 0
