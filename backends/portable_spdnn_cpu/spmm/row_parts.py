"""Parts of rows, of about as much work."""

from __future__ import annotations

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array


def divide(offsets: Array, parts: int, begun: int) -> list[int]:
    """Return bounds of so many parts of rows, with about as much work in each.

    Parameters
    ----------
    offsets : ndarray, shape (rows + 1,)
        How many entries there are before each row, and in all.
    parts : int
        Some may have no rows.
    begun : int
        Entries that take as long as to begin and end a row: without these, rows that have no
        entries would all fall to one part.

    Examples
    --------
    >>> divide(np.array([0, 1, 3, 6, 10]), 2, begun=1)
    [0, 3, 4]
    """
    work = offsets + begun * np.arange(offsets.size)
    inner = np.searchsorted(work, work[-1] * np.arange(1, parts) / parts)
    return [0, *map(int, inner), offsets.size - 1]
