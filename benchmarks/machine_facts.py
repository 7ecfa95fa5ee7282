"""Facts about the machine and the libraries that stored timings need, and no private ones."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from portable_spdnn.host import usable_cores
from portable_spdnn_cpu.jit import default_threads
from portable_spdnn_cpu.machine.cpu_info import cache_bytes, processor_name

LIBRARIES = ("portable-spdnn", "numpy", "scipy", "numba", "llvmlite", "cupy", "pytest-benchmark")


def machine_facts() -> dict[str, Any]:
    """Return what a reader needs to judge timings; no host, user or path names.

    Returns
    -------
    dict
        ``cpu``, ``cores`` (that this process may use), ``threads`` (default of backends that
        have several), ``cache_bytes`` (of one core), ``load_average`` (over the last minute:
        timings taken beside other work say so), ``system``, ``machine``, ``python``,
        ``versions``.
    """
    return {
        "cpu": processor_name(),
        "cores": usable_cores(),
        "threads": default_threads(),
        "cache_bytes": cache_bytes(2),
        "load_average": load_average(),
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {name: found for name in LIBRARIES if (found := _version(name))},
    }


def load_average() -> float | None:
    """Return the mean number of running threads over the last minute, None where unknown."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def cpu_slug(facts: dict[str, Any]) -> str:
    """Return processor and cores as a part of a file name: ``amd-epyc-9654-2-cores``."""
    cores = facts["cores"]
    # Trademarks, clock rates and the like say nothing that the model name does not.
    name = re.sub(r"\((?:R|TM|tm|r)\)|\bCPU\b|@.*|\b\d+-Core Processor\b", " ", facts["cpu"])
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "-".join([*words, str(cores), "core" if cores == 1 else "cores"])


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
