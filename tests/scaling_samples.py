"""A made-up calibration for tests of the scaling model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from portable_spdnn.scaling.calibration import Calibration, Curve, count_active

# Round numbers, and costs that grow with the inputs alone.
MADE_UP = Calibration(
    backend="scipy", device="a processor", dtype="float32", threads=1, network="made up",
    inputs="made up", network_layers=6, neurons=64, widest=64, batch_size=1000,
    edges_per_layer=(100, 100, 100, 100), value_bytes=0, dense=Curve((1, 1000), (1e-9, 1e-6)),
    start_layers=1, start=Curve((1, 1000), (1e-5, 1e-2)),
    load_seconds_edge=2e-9, plan_seconds_edge=3e-9,
    source_inputs=8, active=(8, 6, 5, 4, 4), memory=0, program_bytes=0,
)  # fmt: skip


def calibration(*active_after: int, **changes: Any) -> Calibration:
    """Return the calibration with some fields changed, and inputs with these lifetimes."""
    if active_after:
        changes["active"] = tuple(count_active(active_after, 4).tolist())
    return replace(MADE_UP, **changes)
