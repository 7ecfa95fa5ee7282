"""Arrays that begin within a cache line, as NumPy's large ones do."""

from __future__ import annotations

from typing import Any

import numpy as np

from portable_spdnn_cpu.machine.cpu_info import aligned_empty

LINE = 64  # bytes


def at_offset(array: Any, offset: int) -> tuple[Any, Any]:
    """Return a copy, so many bytes behind the start of a cache line, and what it is a part of.

    What lies before and after it is NaN.
    """
    whole = aligned_empty((array.size + 3 * LINE // array.itemsize,), array.dtype)
    whole[...] = np.nan
    begin = (LINE + offset) // array.itemsize
    part = whole[begin : begin + array.size].reshape(array.shape)
    part[...] = array
    return part, whole
