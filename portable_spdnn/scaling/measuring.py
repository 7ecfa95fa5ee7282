"""Measuring a calibration on this node, with a sample of the layers and inputs."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.arrays import Array, Progress
from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features, as_features
from portable_spdnn.host import available_bytes, resident_bytes
from portable_spdnn.network import LayerStatistics, Network
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.plans.result import Result
from portable_spdnn.scaling.calibration import Calibration, Curve
from portable_spdnn.workloads.sources import DEFAULT_LAYERS, Request, Source, resolve

DENSE_LAYERS = 24  # run together, so that loading and storing features is a few per cent of them
MAX_DENSE_INPUTS, MAX_DENSE_BYTES = 4096, 1 << 28
MIN_ROUNDS, ROUNDS_SECONDS = 3, 2.0  # of the measurements of a curve
SETTLED = 1.1  # the first layers end where active inputs are so many times the survivors
SELECTIONS = 3  # of inputs, of each number of them


def calibrate(
    backend: Backend,
    request: Request,
    sample_inputs: int,
    sample_layers: int,
    dtype: npt.DTypeLike,
    show_progress: Callable[[str], AbstractContextManager[Progress | None]],
) -> Calibration:
    """Measure what a prediction has to know of this machine and a network.

    Parameters
    ----------
    backend : Backend
    request : Request
        The network and its inputs.
    sample_inputs, sample_layers : int
        At most so many inputs, from all over the source, are run through so many first layers.
    dtype : float32 or float64
    show_progress : callable
        Is given what is measured; returns a context manager that yields a progress callback.

    Raises
    ------
    InputError
        If the network or the inputs cannot be loaded, or there are no inputs.
    """

    def mean_seconds(selections: list[slice]) -> float:
        return fmean(plan.run(features[rows]).inference_seconds for rows in selections)

    options = PlanOptions(dtype)
    memory, program_bytes = available_bytes() or 0, resident_bytes()
    with show_progress("loading a sample") as step:
        begin = time.perf_counter()
        # Where the number of layers of `data` is not known, all of them are read.
        wanted = request.layers or (None if request.data else DEFAULT_LAYERS)
        shallow = replace(request, layers=wanted and min(wanted, sample_layers))
        source = resolve(shallow)
        loaded = source.load_network(step)
        network = Network(loaded.layers[:sample_layers], loaded.y_max)
        load_seconds = time.perf_counter() - begin
        layers, neurons = tuple(network), network.neurons
        features, source_inputs = _load_sample(source, neurons, sample_inputs)
    facts = [LayerStatistics.of(layer) for layer in layers]
    edges, total = np.array([one.nnz for one in facts]), max(network.edges, 1)
    with show_progress(f"planning on {backend.name}"):
        # A first small run, so that no measurement includes compiling.
        make_plan(backend, Network(layers[:2], network.y_max), options).run(features[:2])
        plan = make_plan(backend, network, options)
    # At most one batch, because all curves are functions of the inputs of one batch.
    features = features[:: _spread(features.shape[0], plan.batch_size)]
    inputs = features.shape[0]
    with show_progress(f"running {inputs} inputs through {len(layers)} layers"):
        active = active_inputs(plan.run(features))
    with show_progress("measuring layers"):
        dense = _measure_dense(backend, network, options)
        # Some inputs cost more than others: the mean of several selections of each size counts.
        selections = {inputs: [slice(inputs)]}
        for size in (1 << power for power in range((inputs // SELECTIONS).bit_length())):
            step = (inputs // size - 1) | 1  # odd, as in `_spread`
            selections[size] = [slice(n, n + size * step, step) for n in range(SELECTIONS)]
        whole_runs = _least({size: partial(mean_seconds, s) for size, s in selections.items()})
        # Whole runs, less the time of the layers after the first ones.
        start, seconds = int(np.argmax(active[1:] <= SETTLED * active[-1])) + 1, {}
        for size, rows in selections.items():
            later = [active_inputs(plan.run(features[one]))[start:-1] for one in rows]
            seconds[size] = whole_runs[size] - float(np.mean(dense(later) @ edges[start:]))
    return Calibration(
        backend=backend.name, device=backend.device, dtype=str(options.dtype),
        threads=backend.threads, network=source.network.name, inputs=source.inputs.name,
        network_layers=wanted or len(loaded), neurons=neurons, widest=network.widest,
        batch_size=plan.batch_size, edges_per_layer=tuple(edges.tolist()),
        value_bytes=max(one.value_bytes for one in facts), dense=dense, start_layers=start,
        start=_rising(seconds),
        load_seconds_edge=load_seconds / total, plan_seconds_edge=plan.plan_seconds / total,
        source_inputs=source_inputs, active=tuple(active.tolist()), memory=memory,
        program_bytes=program_bytes,
    )  # fmt: skip


def _load_sample(source: Source, neurons: int, most: int) -> tuple[Features, int]:
    """Load every n-th input; return them, and how many the source has."""
    counted = source.count_inputs()
    if counted is None:
        features, _ = source.load_inputs()
        inputs = features.shape[0]
        features = features[:: _spread(inputs, most)]
    else:
        inputs, _ = counted
        features = source.inputs.rows(slice(0, inputs, _spread(inputs, most)), True)
    if not inputs:
        raise InputError(f"{source.inputs.name}: holds no inputs; a calibration needs some")
    return as_features(features, neurons), inputs


def _spread(inputs: int, most: int) -> int:
    """Return a step with which every step-th of the inputs is at most `most` of them.

    An odd step: the images of MNIST alternate between two groups of writers, of which an even one
    would sample the first alone.
    """
    return 1 if inputs <= most else -(-inputs // most) | 1


def _least(actions: Mapping[Any, Callable[[], float]]) -> dict[Any, float]:
    """Return the seconds that each action returns, the least of several rounds of all of them."""
    rounds: list[list[float]] = []
    begin = time.perf_counter()
    while len(rounds) < MIN_ROUNDS or time.perf_counter() - begin < ROUNDS_SECONDS:
        rounds.append([action() for action in actions.values()])
    return dict(zip(actions, np.min(rounds, axis=0).tolist(), strict=True))


def _rising(measured: Mapping[int, float]) -> Curve:
    """Return a curve of measurements; none is taken to be below one of fewer inputs."""
    inputs = sorted(measured)
    seconds = np.maximum.accumulate([max(measured[n], 0.0) for n in inputs])
    return Curve(tuple(inputs), tuple(seconds.tolist()))


def _measure_dense(backend: Backend, network: Network, options: PlanOptions) -> Curve:
    """Measure the seconds for an edge by the number of inputs, all of which are active.

    Layers from the middle stand for all, because the first ones may have a different structure.
    """
    begin = len(network) // 2
    few = Network(network.layers[begin : begin + DENSE_LAYERS], network.y_max)
    plan = make_plan(backend, few, replace(options, path="spmm", keep_dead_inputs=True))
    row_bytes = few.widest * np.dtype(options.dtype).itemsize
    most = min(MAX_DENSE_INPUTS, plan.batch_size, max(1, MAX_DENSE_BYTES // row_bytes))
    rows = np.random.default_rng(0).uniform(1, 2, (most, few.neurons)).astype(options.dtype)

    def run(inputs: int) -> float:
        return timeit.timeit(lambda: plan.run_batch(rows[:inputs], lambda done: None), number=1)

    # Powers of two, and numbers just beyond and between them, where vectors and tiles end.
    sizes = {1 << power for power in range(most.bit_length())}
    sizes |= {size + step for size in (8, 16, 32, 64, 128) for step in (1, size // 2)}
    seconds = _least({n: partial(run, n) for n in sorted(sizes) if n <= most})
    return _rising({n: one / max(few.edges, 1) for n, one in seconds.items()})


def active_inputs(result: Result) -> Array:
    """Return how many inputs of a run were active before each layer, and after the last.

    Inputs that are active again after a positive bias count as active before it.

    Returns
    -------
    ndarray of int64, shape (layers + 1,)
        Never rising.
    """
    alive = [result.inputs, *(record.alive_inputs or 0 for record in result.records)]
    return np.maximum.accumulate(alive[::-1])[::-1]
