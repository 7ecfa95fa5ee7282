"""What the operating system grants this process: cores, and a folder to keep things in."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cache_folder() -> Path:
    """Return where what is found once is kept: in XDG_CACHE_HOME, or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "portable_spdnn"
