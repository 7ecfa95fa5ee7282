"""The command line with odd numbers, streams that fail, and interrupts: one line, never exit 1."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import Cli, expect_error

import portable_spdnn as ps
from portable_spdnn.io.packed_writer import PackedStoreWriter

COMMAND = (sys.executable, "-m", "portable_spdnn")
RUN = ("run", "--neurons", "64", "--layers", "3", "--backend", "scipy", "--no-progress")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--memory", "9" * 92), "--memory is"),
        (("--memory", "9" * 400), "--memory is"),
        (("--neurons", "1152921504606846976"), "of memory"),
        (("--neurons", "0"), "neurons is 0; it must be a whole number, at least 32"),
        (("--neurons", "-5"), "neurons is -5; it must be a whole number, at least 32"),
        (("--neurons", "100"), "neurons must be 16 * 2^s"),
        (("--layers", "99999999999"), "layers is 99999999999"),
        (("--neurons", "65536", "--layers", "1000000"), "all in memory at once"),
        (("--threads", "1000000"), "threads is 1000000; it must be a whole number, at least 1"),
        (("--first-inputs", "9" * 20), "there are 1797 inputs"),
        (("--json", "/proc/x"), "/proc/x: cannot be written"),
        (("--save-categories", "/absent/x"), "there is no folder /absent"),
        (("--inputs", "/dev/zero"), "/dev/zero, line 1: goes on"),
        (("--y-max", "-1"), "y_max is -1"),
        (("--bias", "nan"), "NaN"),
        (("--nonsense",), "No such option"),
        (("--json", "x\0y"), "cannot be written"),
    ],
)
def test_odd_values_are_one_line(options: tuple[str, ...], said: str, cli: Cli) -> None:
    expect_error(cli(*RUN, *options), said)


@pytest.mark.parametrize("value", ["0", "-1", "abc", "1.5"])
def test_threads_of_the_environment(value: str) -> None:
    done = subprocess.run(
        [*COMMAND, *RUN[:-3], "--no-progress"], capture_output=True, text=True, check=False,
        env={**os.environ, "NUMBA_NUM_THREADS": value},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("portable-spdnn: error: NUMBA_NUM_THREADS is ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        (">/dev/full", 2, "No space left"),
        ("--json - >&-", 2, "the standard output is closed"),
        ("--json - >/dev/full", 2, "No space left"),
        ("--nonsense 2>&-", 2, ""),
        ("--nonsense 2>/dev/full", 2, ""),
    ],
)
def test_streams_that_fail(redirected: str, code: int, said: str) -> None:
    line = " ".join((*COMMAND, *RUN, redirected))
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("portable-spdnn:")]
    assert len(errors) <= 1  # with --json - the report goes there as well


def test_a_reader_that_leaves_early_is_no_wrong_answer() -> None:
    line = f"{' '.join((*COMMAND, *RUN))}; echo $? >&2"
    done = subprocess.run(
        ["sh", "-c", f"({line}) | true"], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip().splitlines()[-1:] in (["2"], ["0"])
    assert "Traceback" not in done.stderr


def test_an_interrupt_is_130_and_says_so() -> None:
    running = subprocess.Popen(
        [*COMMAND, "run", "--neurons", "4096", "--layers", "480", "--backend", "scipy"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stderr is not None
    assert running.stderr.readline() == "loading ...\n"
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert said.splitlines()[-1] == "portable-spdnn: interrupted"
    assert "Traceback" not in said


def test_stores_that_claim_more_than_memory(tmp_path: Path, cli: Cli) -> None:
    layer = ps.Layer.from_csr(np.zeros(9, int), np.zeros(0, int), 1.0, (8, 1 << 40))
    with PackedStoreWriter(tmp_path / "wide.spdnn", y_max=None) as store:
        store.add_layer(1, layer)
        store.set_inputs(np.ones((2, 8), bool))
    expect_error(
        cli("run", "--data", tmp_path / "wide.spdnn"), "1099511627776 neurons", "of memory"
    )


def test_features_beyond_the_type_are_refused() -> None:
    network = ps.Network([ps.Layer(np.eye(1) * 1e-40, 0, "none")])
    for name in ("scipy", "numba"):
        with pytest.raises(ps.InputError, match=r"a feature of magnitude 1e\+39 does not fit"):
            ps.infer(network, np.array([[1e39]]), name)
        scores = ps.infer(network, np.array([[1e39]]), name, dtype="float64").scores
        np.testing.assert_allclose(np.asarray(scores), [[0.1]])
