"""A script under the sanitizers' runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_emulation.emulated_device import compiler


def sanitized(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process that has the sanitizer's runtime loaded."""
    runtime = subprocess.run(
        [str(compiler()), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip("the compiler has no address sanitizer")
    tests = Path(__file__).resolve().parent.parent
    inherited = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    environment = {
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
        "PYTHONPATH": os.pathsep.join(
            [str(tests), str(tests.parent), str(tests.parent / "backends"), *inherited]
        ),
        "PATH": "/usr/bin:/bin",
        "PYTHONMALLOC": "malloc",
    }
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
