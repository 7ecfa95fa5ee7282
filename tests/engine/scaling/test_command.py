"""`portable-spdnn model` as scripts see it: tables, JSON, pictures, errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import Cli
from scaling_samples import calibration

from portable_spdnn import digits_features
from portable_spdnn.scaling.calibration import save_calibration
from portable_spdnn.workloads.generation import generate_radixnet

MODEL = ("model", "--no-progress", "--total-inputs", 100)


def test_a_tiny_network_end_to_end(cli: Cli, tmp_path: Path) -> None:
    generate_radixnet(tmp_path / "data", 64, 8, features=digits_features(64)[:60])
    done = cli(
        *MODEL, "--data", tmp_path / "data", "--nodes", "1..5", "--sample-inputs", 40,
        "--sample-layers", 6, "--backend", "scipy", "--json", tmp_path / "m.json", "--plot",
        tmp_path / "m.png", "--save-calibration", tmp_path / "c.json", "--schedule", "dynamic",
    )  # fmt: skip
    assert done.code == 0, done.err
    for part in ("strong scaling: 100 inputs in all", "weak scaling: 100 inputs a node",
                 "64 neurons x 8 layers", "latency 2 us", "10 GB/s into rank 0", "efficiency",
                 "layers beyond 6", "lives as long as one drawn", "fits in a node's memory",
                 "chunks for each node go to"):  # fmt: skip
        assert part in done.out, part
    record = json.loads((tmp_path / "m.json").read_text())
    assert record["question"]["layers"] == 8
    assert len(record["calibration"]["edges_per_layer"]) == 6
    assert [point["nodes"] for point in record["strong"]] == [1, 2, 4, 5]
    assert [point["inputs"] for point in record["weak"]] == [100, 200, 400, 500]
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (tmp_path / "m.png").stat().st_size > 20_000
    again = cli(
        *MODEL, "--calibration", tmp_path / "c.json", "--nodes", "1,2,4,5", "--schedule",
        "dynamic", "--json", "-", "--plot", tmp_path / "m.svg",
    )  # fmt: skip
    assert again.code == 0, again.err
    assert json.loads(again.out) == record
    assert "strong scaling" in again.err
    assert "<svg" in (tmp_path / "m.svg").read_text()[:2000]


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--nodes", "0..4", "of numbers from 1 to"),
        ("--nodes", "1,,2", "--nodes is '1,,2'"),
        ("--network", "64", "--network is '64'"),
        ("--network", "128x8", "measured with 64 neurons"),
        ("--latency", "1e999s", "--latency is"),
        ("--bandwidth", "0GB/s", "--bandwidth"),
        ("--bandwidth", "10GB", "--bandwidth is '10GB'"),
        ("--memory", "1MiB", "memory is 1 MiB"),
        ("--threads", "1", "--threads has no effect where --calibration is given"),
        ("--plot", "m.pdf", "m.pdf: a plot is a file that ends in .png or .svg"),
        ("--plot", "m.png", "pip install 'portable-spdnn[plot]'"),
    ],
)
def test_wrong_flags(
    flag: str, value: str, message: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    save_calibration(calibration(), tmp_path / "c.json")
    done = cli(*MODEL, "--calibration", tmp_path / "c.json", flag, value)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("flag", "text", "field", "value"),
    [
        ("--nodes", " 3 .. 20", "nodes", [3, 4, 8, 16, 20]),
        ("--nodes", "4, 1,2,4", "nodes", [1, 2, 4]),
        ("--network", "64x1920", "layers", 1920),
        ("--latency", "1.5µs", "latency", 1.5e-6),
        ("--bandwidth", "1GiB/s", "bandwidth", 2**30),
        ("--bandwidth", "100 Gbit/s", "bandwidth", 12.5e9),
    ],
)
def test_units_and_nodes(
    flag: str, text: str, field: str, value: object, cli: Cli, tmp_path: Path
) -> None:
    save_calibration(calibration(), tmp_path / "c.json")
    nodes = () if flag == "--nodes" else ("--nodes", 1)
    done = cli(*MODEL, "--calibration", tmp_path / "c.json", "--json", "-", *nodes, flag, text)
    assert done.code == 0, done.err
    assert json.loads(done.out)["question"][field] == pytest.approx(value)
