"""MPI jobs whose ranks were given different options: an error on all of them, never a wait."""

from __future__ import annotations

import pytest
from mpi_job import run_jobs

RUN = ("-m", "portable_spdnn", "run", "--neurons", 64, "--layers", 3, "--backend", "scipy",
       "--no-progress")  # fmt: skip


@pytest.mark.parametrize(
    ("different", "message"),
    [
        (("--nonsense",), "rank 1: error: No such option: --nonsense"),
        (("--layers", 4), "--layers is 4 on rank 1 but 3 on rank 0"),
        (("--schedule", "dynamic"), "--schedule is dynamic on rank 1 but static on rank 0"),
        (("--json", "/dev/null"), "--json is /dev/null on rank 1 but None on rank 0"),
        (("--help",), "all ranks take the same options"),
    ],
)
def test_a_rank_with_another_option_ends_the_job(
    different: tuple[object, ...], message: str
) -> None:
    done = run_jobs([RUN, (*RUN, *different)])
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_ranks_that_all_ask_for_help_get_it() -> None:
    done = run_jobs([(*RUN, "--help")] * 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage:") == 2
