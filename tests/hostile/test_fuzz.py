"""A bounded part of the fuzzing: the same inputs each time, in child processes with limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FUZZ = Path(__file__).with_name("fuzz.py")
TARGETS = {"store", "store bytes", "inputs", "inputs gzip", "inputs xz", "categories", "layers",
           "images", "checkpoint", "run folder", "calibration", "smtx", "smtx gzip",
           "matrix market", "npz", "npz bytes"}  # fmt: skip


def test_no_file_does_harm(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, FUZZ, "--random", "--runs", "150", "--seed", "7", "--seconds", "480",
         "--faults", tmp_path],
        capture_output=True, text=True, check=False, timeout=1000,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line.split(": ") for line in done.stdout.splitlines()]
    assert sorted(name for name, _ in found) == sorted(TARGETS)
    for _, outcome in found:
        assert outcome.startswith("150 inputs")
        assert outcome.endswith("no fault")
