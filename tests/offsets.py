"""Arrays that begin within a cache line, as NumPy's large ones do."""

from __future__ import annotations

from typing import Any

import numpy as np

from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import aligned_empty


def at_offset(array: Any, offset: int, around: float = np.nan) -> tuple[Any, Any]:
    """Return a copy, so many bytes behind the start of a cache line, and what it is a part of.

    `around`: what lies before and after it.
    """
    whole = aligned_empty((array.size + 3 * BLOCK_BYTES // array.itemsize,), array.dtype)
    whole[...] = around
    begin = (BLOCK_BYTES + offset) // array.itemsize
    part = whole[begin : begin + array.size].reshape(array.shape)
    part[...] = array
    return part, whole
