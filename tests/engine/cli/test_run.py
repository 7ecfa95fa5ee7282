"""``portable-spdnn run`` as scripts see it: output, JSON, files and exit codes."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Cli

KEYS = [
    "backend", "device", "execution_space", "neurons", "layers", "inputs", "edges",
    "load_seconds", "plan_seconds", "inference_seconds", "edge_rate", "executed_edges",
    "executed_edge_rate", "exact_passes", "categories_count", "categories_sha256", "verdict",
    "alive_inputs_per_layer", "seconds_per_layer", "versions",
]  # fmt: skip


@pytest.mark.parametrize("backend", ["scipy", "numba"])
def test_run_passes_on_the_official_data(cli: Cli, shared: Path, backend: str) -> None:
    data = shared / "graphchallenge"
    done = cli(
        "run", "--data", data, "--neurons", 1024, "--layers", 120, "--backend", backend,
        "--json", "-",
    )  # fmt: skip
    assert done.code == 0
    record = json.loads(done.out)
    assert record["verdict"] == "PASSED"
    assert "PASSED" in done.err
    assert record["edges"] == 120 * 32768
    assert record["inputs"] == 1200
    assert record["categories_count"] == 19
    assert record["truth_beyond_inputs"] == 1812 - 19
    official = (data / "neuron1024-l120-categories.tsv").read_text().splitlines()
    ours = "".join(f"{line}\n" for line in official if int(line) <= 1200)
    assert record["categories_sha256"] == hashlib.sha256(ours.encode()).hexdigest()
    assert record["alive_inputs_per_layer"][-1] == 19
    assert (record["seconds_per_layer"] is None) == (backend == "numba")


def test_run_default_is_embedded_and_verified(cli: Cli) -> None:
    done = cli("run", "--layers", 24, "--first-inputs", 200)
    assert done.code == 0
    for part in ("1024 neurons x 24 layers", "200 (bundled handwritten digits)", "survivors"):
        assert part in done.out
    assert "PASSED against the serial scipy reference" in done.out
    for part in ("challenge edge rate", "executed edge rate", "load", "planning", "inference"):
        assert part in done.out


def test_run_json_has_every_key_and_stdout_is_json_alone(cli: Cli, small: Path) -> None:
    done = cli("run", "--data", small, "--json", "-", "--backend", "numba", "--threads", 1)
    record = json.loads(done.out)
    assert [key for key in record if key in KEYS] == KEYS
    assert record["verdict"] == "PASSED"
    assert record["exact_passes"] == []
    assert record["neurons"] == 64
    assert record["layers"] == len(record["alive_inputs_per_layer"]) == 5
    assert record["edge_rate"] == pytest.approx(9 * 5 * 2048 / record["inference_seconds"])
    assert "1 thread" in record["device"]
    assert {"portable_spdnn", "python", "numpy", "numba"} <= set(record["versions"])


def test_run_writes_json_and_categories_to_files(cli: Cli, small: Path, tmp_path: Path) -> None:
    found, report = tmp_path / "categories.tsv", tmp_path / "run.json"
    done = cli("run", "--data", small, "--save-categories", found, "--json", report)
    assert done.code == 0
    assert found.read_text() == (small / "neuron64-l5-categories.tsv").read_text()
    record = json.loads(report.read_text())
    assert record["categories_sha256"] == hashlib.sha256(found.read_bytes()).hexdigest()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["categories.tsv", "run.json"]


def test_run_says_1_where_categories_are_wrong(cli: Cli, small: Path, tmp_path: Path) -> None:
    truth = (small / "neuron64-l5-categories.tsv").read_text().split()
    (tmp_path / "wrong.tsv").write_text("\n".join(["1", *truth[:-1]]))
    done = cli("run", "--data", small, "--truth", tmp_path / "wrong.tsv")
    assert done.code == 1
    assert "FAILED" in done.out
    assert "1 missing" in done.out
    assert "1 extra" in done.out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("path", ["auto", "spmm", "spgemm"])
@pytest.mark.parametrize("backend", ["scipy", "numba"])
def test_every_path_and_type_gives_the_same(
    cli: Cli, small: Path, backend: str, path: str, dtype: str
) -> None:
    for more in ((), ("--batch-size", 2), ("--keep-dead-inputs",), ("--threads", 2)):
        done = cli(
            "run", "--data", small, "--backend", backend, "--path", path, "--dtype", dtype, *more
        )
        assert done.code == 0, done
        assert "PASSED" in done.out


def test_run_without_truth_has_no_verdict_unless_verified(cli: Cli, small: Path) -> None:
    arguments = ("run", "--data", small, "--layers", 4, "--json", "-")
    assert json.loads(cli(*arguments).out)["verdict"] is None
    record = json.loads(cli(*arguments, "--verify").out)
    assert record["verdict"] == "PASSED"
    assert record["verdict_against"] == "the serial scipy reference"
    assert record["reference_agrees"] is True


def test_run_takes_a_store_idx_images_and_a_first_few(
    cli: Cli, small: Path, tmp_path: Path
) -> None:
    store = tmp_path / "small.spdnn"
    assert cli("convert", small, "--out", store).code == 0
    record = json.loads(cli("run", "--data", store, "--json", "-").out)
    assert record["verdict"] == "PASSED"
    assert record["inputs"] == 9
    first = json.loads(cli("run", "--data", store, "--first-inputs", 4, "--json", "-").out)
    assert (first["inputs"], first["verdict"]) == (4, "PASSED")
    images = np.zeros((3, 8, 8), np.uint8)
    images[1] = 255
    idx = tmp_path / "images-idx3-ubyte.gz"
    header = np.array([0x803, 3, 8, 8], ">u4").tobytes()
    idx.write_bytes(gzip.compress(header + images.tobytes()))
    record = json.loads(cli("run", "--data", store, "--inputs", idx, "--json", "-").out)
    assert (record["inputs"], record["categories_count"]) == (3, 1)
    assert record["verdict"] is None  # the store's truth is that of its own inputs


def test_progress_is_plain_lines_off_a_terminal_and_can_be_left_out(cli: Cli, small: Path) -> None:
    done = cli("run", "--data", small)
    assert "inference on" in done.err
    assert "\x1b" not in done.err + done.out
    assert cli("run", "--data", small, "--no-progress").err == ""


@pytest.mark.parametrize("passes", ["merge-neurons", "merge-inputs,fixed-point", "all"])
def test_exact_passes_are_named_and_change_no_answer(cli: Cli, small: Path, passes: str) -> None:
    names = (
        ["merge-neurons", "merge-inputs", "fixed-point"] if passes == "all" else (passes.split(","))
    )
    done = cli("run", "--data", small, "--exact-passes", passes, "--json", "-")
    record = json.loads(done.out)
    assert record["verdict"] == "PASSED"
    assert record["exact_passes"] == names
    assert ", ".join(names) in done.err
    done = cli("compare", "--backends", "numba", "--data", small, "--exact-passes", passes,
               "--repeat", 1, "--json", "-")  # fmt: skip
    reference, numba = json.loads(done.out)
    assert reference["exact_passes"] == []
    assert numba["exact_passes"] == names
    assert numba["categories_agree"] is True
