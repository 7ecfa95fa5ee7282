"""Memory beside a page that may not be touched: to read beyond it ends the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from portable_spdnn.arrays import Array


def array_before_a_guard_page(count: int, dtype: type) -> Array:
    """Return an array of at most a page, whose last item is followed by the guarded page."""
    size = count * np.dtype(dtype).itemsize
    assert size <= mmap.PAGESIZE
    return _pages(guarded=1)[mmap.PAGESIZE - size : mmap.PAGESIZE].view(dtype)


def array_behind_a_guard_page(count: int, dtype: type) -> Array:
    """Return an array of at most a page, whose first item follows the guarded page."""
    size = count * np.dtype(dtype).itemsize
    assert size <= mmap.PAGESIZE
    return _pages(guarded=0)[mmap.PAGESIZE : mmap.PAGESIZE + size].view(dtype)


def _pages(guarded: int) -> Array:
    """Return the bytes of two pages, the first or the second of which may not be touched."""
    room = np.frombuffer(mmap.mmap(-1, 2 * mmap.PAGESIZE), np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    assert protect(room.ctypes.data + guarded * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    return room
