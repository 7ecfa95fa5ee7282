"""Compiling kernels, and intrinsics: single instructions that Numba has no name for."""

from __future__ import annotations

import os

from portable_spdnn.host import checked_threads, most_threads, usable_cores


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
    # It may be meant for other programs as well: more than would help here is no error.
    whole = asked.isdecimal() and len(asked) < 20
    number = min(int(asked), most_threads()) if whole else asked
    return checked_threads(number, "NUMBA_NUM_THREADS")


default_threads()  # Numba reads the variable as it is loaded, and says less of what is wrong
