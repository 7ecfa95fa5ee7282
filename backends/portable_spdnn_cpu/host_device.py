"""The host: the processor's name, its caches and cores, and memory in large pages."""

from __future__ import annotations

import functools
import math
import mmap
import platform
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CACHE_LINE = 64
LARGE = 1 << 22  # bytes; below this the allocator's own reuse beats new pages
DEFAULT_L2_BYTES = 1 << 20  # where the system does not say: the common size of today's cores


@functools.cache
def processor_name() -> str:
    """Return the processor's name for people."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux: the portable name below serves
    return platform.processor() or platform.machine()


@functools.cache
def l2_bytes() -> int:
    """Return the size of one core's second-level cache in bytes."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (index / "level").read_text().strip() == "2":
                size = (index / "size").read_text().strip()
                return int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1], 0)
        except (OSError, ValueError):
            continue  # an entry that is not readable says nothing; the default serves
    return DEFAULT_L2_BYTES


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialised array that starts on a cache line, in large pages if it is large.

    A first touch costs a page fault each 4 KiB, 5 to 15 microseconds on virtual machines: more
    than computing what goes there. Large pages make that 2 MiB, where the system has them.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(pages, dtype).reshape(shape)
    raw = np.empty(size + CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    return raw[start : start + size].view(dtype).reshape(shape)
