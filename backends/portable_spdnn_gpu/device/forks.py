"""Forked processes: CUDA's state in the parent is of no use to a child made by fork."""

from __future__ import annotations

import os

from portable_spdnn.errors import BackendUnavailable

FORKED = (
    "this process was forked from one that had opened a CUDA device already, and CUDA works in "
    "none that was; start it with the method 'spawn', as multiprocessing.get_context('spawn') "
    "does, or open no device before the fork"
)


class CudaProcess:
    """What this process may do with CUDA.

    Attributes
    ----------
    opened : bool
        Whether a device was opened, here or in a process that this one was forked from.
    forked : bool
        Whether one was open when this process was forked.
    """

    opened = False
    forked = False


def check_process() -> None:
    """Raise BackendUnavailable in a child of a process that had opened a CUDA device."""
    if CudaProcess.forked:
        raise BackendUnavailable(FORKED)


def _note_fork() -> None:
    CudaProcess.forked = CudaProcess.opened


os.register_at_fork(after_in_child=_note_fork)
