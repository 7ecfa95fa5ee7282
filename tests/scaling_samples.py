"""A made-up calibration, and the model in plain loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from portable_spdnn.scaling.calibration import Calibration, Curve, Lives, Messages

MADE_UP = Calibration(
    backend="scipy", device="a processor", dtype="float32", threads=1, network="made up",
    inputs="made up", network_layers=6, neurons=64, widest=64, batch_size=1000,
    edges_per_layer=(100, 100, 100, 100), value_bytes=0, dense=Curve((1, 1000), (1e-9, 1e-6)),
    start_layers=1, start=Curve((1, 1000), (1e-5, 1e-2)), depth_factor=2.0,
    depth_factor_measured=True, first_batch_seconds=1e-6, load_seconds_edge=2e-9,
    plan_seconds=0.5, plan_seconds_edge=3e-9,
    messages=Messages(200.0, 100.0, 1e-6, 2e-6, 3e-6, 1e-9),
    lives=Lives(4, 8, 1, (0, 1, 2, 4, 4, 4, 0, 4)), memory=0, program_bytes=0,
)  # fmt: skip
"""Round numbers, and costs that grow with the inputs alone."""

WIDE: dict[str, Any] = {"neurons": 65536, "widest": 65536, "edges_per_layer": (1 << 21,) * 4}


def calibration(*active_after: int, **changes: Any) -> Calibration:
    """Return the calibration with some fields changed, and inputs that live so long."""
    if active_after:
        changes["lives"] = Lives(4, len(active_after), 1, active_after)
    return replace(MADE_UP, **changes)


def busy_seconds(made: Calibration, lives: list[int], layers: int) -> float:
    """Return what a node computes, input by input and layer by layer."""
    seconds = 0.0
    for first in range(0, len(lives), made.batch_size):
        batch = lives[first : first + made.batch_size]
        seconds += float(made.start(len(batch)))
        for layer in range(made.start_layers, layers):
            known = min(layer, made.layers)
            live = sum(1 for life in batch if life >= known)
            edges = made.edges_per_layer[layer] if layer < made.layers else 100
            seconds += made.depth_factor * edges * float(made.dense(live))
    return seconds + made.first_batch_seconds * min(len(lives), made.batch_size)
