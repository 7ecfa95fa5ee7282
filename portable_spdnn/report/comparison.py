"""The serial reference: whether a run agrees with it, and how much faster backends are."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from portable_spdnn.arrays import Array, Progress
from portable_spdnn.backend import Backend
from portable_spdnn.engine import infer
from portable_spdnn.features import Features
from portable_spdnn.graphchallenge.categories import Truth, Verdict, judge
from portable_spdnn.network import Network
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.plans.result import Result
from portable_spdnn.registry import get_backend

REFERENCE = "scipy"
REFERENCE_NAME = "the serial scipy reference"
ROWS_AT_ONCE = 4096

ShowProgress = Callable[[str], AbstractContextManager[Progress | None]]


def run_reference(
    network: Network, features: Features, dtype: npt.DTypeLike, progress: Progress | None = None
) -> Result:
    """Run the serial reference: every input through every layer, in a code path of its own."""
    return infer(
        network, features, REFERENCE, dtype=dtype, keep_dead_inputs=True, progress=progress
    )


def judge_by_reference(result: Result, reference: Result) -> Verdict:
    """Compare the categories of a run with those of the serial reference."""
    return judge(result.categories, Truth(reference.categories, 0, REFERENCE_NAME))


@dataclass(frozen=True)
class Comparison:
    """One backend beside the reference.

    Attributes
    ----------
    result : Result
        Of the last repetition, with the median of the seconds of all.
    versions : dict of str to str
    speed_up : float
        Median seconds of the reference over those of this backend.
    categories_agree : bool
    largest_absolute_difference, largest_relative_difference : float
        Between scores and those of the reference; relative to the larger of the two.
    """

    result: Result
    versions: dict[str, str]
    speed_up: float
    categories_agree: bool
    largest_absolute_difference: float
    largest_relative_difference: float


def compare(
    network: Network,
    features: Features,
    backends: Sequence[str],
    options: PlanOptions | None = None,
    *,
    threads: int | None = None,
    repeat: int = 3,
    show_progress: ShowProgress = lambda what: nullcontext(None),
) -> list[Comparison]:
    """Run the same network on the reference and on each backend.

    Parameters
    ----------
    network : Network
    features : as `NetworkPlan.run` takes them
    backends : sequence of str
        Names; the reference runs first, named or not.
    options : PlanOptions, optional
        Exact passes are for the backends to be judged; the reference runs without.
    threads : int, optional
    repeat : int
        Runs of each plan; times are medians.
    show_progress : callable, optional
        Given what runs, returns a context manager that yields a progress callback or None.

    Returns
    -------
    list of Comparison
        The reference first.

    Raises
    ------
    InputError, BackendUnavailable
        As `get_backend` and `portable_spdnn.plan`; before anything runs if a backend cannot.
    """
    names = [REFERENCE, *(name for name in dict.fromkeys(backends) if name != REFERENCE)]
    chosen = [get_backend(name, threads) for name in names]
    options = options or PlanOptions()
    comparisons: list[Comparison] = []
    reference: Result | None = None
    for backend in chosen:
        asked = options if reference else replace(options, exact_passes=())
        result = _timed(backend, network, features, asked, repeat, show_progress)
        reference = reference or result
        versions = type(backend).availability().versions
        speed_up = reference.inference_seconds / result.inference_seconds
        agree = judge_by_reference(result, reference).passed
        differences = _differences(reference, result)
        comparisons.append(Comparison(result, versions, speed_up, agree, *differences))
    return comparisons


def _timed(
    backend: Backend,
    network: Network,
    features: Features,
    options: PlanOptions,
    repeat: int,
    show_progress: ShowProgress,
) -> Result:
    plan = make_plan(backend, network, options)
    times = []
    for turn in range(1, repeat + 1):
        with show_progress(f"{backend.name}, run {turn} of {repeat}") as progress:
            result = plan.run(features, progress)
        times.append(result.inference_seconds)
    return replace(result, inference_seconds=statistics.median(times))


def _differences(reference: Result, result: Result) -> tuple[float, float]:
    """Return the largest absolute and relative difference of the scores."""
    absolute = relative = 0.0
    for ours, theirs in zip(_score_rows(result), _score_rows(reference), strict=True):
        difference = np.abs(ours - theirs)
        larger = np.maximum(np.abs(ours), np.abs(theirs))
        absolute = max(absolute, float(difference.max(initial=0)))
        scaled = np.divide(difference, larger, out=np.zeros_like(difference), where=larger > 0)
        relative = max(relative, float(scaled.max(initial=0)))
    return absolute, relative


def _score_rows(result: Result) -> Iterator[Array]:
    """Yield the scores in float64, some rows at a time, so that memory stays small."""
    for first in range(0, result.inputs, ROWS_AT_ONCE):
        yield result.score_rows(first, first + ROWS_AT_ONCE).astype(np.float64)
