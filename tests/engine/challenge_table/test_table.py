"""The table of the official networks: choice, sources, budgets, resuming, and what it prints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Cli, expect_error

import portable_spdnn as ps
from portable_spdnn.challenge_table import published
from portable_spdnn.challenge_table import run as table_run
from portable_spdnn.challenge_table.catalog import Catalog
from portable_spdnn.challenge_table.time_budget import parse_duration, predict
from portable_spdnn.cli.challenge import choose_configurations
from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.configurations import CONFIGURATIONS, INPUTS, Configuration
from portable_spdnn.host import resident_bytes
from portable_spdnn.io.packed_writer import PackedStoreWriter
from portable_spdnn.plans import memory_budget
from portable_spdnn.plans.layer_loop import LayerLoopPlan
from portable_spdnn.plans.memory_budget import SHARE
from portable_spdnn.workloads.generation import generate_radixnet
from portable_spdnn.workloads.networks import GENERATED, STORE, TEXT

SMALL = Configuration(1024, 120, -0.3)
DEEP = Configuration(1024, 480, -0.3)
FIRST = 40  # inputs; some die and some survive
ONE = ("--sizes", 1024, "--layers", 120, "--first-inputs", FIRST)
TWO = ("--sizes", 1024, "--layers", "120,480", "--first-inputs", FIRST)

Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def challenge(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Cli:
    """Run the command in this process, on scipy unless told otherwise."""
    monkeypatch.setattr(table_run, "WARM_UP_INPUTS", 8)  # the time it takes is of no interest
    return lambda *arguments, backend="scipy": cli("challenge", "--backend", backend, *arguments)


@pytest.fixture
def rows(challenge: Cli) -> Rows:
    """Run the command, which has to end with `code`, and return the rows of its JSON."""

    def run(*arguments: object, code: int = 0, **backend: str) -> list[dict[str, Any]]:
        done = challenge(*arguments, "--json", "-", **backend)
        assert done.code == code, done
        return list(json.loads(done.out)["networks"])

    return run


@pytest.fixture(scope="module")
def reference() -> ps.Result:
    """What plain inference says of the generated 1024 x 120 network and the first digits."""
    network = ps.radixnet(1024, layers=120, seed=0)
    result = ps.infer(network, ps.digits_features(1024)[:FIRST], "scipy")
    assert 0 < result.categories.size < FIRST
    return result


def write_store(path: Path, truth: np.ndarray) -> Path:
    """Write the same network and inputs, and a truth."""
    with PackedStoreWriter(path, y_max=32.0) as writer:
        writer.set_truth(120, truth)
        writer.set_inputs(ps.digits_features(1024)[:FIRST])
        for number, layer in enumerate(ps.radixnet(1024, layers=120, seed=0), start=1):
            writer.add_layer(number, layer)
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, reference: ps.Result) -> Path:
    return write_store(tmp_path_factory.mktemp("stores") / "small.spdnn", reference.categories)


# -- choice and sources -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--sizes", "1024,2048"), ("--sizes", "'2048'", "1024, 4096, 16384, 65536")),
        (("--sizes", ","), ("--sizes", "','")),
        (("--layers", "12"), ("--layers", "'12'", "120, 480, 1920")),
        (("--layers", "01920"), ("--layers", "'01920'")),
        (("--data", "/nowhere"), ("/nowhere", "no such file or folder")),
        (("--inputs", "/nowhere.tsv"), ("/nowhere.tsv",)),
        (("--first-inputs", "5000"), ("5000", "1797")),
        (("--exact-passes", "magic"), ("magic",)),
        (("--memory", "some"), ("--memory", "some")),
        (("--time-budget", "soon"), ("--time-budget", "soon", "10m")),
        (("--markdown", "-", "--json", "-"), ("--json", "--markdown")),
    ],
)
def test_bad_requests(challenge: Cli, arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    done = challenge(*arguments)
    expect_error(done, *parts)
    assert not done.out


def test_lists_choose_from_the_official_table() -> None:
    assert choose_configurations("1024,4096,16384,65536", "120,480,1920") == CONFIGURATIONS
    assert choose_configurations(" 1024 ,", "480,120") == (SMALL, DEEP)


def test_a_store_serves_what_it_holds_and_the_rest_is_generated(store: Path) -> None:
    for data in (store, store.parent):
        catalog = Catalog(data, None, CONFIGURATIONS)
        assert (catalog.network(SMALL), catalog.network(DEEP)) == (store, None)
        assert (catalog.inputs(1024), catalog.inputs(4096)) == (store, None)
        truth = catalog.truth(SMALL, FIRST, FIRST)
        assert truth is not None
        assert truth.categories.size > 0
        assert catalog.truth(DEEP, FIRST, FIRST) is None
    assert Catalog(None, None, CONFIGURATIONS).network(SMALL) is None
    with pytest.raises(InputError, match="4096 neurons"):
        Catalog(store, None, [CONFIGURATIONS[3]])


def test_text_files_serve_as_deep_as_they_are(tmp_path: Path) -> None:
    data = tmp_path / "data"
    generate_radixnet(data, 1024, 3, features=None)
    shallow = Configuration(1024, 3, -0.3)
    assert Catalog(data, None, [SMALL]).network(SMALL) is None
    assert Catalog(data, None, [shallow]).network(shallow) == data


# -- time and memory ----------------------------------------------------------------------------


def test_durations() -> None:
    for text, seconds in (("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), (" .5 H ", 1800)):
        assert parse_duration(text, "--time-budget") == seconds
    for text in ("", "0", "-1", "soon", "1d", "2hs", "nan", "inf", "9" * 400):
        with pytest.raises(InputError, match=r"--time-budget is .*10m"):
            parse_duration(text, "--time-budget")


def test_a_prediction_goes_by_the_nearest_network() -> None:
    def record(neurons: int, layers: int, setup: float, run: float) -> dict[str, Any]:
        return {
            "neurons": neurons, "layers": layers, "edges": 32 * neurons * layers, "inputs": 100,
            "load_seconds": 0.25 * setup, "plan_seconds": 0.75 * setup,
            "inference_seconds": run, "reference_seconds": None, "inputs_load_seconds": 6.0,
        }  # fmt: skip

    done = [record(1024, 120, 1.0, 2.0)]
    # Twice the inputs run twice as long; four times the edges take four times as long in all.
    assert predict(done, SMALL, 200) == 1 + 4
    assert predict(done, DEEP, 200) == 4 * (1 + 4)
    verified = {**record(1024, 480, 8.0, 10.0), "reference_seconds": 6.0}
    done = [verified, record(4096, 120, 3.0, 5.0)]
    assert predict(done, SMALL, 100) == (8 + 16) / 4
    assert predict(done, Configuration(4096, 1920, -0.35), 100) == 16 * (3 + 5)
    assert predict(done, Configuration(16384, 120, -0.4), 100) == 4 * (3 + 5) + 4 * 6


def test_what_would_not_fit_in_the_time_is_skipped(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    none = rows(*TWO, "--time-budget", "0.001s")
    assert [row["state"] for row in none] == ["skipped", "skipped"]
    assert all(row["predicted_seconds"] > 0 for row in none)

    def slow_when_deep(done: Any, network: Configuration, inputs: int) -> float:
        return 1e6 if network.layers == 480 else predict(done, network, inputs)

    monkeypatch.setattr(table_run, "predict", slow_when_deep)
    target = tmp_path / "table.md"
    first, second = rows(*TWO, "--time-budget", "1h", "--markdown", target)
    assert (first["state"], second["state"]) == ("done", "skipped")
    assert 0 < first["predicted_seconds"] < 3600
    assert second["predicted_seconds"] == 1e6
    assert "1e+06 s predicted" in second["skipped_because"]
    assert "verdict" not in second
    assert "| skipped | 1e+06 s predicted" in target.read_text()


def test_a_network_that_does_not_fit_is_streamed_by_itself(
    challenge: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch, reference: ps.Result
) -> None:
    deepest = ("--sizes", 1024, "--layers", "120,1920", "--first-inputs", FIRST)
    held = rows(*deepest, backend="numba")
    available = 700 << 20
    monkeypatch.setattr(memory_budget, "available_bytes", lambda: available)
    done = challenge(*deepest, "--json", "-", backend="numba")
    small, large = json.loads(done.out)["networks"]
    assert (done.code, small["memory"], large["memory_automatic"]) == (0, None, True)
    assert large["memory"] > SHARE * available
    assert any("streamed in" in line for line in large["plan"])
    assert "streamed in" in done.err
    assert "would not fit in 75 %" in done.err
    assert [row["categories_sha256"] for row in (small, large)] == [
        row["categories_sha256"] for row in held
    ]
    assert small["categories_count"] == reference.categories.size


def test_memory_streams_every_network(rows: Rows, store: Path, tmp_path: Path) -> None:
    allowed = resident_bytes() + (500 << 20)
    found = rows(
        "--data", store, "--sizes", 1024, "--layers", "120,480", "--memory", allowed,
        "--checkpoint", tmp_path / "kept", backend="numba",
    )  # fmt: skip
    assert [row["memory"] for row in found] == [allowed] * 2
    assert [row["verdict"] for row in found] == ["PASSED", None]
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == ["1024x120.json", "1024x480.json", "challenge.json"]


def test_text_files_are_not_streamed(
    challenge: Cli, rows: Rows, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ("--data", shared / "graphchallenge", *ONE)
    expect_error(challenge(*data, "--memory", "2GiB"), "portable-spdnn convert")
    monkeypatch.setattr(memory_budget, "available_bytes", lambda: 1 << 20)
    (row,) = rows(*data)
    assert row["state"] == "skipped"
    assert "portable-spdnn convert" in row["skipped_because"]


# -- published figures --------------------------------------------------------------------------


def test_every_series_has_a_source_and_rates_that_agree_with_its_times() -> None:
    official = {(one.neurons, one.layers) for one in CONFIGURATIONS}
    for one in published.SERIES:
        assert set(one.figures) <= official
        assert all((one.source.citation, one.source.hardware, one.where))
        assert (one.source is published.HIDAYETOGLU) == (one.threads is None)
        for (neurons, layers), (rate, seconds) in one.figures.items():
            assert (seconds is None) == (one.threads is None)
            if seconds is None:
                continue
            # Times are printed to a tenth of a second, or to a second; rates to a tenth.
            half = 0.5 if one.program == "MATLAB" else 0.05
            work = 32 * neurons * layers * INPUTS
            assert work / (seconds + half) / 1.02 < rate + 0.05e9, (one.where, neurons, layers)
            assert rate - 0.05e9 < 1.02 * work / (seconds - half), (one.where, neurons, layers)


def test_a_column_shows_the_fastest_of_its_series() -> None:
    single, many, gpu = published.COLUMNS.values()
    assert len(single) + len(many) + len(gpu) == len(published.SERIES)
    assert published.fastest(single, 1024, 120) == 10.0e9
    assert published.fastest(many, 1024, 120) == 164.9e9
    assert published.fastest(many, 1024, 480) == 209.2e9
    assert published.fastest(gpu, 1024, 120) is None
    assert published.fastest(gpu, 65536, 1920) == 9.3e12


# -- rows and their verdicts --------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["scipy", "numba"])
def test_the_official_network_passes(rows: Rows, shared: Path, backend: str) -> None:
    data = ("--data", shared / "graphchallenge", "--sizes", 1024, "--layers", 120)
    (row,) = rows(*data, backend=backend)
    assert (row["state"], row["network_kind"], row["inputs_kind"]) == ("done", TEXT, TEXT)
    assert (row["verdict"], row["inputs"], row["categories_count"]) == ("PASSED", 1200, 19)


def test_without_data_everything_is_generated(challenge: Cli, reference: ps.Result) -> None:
    done = challenge(*ONE, "--json", "-")
    whole = json.loads(done.out)
    assert (done.code, whole["backend"], whole["threads"]) == (0, "scipy", 1)
    assert whole["exact_passes"] == []
    assert whole["versions"]["portable_spdnn"] == ps.__version__
    figures = [figure for one in whole["published"] for figure in one["figures"]]
    assert {"neurons": 1024, "layers": 120, "edge_rate": 10e9, "seconds": 24} in figures
    (row,) = whole["networks"]
    assert row["edge_rate"] == pytest.approx(FIRST * SMALL.edges / row["inference_seconds"])
    assert (row["network_kind"], row["inputs_kind"]) == (GENERATED, "bundled digits")
    assert row["categories_count"] == reference.categories.size
    assert row["verdict"] is None
    assert "no truth" in done.err


def test_the_truth_or_the_serial_reference_judges(
    challenge: Cli, rows: Rows, store: Path, tmp_path: Path
) -> None:
    (verified,) = rows(*ONE, "--verify")
    assert verified["verdict"] == "PASSED"
    assert verified["verdict_against"] == "the serial scipy reference"
    done = challenge("--data", store, *ONE, "--verify")
    assert done.code == 0
    assert "PASSED (truth), reference agrees" in done.out
    assert STORE in done.out
    write_store(tmp_path / "wrong.spdnn", np.array([0]))
    # A wrong row does not keep a deeper network of the same folder from running.
    done = challenge("--data", tmp_path, *TWO)
    assert done.code == 1
    assert "FAILED (truth)" in done.out
    assert "2 of 2 networks done, 1 WRONG" in done.out
    assert [row["verdict"] for row in rows("--data", tmp_path, *TWO, code=1)] == ["FAILED", None]


def test_images_serve_every_size_and_text_only_one(
    challenge: Cli, rows: Rows, tmp_path: Path
) -> None:
    images = tmp_path / "images-idx3-ubyte"
    pixels = np.zeros((4, 8, 8), np.uint8)
    pixels[1] = 255
    images.write_bytes(np.array([0x803, 4, 8, 8], ">u4").tobytes() + pixels.tobytes())
    found = rows("--sizes", "1024,4096", "--layers", 120, "--inputs", images, backend="numba")
    assert [row["categories_count"] for row in found] == [1, 1]
    assert [row["inputs_kind"] for row in found] == [images.name] * 2
    text = tmp_path / "sparse-images-1024.tsv"
    text.write_text("1\t5\t1\n2\t7\t1\n")
    expect_error(challenge("--sizes", "1024,4096", "--inputs", text), str(text), "these sizes")
    expect_error(challenge("--sizes", "1024,4096", "--inputs", tmp_path), "sparse-images-4096.tsv")
    (row,) = rows("--sizes", 1024, "--layers", 120, "--inputs", text)
    assert row["inputs"] == 2


def test_markdown_has_every_column_and_every_source(challenge: Cli) -> None:
    done = challenge(
        *ONE, "--exact-passes", "merge-inputs", "--threads", 1, "--markdown", "-", backend="numba"
    )
    assert done.code == 0
    assert done.out.startswith("# ")
    assert "challenge edge rate" in done.err
    table = [line[2:-2].split(" | ") for line in done.out.splitlines() if line.startswith("|")]
    header, _, row = table
    cells = dict(zip(header, row, strict=True))
    assert [cells[name] for name in header[:4]] == ["1024", "120", str(SMALL.edges), GENERATED]
    assert float(cells["seconds"]) > 0
    assert cells["challenge edge rate"].endswith("Edges/s")
    assert cells["executed edge rate"].endswith("Edges/s")
    assert cells["GraphBLAS, 1 thread [^1]"] == "10 GigaEdges/s"
    assert cells["GraphBLAS, 40 threads [^1]"] == "165 GigaEdges/s"
    assert cells["SpDNN, one A100 [^2]"] == "-"
    for part in (
        "exact passes: merge-inputs", "threads: 1", f"portable_spdnn {ps.__version__}",
        "not measured here", "a network is generated", "180 TeraEdges/s", "Kokkos Kernels",
    ):  # fmt: skip
        assert part in done.out, part
    # Each mark has its footnote.
    marks = set(re.findall(r"\[\^(\d+)\](?!:)", done.out))
    assert marks == set(re.findall(r"^\[\^(\d+)\]: .*Hardware: ", done.out, re.MULTILINE))


# -- resuming -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("known_break_even")
def test_an_interrupted_table_goes_on(
    challenge: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept, markdown = tmp_path / "kept", tmp_path / "table.md"
    asked = (*TWO, "--batch-size", 16)
    whole = rows(*asked)
    run_batch = LayerLoopPlan.run_batch
    batches: list[int] = []
    fail_at = 2

    def run_some(self: Any, features: Any, *rest: Any) -> Any:
        if features.shape[0]:  # a plan runs without inputs when it is made
            batches.append(len(self.network))
            if batches.count(480) == fail_at:
                raise InputError("the power failed")
        return run_batch(self, features, *rest)

    monkeypatch.setattr(LayerLoopPlan, "run_batch", run_some)
    done = challenge(*asked, "--checkpoint", kept, "--json", "-", "--markdown", markdown)
    expect_error(done, "the power failed", alone=False)
    assert not done.out
    assert "1 of 2 networks done" in done.err
    assert "1 of 2 networks done" in markdown.read_text()
    assert (kept / "1024x480.batches" / "batch-000000000000.npz").exists()

    batches.clear()
    fail_at = 0
    monkeypatch.setattr(table_run.TableRun, "_warm_up", lambda self: None)
    done = challenge(*asked, "--checkpoint", kept, "--json", "-")
    assert done.code == 0
    assert batches == [480, 480]  # of three batches; the first was kept
    first, second = json.loads(done.out)["networks"]
    assert (first["from_checkpoint"], second["from_checkpoint"]) == (True, False)
    assert second["resumed_inputs"] == 16
    assert "16 inputs from the checkpoint" in done.err
    for name in ("categories_sha256", "executed_edges", "alive_inputs_per_layer"):
        assert [row[name] for row in (first, second)] == [row[name] for row in whole]
    assert not (kept / "1024x480.batches").exists()

    done = challenge(*asked, "--checkpoint", kept, "--json", "-")
    again = json.loads(done.out)
    assert all(row["from_checkpoint"] for row in again["networks"])
    assert again["warm_up_seconds"] is None
    assert "2 of them taken from the checkpoint" in done.err


def test_a_kept_network_is_judged_by_the_truth_at_hand(
    rows: Rows, store: Path, tmp_path: Path
) -> None:
    asked = ("--data", store, *ONE, "--checkpoint", tmp_path / "kept")
    assert rows(*asked)[0]["verdict"] == "PASSED"
    stored = json.loads((tmp_path / "kept" / "1024x120.json").read_text())
    stored["categories"] = stored["categories"][:-1]
    (tmp_path / "kept" / "1024x120.json").write_text(json.dumps(stored))
    assert rows(*asked, code=1)[0]["verdict"] == "FAILED"


def test_the_checkpoint_of_another_run_is_an_error(challenge: Cli, tmp_path: Path) -> None:
    kept, other = tmp_path / "kept", tmp_path / "other"
    record = kept / "1024x120.json"
    assert challenge(*ONE, "--checkpoint", kept).code == 0
    for more, parts in (
        (("--dtype", "float64"), ("dtype", "float32", "float64")),
        (("--exact-passes", "merge-inputs"), ("exact_passes", "merge-inputs")),
        (("--batch-size", 3), ("batch_size", "None", "3")),
        (("--seed", 1), ("network", "seed 0", "seed 1", "1024x120.json")),
        (("--first-inputs", 7), ("inputs", "40", "7")),
    ):
        expect_error(challenge(*ONE, *more, "--checkpoint", kept), str(kept), *parts)
    expect_error(challenge(*ONE, "--checkpoint", kept, backend="numba"), str(kept))
    # Another choice of networks is no other run.
    assert challenge(*TWO, "--checkpoint", kept).code == 0
    for content, parts in (("{}", ("damaged", "remove")), ('{"key": ', ("cannot be read",))):
        record.write_text(content)
        expect_error(challenge(*ONE, "--checkpoint", kept), record.name, *parts)
    other.mkdir()
    (other / "something").touch()
    expect_error(challenge(*ONE, "--checkpoint", other), "other", "new folder")
    expect_error(challenge(*ONE, "--checkpoint", other / "something"), "cannot hold")
