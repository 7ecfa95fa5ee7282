"""The processor: its name and caches, and memory that suits them."""

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
LARGE_BYTES = 1 << 22  # below this the allocator's reuse of pages beats large new ones
COMMON_CACHE_BYTES = {1: 1 << 15, 2: 1 << 20}  # of today's cores, where the system does not say


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
def cache_bytes(level: int) -> int:
    """Return the size of the data cache of a level, as the system lists it for the first core.

    Parameters
    ----------
    level : int
        1, 2 or 3.

    Returns
    -------
    int
        Bytes. Where the system does not tell, a common size, and 0 for the third level.
    """
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            if kind != "Instruction" and (index / "level").read_text().strip() == str(level):
                size = (index / "size").read_text().strip()
                return int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1], 0)
        except (OSError, ValueError):
            continue  # an entry that is not readable says nothing; the default serves
    return COMMON_CACHE_BYTES.get(level, 0)


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialised array that starts on a cache line, in large pages if it is large.

    A first touch costs a page fault each 4 KiB, 5 to 15 microseconds on virtual machines: more
    than computing what goes there. Large pages make that 2 MiB, where the system has them.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size >= LARGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(pages, dtype).reshape(shape)
    raw = np.empty(size + CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    return raw[start : start + size].view(dtype).reshape(shape)
