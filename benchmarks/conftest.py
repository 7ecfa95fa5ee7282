"""Fixtures of all benchmarks: backends side by side, official or built-in data, stored facts.

A benchmark names its cases with ``@pytest.mark.cases(...)`` and takes ``case`` and ``backend``.
The reference and the backends of one case run one after the other, so that a noisy machine
treats them alike: what is tracked is the ratio of their times.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import portable_spdnn as ps
from portable_spdnn.kernel_model import KernelModel, part_of_limit
from portable_spdnn.plans.machine_limits import limits_of

from .machine_facts import load_average, machine_facts

REFERENCE = "scipy"
ONE_THREAD = "-1thread"
SHARED = Path(__file__).resolve().parents[2] / "shared"
GRAPHCHALLENGE = SHARED / "graphchallenge"
MNIST = SHARED / "mnist" / "train-images-idx3-ubyte.gz"
SEED = 0
MOST_ROUNDS = 500

Prepare = Callable[[Callable[[], Any]], Any]
Measure = Callable[..., None]


LOAD_BEFORE = pytest.StashKey[float | None]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LOAD_BEFORE] = load_average()
    config.addinivalue_line(
        "markers",
        "cases(*names, one_thread=()): cases of a benchmark; those in one_thread run backends "
        "that have threads on one thread too.",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("cases")
    if marker is None:
        return
    available = [info for info in ps.backends() if info.availability.available]
    available.sort(key=lambda info: info.name != REFERENCE)
    runs = []
    for case in marker.args:
        for info in available:
            runs.append((case, info.name))
            if info.execution_space == "threads" and case in marker.kwargs.get("one_thread", ()):
                runs.append((case, info.name + ONE_THREAD))
    metafunc.parametrize(("case", "backend"), runs, indirect=["backend"])


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> ps.Backend:
    """The backend to time."""
    name: str = request.param
    if name.endswith(ONE_THREAD):
        return ps.get_backend(name.removesuffix(ONE_THREAD), threads=1)
    return ps.get_backend(name)


@pytest.fixture(scope="session")
def reference() -> ps.Backend:
    """The reference backend, whose results all others must give."""
    return ps.get_backend(REFERENCE)


@pytest.fixture(scope="session")
def latest() -> dict[str, Any]:
    """What `prepared` keeps."""
    return {}


@pytest.fixture
def prepared(request: pytest.FixtureRequest, latest: dict[str, Any], case: str) -> Prepare:
    """Build the operands of a case once for all its backends, and forget those before."""

    def prepare(build: Callable[[], Any]) -> Any:
        name = f"{request.node.nodeid.partition('[')[0]}[{case}]"
        if name not in latest:
            latest.clear()
            latest[name] = build()
        return latest[name]

    return prepare


@pytest.fixture(scope="session")
def challenge_network() -> Callable[[int, int], tuple[ps.Network, str]]:
    """Return a function (neurons, layers) -> challenge network and where it is from."""
    kept: dict[tuple[int, int], tuple[ps.Network, str]] = {}

    def load(neurons: int, layers: int) -> tuple[ps.Network, str]:
        if (neurons, layers) not in kept:
            kept[neurons, layers] = (
                (ps.load_network(GRAPHCHALLENGE, neurons, layers), "official")
                if neurons == 1024 and GRAPHCHALLENGE.is_dir()
                else (ps.radixnet(neurons, layers, SEED), f"generated, seed {SEED}")
            )
        return kept[neurons, layers]

    return load


@pytest.fixture(scope="session")
def images() -> Callable[[int, int], tuple[Any, str]]:
    """Return a function (neurons, first) -> binary features and where they are from.

    There may be fewer than `first`: the bundled digits are 1,797.
    """

    def load(neurons: int, first: int) -> tuple[Any, str]:
        if MNIST.exists():
            return ps.load_inputs(MNIST, neurons, first), "MNIST"
        return ps.digits_features(neurons)[:first], "bundled digits"

    return load


@pytest.fixture
def measure(request: pytest.FixtureRequest, benchmark: Any, backend: ps.Backend) -> Measure:
    """Return a function that checks an operation, then times it.

    ``measure(operation, check, edges, weights=..., inputs=..., seconds=1.5, least_rounds=5)``
    calls ``check(operation())``, which must raise where the result is wrong, and then times as
    many rounds as fit in `seconds`, though at least `least_rounds`. `edges` are the
    multiply-adds of one call, or a function that gives them from the result; `model` is what
    the numba backend's kernel needs for each; `weights` and `inputs` say where these are from.
    Any other keyword goes to the stored record.
    """

    def run(
        operation: Callable[[], Any],
        check: Callable[[Any], None],
        edges: int | Callable[[Any], int],
        *,
        seconds: float = 1.5,
        least_rounds: int = 5,
        model: KernelModel | None = None,
        **record: Any,
    ) -> None:
        result = operation()  # compiles where the backend does, and warms caches
        check(result)
        executed = edges(result) if callable(edges) else edges
        del result
        start = time.perf_counter()
        operation()
        one = time.perf_counter() - start
        rounds = min(max(math.ceil(seconds / one), least_rounds), MOST_ROUNDS)
        parameters = request.node.callspec.params
        name = request.node.name.partition("[")[0].removeprefix("test_")
        benchmark.group = f"{name} {parameters['case']}"
        benchmark.pedantic(operation, rounds=rounds)
        benchmark.extra_info.update(
            backend=parameters["backend"],
            threads=backend.threads,
            executed_edges=executed,
            **record,
        )
        if benchmark.stats is not None:  # None with --benchmark-disable
            least = benchmark.stats.stats.min
            benchmark.extra_info["executed_edge_rate_g"] = round(executed / least / 1e9, 3)
            if model is not None and backend.name == "numba":
                part, binding = part_of_limit([model], limits_of(backend), [executed], least)
                benchmark.extra_info.update(fraction_of_limit=round(part, 3), bound_by=binding)

    return run


def pytest_benchmark_generate_machine_info(config: pytest.Config) -> dict[str, Any]:
    # Taken at the end, the load would be that of the benchmarks.
    return {**machine_facts(), "load_average": config.stash[LOAD_BEFORE]}


def pytest_benchmark_update_commit_info(config: pytest.Config, commit_info: dict[str, Any]) -> None:
    # Names of branch and folder, and the text of an error, may tell where a checkout lies.
    for key in commit_info.keys() - {"id", "time", "dirty"}:
        del commit_info[key]
