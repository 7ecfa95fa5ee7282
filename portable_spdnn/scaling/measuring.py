"""Calibration: what a node needs, measured on it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features
from portable_spdnn.host import available_bytes, resident_bytes
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network
from portable_spdnn.plans.base import NetworkPlan, Progress
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.scaling.calibration import Calibration
from portable_spdnn.scaling.curve import Curve
from portable_spdnn.scaling.live_inputs import LifeRecord
from portable_spdnn.scaling.message_costs import measure_messages
from portable_spdnn.scaling.sampling import Sample, load_layers, load_spread, record_lives, spread
from portable_spdnn.workloads.streamed_network import LayerFacts

Array = npt.NDArray[Any]
Key = TypeVar("Key")
ShowProgress = Callable[[str], AbstractContextManager[Progress | None]]

DENSE_LAYERS = 24  # run together: loading and storing features costs a few per cent of them
MOST_DENSE_INPUTS = 4096
MOST_DENSE_BYTES = 1 << 28
TURN_SECONDS = 1.0  # a measurement that takes longer is the last of its curve
LEAST_TURNS, MOST_TURNS = 3, 15
ROUNDS_SECONDS = 4.0  # for all of a curve, where the least rounds do not take longer
SETTLED = 1.1  # times the inputs that live on: then the first layers are over
CHOICES = 5  # of so many inputs among the sample
FRESH_PLANS, FRESH_SECONDS = 3, 4.0


def calibrate(
    backend: Backend,
    sample: Sample,
    options: PlanOptions | None = None,
    show_progress: ShowProgress = lambda what: nullcontext(None),
) -> Calibration:
    """Measure what this machine needs for a network; see `Calibration` for what.

    All times are the least of several turns.

    Parameters
    ----------
    backend : Backend
    sample : Sample
    options : PlanOptions, optional
        Without exact passes, which hide how long inputs live, and without a memory limit.
    show_progress : callable, optional
        Given what is measured, returns a context manager that yields a progress callback.

    Returns
    -------
    Calibration

    Raises
    ------
    InputError
        As `load_workload`, or if the options do not fit.
    """
    options = options or PlanOptions()
    if options.exact_passes or options.memory is not None or options.keep_dead_inputs:
        raise InputError(
            "a calibration runs without exact passes, memory limit and kept dead inputs"
        )
    memory, program_bytes = available_bytes(), resident_bytes()
    with show_progress("loading a sample") as step:
        start = time.perf_counter()
        network, network_source, network_layers = load_layers(sample, step)
        load_seconds = time.perf_counter() - start
        features, source_inputs, stride, inputs_source = load_spread(sample, network.neurons)
    layers = tuple(network)
    with show_progress(f"planning on {backend.name}"):
        _compile(backend, network, features, options)
        half = backend.plan(Network(layers[: max(1, len(layers) // 2)], network.y_max), options)
        plan = backend.plan(network, options)
    # As many as go through together: a batch is what everything below is a function of.
    fewer = spread(features.shape[0], plan.batch_size)
    features, stride = features[::fewer], stride * fewer
    inputs = features.shape[0]
    with show_progress(f"running {inputs} inputs through {len(layers)} layers"):
        first_run = plan.run(features)
        whole, halved = _in_turns([plan, half], features)
        fresh = [first_run.inference_seconds]
        fresh += _fresh_runs(backend, network, features, options, plan.plan_seconds)
    with show_progress("following inputs until they die"):
        lives = record_lives(backend, network, options, features, first_run)
        lives = replace(lives, source_inputs=source_inputs, stride=stride)
    with show_progress("measuring layers on live inputs"):
        dense = _measure_dense(backend, layers, network.y_max, options)
    start_layers = _settled_layer(lives)
    factor, measured = _depth_factor(
        lives, layers, dense, start_layers, whole - halved, len(half.network)
    )
    with show_progress("measuring first layers"):
        starts = _measure_starts(plan, features, whole, lives, dense, start_layers, factor)
    edges = network.edges
    per_edge = (plan.plan_seconds - half.plan_seconds) / max(edges - half.network.edges, 1)
    # Two of one length, or noise: all of planning grows with the edges.
    per_edge = per_edge if per_edge > 0 else plan.plan_seconds / max(edges, 1)
    facts = [LayerFacts.of(layer) for layer in layers]
    return Calibration(
        backend=backend.name,
        device=backend.device,
        dtype=str(options.dtype),
        threads=backend.threads,
        network=network_source,
        inputs=inputs_source,
        network_layers=network_layers,
        neurons=network.neurons,
        widest=network.widest,
        batch_size=plan.batch_size,
        edges_per_layer=tuple(one.nnz for one in facts),
        value_bytes=max(one.value_bytes for one in facts),
        dense=dense,
        start_layers=start_layers,
        start=starts,
        depth_factor=factor,
        depth_factor_measured=measured,
        first_batch_seconds=max(0.0, min(fresh) - whole) / inputs,
        load_seconds_edge=load_seconds / max(edges, 1),
        plan_seconds=max(0.0, plan.plan_seconds - per_edge * edges),
        plan_seconds_edge=per_edge,
        messages=measure_messages(),
        lives=lives,
        memory=memory or 0,
        program_bytes=program_bytes,
    )


def _compile(backend: Backend, network: Network, features: Features, options: PlanOptions) -> None:
    """Plan and run a little, so that no later time holds a compiler's."""
    few = Network(tuple(network)[:2], network.y_max)
    backend.plan(few, options).run(features[:2])


def _least(actions: dict[Key, Callable[[], object]]) -> dict[Key, float]:
    """Return the seconds of each action, the least of several rounds.

    All actions take part in a round, so that what else the machine does meets all of them. One
    that takes longer than `TURN_SECONDS` is the last.
    """
    seconds: dict[Key, list[float]] = {}
    rounds = 0
    while rounds < LEAST_TURNS or (
        rounds < MOST_TURNS and sum(map(sum, seconds.values())) < ROUNDS_SECONDS
    ):
        for key, action in actions.items():
            if rounds and key not in seconds:
                break
            start = time.perf_counter()
            action()
            seconds.setdefault(key, []).append(time.perf_counter() - start)
            if not rounds and seconds[key][-1] > TURN_SECONDS:
                break
        rounds += 1
    return {key: min(taken) for key, taken in seconds.items()}


def _in_turns(plans: Sequence[NetworkPlan], features: Features) -> list[float]:
    """Return the least seconds of each plan; they take turns, so that all meet the same noise."""
    seconds: list[list[float]] = [[] for _ in plans]
    while len(seconds[0]) < LEAST_TURNS or (
        len(seconds[0]) < MOST_TURNS and sum(map(sum, seconds)) < ROUNDS_SECONDS
    ):
        for taken, plan in zip(seconds, plans, strict=True):
            taken.append(plan.run(features).inference_seconds)
    return [min(taken) for taken in seconds]


def _fresh_runs(
    backend: Backend,
    network: Network,
    features: Features,
    options: PlanOptions,
    plan_seconds: float,
) -> list[float]:
    """Return the seconds of first runs of new plans, as far as planning is quick."""
    kept: list[NetworkPlan] = []  # memory that is given back would be taken again, touched
    seconds = []
    while len(kept) < FRESH_PLANS and (len(kept) + 1) * plan_seconds < FRESH_SECONDS:
        kept.append(backend.plan(network, options))
        seconds.append(kept[-1].run(features).inference_seconds)
    return seconds


def _measure_dense(
    backend: Backend, layers: Sequence[Layer], y_max: float | None, options: PlanOptions
) -> Curve:
    """Measure seconds for an edge on inputs that are all alive, by their number.

    Layers from the middle stand for all: the first ones may have a structure of their own.
    """
    middle = len(layers) // 2
    chosen = layers[middle : middle + DENSE_LAYERS]
    network = Network(chosen, y_max)
    plan = backend.plan(network, replace(options, path="spmm", keep_dead_inputs=True))
    row_bytes = network.widest * np.dtype(options.dtype).itemsize
    most = min(MOST_DENSE_INPUTS, plan.batch_size, max(1, MOST_DENSE_BYTES // row_bytes))
    rng = np.random.default_rng(0)
    rows = rng.uniform(1, 2, (most, network.neurons)).astype(options.dtype)
    seconds = _least({n: partial(_run_batch, plan, rows[:n]) for n in _dense_sizes(most)})
    return Curve.rising({n: one / max(network.edges, 1) for n, one in seconds.items()})


def _run_batch(plan: NetworkPlan, rows: Array) -> None:
    plan.run_batch(rows, lambda done: None)


def _dense_sizes(most: int) -> list[int]:
    """Return powers of two, and what is just beyond them, where vectors and tiles end."""
    sizes = {1 << power for power in range(most.bit_length())}
    sizes |= {size + step for size in (8, 16, 32, 64, 128) for step in (1, size // 2)}
    return sorted(size for size in sizes if size <= most)


def _settled_layer(lives: LifeRecord) -> int:
    """Return after how many layers nearly all inputs that will die have died; at least 1."""
    live = lives.live_per_layer()
    settled = live[1:] <= SETTLED * live[-1]
    return int(np.argmax(settled)) + 1 if settled.any() else lives.layers


def deep_seconds(
    live: Array, edges: npt.ArrayLike, dense: Curve, first: int, end: int | None = None
) -> Any:
    """Return what `dense` gives for layers `first` .. `end` - 1; summed over the last axis.

    Parameters
    ----------
    live : ndarray, shape (..., layers or more)
        Inputs that take part in each layer.
    edges : array_like, shape (layers,)
    """
    edges = np.asarray(edges, np.float64)[first:end]
    return (dense(live[..., first : first + edges.size]) * edges).sum(axis=-1)


def _depth_factor(
    lives: LifeRecord,
    layers: Sequence[Layer],
    dense: Curve,
    first: int,
    seconds: float,
    half: int,
) -> tuple[float, bool]:
    """Return how much longer layers beyond the first take than `dense` gives, and whether so.

    From the difference between all layers and half of them, which holds nothing else.
    """
    begin = max(first, half)
    given = float(
        deep_seconds(lives.live_per_layer(), [layer.nnz for layer in layers], dense, begin)
    )
    # Before `first` inputs still die, and what else happens there is in the difference as well.
    if begin > half or given <= 0 or not 0.5 <= seconds / given <= 2:
        return 1.0, False
    return seconds / given, True


def _measure_starts(
    plan: NetworkPlan,
    features: Features,
    whole: float,
    lives: LifeRecord,
    dense: Curve,
    first: int,
    factor: float,
) -> Curve:
    """Measure first layers: whole runs, less what the layers after them take.

    `whole` are the seconds of all features, which are known.
    """
    inputs = features.shape[0]
    edges = [layer.nnz for layer in plan.network]
    actions: dict[tuple[int, int], Callable[[], object]] = {}
    for size in (1 << power for power in range(inputs.bit_length())):
        step = spread(inputs, size)
        # Few inputs may be long-lived ones, or none: several choices stand for all of the size.
        for offset in range(0, step, -(-step // CHOICES)):
            actions[step, offset] = partial(plan.run, features[offset::step])
    found: dict[int, list[float]] = {}
    for (step, offset), seconds in [*_least(actions).items(), ((1, 0), whole)]:
        part = replace(lives, alive_after=lives.alive_after[offset::step])
        after = factor * float(deep_seconds(part.live_per_layer(), edges, dense, first))
        found.setdefault(-(-inputs // step), []).append(seconds - after)
    return Curve.rising({size: statistics.mean(each) for size, each in found.items()})
