"""Calibration: what a node needs, measured on a sample of the layers and inputs."""

from __future__ import annotations

import math
import pickle
import time
import timeit
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features, as_features
from portable_spdnn.host import available_bytes, resident_bytes
from portable_spdnn.network import Network
from portable_spdnn.plans.base import NetworkPlan, Progress
from portable_spdnn.plans.batch import Batch, BatchOutput
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.planner import make_plan, own_plan
from portable_spdnn.plans.result import ReplicaRecord
from portable_spdnn.scaling.calibration import Calibration, Curve, Lives, Messages, count_live
from portable_spdnn.workloads.sources import DEFAULT_LAYERS, Request, Source, resolve
from portable_spdnn.workloads.streamed_network import LayerStatistics

ShowProgress = Callable[[str], AbstractContextManager[Progress | None]]

DENSE_LAYERS = 24  # run together: loading and storing features costs a few per cent of them
MOST_DENSE_INPUTS, MOST_DENSE_BYTES = 4096, 1 << 28
TURN_SECONDS = 1.0  # a measurement that takes longer is the last of its curve
LEAST_TURNS, MOST_TURNS = 3, 15
ROUNDS_SECONDS = 4.0  # for all of a curve, where the least rounds do not take longer
SETTLED = 1.1  # times the inputs that live on: then the first layers are over
CHOICES = 5  # of so many inputs among the sample
BATCHES, SURVIVORS, MESSAGE_TURNS = 16, 1 << 16, 50


def calibrate(
    backend: Backend,
    request: Request,
    sample_inputs: int,
    sample_layers: int,
    dtype: npt.DTypeLike,
    show_progress: ShowProgress,
) -> Calibration:
    """Measure what this machine needs for a network; all times are the least of several turns.

    Of the network and inputs that are requested at most `sample_layers` and `sample_inputs` are
    run: the first layers, inputs from all over. `show_progress` is given what is measured, and
    returns a context manager that yields a progress callback. Raises InputError as
    `load_workload`, or if there is no input.
    """
    options = PlanOptions(dtype)
    memory, program_bytes = available_bytes() or 0, resident_bytes()
    with show_progress("loading a sample") as step:
        begin = time.perf_counter()
        # All layers of `data` are read where their number is not known.
        wanted = request.layers or (None if request.data else DEFAULT_LAYERS)
        shallow = replace(request, layers=wanted and min(wanted, sample_layers))
        source = resolve(shallow)
        loaded = source.load_network(step)
        network = Network(loaded.layers[:sample_layers], loaded.y_max)
        load_seconds = time.perf_counter() - begin
        layers, neurons = tuple(network), network.neurons
        features, source_inputs, stride = load_inputs(source, neurons, sample_inputs)
    facts = [LayerStatistics.of(layer) for layer in layers]
    edges, total = np.array([one.nnz for one in facts]), max(network.edges, 1)
    with show_progress(f"planning on {backend.name}"):
        # Run a little beforehand, so that no later time holds a compiler's.
        make_plan(backend, Network(layers[:2], network.y_max), options).run(features[:2])
        half = make_plan(
            backend, Network(layers[: max(1, len(layers) // 2)], network.y_max), options
        )
        plan = make_plan(backend, network, options)
    # As many as go through together: a batch is what everything below is a function of.
    fewer = spread(features.shape[0], plan.batch_size)
    features, stride = features[::fewer], stride * fewer
    inputs = features.shape[0]
    with show_progress(f"running {inputs} inputs through {len(layers)} layers"):
        first_run = plan.run(features)
        both = {"all": partial(_run, plan, features), "half": partial(_run, half, features)}
        whole, halved = _least(both, math.inf).values()
    with show_progress("following inputs until they die"):
        survivors = first_run.records[-1].alive_inputs
        active_after = follow_inputs(plan, features, survivors or 0)
        live = count_live(active_after, inputs, len(layers))[0]
    with show_progress("measuring layers on live inputs"):
        dense = _measure_dense(backend, network, options)
    start = int(np.argmax(live[1:] <= SETTLED * live[-1])) + 1
    # The difference between all layers and half of them holds nothing but layers; where inputs
    # still die in them, something else as well.
    middle = len(half.network)
    after = float(dense(live[middle:-1]) @ edges[middle:])
    factor = (whole - halved) / after if after > 0 else 0.0
    measured = start <= middle and 0.5 <= factor <= 2
    factor = factor if measured else 1.0
    with show_progress("measuring first layers"):
        # Whole runs, less what the layers after the first ones take. Few inputs may be long-lived
        # ones, or none: several choices stand for all of the size.
        steps = [spread(inputs, 1 << power) for power in range(inputs.bit_length())]
        choices = [(n, first) for n in steps for first in range(0, n, -(-n // CHOICES))]
        taken = _least({(n, k): partial(_run, plan, features[k::n]) for n, k in choices})
        found: dict[int, list[float]] = {}
        for (n, first), seconds in [*taken.items(), ((1, 0), whole)]:
            part = count_live(active_after[first::n], inputs, len(layers))[0]
            after = factor * float(dense(part[start:-1]) @ edges[start:])
            found.setdefault(-(-inputs // n), []).append(seconds - after)
    per_edge = (plan.plan_seconds - half.plan_seconds) / max(total - half.network.edges, 1)
    # Two of one length, or noise: all of planning grows with the edges.
    per_edge = per_edge if per_edge > 0 else plan.plan_seconds / total
    return Calibration(
        backend=backend.name, device=backend.device, dtype=str(options.dtype),
        threads=backend.threads, network=source.network.name, inputs=source.inputs.name,
        network_layers=wanted or len(loaded), neurons=neurons, widest=network.widest,
        batch_size=plan.batch_size, edges_per_layer=tuple(edges.tolist()),
        value_bytes=max(one.value_bytes for one in facts), dense=dense, start_layers=start,
        start=_rising({size: mean(seconds) for size, seconds in found.items()}),
        depth_factor=factor, depth_factor_measured=measured,
        first_batch_seconds=max(0.0, first_run.inference_seconds - whole) / inputs,
        load_seconds_edge=load_seconds / total,
        plan_seconds=max(0.0, plan.plan_seconds - per_edge * total), plan_seconds_edge=per_edge,
        messages=_measure_messages(),
        lives=Lives(len(layers), source_inputs, stride, tuple(active_after.tolist())),
        memory=memory, program_bytes=program_bytes,
    )  # fmt: skip


def load_inputs(source: Source, neurons: int, most: int) -> tuple[Features, int, int]:
    """Load every n-th input; returns them, how many the source has, and n."""
    counted = source.count_inputs()
    if counted is None:
        everything, _ = source.load_inputs()
        inputs = everything.shape[0]
        step = spread(inputs, most)
        features = everything[::step]
    else:
        inputs, _ = counted
        step = spread(inputs, most)
        features = source.inputs.rows(slice(0, inputs, step), True)
    if not inputs:
        raise InputError(f"{source.inputs.name}: holds no inputs; a calibration needs some")
    return as_features(features, neurons), inputs, step


def spread(inputs: int, most: int) -> int:
    """Return a step that takes at most so many of `inputs`, from all over them.

    An odd prime: collections of inputs have periods (the images of MNIST alternate between two
    groups of writers), and a step that shares a factor with one sees a part of it alone.
    """
    if inputs <= most:
        return 1
    step = max(3, -(-inputs // most))
    while any(step % factor == 0 for factor in range(2, math.isqrt(step) + 1)):
        step += 1
    return step


def _run(plan: NetworkPlan, features: Features) -> float:
    return plan.run(features).inference_seconds


def _least(
    actions: Mapping[Any, Callable[[], float]], longest: float = TURN_SECONDS
) -> dict[Any, float]:
    """Return the seconds that each action tells, the least of several rounds.

    All actions take part in a round, so that what else the machine does meets all of them. One
    that takes longer than `longest` is the last.
    """
    taken: dict[Any, list[float]] = {}
    rounds, spent = 0, 0.0
    while rounds < LEAST_TURNS or (rounds < MOST_TURNS and spent < ROUNDS_SECONDS):
        for key in list(taken) or actions:
            seconds = actions[key]()
            taken.setdefault(key, []).append(seconds)
            spent += seconds
            if not rounds and seconds > longest:
                break
        rounds += 1
    return {key: min(seconds) for key, seconds in taken.items()}


def _rising(measured: Mapping[int, float]) -> Curve:
    """Return the curve of measurements, of which none falls below one of fewer inputs."""
    inputs = sorted(measured)
    seconds = np.maximum.accumulate([max(measured[n], 0.0) for n in inputs])
    return Curve(tuple(inputs), tuple(seconds.tolist()))


def _measure_dense(backend: Backend, network: Network, options: PlanOptions) -> Curve:
    """Measure seconds for an edge on inputs that are all alive, by their number.

    Layers from the middle stand for all: the first ones may have a structure of their own.
    """
    begin = len(network) // 2
    few = Network(network.layers[begin : begin + DENSE_LAYERS], network.y_max)
    plan = make_plan(backend, few, replace(options, path="spmm", keep_dead_inputs=True))
    row_bytes = few.widest * np.dtype(options.dtype).itemsize
    most = min(MOST_DENSE_INPUTS, plan.batch_size, max(1, MOST_DENSE_BYTES // row_bytes))
    rows = np.random.default_rng(0).uniform(1, 2, (most, few.neurons)).astype(options.dtype)

    def seconds_an_edge(inputs: int) -> float:
        run = partial(plan.run_batch, rows[:inputs], lambda done: None)
        return timeit.timeit(run, number=1)

    # Powers of two, and what is just beyond them, where vectors and tiles end.
    sizes = {1 << power for power in range(most.bit_length())}
    sizes |= {size + step for size in (8, 16, 32, 64, 128) for step in (1, size // 2)}
    seconds = _least({n: partial(seconds_an_edge, n) for n in sorted(sizes) if n <= most})
    return _rising({n: one / max(few.edges, 1) for n, one in seconds.items()})


def follow_inputs(plan: NetworkPlan, features: Features, survivors: int) -> npt.NDArray[np.int64]:
    """Return after how many layers of a plan each input was alive; shape (inputs,).

    Layer by layer those that died leave, until `survivors` are left, or fewer; before a layer
    that revives the dead nobody does.
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


def _measure_messages() -> Messages:
    """Measure what `run_on_ranks` sends of a rank: its batches without features, its record."""
    # A name and a processor of usual length.
    record = ReplicaRecord(0, "node-00000", "a processor, 128 threads" * 2, 1, 1.5, 1.5, 1.5, 1)
    sizes, seconds = [], []
    for batches, survivors in ((0, 0), (BATCHES, 0), (1, SURVIVORS)):
        alive = np.arange(survivors)
        output = BatchOutput(alive, None, np.empty(0, np.int64), 0)
        together = [Batch(n, 1, alive + 1, float(n), output) for n in range(batches)]
        message = (together, [None] * batches, ((record,), 1.5))
        octets = pickle.dumps(message, -1)
        sizes.append(len(octets))
        for action in (partial(pickle.dumps, message, -1), partial(pickle.loads, octets)):
            seconds.append(min(timeit.repeat(action, number=1, repeat=MESSAGE_TURNS)))
    pickling, none, _, few, _, large = seconds
    batch = max(0.0, few - none) / BATCHES
    byte = max(0.0, large - none - batch) / (sizes[2] - sizes[0])
    return Messages(sizes[0], (sizes[1] - sizes[0]) / BATCHES, pickling, none, batch, byte)
