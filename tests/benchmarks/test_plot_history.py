"""The history of ratios: what is read, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmark_scripts import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("plot_history")


def record(day: int, numba: float, cpu: str = "Chip A") -> dict[str, Any]:
    return {
        "datetime": f"2026-11-{day:02}T10:00:00+00:00",
        "machine_info": {"cpu": cpu, "cores": 2},
        "benchmarks": [
            {"group": "spmm 64", "extra_info": {"backend": name}, "stats": {"min": seconds}}
            for name, seconds in (("scipy", 6.0), ("numba", numba))
        ],
    }


def test_points_are_ratios_in_the_order_of_time_for_each_processor(
    script: ModuleType, tmp_path: Path
) -> None:
    for name, content in (
        ("b", record(20, 2.0)), ("a", record(21, 1.5)), ("c", record(19, 3.0, "Chip B")),
        ("d", {"results": []}),
    ):  # fmt: skip
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    found = script.histories(sorted(tmp_path.glob("*.json")))
    assert set(found) == {"chip-a-2-cores", "chip-b-2-cores"}
    points = found["chip-a-2-cores"]["spmm 64", "numba"]
    assert [(when.day, ratio) for when, ratio in points] == [(20, 3.0), (21, 4.0)]


@pytest.mark.parametrize("broken", ["{", '{"benchmarks": [], "datetime": "today"}'])
def test_a_record_that_cannot_be_read_is_named(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    (tmp_path / "bad.json").write_text(broken)
    assert script.main(["--results", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "bad.json" in capsys.readouterr().err


def test_no_record_is_said(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--results", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "no record" in capsys.readouterr().err
