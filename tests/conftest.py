"""Fixtures that every test may use."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from command_line import Cli, Done
from cuda_emulation.device_at_hand import ON_GPU
from cuda_emulation.device_at_hand import device as device
from cuda_emulation.emulated_backend import build_ahead
from cuda_emulation.emulated_device import compiler
from hypothesis import settings

# Loaded before a test replaces `registry.get_backend`, which it would else keep.
import portable_spdnn.report.comparison  # noqa: F401

# In `make test` the same examples each time; `make fuzz` looks for others.
settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("fuzz", max_examples=2500, deadline=None)
settings.load_profile("same")

# A shell that starts the tests in the background has them, and what they start, ignore interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parent.parent
WHOLE_SUITE = 2000  # tests; a few of them need few kernels


# Files and folders that take the longest begin first, so that no core waits at the end for the last
# of them.
LONGEST = (
    "cpu/spmm/direct/test_product.py", "gpu/compile/test_nvrtc.py", "testing", "engine/mpi",
    "gpu/spmm", "engine/test_third_party_backend.py", "gpu/network", "cpu/test_numba_backend.py",
    "gpu/persistent", "engine/challenge_table", "engine/plans/test_streamed.py", "hostile",
    "engine/scaling", "cpu",
)  # fmt: skip


assert all((REPOSITORY / "tests" / file).exists() for file in LONGEST)


@functools.cache
def order_of(path: Path) -> int:
    """Return how early a file of tests begins: 0 for the first ones."""
    tests = REPOSITORY / "tests"
    known = (n for n, file in enumerate(LONGEST) if path.is_relative_to(tests / file))
    return next(known, len(LONGEST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: order_of(item.path))


def pytest_collection_finish(session: pytest.Session) -> None:
    # What was made so far is left out of later collections. Compilation makes a million objects
    # without cycles: to look through them took a tenth of its time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
    first = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
    if first and len(session.items) > WHOLE_SUITE and not ON_GPU and compiler() is not None:
        build_ahead()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder beside the checkout with official Graph Challenge data, MNIST and DLMC patterns."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"official data is not there: {folder}")
    return folder


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line in this process."""
    from portable_spdnn.cli import main

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["portable-spdnn", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return Done(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def known_break_even(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sparse features pay below the same density in each plan, whatever a measurement says."""
    for module in ("portable_spdnn.plans.layer_loop", "portable_spdnn_cpu.network.sparse_prefix"):
        monkeypatch.setattr(f"{module}.break_even_density", lambda *_: 0.3)
