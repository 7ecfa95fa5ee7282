"""The table of the official networks: choice, sources, budgets, resuming, and what it prints."""

from __future__ import annotations

import json
import math
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Cli, Done

import portable_spdnn as ps
from portable_spdnn.challenge_table import choose_configurations, memory_guard, series
from portable_spdnn.challenge_table.memory_guard import SHARE, Decision, decide, needed_bytes
from portable_spdnn.challenge_table.published import HIDAYETOGLU, REFERENCES, SERIES
from portable_spdnn.challenge_table.records import Records
from portable_spdnn.challenge_table.sources import GENERATED, STORE, TEXT, Sources
from portable_spdnn.challenge_table.time_budget import Measured, Predictor, parse_duration
from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.configurations import CONFIGURATIONS, INPUTS, Configuration
from portable_spdnn.graphchallenge.folder_layout import layers_present
from portable_spdnn.host import available_bytes, resident_bytes
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.workloads.streamed_network import LayerFacts

SMALL = Configuration(1024, 120, -0.3)
DEEP = Configuration(1024, 480, -0.3)
FIRST = 40  # inputs; some die and some survive


@pytest.fixture
def challenge(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Cli:
    """Run the command in this process, on scipy unless told otherwise."""
    monkeypatch.setattr(series, "WARM_UP_INPUTS", 8)  # the time it takes is of no interest
    return lambda *arguments, backend="scipy": cli("challenge", "--backend", backend, *arguments)


@pytest.fixture(scope="module")
def reference() -> ps.Result:
    """What plain inference says of the generated 1024 x 120 network and the first digits."""
    network = ps.radixnet(1024, layers=120, seed=0)
    result = ps.infer(network, ps.digits_features(1024)[:FIRST], "scipy")
    assert 0 < result.categories.size < FIRST
    return result


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, reference: ps.Result) -> Path:
    """A packed store with the same network and inputs, and their truth."""
    from portable_spdnn.io.packed_store import PackedStoreWriter

    path = tmp_path_factory.mktemp("stores") / "small.spdnn"
    with PackedStoreWriter(path, y_max=32.0) as writer:
        writer.set_truth(120, reference.categories)
        writer.set_inputs(ps.digits_features(1024)[:FIRST])
        for number, layer in enumerate(ps.radixnet(1024, layers=120, seed=0), start=1):
            writer.add_layer(number, layer)
    return path


def rows_of(done: Done) -> list[dict[str, Any]]:
    networks: list[dict[str, Any]] = json.loads(done.out)["networks"]
    return networks


def expect_error(done: Done, *parts: str) -> None:
    assert done.code == 2, done
    line = done.err.splitlines()[-1]
    assert line.startswith("portable-spdnn: error: ")
    for part in parts:
        assert part in line, (part, line)
    assert "Traceback" not in done.err


# -- choice -------------------------------------------------------------------------------------


def test_the_lists_choose_from_the_official_table() -> None:
    assert choose_configurations("1024,4096,16384,65536", "120,480,1920") == CONFIGURATIONS
    assert choose_configurations(" 1024 ,", "480,120") == (SMALL, DEEP)


@pytest.mark.parametrize(
    ("sizes", "layers", "parts"),
    [
        ("1024,2048", "120", ("--sizes", "'2048'", "1024, 4096, 16384, 65536")),
        ("1024", "12", ("--layers", "'12'", "120, 480, 1920")),
        (",", "120", ("--sizes", "','")),
        ("1024", "01920", ("--layers", "'01920'")),
    ],
)
def test_other_values_are_errors(sizes: str, layers: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as error:
        choose_configurations(sizes, layers)
    assert all(part in str(error.value) for part in parts)


# -- sources ------------------------------------------------------------------------------------


def test_layers_present_counts_up_to_the_first_gap(tmp_path: Path) -> None:
    folder = tmp_path / "neuron16"
    folder.mkdir()
    assert layers_present(folder, 16, 3) == 0
    for name in ("n16-l1.tsv", "n16-l2.tsv", "n16-l4.tsv", "n32-l3.tsv", "n16-l3.tsv.orig"):
        (folder / name).touch()
    assert [layers_present(folder, 16, wanted) for wanted in (1, 2, 3, 4)] == [1, 2, 2, 2]
    archive = tmp_path / "neuron16.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "neuron16")
    assert [layers_present(archive, 16, wanted) for wanted in (1, 2, 3, 4)] == [1, 2, 2, 2]
    archive.write_bytes(archive.read_bytes()[:-9])
    with pytest.raises(InputError, match="truncated"):
        layers_present(archive, 16, 4)


def test_a_store_serves_what_it_holds_and_the_rest_is_generated(store: Path) -> None:
    for data in (store, store.parent):
        sources = Sources(data, 0, CONFIGURATIONS)
        assert (sources.network(SMALL).kind, sources.network(SMALL).path) == (STORE, store)
        assert sources.network(DEEP).kind == GENERATED
        assert (sources.inputs_path(1024), sources.inputs_path(4096)) == (store, None)
        truth = sources.truth(SMALL, FIRST, FIRST)
        assert truth is not None
        assert truth.categories.size > 0
        assert sources.truth(DEEP, FIRST, FIRST) is None
    assert Sources(None, 0, CONFIGURATIONS).network(SMALL).kind == GENERATED


def test_text_files_serve_as_deep_as_they_are(tmp_path: Path) -> None:
    from portable_spdnn.workloads.generation import generate_radixnet

    generate_radixnet(tmp_path / "data", 1024, 3, features=None)
    folder = tmp_path / "data" / "neuron1024"
    assert Sources(tmp_path / "data", 0, [SMALL]).network(SMALL).kind == GENERATED
    shallow = Configuration(1024, 3, -0.3)
    source = Sources(tmp_path / "data", 0, [shallow]).network(shallow)
    assert (source.kind, source.path) == (TEXT, tmp_path / "data")
    assert sum(one.nnz for one in source.facts) == shallow.edges
    (folder / "n1024-l2.tsv").write_text("1\t1\t1\n")
    assert Sources(tmp_path / "data", 0, [shallow]).network(shallow).identity != source.identity


def test_data_that_serves_nothing_is_an_error(store: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="4096 neurons"):
        Sources(store, 0, [CONFIGURATIONS[3]])
    with pytest.raises(InputError, match="absent"):
        Sources(tmp_path / "absent", 0, CONFIGURATIONS)


# -- time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), (" .5 H ", 1800), ("1.5m", 90)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text, "--time-budget") == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "soon", "1d", "2hs", "nan", "inf", "9" * 400])
def test_other_durations_are_errors(text: str) -> None:
    with pytest.raises(InputError, match=r"--time-budget is .*10m"):
        parse_duration(text, "--time-budget")


def test_a_prediction_goes_by_the_nearest_network() -> None:
    predictor = Predictor()
    assert math.isnan(predictor.predict(SMALL, 10))
    predictor.calibration = Measured(1024, 120, SMALL.edges, 100, 1.0, 2.0)
    # Twice the inputs run twice as long; four times the edges take four times as long in all.
    assert predictor.predict(SMALL, 200) == 1 + 4
    assert predictor.predict(DEEP, 200) == 4 * (1 + 4)
    predictor.add(Measured(1024, 480, DEEP.edges, 100, 8.0, 16.0))
    assert predictor.predict(SMALL, 100) == (8 + 16) / 4
    wide = Configuration(4096, 120, -0.35)
    predictor.add(Measured(4096, 120, wide.edges, 100, 3.0, 5.0))
    assert predictor.predict(Configuration(4096, 1920, -0.35), 100) == 16 * (3 + 5)
    assert predictor.predict(Configuration(16384, 120, -0.4), 100) == 4 * (3 + 5)
    assert predictor.predict(SMALL, 100) == (8 + 16) / 4


# -- memory -------------------------------------------------------------------------------------


def write_proc(root: Path, groups: str, meminfo: str = "MemAvailable:   1000 kB\n") -> Path:
    (root / "self").mkdir(parents=True)
    (root / "meminfo").write_text(f"MemTotal:       5000 kB\n{meminfo}")
    (root / "self" / "cgroup").write_text(groups)
    return root


def write_group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_available_memory_is_the_least_of_machine_and_control_groups(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "0::/outer/inner\n")
    groups = tmp_path / "cgroup"
    assert available_bytes(proc, groups) == 1000 * 1024
    stat = "anon 1\ninactive_file 300"
    write_group(groups / "outer", memory__max=900_000, memory__current=500_000, memory__stat=stat)
    write_group(groups / "outer" / "inner", memory__max="max", memory__current=500_000)
    assert available_bytes(proc, groups) == 400_300
    # A container finds its own group at the mount point.
    write_group(groups, memory__max=600_000, memory__current=500_000)
    assert available_bytes(proc, groups) == 100_000
    write_group(groups, memory__max=400_000)
    assert available_bytes(proc, groups) == 0


def test_available_memory_under_the_first_version_of_control_groups(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "5:cpu,cpuacct:/x\n4:memory:/jobs/a\n0::/\n")
    group = tmp_path / "cgroup" / "memory" / "jobs" / "a"
    stat = "inactive_file 7\ntotal_inactive_file 50"
    write_group(group, memory__limit_in_bytes=2000, memory__usage_in_bytes=1500, memory__stat=stat)
    assert available_bytes(proc, tmp_path / "cgroup") == 550


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path) is None
    proc = write_proc(tmp_path / "proc", "", meminfo="")
    assert available_bytes(proc, tmp_path) is None


def test_a_network_is_streamed_where_it_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = [LayerFacts((1024, 1024), 32 * 1024, 0, True)] * 120
    options = PlanOptions()
    needed = needed_bytes(facts, 10, options)
    # 16-bit indices as loaded; an index of 4 bytes and a weight as planned, for each edge.
    assert needed > SMALL.edges * (2 + 4 + 4)
    assert needed < 1.3 * SMALL.edges * (2 + 4 + 4)
    assert needed_bytes(facts, 1000, options) - needed == 3 * 990 * 2 * 1024 * 4
    assert needed_bytes(facts, 1000, PlanOptions(batch_size=10)) == needed
    assert needed_bytes(facts, 10, PlanOptions(np.float64)) > needed
    assert decide(facts, 10, options, math.ceil(needed / SHARE)) == Decision(None, True)
    less = int(0.9 * needed / SHARE)
    decision = decide(facts, 10, options, less)
    assert decision.streamed
    assert decision.automatic
    assert decision.memory is not None
    assert abs(decision.memory - resident_bytes() - SHARE * less) < 50e6
    monkeypatch.setattr(memory_guard, "available_bytes", lambda: None)
    assert not decide(facts, 10, options).streamed
    assert decide(facts, 10, PlanOptions(memory=5)) == Decision(5, False)


# -- published figures --------------------------------------------------------------------------


def test_printed_rates_and_times_agree() -> None:
    for one in SERIES:
        for (neurons, layers), seconds in one.seconds.items():
            # Times are printed to a tenth of a second, or to a second; rates to a tenth.
            half = 0.5 if one.program == "MATLAB" else 0.05
            work = 32 * neurons * layers * INPUTS
            rate = one.edge_rates[neurons, layers]
            assert work / (seconds + half) / 1.02 < rate + 0.05e9, (one.where, neurons, layers)
            assert rate - 0.05e9 < 1.02 * work / (seconds - half), (one.where, neurons, layers)


def test_every_series_has_a_source_and_official_networks() -> None:
    official = {(one.neurons, one.layers) for one in CONFIGURATIONS}
    for one in SERIES:
        assert set(one.edge_rates) <= official
        assert one.source.citation
        assert one.source.hardware
        assert one.where
        assert (one.source is HIDAYETOGLU) == (one.threads is None)
    assert sum(len(one.series) for one in REFERENCES) == len(SERIES)


def test_a_reference_is_the_fastest_of_its_series() -> None:
    single, many, gpu = REFERENCES
    assert single.edge_rate(SMALL) == 10.0e9
    assert many.edge_rate(SMALL) == 164.9e9
    assert many.edge_rate(DEEP) == 209.2e9
    assert gpu.edge_rate(SMALL) is None
    assert gpu.edge_rate(CONFIGURATIONS[-1]) == 9.3e12


# -- the command --------------------------------------------------------------------------------

ONE = ("--sizes", 1024, "--layers", 120, "--first-inputs", FIRST)
TWO = ("--sizes", 1024, "--layers", "120,480", "--first-inputs", FIRST)


@pytest.mark.parametrize("backend", ["scipy", "numba"])
def test_the_official_network_passes(challenge: Cli, shared: Path, backend: str) -> None:
    data = shared / "graphchallenge"
    done = challenge(
        "--data", data, "--sizes", 1024, "--layers", 120, "--json", "-", backend=backend
    )
    assert done.code == 0
    (row,) = rows_of(done)
    assert (row["state"], row["network_kind"], row["inputs_kind"]) == ("done", TEXT, TEXT)
    assert (row["verdict"], row["inputs"], row["categories_count"]) == ("PASSED", 1200, 19)
    assert "PASSED (truth)" in done.err


def test_without_data_everything_is_generated(challenge: Cli, reference: ps.Result) -> None:
    done = challenge(*ONE, "--json", "-")
    assert done.code == 0
    (row,) = rows_of(done)
    assert (row["network_kind"], row["inputs_kind"]) == (GENERATED, "bundled digits")
    assert row["categories_count"] == reference.categories.size
    assert row["verdict"] is None
    assert "no truth" in done.err
    (verified,) = rows_of(challenge(*ONE, "--verify", "--json", "-"))
    assert verified["verdict"] == "PASSED"
    assert verified["verdict_against"] == "the serial scipy reference"


def test_the_truth_of_a_store_judges(challenge: Cli, store: Path, tmp_path: Path) -> None:
    from portable_spdnn.workloads.loading import load_network

    done = challenge("--data", store, "--layers", "120", "--sizes", "1024")
    assert done.code == 0
    assert "PASSED (truth)" in done.out
    assert "packed store" in done.out
    from portable_spdnn.io.packed_store import PackedStoreWriter

    wrong = tmp_path / "wrong.spdnn"
    with PackedStoreWriter(wrong, y_max=32.0) as writer:
        writer.set_truth(120, np.array([0]))
        writer.set_inputs(ps.digits_features(1024)[:FIRST])
        for number, layer in enumerate(load_network(store), start=1):
            writer.add_layer(number, layer)
    done = challenge("--data", tmp_path, "--layers", "120", "--sizes", "1024")
    assert done.code == 1
    assert "FAILED (truth)" in done.out
    assert "1 WRONG" in done.out
    # A wrong row does not keep a deeper network of the same folder from running.
    done = challenge("--data", tmp_path, *TWO[2:], "--sizes", "1024", "--json", "-")
    assert done.code == 1
    assert [row["verdict"] for row in rows_of(done)] == ["FAILED", None]


def test_images_serve_every_size_and_text_only_one(challenge: Cli, tmp_path: Path) -> None:
    images = tmp_path / "images-idx3-ubyte"
    pixels = np.zeros((4, 8, 8), np.uint8)
    pixels[1] = 255
    images.write_bytes(np.array([0x803, 4, 8, 8], ">u4").tobytes() + pixels.tobytes())
    done = challenge(
        "--sizes", "1024,4096", "--layers", 120, "--inputs", images, "--json", "-",
        backend="numba",
    )  # fmt: skip
    assert [row["categories_count"] for row in rows_of(done)] == [1, 1]
    assert [row["inputs_kind"] for row in rows_of(done)] == [images.name] * 2
    text = tmp_path / "sparse-images-1024.tsv"
    text.write_text("1\t5\t1\n2\t7\t1\n")
    expect_error(challenge("--sizes", "1024,4096", "--inputs", text), str(text), "--sizes")
    expect_error(challenge("--sizes", "1024,4096", "--inputs", tmp_path), "sparse-images-4096.tsv")
    (row,) = rows_of(challenge("--sizes", 1024, "--layers", 120, "--inputs", text, "--json", "-"))
    assert row["inputs"] == 2


def test_markdown_has_every_column_and_every_source(challenge: Cli, tmp_path: Path) -> None:
    target = tmp_path / "table.md"
    done = challenge(
        *ONE, "--exact-passes", "merge-inputs", "--threads", 1, "--markdown", target,
        backend="numba",
    )  # fmt: skip
    assert done.code == 0
    text = target.read_text()
    table = [line.split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 3
    assert len({len(line) for line in table}) == 1
    cells = dict(zip(*(
        [cell.strip("| ") for cell in line] for line in (table[0], table[2])
    ), strict=True))  # fmt: skip
    assert cells["neurons"] == "1024"
    assert cells["layers"] == "120"
    assert cells["edges"] == str(SMALL.edges)
    assert float(cells["seconds"]) > 0
    assert cells["challenge edge rate"].endswith("Edges/s")
    assert cells["executed edge rate"].endswith("Edges/s")
    assert cells["GraphBLAS, 1 thread [^1]"] == "10 GigaEdges/s"
    assert cells["GraphBLAS, 40 threads [^1]"] == "165 GigaEdges/s"
    assert cells["SpDNN, one A100 [^2]"] == "-"
    for part in (
        "exact passes: merge-inputs", "threads: 1", f"portable_spdnn {ps.__version__}",
        "not measured here", "generated", "180 TeraEdges/s", "Kokkos Kernels",
    ):  # fmt: skip
        assert part in text, part
    # Each mark has its footnote.
    marks = set(re.findall(r"\[\^(\d+)\](?!:)", text))
    assert marks == set(re.findall(r"^\[\^(\d+)\]: .*Hardware: ", text, re.MULTILINE))


def test_markdown_and_json_on_standard_output_stand_alone(challenge: Cli) -> None:
    done = challenge(*ONE, "--markdown", "-")
    assert done.out.startswith("# ")
    assert "challenge edge rate" in done.err
    expect_error(challenge(*ONE, "--markdown", "-", "--json", "-"), "--json", "--markdown")


def test_json_has_the_options_and_the_published_figures(challenge: Cli) -> None:
    whole = json.loads(challenge(*ONE, "--json", "-").out)
    assert whole["backend"] == "scipy"
    assert whole["threads"] == 1
    assert whole["exact_passes"] == []
    assert whole["versions"]["portable_spdnn"] == ps.__version__
    figures = [figure for one in whole["published"] for figure in one["figures"]]
    assert {"neurons": 1024, "layers": 120, "edge_rate": 10e9, "seconds": 24} in figures
    (row,) = whole["networks"]
    assert row["edge_rate"] == pytest.approx(FIRST * SMALL.edges / row["inference_seconds"])


# -- time budget, memory ------------------------------------------------------------------------


def test_what_would_not_fit_in_the_time_is_skipped(
    challenge: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    predict = Predictor.predict

    def slow_when_deep(self: Predictor, configuration: Configuration, inputs: int) -> float:
        seconds = predict(self, configuration, inputs)
        return 1e6 if configuration.layers == 480 else seconds

    monkeypatch.setattr(Predictor, "predict", slow_when_deep)
    target = tmp_path / "table.md"
    done = challenge(*TWO, "--time-budget", "1h", "--json", "-", "--markdown", target)
    assert done.code == 0
    first, second = rows_of(done)
    assert first["state"] == "done"
    assert 0 < first["predicted_seconds"] < 3600
    assert second["state"] == "skipped"
    assert second["predicted_seconds"] == 1e6
    assert "1e+06 s predicted" in second["skipped_because"]
    assert "verdict" not in second
    assert "1e+06 s predicted" in done.err
    assert "| skipped | 1e+06 s predicted" in target.read_text()


def test_no_time_at_all_runs_nothing(challenge: Cli) -> None:
    done = challenge(*TWO, "--time-budget", "0.001s", "--json", "-")
    assert done.code == 0
    assert [row["state"] for row in rows_of(done)] == ["skipped", "skipped"]
    assert all(row["predicted_seconds"] > 0 for row in rows_of(done))
    expect_error(challenge(*TWO, "--time-budget", "soon"), "--time-budget", "soon")


def test_a_network_that_does_not_fit_is_streamed_by_itself(
    challenge: Cli, monkeypatch: pytest.MonkeyPatch, reference: ps.Result
) -> None:
    deepest = ("--sizes", 1024, "--layers", "120,1920", "--first-inputs", FIRST, "--json", "-")
    held = rows_of(challenge(*deepest, backend="numba"))
    available = 700 << 20
    monkeypatch.setattr(memory_guard, "available_bytes", lambda: available)
    done = challenge(*deepest, backend="numba")
    assert done.code == 0
    small, large = rows_of(done)
    assert small["memory"] is None
    assert large["memory"] > SHARE * available
    assert large["memory_automatic"] is True
    assert any("streamed in" in line for line in large["plan"])
    assert "streamed in" in done.err
    assert [row["categories_sha256"] for row in (small, large)] == [
        row["categories_sha256"] for row in held
    ]
    assert small["categories_count"] == reference.categories.size


def test_memory_streams_every_network(challenge: Cli, store: Path, tmp_path: Path) -> None:
    allowed = resident_bytes() + (500 << 20)
    done = challenge(
        "--data", store, "--sizes", 1024, "--layers", "120,480", "--memory", allowed,
        "--checkpoint", tmp_path / "kept", "--json", "-", backend="numba",
    )  # fmt: skip
    assert done.code == 0
    assert [row["memory"] for row in rows_of(done)] == [allowed] * 2
    assert [row["verdict"] for row in rows_of(done)] == ["PASSED", None]
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == ["1024x120.json", "1024x480.json", "challenge.json"]
    expect_error(challenge(*ONE, "--memory", "some"), "--memory", "some")


def test_text_files_are_not_streamed(
    challenge: Cli, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ("--data", shared / "graphchallenge", *ONE)
    expect_error(challenge(*data, "--memory", "2GiB"), "portable-spdnn convert")
    monkeypatch.setattr(memory_guard, "available_bytes", lambda: 1 << 20)
    (row,) = rows_of(challenge(*data, "--json", "-"))
    assert row["state"] == "skipped"
    assert "portable-spdnn convert" in row["skipped_because"]


# -- resuming -----------------------------------------------------------------------------------


def test_an_interrupted_table_goes_on(
    challenge: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from portable_spdnn.plans.layer_loop import LayerLoopPlan

    kept = tmp_path / "kept"
    arguments = (*TWO, "--batch-size", 16, "--checkpoint", kept, "--json", "-")
    whole = rows_of(challenge(*TWO, "--batch-size", 16, "--json", "-"))
    run_batch = LayerLoopPlan.run_batch
    batches = []

    def fail_in_the_second_network(self: Any, *rest: Any) -> Any:
        batches.append(len(self.network))
        if batches.count(480) == 2:
            raise InputError("the power failed")
        return run_batch(self, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(LayerLoopPlan, "run_batch", fail_in_the_second_network)
        done = challenge(*arguments)
    expect_error(done, "the power failed")
    assert done.out == ""
    assert "1 of 2 networks done" in done.err
    assert (kept / "1024x480.batches" / "batch-000000000000.npz").exists()

    with monkeypatch.context() as patch:
        batches.clear()
        patch.setattr(
            LayerLoopPlan,
            "run_batch",
            lambda self, *rest: batches.append(len(self.network)) or run_batch(self, *rest),
        )
        patch.setattr(series.Series, "_warm_up", lambda self: None)
        done = challenge(*arguments)
    assert done.code == 0
    assert batches == [480, 480]  # of three batches; the first was kept
    first, second = rows_of(done)
    assert (first["from_checkpoint"], second["from_checkpoint"]) == (True, False)
    assert second["resumed_inputs"] == 16
    assert "from the checkpoint" in done.err
    assert "16 inputs from the checkpoint" in done.err
    for name in ("categories_sha256", "executed_edges", "alive_inputs_per_layer"):
        assert [row[name] for row in (first, second)] == [row[name] for row in whole]
    assert not (kept / "1024x480.batches").exists()

    done = challenge(*arguments)
    assert all(row["from_checkpoint"] for row in rows_of(done))
    assert json.loads(done.out)["warm_up_seconds"] is None


def test_a_kept_network_is_judged_by_the_truth_at_hand(
    challenge: Cli, store: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "network.spdnn").write_bytes(store.read_bytes())
    arguments = ("--data", data, "--sizes", 1024, "--layers", 120, "--checkpoint",
                 tmp_path / "kept", "--json", "-")  # fmt: skip
    assert rows_of(challenge(*arguments))[0]["verdict"] == "PASSED"
    stored = json.loads((tmp_path / "kept" / "1024x120.json").read_text())
    stored["categories"] = stored["categories"][:-1]
    (tmp_path / "kept" / "1024x120.json").write_text(json.dumps(stored))
    done = challenge(*arguments)
    assert done.code == 1
    assert rows_of(done)[0]["verdict"] == "FAILED"


def test_the_checkpoint_of_another_run_is_an_error(challenge: Cli, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
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
    (kept / "1024x120.json").write_text("{}")
    expect_error(challenge(*ONE, "--checkpoint", kept), "1024x120.json", "damaged", "remove")
    (kept / "1024x120.json").write_text('{"key": ')
    expect_error(challenge(*ONE, "--checkpoint", kept), "1024x120.json", "cannot be read")
    other = tmp_path / "other"
    other.mkdir()
    (other / "something").touch()
    expect_error(challenge(*ONE, "--checkpoint", other), "other", "new folder")
    expect_error(challenge(*ONE, "--checkpoint", other / "something"), "cannot hold")


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    records = Records(tmp_path / "kept", {"version": "1"})
    assert not records.holds(SMALL)
    assert records.load(SMALL, {"network": "a"}) is None
    records.batches(SMALL, False).mkdir()
    records.batches(SMALL, True).mkdir()
    records.save(SMALL, {"network": "a"}, {"edges": 1}, [3, 5])
    assert Records(tmp_path / "kept", {"version": "1"}).load(SMALL, {"network": "a"}) == (
        {"edges": 1},
        [3, 5],
    )
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "1024x120.json",
        "challenge.json",
    ]
    with pytest.raises(InputError, match="its network is a, here it is b"):
        records.load(SMALL, {"network": "b"})
    with pytest.raises(InputError, match="its version is 1, here it is 2"):
        Records(tmp_path / "kept", {"version": "2"})


# -- usage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--sizes", "2048"), ("--sizes", "2048", "65536")),
        (("--layers", "7"), ("--layers", "7", "1920")),
        (("--data", "/nowhere"), ("/nowhere", "no such file or folder")),
        (("--inputs", "/nowhere.tsv"), ("/nowhere.tsv",)),
        (("--first-inputs", "5000"), ("5000", "1797")),
        (("--exact-passes", "magic"), ("magic",)),
    ],
)
def test_bad_requests(challenge: Cli, arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    done = challenge(*arguments)
    expect_error(done, *parts)
    assert done.out == ""
