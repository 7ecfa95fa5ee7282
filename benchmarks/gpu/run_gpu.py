"""Benchmark of one GPU: `make bench-gpu`.

Generated networks on the 60,000 MNIST images, each checked, then timed: the plan's own choice, the
same with exact passes, features and weights in half precision, and all products by cuSPARSE on a
bounded part of the same work. Single layers stand beside the limits of the device, which are
measured first. What fails is recorded with its error, and the rest goes on. The record goes to
benchmarks/results and, from a GPU, its tables to docs/results/gpu.md.

Exit code 0: all that ran is right; 1: something failed or is wrong; 2: there is no GPU, or no
images.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "peers")]

from budget import LEAST_REPEAT, Budget  # noqa: E402
from cases import parse_cases  # noqa: E402
from device_facts import commit, device_facts, device_slug, on_gpu, opened  # noqa: E402
from gpu_page import PAGE, write_page  # noqa: E402
from layer_rows import layer_rows, timed_inputs  # noqa: E402
from machine_facts import machine_facts  # noqa: E402
from network_rows import Bench, network_row  # noqa: E402
from outcome import print_row, problems  # noqa: E402
from run_benchmarks import RESULTS, store  # noqa: E402
from targets import judged  # noqa: E402

import portable_spdnn as ps  # noqa: E402
from portable_spdnn.backend import Backend  # noqa: E402
from portable_spdnn.challenge_table.time_budget import parse_duration, predict  # noqa: E402
from portable_spdnn.errors import InputError  # noqa: E402
from portable_spdnn.graphchallenge.configurations import Configuration  # noqa: E402
from portable_spdnn.workloads.loading import load_inputs  # noqa: E402
from portable_spdnn_gpu.cupy_backend import CupyBackend  # noqa: E402

IMAGES = "train-images-idx3-ubyte.gz"
FOLDERS = (HERE.parents[2] / "shared" / "mnist", HERE.parents[1] / "shared" / "mnist")
CASES = "1024x1920,4096x1920,16384x1920,65536x120,65536x1920"  # those that have targets
SEED = 0
Record = dict[str, Any]


def check_numbers(options: argparse.Namespace) -> None:
    """Raise InputError where a duration or the number of inputs is none."""
    parse_duration(options.budget, "--budget")
    parse_duration(options.row_budget, "--row-budget")
    if options.inputs is not None and options.inputs < 1:
        raise InputError(f"--inputs is {options.inputs}; give at least 1")


def find_images(folder: Path | None) -> Path:
    """Return the file of images in a folder, or in the first of FOLDERS that has it."""
    places = FOLDERS if folder is None else (folder,)
    for place in places:
        for name in (IMAGES, IMAGES.removesuffix(".gz")):
            if (place / name).is_file():
                return place / name
    looked = " or ".join(str(place) for place in places)
    raise InputError(f"{looked}: holds no {IMAGES}; name the folder of MNIST with --mnist")


class Run:
    """One run over all cases.

    Parameters
    ----------
    backend : Backend
    images : Path
        The file of images.
    options : argparse.Namespace
        The command line, of which `inputs`, `budget`, `row_budget`, `reference`, `left_out`,
        `peer` and `commit` count.

    Attributes
    ----------
    record : dict
        What is stored; it grows with every variant of a network.
    target : Path or None
        The file it is stored in, None for none.
    """

    def __init__(self, backend: Backend, images: Path, options: argparse.Namespace) -> None:
        seconds = parse_duration(options.budget, "--budget")
        budget = Budget(seconds, parse_duration(options.row_budget, "--row-budget"))
        self.backend, self.images, self.first_inputs = backend, images, options.inputs
        self.target: Path | None = options.out
        limits, error = None, None
        try:
            limits = backend.measure_limits()
        except Exception as wrong:  # noqa: BLE001 - recorded; networks run without limits too
            error = f"{type(wrong).__name__}: {wrong}"
        left_out = tuple(options.left_out)
        reference = opened(options.reference)
        self.bench = Bench(backend, reference, limits, budget, left_out, options.peer)
        self.done: list[Record] = []  # what networks took, to predict others by
        self.apart = 0.0  # seconds of a network that do not grow with its edges
        self.record: Record = {
            "datetime": datetime.datetime.now(datetime.UTC).isoformat(),
            "commit": options.commit or commit(),
            "facts": device_facts(backend),
            "machine_info": machine_facts(),
            "arguments": list(options.arguments),
            "budget_seconds": seconds,
            "inputs": f"{images.name}, resized",
            "limits": None if limits is None else asdict(limits),
            "limits_error": error,
            "networks": [],
            "layers": [],
        }
        self._features: tuple[int, Any] = (0, None)
        self._timed: set[int] = set()  # neurons of the layers that have been timed

    def case(self, neurons: int, layers: int) -> None:
        """Run one network, and the layers of its size if it is the first; record what comes."""
        about = {"neurons": neurons, "layers": layers}
        left = self.bench.budget.left()
        configuration = Configuration(neurons, layers, 0.0)
        expected = 0.0  # where nothing is known: it is tried
        if self.done:
            expected = predict(self.done, configuration, self._inputs()) + self.apart
        if left <= 0 or expected > left:
            reason = f"{expected:.0f} s predicted, {left:.0f} s left"
            if left <= 0:
                reason = "the time is used up"
            self.record["networks"].append(about | {"state": "skipped", "reason": reason})
            return
        start = time.perf_counter()
        self.record["networks"].append(about | {"state": "going on"})
        try:
            row = self._network(neurons, layers)
        except Exception as error:  # noqa: BLE001 - recorded, and the other networks go on
            row = about | {"state": "failed", "error": f"{type(error).__name__}: {error}"}
        row["seconds"] = time.perf_counter() - start
        self.record["networks"][-1] = row
        self._learn(row)

    def _network(self, neurons: int, layers: int) -> Record:
        start = time.perf_counter()
        network = ps.radixnet(neurons, layers, SEED)
        generating = time.perf_counter() - start
        if self._features[0] != neurons:
            self._features = neurons, load_inputs(self.images, neurons, self.first_inputs)
        features = self._features[1]
        if neurons not in self._timed and isinstance(self.backend, CupyBackend):
            self._timed.add(neurons)
            self._layers(self.backend, network, timed_inputs(neurons, int(features.shape[0])))
        about = {"generate_seconds": generating}

        def keep(row: Record) -> None:
            self.record["networks"][-1] = {"state": "going on", **about, **row}
            self.store()

        return about | network_row(self.bench, network, features, keep)

    def _layers(self, backend: CupyBackend, network: ps.Network, inputs: int) -> None:
        bench, neurons = self.bench, network.neurons
        try:
            self.record["layers"] += layer_rows(
                backend, network, inputs, bench.limits, bench.budget
            )
        except Exception as error:  # noqa: BLE001 - recorded, and the networks go on
            text = f"{type(error).__name__}: {error}"
            about = {"neurons": neurons, "live_inputs": inputs, "design": "all"}
            self.record["layers"].append(about | {"state": "failed", "error": text})

    def _inputs(self) -> int:
        return self.first_inputs or 60_000

    def _learn(self, row: Record) -> None:
        """Take note of how long a network took."""
        done = [one for one in row.get("variants", {}).values() if "least_seconds" in one]
        if not done:
            return
        setup = row["generate_seconds"] + sum(one["plan_seconds"] for one in done)
        runs = (1 + LEAST_REPEAT) * sum(one["least_seconds"] for one in done)
        self.apart = max(row["seconds"] - setup - runs, 0.0)
        spent = {"load_seconds": setup, "plan_seconds": 0.0, "inference_seconds": runs}
        spent |= {"inputs_load_seconds": 0.0, "reference_seconds": 0.0}
        self.done.append({**row, **spent})

    def store(self) -> Record:
        """Judge the targets; store the record as it stands, so that it outlives an interruption."""
        self.record["targets"] = judged(self.record)
        if self.target is not None:
            store(self.record, self.target)
        return self.record


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    made.add_argument("--backend", default="cupy", help="default: %(default)s")
    made.add_argument(
        "--reference", default="numba", help="what categories are from; default: %(default)s"
    )
    leave_out = {"dest": "left_out", "action": "append_const", "default": []}
    made.add_argument("--no-float16", const="float16", help="float32 alone", **leave_out)
    made.add_argument(
        "--no-exact-passes", const="exact passes", help="without plans that have them", **leave_out
    )
    made.add_argument("--no-peer", dest="peer", action="store_false", help="without cuSPARSE")
    made.add_argument("--cases", default=CASES, help="NEURONSxLAYERS,...; default: %(default)s")
    made.add_argument("--mnist", type=Path, metavar="DIR", help=f"folder with {IMAGES}")
    made.add_argument("--inputs", type=int, help="only the first so many images")
    made.add_argument("--budget", default="8m", help="for the whole; default: %(default)s")
    made.add_argument("--row-budget", default="20s", help="for repeating one plan")
    made.add_argument("--commit", help="what is measured, where git cannot tell")
    made.add_argument("--out", type=Path, help="JSON file; default: a dated one in results/")
    made.add_argument("--page", type=Path, help="default: docs/results/gpu.md for all cases")
    made.set_defaults(arguments=[])
    return made


def main(arguments: list[str] | None = None, backend: Backend | None = None) -> int:
    """Measure, print and store; see the module for exit codes.

    Parameters
    ----------
    arguments : list of str, optional
        The arguments; by default those of the command line.
    backend : Backend, optional
        The backend to measure; by default the one that `--backend` names.
    """
    options = parser().parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else arguments
    try:
        check_numbers(options)  # before a device is waited for
        cases = parse_cases(options.cases)
        images = find_images(options.mnist)
        found = backend or opened(options.backend)
        if options.page is not None:
            check_page(found)
        run = Run(found, images, options)
    except (ps.BackendUnavailable, InputError) as error:
        print(f"run_gpu: {error}", file=sys.stderr)
        return 2
    facts = run.record["facts"]
    day = run.record["datetime"][:10]
    if run.target is None and facts["gpu"]:
        run.target = free_name(RESULTS / f"{day}-{device_slug(facts['device'])}-gpu.json")
    print(f"{facts['device']}, budget {options.budget}", flush=True)
    try:
        for neurons, layers in cases:
            run.case(neurons, layers)
            print_row(run.record["networks"][-1])
            run.store()
    finally:
        record, target = run.store(), run.target
    for one in record["layers"]:
        weights = one.get("weights", "challenge")
        name = f"layer of {one['neurons']}, {weights} weights, {one['design']}"
        print(f"{name}: {one.get('text', one['state'])}")
    page = options.page
    if page is None and facts["gpu"] and options.out is None and options.cases == CASES:
        page = PAGE
    if page is not None:
        write_page(record, "" if target is None else target.name, page)
    print("not stored: name a file with --out" if target is None else f"stored in {target}")
    wrong = problems(record)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def free_name(path: Path) -> Path:
    """Return the path, with a number where a run of the same day has taken it."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_stem(f"{path.stem}-{number}")
    return free


def check_page(backend: Backend) -> None:
    """Raise InputError where a backend's figures do not belong on the page."""
    if not on_gpu(backend):
        raise InputError(f"--page: {backend.name} is on {backend.device}; the page is of a GPU")


if __name__ == "__main__":
    sys.exit(main())
