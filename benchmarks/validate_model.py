"""Validate the scaling model: predicted and measured seconds on ranks; `make validate-model`.

A "node" has one thread here, so that two of them fit on a small machine. For each network it is
calibrated on a sample much smaller than what is then predicted and run under ``mpiexec``: runs
and calibrations take turns, so that both meet the same noise, and the least of each counts.
Writes docs/results/scaling_model.md, and beside it the picture of 65,536 neurons x 1,920 layers.

MNIST images are taken from ``--images``; where there are none, the bundled digits stand in.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

from machine_facts import cpu_slug, load_average, machine_facts  # noqa: E402

from portable_spdnn.io.atomic_output import atomic_output  # noqa: E402

IMAGES = FOLDER.parent.parent / "shared" / "mnist" / "train-images-idx3-ubyte.gz"
DOCS = FOLDER.parent / "docs" / "results"
RANKS = (1, 2)
TOLERANCE = 0.20
AGAIN = 2  # runs of a job after its first
DRAWN = "65536x1920"
MEASURED_ON = ("--threads", 1, "--backend", "numba")


@dataclass(frozen=True)
class Case:
    """What is predicted and run."""

    network: str
    inputs: int  # of the images; the digits are fewer
    sample: int  # inputs of the calibration
    sample_layers: int


CASES = (
    Case("1024x120", 60_000, 6_000, 120),
    Case("1024x480", 60_000, 6_000, 120),
    Case("4096x120", 12_000, 2_000, 60),
    Case("16384x120", 6_000, 1_500, 60),
)


def output(*words: object) -> str:
    """Return what a command prints; ends this one with the errors of one that fails."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        sys.exit(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def model(network: str, nodes: str, *options: object) -> str:
    """Return what `portable-spdnn model` prints."""
    command = (sys.executable, "-m", "portable_spdnn", "model", "--no-progress")
    return output(*command, "--network", network, "--nodes", nodes, *options)


def measure(case: Case, source: list[object], ranks: int) -> tuple[float, float]:
    """Return the inference seconds of one job, the first time and when it runs again."""
    launcher = Path(sys.executable).with_name("mpiexec")
    printed = output(
        launcher if launcher.exists() else "mpiexec", "-n", ranks, sys.executable, "-m", "mpi4py",
        FOLDER / "validate_model.py", "--job", case.network, *source,
    )  # fmt: skip
    first, again = json.loads(printed)
    return float(first), float(again)


def job(network: str, inputs: Path | None, first_inputs: int) -> None:
    """Be one rank: what `portable-spdnn run` does, and then its inference again."""
    from portable_spdnn import get_backend
    from portable_spdnn.mpi.ranks import Ranks
    from portable_spdnn.mpi.run import run_on_ranks
    from portable_spdnn.mpi.workload import load_ranked_workload
    from portable_spdnn.plans.planner import make_plan
    from portable_spdnn.workloads.sources import Request

    neurons, layers = map(int, network.split("x"))
    with Ranks() as ranks:
        request = Request(None, neurons, layers, inputs, first_inputs=first_inputs)
        part = load_ranked_workload(ranks, request, "static")
        plan = make_plan(get_backend("numba", 1), part.work.network)
        results = [run_on_ranks(ranks, plan, part.rows, part.inputs) for _ in range(1 + AGAIN)]
        seconds = [result.inference_seconds for result in results if result is not None]
        if seconds:
            print(json.dumps([seconds[0], min(seconds[1:])]))


def predict(case: Case, source: list[object], folder: Path) -> dict[int, float]:
    """Calibrate anew; return the predicted seconds for each number of ranks."""
    target = folder / "predicted.json"
    model(
        case.network, ",".join(map(str, RANKS)), "--total-inputs", case.inputs, "--json", target,
        *MEASURED_ON, *source, "--sample-inputs", case.sample,
        "--sample-layers", case.sample_layers,
    )  # fmt: skip
    points = json.loads(target.read_text())["strong"]
    return {point["nodes"]: point["seconds"] for point in points}


def validate(case: Case, source: list[object], repeat: int, folder: Path) -> dict[str, Any]:
    """Predict and run one case, by turns; measured are pairs (first run, run again)."""
    predicted: dict[int, list[float]] = {ranks: [] for ranks in RANKS}
    measured: dict[int, list[tuple[float, float]]] = {ranks: [] for ranks in RANKS}
    for turn in range(repeat):
        for ranks, seconds in predict(case, source, folder).items():
            predicted[ranks].append(seconds)
        for _ in range(2):
            for ranks in RANKS:
                measured[ranks].append(measure(case, source, ranks))
        print(f"{case.network}, turn {turn + 1} of {repeat}: predicted {predicted}", flush=True)
        print(f"  measured {measured}", flush=True)
    return {"case": case, "predicted": predicted, "measured": measured}


def table(results: list[dict[str, Any]]) -> tuple[list[str], float]:
    """Return the Markdown table, and the largest error."""
    lines = [
        "| network | inputs | sample | ranks | predicted | measured | error | first run, least to "
        "most |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    worst = 0.0
    for result in results:
        case = result["case"]
        for ranks in RANKS:
            predicted = min(result["predicted"][ranks])
            first, again = zip(*result["measured"][ranks], strict=True)
            error = predicted / min(again) - 1
            worst = max(worst, abs(error))
            lines.append(
                f"| {case.network.replace('x', ' x ')} | {case.inputs:,} | {case.sample:,} inputs, "
                f"{case.sample_layers} layers | {ranks} | {predicted:.3f} s | "
                f"{min(again):.3f} s | {100 * error:+.1f} % | "
                f"{min(first):.3f} to {max(first):.3f} s |"
            )
    return lines, worst


def write(results: list[dict[str, Any]], drawn: list[str], repeat: int, before: Any) -> float:
    """Write the page; returns the largest error of runs that find their memory in place."""
    facts = machine_facts()
    rows, worst = table(results)
    verdict = f"{'within' if worst <= TOLERANCE else 'NOT within'} {100 * TOLERANCE:.0f} %"
    day = datetime.datetime.now(datetime.UTC).date()
    page = f"""# The scaling model beside measurements

`make validate-model`, {day}, on {facts["cpu"]}, {facts["cores"]} cores; one thread a rank. Each
line is the least of {repeat} calibrations and of {2 * repeat} runs under mpiexec, taken by turns.
The calibrations ran the sample alone: fewer inputs, and where the column says so fewer layers,
than what they predict. Every job runs its inference {1 + AGAIN} times. "predicted" and
"measured" are those of a run that finds its memory in place. The first run of a process also
touches memory for the first time, which on a virtual machine may take longer than the inference,
and differs from one job to the next: the last column, not predicted. The load average was {before}
before and {load_average()} after.

{chr(10).join(rows)}

Largest error {100 * worst:.0f} % ({verdict}). Two ranks of one machine share its caches and memory,
which the model leaves out: nodes share nothing.

## 65,536 neurons x 1,920 layers

Predicted for 60,000 inputs in all (strong) and a node (weak) on nodes like this machine with one
thread each, calibrated on the first 120 layers:

![strong and weak scaling, modelled](scaling_model.png)

```
{chr(10).join(drawn)}
```
"""
    with atomic_output(DOCS / "scaling_model.md") as stream:
        stream.write(page.encode())
    print(f"stored in {DOCS / 'scaling_model.md'} for {cpu_slug(facts)}; largest error {worst:.2f}")
    return worst


def draw(source: list[object], sample: int) -> list[str]:
    """Draw the largest network; returns what the command prints, without trailing spaces."""
    picture = ("--sample-inputs", sample, "--plot", DOCS / "scaling_model.png")
    printed = model(DRAWN, "1..1024", *MEASURED_ON, *source, *picture)
    for argument in source:
        if isinstance(argument, Path):  # where it is says nothing elsewhere
            printed = printed.replace(str(argument), argument.name)
    return [line.rstrip() for line in printed.splitlines() if line.strip()]


def main() -> int:
    """Validate; exit code 1 where an error is larger than the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, default=IMAGES, help="MNIST IDX file")
    parser.add_argument("--repeat", type=int, default=3, help="calibrations; runs are twice that")
    parser.add_argument("--networks", help="of the cases, separated by commas; default: all")
    parser.add_argument("--sample", type=int, default=600, help=f"inputs to calibrate {DRAWN}")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--inputs", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first-inputs", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(options.job, options.inputs, options.first_inputs)
        return 0
    wanted = options.networks.split(",") if options.networks else [c.network for c in CASES]
    cases = [case for case in CASES if case.network in wanted]
    if not cases or options.repeat < 1:
        parser.error(f"--networks: choose of {', '.join(c.network for c in CASES)}; --repeat >= 1")
    images = options.images.is_file()
    if not images:
        print(f"{options.images} is not there: the bundled digits stand in", file=sys.stderr)
        cases = [Case(c.network, 1797, 600, c.sample_layers) for c in cases]
    before = load_average()
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for case in cases:
            source: list[object] = ["--first-inputs", case.inputs]
            source += ["--inputs", options.images] if images else []
            results.append(validate(case, source, options.repeat, Path(folder)))
        drawn = draw(["--inputs", options.images] if images else [], options.sample)
    return int(write(results, drawn, options.repeat, before) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
