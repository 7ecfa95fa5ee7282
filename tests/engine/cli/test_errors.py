"""Bad input: one clear line that names the fault and the remedy, exit 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, expect_error


def test_an_unknown_pass_is_an_error(cli: Cli, small: Path) -> None:
    expect_error(
        cli("run", "--data", small, "--exact-passes", "magic"), "magic", "merge-neurons", "all"
    )


@pytest.fixture
def broken(small: Path, tmp_path: Path) -> Path:
    """A copy of the small network, to be damaged."""
    import shutil

    return Path(shutil.copytree(small, tmp_path / "broken"))


def test_missing_layer_file(cli: Cli, broken: Path) -> None:
    (broken / "neuron64" / "n64-l3.tsv").unlink()
    expect_error(cli("run", "--data", broken), "n64-l3.tsv", "missing")
    expect_error(cli("run", "--data", broken, "--layers", 7), "n64-l3.tsv", "--layers")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("65\t3\t0.0625", ("row 65", "1 .. 64", "--neurons")),
        ("3\t99\t0.0625", ("column 99", "1 .. 64", "--neurons")),
        ("0\t3\t0.0625", ("row 0", "1 .. 64")),
        ("3\t3", ("2 field", "expected three")),
        ("3\t3\tnan", ("nan", "finite")),
        ("3\t3\tsix", ("six",)),
    ],
)
def test_a_wrong_line_in_a_layer(cli: Cli, broken: Path, line: str, parts: tuple[str, ...]) -> None:
    file = broken / "neuron64" / "n64-l2.tsv"
    lines = file.read_text().splitlines()
    lines[16] = line
    file.write_text("\n".join(lines) + "\n")
    expect_error(cli("run", "--data", broken), "n64-l2.tsv", "line 17", *parts)
    expect_error(
        cli("convert", broken, "--out", broken / "x.spdnn"), "n64-l2.tsv", "line 17", *parts
    )
    assert not (broken / "x.spdnn").exists()


def test_truncated_gzip(cli: Cli, broken: Path) -> None:
    file = broken / "sparse-images-64.tsv.gz"
    file.write_bytes(file.read_bytes()[:-20])
    expect_error(cli("run", "--data", broken), "sparse-images-64.tsv.gz", "truncated")


def test_truth_beyond_the_inputs(cli: Cli, small: Path, tmp_path: Path) -> None:
    truth = tmp_path / "truth.tsv"
    truth.write_text("3\n10\n")
    expect_error(
        cli("run", "--data", small, "--truth", truth), "truth.tsv", "line 2", "10", "9 inputs"
    )


def test_features_of_the_wrong_width(cli: Cli, small: Path, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.tsv"
    inputs.write_text("1\t64\t1\n2\t65\t1\n")
    expect_error(
        cli("run", "--data", small, "--inputs", inputs), "inputs.tsv", "line 2", "65", "1 .. 64"
    )
    other = tmp_path / "sparse-images-1024.tsv"
    other.write_text("1\t1\t1\n")
    expect_error(cli("run", "--data", small, "--inputs", other), "1024", "64", "--neurons 1024")


def test_neurons_that_disagree_with_the_files(cli: Cli, small: Path, tmp_path: Path) -> None:
    expect_error(cli("run", "--data", small, "--neurons", 1024), "64", "--neurons")
    store = tmp_path / "s.spdnn"
    cli("convert", small, "--out", store)
    expect_error(cli("run", "--data", store, "--neurons", 1024), "s.spdnn", "64", "--neurons 64")


def test_unknown_and_unavailable_backends(cli: Cli, small: Path) -> None:
    expect_error(cli("run", "--backend", "nonsense"), "nonsense", "scipy", "numba")
    expect_error(cli("run", "--backend", "cupy"), "cupy is not available", "usable here", "numba")
    expect_error(
        cli("compare", "--backends", "scipy,cupy", "--data", small), "cupy is not available"
    )


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("run", "--data", "/nowhere/at/all"), ("/nowhere/at/all", "no such file or folder")),
        (("run", "--neurons", 1000), ("1000", "16 * 2^s")),
        (("run", "--neurons", 2048, "--layers", 2), ("2048", "square")),
        (("run", "--inputs", "/nowhere.tsv", "--layers", 2), ("/nowhere.tsv",)),
        (("run", "--layers", 2, "--first-inputs", 5000), ("5000", "1797")),
        (("run", "--layers", 2, "--y-max", -1), ("y_max is -1",)),
        (("run", "--layers", 2, "--bias", 0.5, "--path", "spgemm"), ("positive bias", "spmm")),
        (("run", "--layers", 2, "--bias", "nan"), ("bias", "NaN")),
        (("compare", "--backends", ","), ("--backends",)),
        (("convert", "/nowhere", "--out", "x"), ("/nowhere",)),
    ],
)
def test_other_bad_requests(cli: Cli, arguments: tuple[Any, ...], parts: tuple[str, ...]) -> None:
    expect_error(cli(*arguments), *parts)


def test_usage_errors_are_exit_2(cli: Cli) -> None:
    wrong = [
        ("run", "--nonsense"),
        ("run", "--dtype", "float16"),
        ("nonsense",),
        ("run", "--threads", "0"),
        ("compare",),
        ("run", "--batch-size", "0"),
    ]
    for arguments in wrong:
        done = cli(*arguments)
        assert done.code == 2
        assert done.err.startswith("portable-spdnn: error: ")
        assert done.err.count("\n") == 1
        assert "Traceback" not in done.err


def test_unwritable_output_is_an_error_and_leaves_nothing(
    cli: Cli, small: Path, tmp_path: Path
) -> None:
    target = tmp_path / "absent" / "out.json"
    expect_error(cli("run", "--data", small, "--json", target), "absent")
    expect_error(cli("run", "--data", small, "--save-categories", target), "absent")
    assert not list(tmp_path.iterdir())
