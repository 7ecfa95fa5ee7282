"""A bounded part of the fuzzing: the same inputs each time, in child processes with limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("fuzz.py")
TARGETS = ("store", "store bytes", "inputs", "inputs gzip", "inputs xz", "categories", "layers",
           "images", "checkpoint", "run folder", "calibration", "smtx", "smtx gzip",
           "matrix market", "npz", "npz bytes")  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_no_file_does_harm(target: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, FUZZ, "--target", target, "--random", "--runs", "150", "--seed", "7",
         "--seconds", "60", "--faults", tmp_path],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no fault" in done.stdout


def test_every_target_is_run() -> None:
    done = subprocess.run([sys.executable, FUZZ, "-h"], capture_output=True, text=True, check=True)
    listed = done.stdout[done.stdout.index("{") + 1 : done.stdout.index("}")]
    assert sorted(" ".join(listed.split()).split(",")) == sorted(TARGETS)
