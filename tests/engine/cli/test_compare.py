"""``portable-spdnn compare``: agreement, speed, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli

import portable_spdnn as ps


def test_compare_shows_agreement_and_speed(cli: Cli, small: Path) -> None:
    done = cli("compare", "--backends", "scipy,numba", "--data", small, "--repeat", 2)
    assert done.code == 0
    for part in ("scipy", "numba", "speed-up", "abs. diff.", "rel. diff.", "PASSED"):
        assert part in done.out
    for part in ("challenge edge rate", "executed edge rate", "exact passes"):
        assert part in done.out


def test_compare_json(cli: Cli, small: Path) -> None:
    done = cli("compare", "--backends", "numba", "--data", small, "--json", "-")
    reference, numba = json.loads(done.out)
    assert reference["backend"] == "scipy"
    assert reference["speed_up"] == 1
    assert numba["backend"] == "numba"
    assert numba["categories_agree"] is True
    assert 0 <= numba["largest_absolute_difference"] < 1e-4
    assert 0 <= numba["largest_relative_difference"] < 1e-4
    assert numba["speed_up"] == pytest.approx(
        reference["inference_seconds"] / numba["inference_seconds"]
    )


def test_compare_says_1_where_a_backend_differs(
    cli: Cli, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from portable_spdnn_cpu.numba_backend import NumbaBackend

    build = NumbaBackend.build_plan

    def wrong(self: Any, network: ps.Network, options: Any) -> Any:
        return build(self, ps.Network(network.layers, y_max=0.01), options)

    monkeypatch.setattr(NumbaBackend, "build_plan", wrong)
    done = cli("compare", "--backends", "numba", "--data", small, "--repeat", 1)
    assert done.code == 1
    assert " NO " in done.out
