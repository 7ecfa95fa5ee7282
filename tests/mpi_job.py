"""Start commands under mpiexec, as a user would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 120  # a job that hangs fails its test instead


def run_job(ranks: int, *command: object) -> subprocess.CompletedProcess[str]:
    """Run Python with `command` on so many ranks, in a job of its own."""
    pytest.importorskip("mpi4py", reason="extra mpi is not installed")
    here = Path(sys.executable).parent / "mpiexec"
    launcher = str(here) if here.exists() else shutil.which("mpiexec")
    if launcher is None:
        pytest.skip("mpiexec is not installed")
    # A test run may itself be part of a job.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PMI", "MPI_LOCAL", "HYD"))
    }
    return subprocess.run(
        [launcher, "-n", str(ranks), sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=inherited,
    )
