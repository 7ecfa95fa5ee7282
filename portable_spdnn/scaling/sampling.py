"""The sample that a calibration runs: layers, inputs from all over, how long they live."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features, as_features
from portable_spdnn.network import Network
from portable_spdnn.plans.base import NetworkPlan, Progress
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.planner import own_plan
from portable_spdnn.plans.result import Result
from portable_spdnn.scaling.live_inputs import LifeRecord
from portable_spdnn.workloads.request import (
    DEFAULT_LAYERS,
    Request,
    count_inputs_of,
    load_inputs_of,
    load_network_of,
    load_rows_of,
)


@dataclass(frozen=True)
class Sample:
    """What is run to calibrate a node.

    Attributes
    ----------
    request : Request
        Network and inputs; its `layers` are those of the whole network, None for all of
        ``data``, or the default.
    inputs, layers : int
        At most so many of either are run: inputs from all over the source, the first layers.

    Raises
    ------
    InputError
        If one of them is less than 1.
    """

    request: Request
    inputs: int = 2000
    layers: int = 120

    def __post_init__(self) -> None:
        for name in ("inputs", "layers"):
            if getattr(self, name) < 1:
                raise InputError(f"--sample-{name} is {getattr(self, name)}; at least 1 is needed")


def load_layers(sample: Sample, progress: Progress | None) -> tuple[Network, str, int]:
    """Load the first layers of the network; returns also where from, and its whole depth.

    Raises InputError as `load_workload`.
    """
    request = sample.request
    wanted = request.layers
    if wanted is None and request.data is None:
        wanted = DEFAULT_LAYERS
    if wanted is not None:
        request = replace(request, layers=min(wanted, sample.layers))
    network, source = load_network_of(request, progress)
    first = Network(network.layers[: sample.layers], network.y_max)
    return first, source, wanted or len(network)


def load_spread(sample: Sample, neurons: int) -> tuple[Features, int, int, str]:
    """Load every n-th input; returns them, how many they stand for, n, and their source.

    Raises InputError as `load_workload`, or if there is no input.
    """
    counted = count_inputs_of(sample.request, neurons)
    if counted is None:
        features, _, source = load_inputs_of(sample.request, neurons)
        inputs = features.shape[0]
        stride = spread(inputs, sample.inputs)
        features = features[::stride]
    else:
        inputs, _, source = counted
        stride = spread(inputs, sample.inputs)
        features = load_rows_of(sample.request, neurons, slice(0, inputs, stride), True)
    if not features.shape[0]:
        raise InputError(f"{source}: holds no inputs; a calibration needs some")
    return as_features(features, neurons), inputs, stride, source


def spread(inputs: int, wanted: int) -> int:
    """Return a step that takes at most `wanted` of `inputs`, from all over them.

    An odd prime: collections of inputs have periods (the images of MNIST alternate between two
    groups of writers), and a step that shares a factor with one sees a part of it alone.
    """
    step = -(-inputs // wanted)
    if step <= 1:
        return 1
    step = max(3, step)
    while any(step % factor == 0 for factor in range(2, math.isqrt(step) + 1)):
        step += 1
    return step


def record_lives(
    backend: Backend,
    network: Network,
    options: PlanOptions,
    features: Features,
    run: Result,
) -> LifeRecord:
    """Follow each input through the layers until it dies.

    The records of a run say after which layers inputs died; the network is cut there, and each
    piece says which.

    Parameters
    ----------
    backend : Backend
    network : Network
    options : PlanOptions
    features : features of the sample
    run : Result
        Of the network on them.

    Returns
    -------
    LifeRecord
        Of a source that is the sample itself.

    Raises
    ------
    InputError
        If the backend does not record how many inputs are alive.
    """
    inputs, count = features.shape[0], len(network)
    alive = [inputs]
    for record in run.records:
        if record.alive_inputs is None:
            raise InputError(f"backend {backend.name} does not record how long inputs live")
        alive.append(record.alive_inputs)
    # Before a layer that revives the dead nobody leaves.
    revived = max(network.layers_filling_zeros, default=-1) + 1
    cuts = [
        n
        for n in range(max(1, revived), count + 1)
        if alive[n] < (inputs if n == revived else alive[n - 1])
    ]
    lives = np.full(inputs, count, np.int64)
    layers = tuple(network)
    numbers, rows = np.arange(inputs), features
    plan: NetworkPlan | None = None
    for begin, cut in pairwise([0, *cuts]):
        piece = Network(layers[begin:cut], network.y_max)
        plan = (
            backend.plan(piece, options)
            if plan is None
            else plan.for_layers(piece, False, own_plan)
        )
        output = plan.run_batch(rows, lambda done: None).fetched()
        # What a plan gives back may hold inputs that died in its last layer.
        dense = isinstance(output.rows, np.ndarray)
        held = output.rows.any(axis=1) if dense else np.diff(output.rows.indptr)
        lasting = np.flatnonzero(held)
        left = numbers[output.alive[lasting]]
        lives[np.setdiff1d(numbers, left)] = cut - 1
        numbers, rows = left, output.rows[lasting]
        if not numbers.size:
            break
    return LifeRecord(count, inputs, 1, tuple(lives.tolist()))
