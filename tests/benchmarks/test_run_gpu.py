"""The benchmark of a GPU: rows, checks, targets, page and sanitizer, without a GPU."""

from __future__ import annotations

import copy
import gzip
import itertools
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import load_script
from cuda_emulation.emulated_backend import EmulatedCupyBackend
from cuda_emulation.emulated_device import compiler

import portable_spdnn as ps
from portable_spdnn.kernel_model import KernelModel, Limits
from portable_spdnn.plans.layer_loop import LayerLoopPlan
from portable_spdnn.plans.planner import make_plan
from portable_spdnn_cpu.scipy_backend import ScipyBackend
from portable_spdnn_gpu.device import limits

REPOSITORY = Path(__file__).resolve().parents[2]
LIMITS = Limits(flops=60e12, l1=32e12, l2=6e12, l3=4e12, memory=4e12)


class EveryOption(ScipyBackend):
    """Takes the options of a device and does what it always does."""

    plan_options = ("storage",)

    def measure_limits(self) -> Limits:
        return LIMITS


class WrongAnswers(EveryOption):
    """Loses the bias, so that other inputs survive."""

    def build_plan(self, network: ps.Network, options: ps.PlanOptions) -> ps.NetworkPlan:
        layers = [ps.Layer(layer.csr(), -2.0) for layer in network.layers]
        wrong = ps.Network(layers, network.y_max)
        return super().build_plan(wrong, options) or LayerLoopPlan(self, wrong, options)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("gpu/run_gpu")


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty images of 28 x 28, in MNIST's own format."""
    folder = tmp_path_factory.mktemp("mnist")
    images = np.zeros((40, 28, 28), np.uint8)
    for number, image in enumerate(images):
        image[4 : 6 + number % 20, 3 : 5 + number // 2] = 255
    header = b"\x00\x00\x08\x03" + np.array(images.shape, ">u4").tobytes()
    with gzip.open(folder / "train-images-idx3-ubyte.gz", "wb") as stream:
        stream.write(header + images.tobytes())
    return folder


@contextmanager
def peer_on(backend: ps.Backend) -> Iterator[None]:
    """Let another backend stand for cuSPARSE."""
    with pytest.MonkeyPatch.context() as patch:
        rows = sys.modules["network_rows"]
        patch.setattr(rows, "cusparse_plan", lambda _, network: make_plan(backend, network))
        yield


def run(
    script: ModuleType, mnist: Path, target: Path, backend: Any, *more: str
) -> tuple[int, dict[str, Any]]:
    arguments = ["--mnist", str(mnist), "--out", str(target), *more]
    code = script.main(arguments, backend)
    return code, json.loads(target.read_text())


@pytest.fixture(scope="module")
def done(
    script: ModuleType, mnist: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, dict[str, Any]]:
    """Record of a run in which everything goes well."""
    target = tmp_path_factory.mktemp("done") / "record.json"
    with peer_on(EveryOption()):
        # What compiles in the first network may predict an age for the second.
        cases = "--cases", "64x3,64x130,256x2", "--budget", "1000h"
        return run(script, mnist, target, EveryOption(), *cases)


def test_every_variant_is_checked_and_timed(done: tuple[int, dict[str, Any]]) -> None:
    code, record = done
    assert code == 0
    assert record["limits"]["flops"] == LIMITS.flops
    assert record["facts"] == {
        "backend": "scipy",
        "device": ScipyBackend().device,
        "gpu": False,
        "versions": ScipyBackend.availability().versions,
        "driver": None,
    }
    assert [(row["neurons"], row["layers"]) for row in record["networks"]] == [
        (64, 3), (64, 130), (256, 2)
    ]  # fmt: skip
    for row in record["networks"]:
        network = ps.radixnet(row["neurons"], row["layers"])
        assert row["edges"] == network.edges
        assert row["check"]["inputs"] == row["inputs"] == 40
        for variant in row["variants"].values():
            assert variant["verdict"] == "PASSED"
            assert variant["categories"] == row["check"]["categories"]
            assert variant["differs_from_first"] == 0
            least = min(variant["seconds"])
            assert variant["least_seconds"] == least
            assert variant["edge_rate"] == pytest.approx(40 * network.edges / least)
            assert 2 <= len(variant["seconds"]) <= 5
        compared = row["compared"]
        assert compared["layers"] == min(row["layers"], 120)
        assert compared["speed_up"] == pytest.approx(
            min(compared["cusparse_seconds"]) / min(compared["seconds"])
        )
    assert record["networks"][0]["check"]["categories"] > 0


def test_variants_are_left_out_where_that_is_asked(
    script: ModuleType, mnist: Path, tmp_path: Path
) -> None:
    options = "--cases", "64x3", "--no-float16", "--no-exact-passes", "--no-peer"
    _, record = run(script, mnist, tmp_path / "r.json", EveryOption(), *options)
    (row,) = record["networks"]
    assert row["variants"]["auto"]["verdict"] == "PASSED"
    for left_out in (row["variants"]["float16"], row["variants"]["exact passes"], row["compared"]):
        assert left_out == {"state": "skipped", "reason": "not asked for"}


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_an_emulated_device_runs_all_of_it(
    script: ModuleType, mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SECONDS", 0.002)
    monkeypatch.setattr(sys.modules["network_rows"], "MANY_INPUTS", 1)
    backend = EmulatedCupyBackend()
    code, record = run(
        script, mnist, tmp_path / "r.json", backend, "--cases", "64x3", "--row-budget", "0.1"
    )
    assert all(value > 0 for value in record["limits"].values())
    assert not record["facts"]["gpu"]
    assert [layer["design"] for layer in record["layers"]] == ["csr", "clustered", "staged"] * 2
    assert [layer["weights"] for layer in record["layers"]] == ["challenge"] * 3 + ["pruned"] * 3
    for layer in record["layers"]:
        assert (layer["state"], layer["edges"], layer["live_inputs"]) == ("done", 2048, 40)
        rate = 2048 * 40 / layer["least_seconds"]
        assert layer["executed_edge_rate"] == pytest.approx(rate)
        assert layer["flops"] == pytest.approx(2 * rate)
        assert layer["fraction_of_limit"] > 0
        assert layer["text"].endswith(f"% of what {layer['bound_by']} allows")
    auto = record["networks"][0]["variants"]["auto"]
    assert auto["verdict"] == "PASSED"
    assert auto["fraction_of_limit"] is None or auto["fraction_of_limit"] > 0
    profile = auto["profile"]
    assert profile["kernel_seconds"] > profile["gap_seconds"] >= 0
    assert profile["peak_memory"] > 0
    assert profile["layers_of_many_inputs"] == 3
    assert 0 < profile["least_fraction"] <= profile["median_fraction"]
    text = "\n".join(sys.modules["gpu_page"]._profiles(record))
    assert f"| {profile['layers_of_many_inputs']} | " in text
    assert record["networks"][0]["variants"]["float16"]["profile"] is not None
    # Options that this device does not have are recorded as such, and are no reason to stop.
    assert code == (1 if script.problems(record) else 0)


def test_the_limit_of_a_network_is_that_of_its_layers(script: ModuleType) -> None:
    rows = sys.modules["network_rows"]
    network = ps.radixnet(64, 3)
    bench = rows.Bench(ScipyBackend(), ScipyBackend(), LIMITS, None)
    models = [KernelModel({"l2": 4}, 2), KernelModel({"memory": 8}, 2), KernelModel({}, 2)]
    plan = SimpleNamespace(network=network, layer_models=lambda inputs: models)
    records = [SimpleNamespace(computed_inputs=n) for n in (100, 50, 0)]
    least = 2048 * (100 * 4 / LIMITS.l2 + 50 * 8 / LIMITS.memory)
    found = rows._limit(bench, plan, SimpleNamespace(records=records), 4 * least)
    assert found["bound_by"] == "memory"
    assert found["fraction_of_limit"] == pytest.approx(1 / 4)
    unknown = [*records[:2], SimpleNamespace(computed_inputs=None)]
    for some in (unknown, [SimpleNamespace(computed_inputs=0)] * 3):
        nothing = rows._limit(bench, plan, SimpleNamespace(records=some), 1.0)
        assert nothing == {"fraction_of_limit": None, "bound_by": None}


def test_wrong_categories_have_no_rate(
    script: ModuleType, mnist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, record = run(script, mnist, tmp_path / "r.json", WrongAnswers(), "--cases", "64x3")
    assert code == 1
    (row,) = record["networks"]
    for variant in row["variants"].values():
        assert variant["verdict"] == "WRONG"
        assert "edge_rate" not in variant
    assert "64 x 3, float16: categories are WRONG" in capsys.readouterr().err
    with peer_on(WrongAnswers()):
        code, record = run(script, mnist, tmp_path / "s.json", EveryOption(), "--cases", "64x3")
    assert code == 1
    (row,) = record["networks"]
    assert row["variants"]["auto"]["verdict"] == "PASSED"
    assert row["compared"]["verdict"] == "WRONG"
    assert "speed_up" not in row["compared"]


def test_what_fails_is_recorded_and_the_rest_goes_on(
    script: ModuleType, mnist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, record = run(script, mnist, tmp_path / "r.json", ScipyBackend(), "--cases", "48x3,64x3")
    assert code == 1
    broken, row = record["networks"]
    assert broken["state"] == "failed"
    assert broken["error"].startswith("InputError: neurons must be 16 * 2^s")
    assert row["variants"]["auto"]["verdict"] == "PASSED"
    assert row["variants"]["float16"]["error"].startswith("InputError: backend scipy takes no")
    assert row["compared"]["state"] == "failed"
    assert record["limits"] is None
    assert record["limits_error"].startswith("NotImplementedError: backend scipy does not measure")
    printed = capsys.readouterr()
    assert "64 x 3, cuSPARSE failed: InputError" in printed.err
    assert "64 x 3, auto: " in printed.out


def test_time_that_is_used_up_skips(script: ModuleType, mnist: Path, tmp_path: Path) -> None:
    code, record = run(
        script, mnist, tmp_path / "r.json", EveryOption(), "--cases", "64x3", "--budget", "0.001"
    )
    assert code == 0
    assert record["networks"] == [
        {"neurons": 64, "layers": 3, "state": "skipped", "reason": "the time is used up"}
    ]


def test_a_network_that_would_take_too_long_is_skipped(script: ModuleType, mnist: Path) -> None:
    options = script.parser().parse_args(["--budget", "100", "--inputs", "40"])
    one = script.Run(EveryOption(), script.find_images(mnist), options)
    network = {"neurons": 64, "layers": 3, "edges": 6144, "inputs": 40}
    spent = {"load_seconds": 1.0, "plan_seconds": 0.0, "inference_seconds": 1.0}
    apart = {"inputs_load_seconds": 0.0, "reference_seconds": 0.0}
    one.done.append({**network, **spent, **apart})
    one.apart = 7.0
    one.case(64, 3000)
    assert one.record["networks"][0]["state"] == "skipped"
    assert re.match(r"\d{4} s predicted, (99|100) s left", one.record["networks"][0]["reason"])


def test_a_part_that_needs_more_time_than_is_left_is_skipped(script: ModuleType) -> None:
    rows, budget = sys.modules["layer_rows"], sys.modules["budget"]
    work, time = lambda name: {"state": name}, budget.Budget(60, 60)
    assert rows.attempt(work, "done", time, 50.0) == {"state": "done"}
    skipped = rows.attempt(work, "done", time, 70.0)
    assert re.fullmatch("70 s needed, (59|60) s left", skipped["reason"])
    assert rows.attempt(lambda name: {}[name], "x", time) == {
        "state": "failed", "error": "KeyError: 'x'"
    }  # fmt: skip


def test_plans_are_repeated_within_the_time(script: ModuleType) -> None:
    budget = sys.modules["budget"]
    assert budget.Budget(60, 60).runs(lambda: 0.0) == [0.0] * budget.REPEAT
    assert budget.Budget(60, 0.5).runs(lambda: 1.0) == [1.0] * budget.LEAST_REPEAT
    assert budget.Budget(0.5, 60).runs(lambda: 1.0) == [1.0] * budget.LEAST_REPEAT


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--cases", "1024"], "--cases: '1024' is no network; give NEURONSxLAYERS"),
        (["--cases", "64x0"], "--cases: '64x0' is no network"),
        (["--budget", "soon"], "--budget is 'soon'; give a duration"),
        (["--row-budget", "0"], "--row-budget is '0'; give a duration"),
        (["--inputs", "0"], "--inputs is 0; give at least 1"),
        (["--mnist", "/nowhere"], r"/nowhere: holds no train-images-idx3-ubyte\.gz"),
        (["--page", "gpu.md"], "--page: scipy is on .*; the page is of a GPU"),
    ],
)
def test_what_cannot_be_run_is_said(
    script: ModuleType,
    mnist: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    reason: str,
) -> None:
    assert script.main(["--mnist", str(mnist), *arguments], EveryOption()) == 2
    assert re.search(reason, capsys.readouterr().err)


def test_without_a_gpu_the_reason_is_said(
    script: ModuleType,
    mnist: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from portable_spdnn_gpu.cupy_backend import CupyBackend

    absent = ps.Availability.no("there is no CUDA driver on this machine")
    monkeypatch.setattr(CupyBackend, "availability", classmethod(lambda cls: absent))
    assert script.main(["--mnist", str(mnist)]) == 2
    assert "there is no CUDA driver on this machine" in capsys.readouterr().err


# -- facts, targets and the page ------------------------------------------------------------


def on_gpu(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record as a GPU would have left it."""
    changed = copy.deepcopy(record)
    driver = {"driver_version": "580.1", "memory.total": "141 GiB"}
    changed["facts"] |= {"backend": "cupy", "device": "NVIDIA H200, sm_90", "gpu": True,
                         "driver": driver}  # fmt: skip
    changed["layers"] = [
        {"neurons": 64, "live_inputs": 20_000, "design": "csr", "state": "done",
         "least_seconds": 1e-4, "executed_edge_rate": 1e12, "fraction_of_limit": 0.4,
         "bound_by": "l2", "text": "1 T edges/s"},
        {"neurons": 64, "live_inputs": 20_000, "design": "clustered", "state": "done",
         "least_seconds": 1e-5, "executed_edge_rate": 1e13, "fraction_of_limit": 0.7,
         "bound_by": "memory", "text": "10 T edges/s"},
        {"neurons": 64, "live_inputs": 20_000, "design": "staged", "state": "failed",
         "error": "LaunchError: a | b\nc"},
        {"neurons": 256, "live_inputs": 9_999, "design": "clustered", "state": "done",
         "least_seconds": 1e-5, "executed_edge_rate": 1e13, "fraction_of_limit": 0.1,
         "bound_by": "memory", "text": "few inputs"},
    ]  # fmt: skip
    changed["networks"].append(
        {"neurons": 65536, "layers": 120, "state": "skipped", "reason": "90 s predicted, 9 s left"}
    )
    changed["targets"] = sys.modules["targets"].judged(changed)
    return changed


def test_targets_are_judged_by_right_answers(done: tuple[int, dict[str, Any]]) -> None:
    targets = sys.modules["targets"]
    record = on_gpu(done[1])
    record["networks"][0] |= {"neurons": 1024, "layers": 1920}
    auto = record["networks"][0]["variants"]["auto"]
    auto["edge_rate"] = 301e12
    # Half precision and exact passes are other matters.
    record["networks"][1] |= {"neurons": 65536, "layers": 1920}
    record["networks"][1]["variants"]["exact passes"]["edge_rate"] = 5001e12
    record["networks"][0]["variants"]["float16"]["edge_rate"] = 200e12
    for row, ratio in zip(record["networks"], (70.0, 50.0, 90.0), strict=False):
        row["compared"]["speed_up"] = ratio
    judged = {one["name"]: one for one in targets.judged(record)}
    name = "1024 x 1920, challenge edge rate"
    assert judged[name] == {"name": name, "target": 300e12, "measured": 301e12, "met": True}
    assert judged["4096 x 1920, challenge edge rate"]["met"] is None
    exact = judged["65536 x 1920, challenge edge rate with exact passes"]
    assert (exact["target"], exact["measured"], exact["met"]) == (5000e12, 5001e12, True)
    assert judged["times cuSPARSE, least"]["measured"] == 50
    assert judged["times cuSPARSE, least"]["met"]
    # The best variant of a layer counts, and layers with fewer active inputs do not.
    assert judged["part of the binding limit, least"]["measured"] == 0.7
    auto["edge_rate"] = 119e12
    assert targets.judged(record)[0]["met"] is False
    auto["verdict"] = "WRONG"
    assert targets.judged(record)[0]["met"] is None


def test_targets_are_those_that_the_page_on_gpus_states() -> None:
    targets = sys.modules["targets"]
    text = (REPOSITORY / "docs" / "gpu.md").read_text()
    rows = re.findall(r"^\| ([\d,]+) x ([\d,]+) \| (\d+) \| ([\d.]+) \| ", text, re.MULTILINE)
    stated = {
        tuple(int(value.replace(",", "")) for value in row[:2]): (float(row[2]), float(row[3]))
        for row in rows
    }
    assert stated == {
        key: (rate / 1e12, pytest.approx(targets.champion(*key) / 1e12))
        for key, rate in targets.EDGE_RATES.items()
    }
    for (neurons, layers), rate in targets.EXACT_EDGE_RATES.items():
        row = f"| {neurons:,} x {layers:,}, with exact passes | {rate / 1e12:,.0f} | "
        assert row in text
    assert f"same work | {targets.CUSPARSE_SPEED_UP} |" in text
    assert f"active inputs | {100 * targets.FRACTION_OF_LIMIT:.0f} % |" in text


def test_the_page_is_of_gpus_alone(done: tuple[int, dict[str, Any]], tmp_path: Path) -> None:
    gpu_page = sys.modules["gpu_page"]
    with pytest.raises(ps.InputError, match=r"r\.json: was measured on .*, not on a GPU"):
        gpu_page.page(done[1], "r.json")
    record = on_gpu(done[1])
    text = gpu_page.page(record, "2026-01-01-nvidia-h200-gpu.json")
    assert "NVIDIA H200, sm_90; the record is `benchmarks/results/2026-01-01-nvidia" in text
    assert "- driver: driver_version 580.1, memory.total 141 GiB" in text
    assert "| 64 x 3 | 40 | float16 | " in text
    assert "| 64 x 120 of 130 | 40 | " in text
    assert "skipped: 90 s predicted, 9 s left" in text
    assert "failed: LaunchError: a \\| b c |" in text
    assert "| 1024 x 1920, challenge edge rate | 300 TeraEdges/s | - | not measured |" in text
    widths = {
        len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("| ")
    }
    assert widths == {11, 7, 5}

    stored, page = tmp_path / "r.json", tmp_path / "gpu.md"
    stored.write_text(json.dumps(record))
    assert gpu_page.main([str(stored), "--page", str(page)]) == 0
    assert page.read_text() == gpu_page.page(record, "r.json")
    stored.write_text(json.dumps(done[1]))
    page.unlink()
    assert gpu_page.main([str(stored), "--page", str(page)]) == 2
    assert not page.exists()


def test_the_stored_page_is_that_of_a_stored_run(script: ModuleType) -> None:
    gpu_page = sys.modules["gpu_page"]
    if not gpu_page.PAGE.exists():
        assert "## Targets, not yet measured" in (REPOSITORY / "docs" / "gpu.md").read_text()
        return
    text = gpu_page.PAGE.read_text()
    source = re.search(r"`benchmarks/results/([\w.-]+\.json)`", text)
    assert source is not None
    record = json.loads((REPOSITORY / "benchmarks" / "results" / source[1]).read_text())
    assert text == gpu_page.page(record, source[1])


def test_a_device_names_a_file(script: ModuleType) -> None:
    assert script.device_slug("NVIDIA H200, sm_90") == "nvidia-h200"
    assert script.device_slug("Tesla V100-SXM2-16GB, sm_70") == "tesla-v100-sxm2-16gb"


def tool(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_facts_of_the_driver(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = sys.modules["device_facts"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert facts.driver_facts() is None
    assert facts.commit() is None  # no git either
    tool(tmp_path, "nvidia-smi", "echo '580.159, 143771 MiB, 1980 MHz, 3201 MHz, 700.00 W'")
    assert facts.driver_facts() == {
        "driver_version": "580.159", "memory.total": "143771 MiB", "clocks.max.sm": "1980 MHz",
        "clocks.max.memory": "3201 MHz", "power.limit": "700.00 W",
    }  # fmt: skip
    tool(tmp_path, "nvidia-smi", "exit 9")
    assert facts.driver_facts() is None


# -- all kernels -----------------------------------------------------------------------------


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_all_kernels_beside_a_reference(capsys: pytest.CaptureFixture[str]) -> None:
    script = load_script("gpu/check_kernels")
    assert script.main(["--cases", "64x3,64x3v", "--inputs", "40"], EmulatedCupyBackend()) == 0
    out = capsys.readouterr().out
    for case, kernel in itertools.product(("64x3", "64x3v"), script.KERNELS):
        for storage in ("same", "float16"):
            assert f"{case}, {kernel}, storage {storage}: agrees: largest difference" in out
    assert out.count("exact passes, storage") == 4
    assert [layer.constant for layer in script.network_of("64x2v")] == [None, None]
    assert "0 of 0 categories" not in out
    wrong = WrongAnswers()
    wrong.plan_options = ("storage", "kernel")  # type: ignore[assignment]
    wrong.kernels = script.KERNELS
    assert script.main(["--cases", "64x3", "--inputs", "40"], wrong) == 1
    assert script.main(["--cases", "64x3,64"], wrong) == 2
    assert "WRONG: largest difference" in capsys.readouterr().out


# -- compute-sanitizer ----------------------------------------------------------------------


def test_the_sanitizer_runs_all_its_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_script("gpu/sanitize")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert script.main([]) == 2
    assert "compute-sanitizer is not on the PATH" in capsys.readouterr().err

    log = tmp_path / "log"
    # Finds something with racecheck alone.
    tool(tmp_path, "compute-sanitizer", f'echo "$@" >> {log}\n[ "$2" != racecheck ]')
    absent = ps.Availability.no("no device")
    monkeypatch.setattr("portable_spdnn_gpu.device.availability.cuda_availability", lambda: absent)
    assert script.main([]) == 2
    assert "sanitize: no device" in capsys.readouterr().err
    there = ps.Availability.yes("device", {})
    monkeypatch.setattr("portable_spdnn_gpu.device.availability.cuda_availability", lambda: there)
    assert script.main(["-k", "product"]) == 1
    assert capsys.readouterr().out.endswith("failed: racecheck\n")
    calls = log.read_text().splitlines()
    assert [call.split()[1] for call in calls] == ["memcheck", "racecheck", "synccheck"]
    assert all(f"{sys.executable} {script.__file__} --inside -k product" in one for one in calls)
    assert script.main(["--checks", "memcheck"]) == 0
    tool(tmp_path, "compute-sanitizer", "while :; do :; done")
    capsys.readouterr()
    assert script.main(["--checks", "memcheck", "--seconds", "0.1"]) == 1
    assert "failed: memcheck (not done after 0.1 s in all)" in capsys.readouterr().out
