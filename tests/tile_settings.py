"""Tile costs set by a test: what plans decide from them is then the same on every machine."""

from __future__ import annotations

import numpy as np
import pytest

from portable_spdnn_cpu.network import plan as depth_first
from portable_spdnn_cpu.tiles.tuning import TileCosts


def set_tile_costs(monkeypatch: pytest.MonkeyPatch, width: int, lanes: int = 16) -> None:
    """Let plans believe that time goes with vector blocks, and that moving tiles costs little."""
    costs = TileCosts(width, {width: 1e9}, np.arange(width // lanes + 1) * 1e-9, 1e-12, True)
    monkeypatch.setattr(depth_first, "measure_tile_costs", lambda *arguments: costs)
