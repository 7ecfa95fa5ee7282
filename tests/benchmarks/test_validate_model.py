"""What the validation of the scaling model writes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmark_scripts import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("validate_model")


def results(script: ModuleType) -> list[dict[str, Any]]:
    return [
        {
            "case": script.Case("64x9", 1000, 100, 5),
            "predicted": {1: [2.0, 1.1], 2: [0.6, 0.9]},
            "measured": {1: [(1.0, 1.0), (2.0, 1.5)], 2: [(1.0, 0.8), (1.25, 0.75)]},
        }
    ]


def test_the_least_of_each_is_compared(script: ModuleType) -> None:
    lines, worst = script.table(results(script))
    assert len(lines) == 4
    assert lines[2].endswith(
        "| 1,000 | 100 inputs, 5 layers | 1 | 1.100 s | 1.000 s | +10.0 % | 1.000 to 2.000 s |"
    )
    assert lines[3].endswith("| 2 | 0.600 s | 0.750 s | -20.0 % | 1.000 to 1.250 s |")
    assert worst == pytest.approx(0.2)


def test_the_page_says_whether_predictions_hold(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "DOCS", tmp_path)
    wrong = results(script)
    wrong[0]["measured"][2] = [(0.7, 1.2)]
    assert script.write(wrong, ["a line"], 2, 0.5) == pytest.approx(0.5)
    page = (tmp_path / "scaling_model.md").read_text()
    assert "Largest error 50 % (NOT within 20 %)" in page
    assert "a line" in page
    assert [path.name for path in tmp_path.iterdir()] == ["scaling_model.md"]


def test_calibrations_are_smaller_than_what_they_predict(script: ModuleType) -> None:
    for case in script.CASES:
        assert case.sample * 4 <= case.inputs
        assert case.sample_layers <= int(case.network.split("x")[1])
