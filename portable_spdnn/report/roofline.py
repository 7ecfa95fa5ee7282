"""What the machine can do at most, and how near to it a kernel comes.

Limits are measured, by small kernels of the same toolchain as the backend's own, and kept on
disk for the processor, the thread count and the versions they were measured with.

The model is the roofline: a kernel that moves b bytes through a level of memory and does f
floating-point operations for each edge cannot exceed ``min(bandwidth / b, peak / f)`` edges per
second. Source: Williams, Waterman and Patterson, "Roofline: An Insightful Visual Performance
Model for Multicore Architectures", Communications of the ACM 52 (2009).
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from portable_spdnn import __version__
from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.io.atomic_output import atomic_output

LEVELS = ("l1", "l2", "l3", "memory")


@dataclass(frozen=True)
class Limits:
    """Measured limits of one backend on one machine, all threads together.

    Attributes
    ----------
    flops : float
        Fused multiply-adds in float32, two operations each, per second.
    l1, l2, l3, memory : float
        Bytes read per second from data that fit that level; `l3` equals `memory` where the
        processor has no third level.
    """

    flops: float
    l1: float
    l2: float
    l3: float
    memory: float


@dataclass(frozen=True)
class KernelModel:
    """What a kernel needs for each edge.

    Attributes
    ----------
    bytes_per_edge : dict of str to float
        By the level that serves them: "l1", "l2", "l3", "memory".
    flops_per_edge : float

    Raises
    ------
    InputError
        If a level has another name.
    """

    bytes_per_edge: dict[str, float]
    flops_per_edge: float

    def __post_init__(self) -> None:
        for level in self.bytes_per_edge:
            if level not in LEVELS:
                raise InputError(f"level is {level!r}; choose one of {', '.join(LEVELS)}")

    def bound(self, limits: Limits) -> tuple[float, str]:
        """Return the largest edge rate, edges/s, and what binds it: a level or "flops"."""
        rates = {"flops": limits.flops / self.flops_per_edge}
        for level, size in self.bytes_per_edge.items():
            if size:
                rates[level] = getattr(limits, level) / size
        binding = min(rates, key=rates.__getitem__)
        return rates[binding], binding


@dataclass(frozen=True)
class LayerSpeed:
    """How fast a layer was, beside what binds it.

    Attributes
    ----------
    seconds : float
    edge_rate, flops : float
        Multiply-adds and operations per second.
    bandwidth : dict of str to float
        Bytes per second by level, as the model counts them.
    binding : str
        The level, or "flops", that allows the least.
    fraction : float
        Of the edge rate that it allows.
    """

    seconds: float
    edge_rate: float
    flops: float
    bandwidth: dict[str, float]
    binding: str
    fraction: float


def speed(model: KernelModel, limits: Limits, multiply_adds: float, seconds: float) -> LayerSpeed:
    """Return how fast a layer was and how near to its limit.

    Parameters
    ----------
    model : KernelModel
    limits : Limits
        Of the device.
    multiply_adds : float
        Done: edges x columns.
    seconds : float
        That they took, more than 0.
    """
    rate = multiply_adds / seconds
    bound, binding = model.bound(limits)
    moved = {level: size * rate for level, size in model.bytes_per_edge.items() if size}
    return LayerSpeed(seconds, rate, model.flops_per_edge * rate, moved, binding, rate / bound)


def speed_text(found: LayerSpeed, limits: Limits) -> str:
    """Return a line for people: rates beside the device's limits, and the binding one."""
    parts = [f"{found.edge_rate / 1e12:.3f} T edges/s"]
    parts.append(f"{found.flops / 1e12:.2f} of {limits.flops / 1e12:.2f} TFLOP/s")
    for level, rate in found.bandwidth.items():
        most = getattr(limits, level)
        parts.append(f"{level} {rate / 1e12:.2f} of {most / 1e12:.2f} TB/s")
    return f"{', '.join(parts)}: {100 * found.fraction:.0f} % of what {found.binding} allows"


def known_limits(backend: Backend) -> Limits | None:
    """Return the limits of a backend where they have been measured before, else None."""
    known = _read(cache_file()).get(_key(backend))
    return None if known is None else Limits(**known)


def _key(backend: Backend) -> str:
    versions = type(backend).availability().versions
    return json.dumps([backend.name, backend.device, __version__, versions], sort_keys=True)


def limits_of(backend: Backend, refresh: bool = False) -> Limits:
    """Return the limits of a backend, from disk where they were measured before.

    Parameters
    ----------
    backend : Backend
        One that measures its limits.
    refresh : bool
        Measure again, whatever is on disk.

    Returns
    -------
    Limits

    Raises
    ------
    NotImplementedError
        If the backend does not measure its limits.
    """
    key = _key(backend)
    path = cache_file()
    known = _read(path)
    if refresh or key not in known:
        known = {**known, key: asdict(backend.measure_limits())}
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_output(path) as stream:
            stream.write((json.dumps(known, indent=1) + "\n").encode())
    return Limits(**known[key])


def cache_file() -> Path:
    """Return where limits are kept."""
    return cache_folder() / "limits.json"


def cache_folder() -> Path:
    """Return where what is found once is kept: in XDG_CACHE_HOME, or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "portable_spdnn"


def _read(path: Path) -> dict[str, dict[str, float]]:
    """Return what is on disk; nothing where it is absent, or not of this form."""
    try:
        known = json.loads(path.read_text())
        return {key: asdict(Limits(**values)) for key, values in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # it is measured again, and the file replaced
