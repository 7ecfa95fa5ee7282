"""Memory that ends where a page begins that may not be touched: to read beyond ends the process."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from portable_spdnn.arrays import Array


@contextmanager
def array_before_a_guard_page(count: int, dtype: type) -> Iterator[Array]:
    """Yield an array of at most a page, whose last item is followed by the guarded page."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    room = np.frombuffer(pages, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    rest = room.ctypes.data + mmap.PAGESIZE
    assert protect(rest, mmap.PAGESIZE, 0) == 0
    try:
        yield room[: mmap.PAGESIZE].view(dtype)[mmap.PAGESIZE // np.dtype(dtype).itemsize - count :]
    finally:
        assert protect(rest, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0
