"""The command line as scripts see it: output, JSON, files and exit codes."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Cli, expect_error

import portable_spdnn as ps


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of 64 neurons x 5 layers with 9 inputs in the official layout, with truth."""
    from portable_spdnn.graphchallenge.categories import write_categories
    from portable_spdnn.workloads.generation import generate_radixnet

    folder = tmp_path_factory.mktemp("data") / "small"
    rng = np.random.default_rng(0)
    features = ps.PackedFeatures.from_dense(
        rng.random((9, 64)) < np.linspace(0.02, 0.9, 9)[:, None]
    )
    generate_radixnet(folder, 64, 5, seed=3, features=features)
    result = ps.infer(ps.load_network(folder, 64), features, "scipy")
    assert 0 < result.categories.size < 9
    write_categories(folder / "neuron64-l5-categories.tsv", result.categories)
    return folder


KEYS = [
    "backend", "device", "execution_space", "neurons", "layers", "inputs", "edges",
    "load_seconds", "plan_seconds", "inference_seconds", "edge_rate", "executed_edges",
    "executed_edge_rate", "exact_passes", "categories_count", "categories_sha256", "verdict",
    "alive_inputs_per_layer", "seconds_per_layer", "versions",
]  # fmt: skip


# -- run ----------------------------------------------------------------------------------------


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


# -- compare ------------------------------------------------------------------------------------


def test_compare_shows_agreement_and_speed(cli: Cli, small: Path) -> None:
    done = cli("compare", "--backends", "scipy,numba", "--data", small, "--repeat", 2)
    assert done.code == 0
    for part in ("scipy", "numba", "speed-up", "abs. diff.", "rel. diff.", "PASSED"):
        assert part in done.out
    for part in ("challenge edge rate", "executed edge rate", "exact passes"):
        assert part in done.out


def test_compare_json(cli: Cli, small: Path) -> None:
    done = cli("compare", "--backends", "numba", "--data", small, "--json", "-")
    reference, numba = json.loads(done.out)
    assert reference["backend"] == "scipy"
    assert reference["speed_up"] == 1
    assert numba["backend"] == "numba"
    assert numba["categories_agree"] is True
    assert 0 <= numba["largest_absolute_difference"] < 1e-4
    assert 0 <= numba["largest_relative_difference"] < 1e-4
    assert numba["speed_up"] == pytest.approx(
        reference["inference_seconds"] / numba["inference_seconds"]
    )


def test_compare_says_1_where_a_backend_differs(
    cli: Cli, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from portable_spdnn_cpu.numba_backend import NumbaBackend

    build = NumbaBackend.build_plan

    def wrong(self: Any, network: ps.Network, options: Any) -> Any:
        return build(self, ps.Network(network.layers, y_max=0.01), options)

    monkeypatch.setattr(NumbaBackend, "build_plan", wrong)
    done = cli("compare", "--backends", "numba", "--data", small, "--repeat", 1)
    assert done.code == 1
    assert " NO " in done.out


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


def test_an_unknown_pass_is_an_error(cli: Cli, small: Path) -> None:
    expect_error(
        cli("run", "--data", small, "--exact-passes", "magic"), "magic", "merge-neurons", "all"
    )


# -- the other commands -------------------------------------------------------------------------


def test_backends_lists_all_with_reasons(cli: Cli) -> None:
    done = cli("backends", "--json", "-")
    records = {record["backend"]: record for record in json.loads(done.out)}
    assert records["scipy"]["available"] is True
    assert records["numba"]["execution_space"] == "threads"
    assert "spgemm" in records["numba"]["operations"]
    assert records["cupy"]["available"] is False
    assert records["cupy"]["reason"]
    shown = cli("backends").out
    assert all(name in shown for name in records)
    assert records["cupy"]["reason"] in shown


def test_generate_writes_what_others_read(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "net"
    done = cli(
        "generate", "radixnet", "--neurons", 256, "--layers", 9, "--seed", 5, "--out", out,
        "--first-inputs", 20,
    )  # fmt: skip
    assert done.code == 0
    assert sorted(path.name for path in out.iterdir()) == ["neuron256", "sparse-images-256.tsv.gz"]
    # An independent reading of the official layout.
    lines = (out / "neuron256" / "n256-l9.tsv").read_text().splitlines()
    assert len(lines) == 32 * 256
    W = np.zeros((256, 256))
    for line in lines:
        row, column, value = line.split("\t")
        W[int(row) - 1, int(column) - 1] = float(value)
    expected = ps.radixnet(256, 9, seed=5).layers[8].csr().toarray()
    np.testing.assert_array_equal(W, expected)
    pixels = gzip.decompress((out / "sparse-images-256.tsv.gz").read_bytes()).decode().splitlines()
    Y = np.zeros((20, 256))
    for line in pixels:
        image, pixel, value = line.split("\t")
        Y[int(image) - 1, int(pixel) - 1] = float(value)
    np.testing.assert_array_equal(Y, ps.digits_features(256)[:20].dense())
    store = tmp_path / "net.spdnn"
    again = cli(
        "generate", "radixnet", "--neurons", 256, "--layers", 9, "--seed", 5, "--out", store,
        "--store", "--first-inputs", 20,
    )  # fmt: skip
    assert again.code == 0
    results = [
        json.loads(cli("run", "--data", data, "--verify", "--json", "-").out)
        for data in (out, store)
    ]
    assert results[0]["categories_sha256"] == results[1]["categories_sha256"]
    assert results[0]["verdict"] == "PASSED"
    expect_error(
        cli("generate", "radixnet", "--out", out), str(out), "not an empty folder", "name a new one"
    )


def test_python_m_and_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "portable_spdnn", "--version"], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout == f"portable-spdnn {ps.__version__}\n"


# -- bad input: one clear line that names the fault and the remedy, exit 2 ----------------------


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


def test_unwritable_output_is_an_error_and_leaves_nothing(
    cli: Cli, small: Path, tmp_path: Path
) -> None:
    target = tmp_path / "absent" / "out.json"
    expect_error(cli("run", "--data", small, "--json", target), "absent")
    expect_error(cli("run", "--data", small, "--save-categories", target), "absent")
    assert not list(tmp_path.iterdir())
