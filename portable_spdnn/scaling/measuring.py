"""Measuring a calibration on this node, with a sample of the layers and inputs."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.arrays import Progress
from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features, as_features
from portable_spdnn.host import available_bytes, resident_bytes
from portable_spdnn.network import LayerStatistics, Network
from portable_spdnn.plans.base import NetworkPlan
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.planner import make_plan, own_plan
from portable_spdnn.scaling.calibration import Calibration, Curve, Lifetimes, count_active
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

    Returns
    -------
    Calibration

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
        features, source_inputs, stride = _load_sample(source, neurons, sample_inputs)
    facts = [LayerStatistics.of(layer) for layer in layers]
    edges, total = np.array([one.nnz for one in facts]), max(network.edges, 1)
    with show_progress(f"planning on {backend.name}"):
        # A first small run, so that no measurement includes compiling.
        make_plan(backend, Network(layers[:2], network.y_max), options).run(features[:2])
        plan = make_plan(backend, network, options)
    # At most one batch, because all curves are functions of the inputs of one batch.
    fewer = _spread(features.shape[0], plan.batch_size)
    features, stride = features[::fewer], stride * fewer
    inputs = features.shape[0]
    with show_progress(f"running {inputs} inputs through {len(layers)} layers"):
        first_run = plan.run(features)
        active_after = follow_inputs(plan, features, first_run.records[-1].alive_inputs or 0)
        active = count_active(active_after, len(layers))
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
            later = [count_active(active_after[one], len(layers))[start:-1] for one in rows]
            seconds[size] = whole_runs[size] - float(np.mean(dense(later) @ edges[start:]))
    return Calibration(
        backend=backend.name, device=backend.device, dtype=str(options.dtype),
        threads=backend.threads, network=source.network.name, inputs=source.inputs.name,
        network_layers=wanted or len(loaded), neurons=neurons, widest=network.widest,
        batch_size=plan.batch_size, edges_per_layer=tuple(edges.tolist()),
        value_bytes=max(one.value_bytes for one in facts), dense=dense, start_layers=start,
        start=_rising(seconds),
        first_batch_seconds=max(0.0, first_run.inference_seconds - whole_runs[inputs]) / inputs,
        load_seconds_edge=load_seconds / total, plan_seconds_edge=plan.plan_seconds / total,
        lifetimes=Lifetimes(len(layers), source_inputs, stride, tuple(active_after.tolist())),
        memory=memory, program_bytes=program_bytes,
    )  # fmt: skip


def _load_sample(source: Source, neurons: int, most: int) -> tuple[Features, int, int]:
    """Load every n-th input; return them, how many the source has, and n."""
    counted = source.count_inputs()
    if counted is None:
        features, _ = source.load_inputs()
        inputs = features.shape[0]
        step = _spread(inputs, most)
        features = features[::step]
    else:
        inputs, _ = counted
        step = _spread(inputs, most)
        features = source.inputs.rows(slice(0, inputs, step), True)
    if not inputs:
        raise InputError(f"{source.inputs.name}: holds no inputs; a calibration needs some")
    return as_features(features, neurons), inputs, step


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


def follow_inputs(plan: NetworkPlan, features: Features, survivors: int) -> npt.NDArray[np.int64]:
    """Return after how many layers of a plan each input is last active.

    Inputs that are active again after a positive bias count as active before it.

    Parameters
    ----------
    plan : NetworkPlan
    features : Features of shape (inputs, neurons)
        At most one batch.
    survivors : int
        Once no more inputs than these are active, they are taken to stay so.

    Returns
    -------
    ndarray of int64, shape (inputs,)
    """
    layers, y_max = tuple(plan.network), plan.network.y_max
    active_after = np.full(features.shape[0], len(layers), np.int64)
    numbers, rows = np.arange(features.shape[0]), features
    cuts = range(max(1, plan.first_prunable_layer), len(layers) + 1)
    for begin, cut in pairwise([0, *cuts]):
        plan = plan.for_layers(Network(layers[begin:cut], y_max), False, own_plan)
        output = plan.run_batch(rows, lambda done: None).fetched()
        # What a plan gives back may hold inputs that died in its last layer.
        dense = isinstance(output.rows, np.ndarray)
        held = output.rows.any(axis=1) if dense else np.diff(output.rows.indptr)
        left = numbers[output.active[np.flatnonzero(held)]]
        active_after[np.setdiff1d(numbers, left)] = cut - 1
        numbers, rows = left, output.rows[np.flatnonzero(held)]
        if numbers.size <= survivors:
            break
    return active_after
