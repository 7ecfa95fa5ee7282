"""Plans that go depth first whatever suits a network, and tile costs that a test sets.

What plans decide from these is then the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from portable_spdnn_cpu.network import choice
from portable_spdnn_cpu.network import plan as depth_first
from portable_spdnn_cpu.tiles.tuning import TileCosts


def set_tile_costs(monkeypatch: pytest.MonkeyPatch, width: int, lanes: int = 16) -> None:
    """Let plans believe that time goes with vector blocks, and that moving tiles costs little."""
    costs = TileCosts(width, {width: 1e9}, np.arange(width // lanes + 1) * 1e-9, 1e-12, True)
    monkeypatch.setattr(depth_first, "measure_tile_costs", lambda *arguments: costs)


@pytest.fixture
def depth_first_plans() -> Iterator[None]:
    """Let plans of the numba backend go depth first, also of networks that suit products."""
    with pytest.MonkeyPatch.context() as patch:  # its own: tests undo what they patched
        patch.setattr(choice, "suits_products", lambda network, expected_inputs=None: False)
        yield
