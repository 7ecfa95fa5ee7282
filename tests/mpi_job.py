"""Start commands under mpiexec, as a user would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

SECONDS = 120  # a job that hangs fails its test instead


def run_job(ranks: int, *command: object) -> subprocess.CompletedProcess[str]:
    """Run Python with `command` on so many ranks, in a job of its own."""
    return run_jobs([command] * ranks)


def run_jobs(commands: Sequence[Sequence[object]]) -> subprocess.CompletedProcess[str]:
    """Run Python with a command on each rank, in one job."""
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
    ranks = [["-n", "1", sys.executable, *map(str, command)] for command in commands]
    return subprocess.run(
        [launcher, *ranks[0], *(word for rank in ranks[1:] for word in (":", *rank))],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=inherited,
    )
