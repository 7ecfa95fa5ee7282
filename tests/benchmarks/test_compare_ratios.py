"""The gate on speed: which changes of ratios fail."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmark_scripts import load_script


@pytest.fixture(scope="module")
def gate() -> ModuleType:
    return load_script("compare_ratios")


def record(times: dict[tuple[str, str], float], cpu: str = "Some CPU") -> dict[str, Any]:
    return {
        "machine_info": {"cpu": cpu},
        "benchmarks": [
            {"group": group, "extra_info": {"backend": backend}, "stats": {"min": seconds}}
            for (group, backend), seconds in times.items()
        ],
    }


BASELINE = {
    ("spmm", "scipy"): 8.0,
    ("spmm", "numba"): 2.0,
    ("layer", "scipy"): 6.0,
    ("layer", "numba"): 1.0,
}


@pytest.fixture
def judge(gate: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(new: Any, *options: str, old: Any = None) -> tuple[int, str]:
        files = []
        for name, content in (
            ("old.json", record(BASELINE) if old is None else old),
            ("new.json", new),
        ):
            file = tmp_path / name
            file.write_text(content if isinstance(content, str) else json.dumps(content))
            files.append(str(file))
        code = gate.main([*files, *options])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


@pytest.mark.parametrize(
    ("seconds", "code"), [(1.0, 0), (2.0, 0), (2.0 / 0.86, 0), (2.0 / 0.84, 1), (20.0, 1)]
)
def test_a_ratio_may_lose_15_percent(judge: Any, seconds: float, code: int) -> None:
    got, out = judge(record({**BASELINE, ("spmm", "numba"): seconds}))
    assert got == code
    assert ("LOST" in out) == bool(code)
    assert f"{8 / seconds:.2f} x" in out


def test_absolute_times_do_not_matter(judge: Any) -> None:
    slower = {case: 3 * seconds for case, seconds in BASELINE.items()}
    assert judge(record(slower))[0] == 0
    # Nor does a faster reference go unseen.
    assert judge(record({**BASELINE, ("layer", "scipy"): 4.0}))[0] == 1


def test_the_threshold_can_be_set(judge: Any) -> None:
    new = record({**BASELINE, ("spmm", "numba"): 2.5})
    assert judge(new, "--threshold", "0.25")[0] == 0
    assert judge(new, "--threshold", "0.1")[0] == 1


def test_a_case_that_vanished_fails_and_a_new_one_does_not(judge: Any) -> None:
    code, out = judge(record({c: s for c, s in BASELINE.items() if c != ("spmm", "numba")}))
    assert code == 1
    assert "GONE" in out
    code, out = judge(record({**BASELINE, ("spmm", "cupy"): 0.1}))
    assert code == 0
    assert "new" in out


def test_another_processor_is_said(judge: Any) -> None:
    code, out = judge(record(BASELINE, cpu="Other CPU"))
    assert code == 0
    assert "another processor (Some CPU, now Other CPU)" in out


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("not json", "cannot be read"),
        ({}, "no benchmark record"),
        ({"benchmarks": [{"group": "spmm"}]}, "no benchmark record"),
        (record({("spmm", "numba"): 1.0}), "spmm: the reference scipy is not in the same run"),
        (record({("spmm", "scipy"): 0.0}), "took 0.0 s"),
        (record({("spmm", "scipy"): float("inf")}), "took inf s"),
        (record({}), "holds no benchmark"),
        ({"benchmarks": record(BASELINE)["benchmarks"] * 2}, "spmm scipy: is there twice"),
    ],
)
def test_what_cannot_be_read_is_exit_2(judge: Any, broken: Any, message: str) -> None:
    code, out = judge(broken)
    assert code == 2
    assert "new.json" in out
    assert message in out


def test_a_baseline_without_entries_judges_nothing_and_is_refused(judge: Any) -> None:
    code, out = judge(record(BASELINE), old=record({}))
    assert code == 2
    assert "old.json: holds no benchmark" in out


def test_facts_about_the_machine_may_be_absent(judge: Any) -> None:
    assert judge({**record(BASELINE), "machine_info": None})[0] == 0


@pytest.mark.parametrize("threshold", ["nan", "0", "1", "99", "-0.1", "much"])
def test_a_threshold_that_judges_nothing_is_refused(judge: Any, threshold: str) -> None:
    with pytest.raises(SystemExit) as ended:
        judge(record(BASELINE), f"--threshold={threshold}")
    assert ended.value.code == 2


def on(inputs: str, **times: float) -> dict[str, Any]:
    made = record({("spmm", backend): seconds for backend, seconds in times.items()})
    for entry in made["benchmarks"]:
        entry["extra_info"]["inputs"] = inputs
    return made


def test_cases_on_other_data_are_not_compared(judge: Any) -> None:
    code, out = judge(on("digits", scipy=8, numba=1), old=on("MNIST", scipy=8, numba=2))
    assert code == 1
    assert "OTHER DATA: MNIST; now digits" in out
    assert judge(on("MNIST", scipy=8, numba=1), old=on("MNIST", scipy=8, numba=2))[0] == 0


def test_missing_file_and_wrong_usage_are_exit_2(gate: ModuleType, tmp_path: Path) -> None:
    assert gate.main([str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    with pytest.raises(SystemExit) as ended:
        gate.main([])
    assert ended.value.code == 2


def test_failing_cases_are_measured_again_and_keep_their_best(gate: ModuleType) -> None:
    before = {("spmm", "numba"): 4.0, ("layer", "numba"): 6.0}
    asked: list[set[str]] = []

    def again(groups: set[str]) -> dict[tuple[str, str], float]:
        asked.append(groups)
        return {("spmm", "numba"): 3.0 if len(asked) == 1 else 3.9}

    now = gate.retried(before, {("spmm", "numba"): 2.0, ("layer", "numba"): 6.1}, 0.15, again)
    assert asked == [{"spmm"}, {"spmm"}]
    assert now == {("spmm", "numba"): 3.9, ("layer", "numba"): 6.1}
    # A real loss stays one, however often it is measured.
    lost = gate.retried(before, {("spmm", "numba"): 2.0, ("layer", "numba"): 6.0}, 0.15,
                        lambda groups: {("spmm", "numba"): 2.1})  # fmt: skip
    assert any(change.fails(0.15) for change in gate.compare(before, lost))
