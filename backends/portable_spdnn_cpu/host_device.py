"""What the host processor is called and how large its caches are."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

DEFAULT_L2_BYTES = 1 << 20  # where the system does not say: the common size of today's cores


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
def l2_bytes() -> int:
    """Return the size of one core's second-level cache in bytes."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (index / "level").read_text().strip() == "2":
                size = (index / "size").read_text().strip()
                return int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1], 0)
        except (OSError, ValueError):
            continue  # an entry that is not readable says nothing; the default serves
    return DEFAULT_L2_BYTES


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
