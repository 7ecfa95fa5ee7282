"""Limits of a machine, what a kernel needs of it, and how near it comes: the roofline.

A kernel that moves b bytes through a level of memory and does f floating-point operations for
each edge cannot exceed ``min(bandwidth / b, peak / f)`` edges per second. Source: Williams,
Waterman and Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
Architectures", Communications of the ACM 52 (2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portable_spdnn.errors import InputError

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


def part_of_limit(
    models: Sequence[KernelModel], limits: Limits, multiply_adds: Sequence[float], seconds: float
) -> tuple[float, str]:
    """Return the part of what a machine allows that kernels reached, and what binds them.

    Parameters
    ----------
    models : sequence of KernelModel
        Of kernels that ran one after the other.
    limits : Limits
    multiply_adds : sequence of float
        That each of them did; one at least did some.
    seconds : float
        That they took together, more than 0.

    Returns
    -------
    float
        The seconds that the limits demand over those that were taken.
    str
        The level, or "flops", that demands most of them.
    """
    least: dict[str, float] = {}
    for model, done in zip(models, multiply_adds, strict=True):
        bound, binding = model.bound(limits)
        least[binding] = least.get(binding, 0.0) + done / bound
    return sum(least.values()) / seconds, max(least, key=least.__getitem__)


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
    part, binding = part_of_limit([model], limits, [multiply_adds], seconds)
    moved = {level: size * rate for level, size in model.bytes_per_edge.items() if size}
    return LayerSpeed(seconds, rate, model.flops_per_edge * rate, moved, binding, part)


def speed_text(found: LayerSpeed, limits: Limits) -> str:
    """Return a line for people: rates beside the device's limits, and the binding one."""
    parts = [f"{found.edge_rate / 1e12:.3f} T edges/s"]
    parts.append(f"{found.flops / 1e12:.2f} of {limits.flops / 1e12:.2f} TFLOP/s")
    for level, rate in found.bandwidth.items():
        most = getattr(limits, level)
        parts.append(f"{level} {rate / 1e12:.2f} of {most / 1e12:.2f} TB/s")
    return f"{', '.join(parts)}: {100 * found.fraction:.0f} % of what {found.binding} allows"
