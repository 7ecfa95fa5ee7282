"""MPI jobs on one machine: the same answers on 1, 2 and 3 ranks; failures end the job."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from mpi_job import run_job

import portable_spdnn as ps
from portable_spdnn.mpi.ranks import Ranks, launched_rank, launched_ranks
from portable_spdnn.mpi.run import run_on_ranks
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.workloads.loading import convert

CHECKS = Path(__file__).with_name("rank_checks.py")
COMMANDS = Path(__file__).with_name("commands_in_turn.py")
BACKENDS = [info.name for info in ps.backends() if info.availability.available]


def run_in_turn(ranks: int, *commands: list[object]) -> list[str]:
    """Run commands one after the other, which must succeed, and return what each printed."""
    as_json = json.dumps([list(map(str, command)) for command in commands])
    done = run_job(ranks, "-m", "mpi4py", COMMANDS, as_json)
    assert done.returncode == 0, done.stdout + done.stderr
    *printed, rest = done.stdout.split("\f")
    assert len(printed) == len(commands)
    assert not rest
    return printed


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_give_what_one_process_gives(ranks: int, tmp_path: Path) -> None:
    done = run_job(ranks, "-m", "mpi4py", CHECKS, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "checked\n"


@pytest.fixture(scope="module")
def official_store(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the official network to a store, which each of many ranks reads in less time."""
    store = tmp_path_factory.mktemp("official") / "neuron1024.spdnn"
    convert(shared / "graphchallenge", store, 1024, 120)
    return store


@pytest.mark.parametrize("backend", BACKENDS)
def test_official_data_on_1_2_and_3_ranks(
    backend: str, shared: Path, official_store: Path, tmp_path: Path
) -> None:
    text = shared / "graphchallenge"
    found = []
    jobs = {1: ["static"], 2: ["static"], 3: ["dynamic"]}
    if backend == "scipy":  # how ranks share the work does not depend on the backend
        jobs = {1: ["static"], 2: ["static", "dynamic"], 3: ["static", "dynamic"]}
    for ranks, schedules in jobs.items():
        data = text if (backend, ranks) == ("numba", 3) else official_store
        names = [tmp_path / f"{ranks}-{schedule}" for schedule in schedules]
        printed = run_in_turn(
            ranks,
            *(
                ["run", "--data", data, "--neurons", 1024, "--layers", 120, "--backend", backend,
                 "--schedule", schedule, "--no-progress", "--json", f"{name}.json",
                 "--save-categories", name]
                for schedule, name in zip(schedules, names, strict=True)
            ),
        )  # fmt: skip
        for name, said in zip(names, printed, strict=True):
            assert said.count("PASSED against") == 1  # one report
            record = json.loads(Path(f"{name}.json").read_text())
            assert record["verdict"] == "PASSED"
            assert [one["rank"] for one in record["replicas"]] == list(range(ranks))
            assert sum(one["inputs"] for one in record["replicas"]) == record["inputs"] == 1200
            assert record["imbalance"] >= 1
            assert 0 < record["parallel_efficiency"] <= 1
            found.append(name.read_bytes())
    assert len(set(found)) == 1
    truth = (text / "neuron1024-l120-categories.tsv").read_text().split()
    assert found[0].decode().split() == [number for number in truth if int(number) <= 1200]


def test_more_ranks_than_inputs_and_every_kind_of_file(tmp_path: Path) -> None:
    from portable_spdnn.workloads.generation import generate_radixnet

    features = ps.digits_features(64)[:2]
    generate_radixnet(tmp_path / "text", 64, 5, seed=3, features=features)
    convert(tmp_path / "text", tmp_path / "packed.spdnn")
    expected = ps.infer(ps.load_network(tmp_path / "text"), features, "scipy").categories
    runs = [(data, how) for data in ("text", "packed.spdnn") for how in ("static", "dynamic")]
    run_in_turn(
        3,
        *(
            ["run", "--data", tmp_path / data, "--schedule", schedule, "--no-progress", "--verify",
             "--backend", "scipy", "--save-categories", tmp_path / f"{data}-{schedule}"]
            for data, schedule in runs
        ),
    )  # fmt: skip
    for data, schedule in runs:
        lines = (tmp_path / f"{data}-{schedule}").read_text().split()
        assert [int(line) - 1 for line in lines] == expected.tolist()


def test_a_generated_network_with_the_digits_is_verified_on_ranks(tmp_path: Path) -> None:
    done = run_job(
        2, "-m", "portable_spdnn", "run", "--neurons", 1024, "--layers", 12, "--first-inputs", 50,
        "--memory", "2GiB", "--verify", "--checkpoint", tmp_path / "kept", "--no-progress",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED against the serial scipy reference" in done.stdout
    assert "2 GiB allowed a rank" in done.stdout
    assert (tmp_path / "kept" / "checkpoint.json").exists()


FAILING = """
import os, sys
import portable_spdnn.plans.base as plan
from portable_spdnn import InputError
from portable_spdnn.cli import main
from portable_spdnn.mpi.ranks import launched_rank

def planted(self, *arguments):
    if {error!r} == "kill":
        os.kill(os.getpid(), 9)
    raise {{"input": InputError, "bug": KeyError, "key": KeyboardInterrupt}}[{error!r}]("planted")

if launched_rank() == 1:
    plan.NetworkPlan._run_one = planted
sys.argv = ["portable-spdnn", "run", "--layers", "6", "--no-progress", "--backend", "scipy",
            "--schedule", {schedule!r}]
main()
"""


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ("input", 2, "portable-spdnn: rank 1: error: planted"),
        ("bug", 1, "portable-spdnn: rank 1: failed"),
        ("key", 130, "portable-spdnn: rank 1: interrupted"),
        ("kill", 9, ""),
    ],
)
@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_a_rank_that_fails_ends_the_job(
    error: str, code: int, message: str, schedule: str, tmp_path: Path
) -> None:
    script = tmp_path / "failing.py"
    script.write_text(FAILING.format(error=error, schedule=schedule))
    done = run_job(3, script)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "verdict" not in done.stdout


def test_a_wrong_answer_is_the_exit_code_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "truth.tsv").write_text("1\n")
    done = run_job(
        2, "-m", "portable_spdnn", "run", "--layers", 6, "--backend", "scipy", "--first-inputs", 40,
        "--truth", tmp_path / "truth.tsv", "--no-progress",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "FAILED against" in done.stdout


def test_commands_that_do_not_share_work_refuse_ranks() -> None:
    done = run_job(2, "-m", "portable_spdnn", "backends")
    assert done.returncode == 2
    assert "backends: each of the 2 ranks would do all of it" in done.stderr
    assert not done.stdout


def test_input_errors_name_the_rank(tmp_path: Path) -> None:
    done = run_job(2, "-m", "portable_spdnn", "run", "--data", tmp_path / "absent")
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert "there is no such file or folder" in done.stderr


def test_launchers_are_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PMI_SIZE", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert launched_ranks() == 0
    assert launched_rank() is None
    monkeypatch.setenv("PMIX_RANK", "3")
    assert launched_ranks() == 1
    assert launched_rank() == 3
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    assert launched_ranks() == 8


@pytest.mark.filterwarnings("ignore:suspicious MPI execution environment")
def test_an_mpi_of_another_kind_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="extra mpi is not installed")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(ps.InputError, match="the launcher started 2 ranks but mpi4py sees one"):
        Ranks()
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise ImportError('not here')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "mpi4py"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ps.InputError, match=r"mpi4py does not load .*portable-spdnn\[mpi\]"):
        Ranks()


def test_one_process_is_a_job_of_one() -> None:
    pytest.importorskip("mpi4py", reason="extra mpi is not installed")
    network, bits = ps.radixnet(64, 5, seed=2, bias=-0.1), ps.digits_features(64)[:30]
    plan = make_plan(ps.get_backend("scipy"), network)
    with Ranks() as ranks:
        for schedule in ("static", "dynamic"):
            result = run_on_ranks(
                ranks, plan, lambda first, end: bits[first:end], 30, schedule, scores=True
            )
            assert result is not None
            assert (result.scores == plan.run(bits).scores).all()
        with pytest.raises(ps.InputError, match="schedule is 'guided'; choose one of static"):
            run_on_ranks(ranks, plan, lambda first, end: bits[first:end], 30, "guided")
    assert shutil.which("mpiexec") is None or launched_ranks() == 0
