"""Facts about device and software."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from portable_spdnn.backend import Backend
from portable_spdnn.errors import BackendUnavailable
from portable_spdnn.registry import get_backend
from portable_spdnn_cpu.numba_backend import NumbaBackend
from portable_spdnn_cpu.scipy_backend import ScipyBackend
from portable_spdnn_gpu.cupy_backend import CupyBackend
from portable_spdnn_gpu.device.cuda_device import CudaDevice

FOLDER = Path(__file__).resolve().parents[2]
OWN: dict[str, type[Backend]] = {one.name: one for one in (CupyBackend, NumbaBackend, ScipyBackend)}
QUERIED = ("driver_version", "memory.total", "clocks.max.sm", "clocks.max.memory", "power.limit")


def device_facts(backend: Backend) -> dict[str, Any]:
    """Return what a reader needs to judge timings on a device.

    Returns
    -------
    dict
        ``backend``, ``device``, ``gpu`` (whether it is one), ``versions`` (of the libraries, the
        CUDA runtime and the version of CUDA that the driver speaks), ``driver`` (what the
        vendor's tool says: its version, memory, clocks and power limit; None without the tool).
    """
    return {
        "backend": backend.name,
        "device": backend.device,
        "gpu": on_gpu(backend),
        "versions": dict(type(backend).availability().versions),
        "driver": driver_facts() if on_gpu(backend) else None,
    }


def opened(name: str) -> Backend:
    """Return a backend; those of this project need no installed package, which registers them.

    Raises
    ------
    BackendUnavailable
        If it cannot run here.
    """
    found = OWN.get(name)
    if found is None:
        return get_backend(name)
    availability = found.availability()
    if not availability.available:
        raise BackendUnavailable(f"backend {name}: {availability.reason}")
    return found()


def on_gpu(backend: Backend) -> bool:
    """Whether a backend runs on a GPU: not on the host, and not on an emulated device."""
    return isinstance(backend, CupyBackend) and isinstance(backend.cuda, CudaDevice)


def driver_facts() -> dict[str, str] | None:
    """Return what nvidia-smi says of the first device, None where it is not there or fails."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, f"--query-gpu={','.join(QUERIED)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (subprocess.SubprocessError, OSError):
        return None
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(QUERIED, values, strict=True)) if len(values) == len(QUERIED) else None


def commit() -> str | None:
    """Return the commit that is measured, with "+" where files were changed; None if unknown."""
    try:
        done = subprocess.run(
            ["git", "-C", str(FOLDER), "describe", "--always", "--abbrev=40", "--dirty=+",
             "--exclude=*"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (subprocess.CalledProcessError, OSError):
        return None
    return done.stdout.strip()


def device_slug(device: str) -> str:
    """Return a device's name as a part of a file name: ``nvidia-h200``."""
    return "-".join(re.findall(r"[a-z0-9]+", device.partition(",")[0].lower()))
