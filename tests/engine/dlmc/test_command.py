"""`portable-spdnn dlmc` as scripts see it: tables, JSON, pictures, errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import Cli, expect_error

import portable_spdnn as ps
from portable_spdnn.dlmc import timing

SMTX = "3, 4, 5\n0 2 2 5\n0 3 0 1 3\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in (("ROUNDS", 1), ("SECONDS", 0.0), ("PAUSE", 0.0)):
        monkeypatch.setattr(timing, name, value)
    monkeypatch.setattr(type(ps.get_backend("numba")), "measure_flops", lambda self: 1e11)
    place = tmp_path / "dlmc" / "rn50" / "magnitude_pruning" / "0.6"
    place.mkdir(parents=True)
    (place / "one.smtx").write_text(SMTX)
    (tmp_path / "dlmc" / "rn50_batchsizes.txt").write_text("one,6\n")
    return tmp_path / "dlmc"


def test_a_small_collection_end_to_end(cli: Cli, folder: Path, tmp_path: Path) -> None:
    done = cli(
        "dlmc", folder, "--backend", "numba", "--backend", "scipy", "--masks", "50, 90", "--json",
        tmp_path / "d.json", "--plot", tmp_path / "d.png", "--threads", 2,
    )  # fmt: skip
    assert done.code == 0, done.err
    # A line each ten seconds, where kernels are compiled first.
    assert all(line.startswith("measuring") for line in done.err.splitlines())
    for part in (
        "3 x 4 x 6", "rn50, random masks", "N below 16", "crossover with dense", "chose",
        "100 GFLOP/s of multiply-adds", "peak: not measured", "nothing was prepared",
    ):  # fmt: skip
        assert part in done.out, part
    record = json.loads((tmp_path / "d.json").read_text())
    assert [(one["backend"], one["nnz"]) for one in record["products"]] == [
        (name, nnz) for nnz in (5, 6, 1) for name in ("numba", "scipy")
    ]
    assert all(0 <= one["error"] <= 1 for one in record["products"])
    for one in record["products"]:
        share = one["flops"] / 1e11 if one["backend"] == "numba" else None
        assert one["of_peak"] == share
    assert record["peak_flops"] == {"numba": 1e11, "scipy": None}
    assert record["threads"] == {"numba": 2, "scipy": 1}
    assert record["wrong"] == []
    assert {one["backend"] for one in record["crossovers"]} == {"numba", "scipy"}
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_lists_of_columns_and_json_on_stdout(cli: Cli, folder: Path) -> None:
    done = cli("dlmc", folder, "--columns", "1,3", "--columns", 17, "--columns", "3", "--backend",
               "scipy", "--json", "-", "--no-progress")  # fmt: skip
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert [one["columns"] for one in record["products"]] == [1, 3, 17]
    assert "rn50, N = 17" in done.err


def test_a_wrong_product_is_exit_1(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = ps.get_backend("scipy")
    monkeypatch.setattr(type(backend), "run_spmm", lambda self, A, B, *rest: 1.001 * (A @ B))
    done = cli("dlmc", folder, "--backend", "scipy", "--json", tmp_path / "d.json", "--no-progress")
    assert done.code == 1
    assert "WRONG: spmm_handle of scipy on " in done.err
    assert "one.smtx (3 x 4 x 6): its error is " in done.err
    record = json.loads((tmp_path / "d.json").read_text())
    assert (len(record["wrong"]), record["products"]) == (2, [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--columns", "0"), "--columns holds '0'; whole numbers from 1 to"),
        (("--columns", "1.5"), "--columns holds '1.5'; whole numbers"),
        (("--columns", "9" * 30), "--columns holds"),
        (("--masks", "100"), "--masks holds '100'; numbers from 1 to 99.99"),
        (("--masks", "0.9"), "--masks holds '0.9'; numbers from 1"),
        (("--masks", "-1"), "--masks holds '-1'"),
        (("--masks", "nan"), "--masks holds 'nan'"),
        (("--backend", "absent"), "unknown backend 'absent'"),
        (("--plot", "x.pdf"), "x.pdf: a plot is a file that ends in .png or .svg"),
        (("--plot", "x.png"), "pip install 'portable-spdnn[plot]'"),
        (("--json", "/absent/x"), "there is no folder /absent"),
    ],
)
def test_wrong_flags(
    cli: Cli, folder: Path, options: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    expect_error(cli("dlmc", folder, *options), said)


def test_folders_that_are_none(cli: Cli, tmp_path: Path) -> None:
    expect_error(cli("dlmc", tmp_path / "absent"), "absent: is not there; name a folder of")
    expect_error(cli("dlmc", tmp_path), "holds no matrix; .smtx, .mtx and .npz")
    (tmp_path / "bad.smtx").write_text("1 2 3")
    expect_error(cli("dlmc", tmp_path), "bad.smtx, line 1")


def test_it_is_listed(cli: Cli) -> None:
    assert "dlmc" in cli("--help").out
