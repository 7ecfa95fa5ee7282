"""Compiling kernels, and intrinsics: single instructions that Numba has no name for."""

from __future__ import annotations

import os

from portable_spdnn.host import checked_threads, usable_cores


def default_threads() -> int:
    """Return NUMBA_NUM_THREADS where it is set, else the number of usable cores.

    Raises
    ------
    InputError
        If NUMBA_NUM_THREADS is no number of threads.
    """
    asked = os.environ.get("NUMBA_NUM_THREADS", "")
    if not asked:
        return usable_cores()
    return checked_threads(int(asked) if asked.isdecimal() else asked, "NUMBA_NUM_THREADS")


default_threads()  # Numba reads the variable as it is loaded, and says less of what is wrong
