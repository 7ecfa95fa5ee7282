"""What to run: a network, inputs and, where there is one, the truth; from files or built in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from portable_spdnn.errors import InputError
from portable_spdnn.features import Features
from portable_spdnn.graphchallenge.configurations import Truth, truth_for
from portable_spdnn.network import Network

DEFAULT_NEURONS = 1024
DEFAULT_LAYERS = 120
_DIGITS = "bundled handwritten digits"


@dataclass(frozen=True)
class Request:
    """What the user asked for; see `portable-spdnn run --help` for each field.

    Attributes
    ----------
    data, inputs, truth : Path or None
    neurons, layers, first_inputs : int or None
    seed : int
        Of the generated network.
    bias, y_max : float or None
    streamed : bool
        Leave the network where it is: its layers are read, or generated, when they are used.
    """

    data: Path | None = None
    neurons: int | None = None
    layers: int | None = None
    inputs: Path | None = None
    truth: Path | None = None
    first_inputs: int | None = None
    seed: int = 0
    bias: float | None = None
    y_max: float | None = None
    streamed: bool = False


@dataclass(frozen=True)
class Workload:
    """A network and inputs in memory.

    Attributes
    ----------
    network : Network
    features : PackedFeatures or csr_array
    truth : Truth or None
    network_source, inputs_source : str
        Where they come from, for people.
    embedded : bool
        Whether neither network nor inputs come from files.
    load_seconds : float
    """

    network: Network
    features: Features
    truth: Truth | None
    network_source: str
    inputs_source: str
    embedded: bool
    load_seconds: float


def load_workload(request: Request, progress: Callable[[int, int], None] | None = None) -> Workload:
    """Load or generate what `request` names.

    Without `data` the network is the challenge's RadiX-Net, generated from `seed`; without
    `data` and `inputs` the inputs are the bundled digits, resized.

    Parameters
    ----------
    request : Request
    progress : callable, optional
        Called with (layers done, layers in all; 0 while not known).

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        If a file is missing or malformed, or the request does not fit what the files hold.
    """
    start = time.perf_counter()
    network, network_source = load_network_of(request, progress)
    features, total, inputs_source = load_inputs_of(request, network.neurons)
    truth = load_truth_of(request, network, features.shape[0], total)
    return Workload(
        network,
        features,
        truth,
        network_source,
        inputs_source,
        request.data is None and request.inputs is None,
        time.perf_counter() - start,
    )


def load_network_of(
    request: Request, progress: Callable[[int, int], None] | None = None
) -> tuple[Network, str]:
    """Load the network that `request` names, and tell where it is from; see `load_workload`."""
    if request.data is not None:
        from portable_spdnn.workloads.loading import load_network, open_network

        if request.streamed:
            streamed = open_network(
                request.data, request.neurons, request.layers, request.bias, request.y_max
            )
            return streamed, str(request.data)
        network = load_network(
            request.data, request.neurons, request.layers, request.bias, request.y_max, progress
        )
        return network, str(request.data)
    from portable_spdnn.graphchallenge.configurations import Y_MAX
    from portable_spdnn.graphchallenge.radixnet import radixnet_layers

    neurons = DEFAULT_NEURONS if request.neurons is None else request.neurons
    count = DEFAULT_LAYERS if request.layers is None else request.layers
    y_max = Y_MAX if request.y_max is None else request.y_max
    source = f"generated RadiX-Net, seed {request.seed}"
    if request.streamed:
        from portable_spdnn.workloads.streamed_network import GeneratedLayers, StreamedNetwork

        generated = GeneratedLayers(neurons, count, request.seed, request.bias)
        return StreamedNetwork(generated, y_max), source
    layers = []
    for layer in radixnet_layers(neurons, count, request.seed, request.bias):
        layers.append(layer)
        if progress is not None:
            progress(len(layers), count)
    return Network(layers, y_max), source


def load_inputs_of(request: Request, neurons: int) -> tuple[Features, int, str]:
    """Load the inputs that `request` names; raises as `load_workload`.

    Returns
    -------
    features : PackedFeatures or csr_array
    total : int
        How many inputs there are before ``request.first_inputs`` cuts them.
    source : str
        Where they come from, for people.
    """
    path = _inputs_path(request)
    if path is not None:
        from portable_spdnn.workloads.loading import load_inputs_and_total

        features, total = load_inputs_and_total(path, neurons, request.first_inputs)
        return features, total, str(path)
    from portable_spdnn.workloads.images import digits_features

    features = digits_features(neurons)
    total = features.shape[0]
    return features[: _wanted(request, total, _DIGITS)], total, _DIGITS


def count_inputs_of(request: Request, neurons: int) -> tuple[int, int, str] | None:
    """Return how many inputs `request` names, how many there are, and where they come from.

    None where only loading them would tell; raises as `load_workload`.
    """
    path = _inputs_path(request)
    if path is None:
        from portable_spdnn.workloads.images import digits

        total, source = len(digits()), _DIGITS
    else:
        from portable_spdnn.workloads.loading import count_inputs

        counted, source = count_inputs(path, neurons), str(path)
        if counted is None:
            return None
        total = counted
    return _wanted(request, total, source), total, source


def load_rows_of(request: Request, neurons: int, rows: slice, verify: bool) -> Features:
    """Load some of the inputs that `count_inputs_of` counts; see `loading.load_input_rows`."""
    path = _inputs_path(request)
    if path is not None:
        from portable_spdnn.workloads.loading import load_input_rows

        return load_input_rows(path, neurons, rows, verify)
    from portable_spdnn.workloads.images import digits_features

    return digits_features(neurons, rows)


def _inputs_path(request: Request) -> Path | None:
    return request.data if request.inputs is None else request.inputs


def _wanted(request: Request, total: int, source: str) -> int:
    wanted = total if request.first_inputs is None else request.first_inputs
    if not 1 <= wanted <= total:
        raise InputError(f"--first-inputs is {wanted}; there are 1 to {total} inputs ({source})")
    return wanted


def load_truth_of(request: Request, network: Network, at_hand: int, total: int) -> Truth | None:
    """Load the truth that `request` names or implies for `at_hand` of `total` inputs."""
    if request.truth is not None:
        return truth_for(request.truth, total, at_hand)
    # The truth of a folder or store is that of its own inputs.
    if request.data is None or request.inputs is not None:
        return None
    from portable_spdnn.workloads.loading import load_truth

    return load_truth(request.data, network.neurons, len(network), total, at_hand)
