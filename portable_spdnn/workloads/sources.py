"""Where a network, its inputs and its truth come from: the one place that decides it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from portable_spdnn.arrays import Progress
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features
from portable_spdnn.graphchallenge.categories import Truth, known_truth, truth_for
from portable_spdnn.graphchallenge.configurations import INPUTS, Y_MAX
from portable_spdnn.graphchallenge.folder_layout import truth_paths
from portable_spdnn.io.packed_layout import is_packed_store
from portable_spdnn.network import Network
from portable_spdnn.workloads.inputs import (
    InputsSource,
    TextInputs,
    digit_inputs,
    inputs_at,
    stored_inputs,
    wanted,
)
from portable_spdnn.workloads.networks import (
    GENERATED,
    STORE,
    NetworkSource,
    TextNetwork,
    open_store,
)
from portable_spdnn.workloads.streamed_network import GeneratedLayers, StoredLayers

DEFAULT_NEURONS, DEFAULT_LAYERS = 1024, 120


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
class Source:
    """Where a network, its inputs and its truth come from; nothing is loaded yet.

    Methods raise InputError where files are missing, malformed, truncated or damaged, or do not
    hold what the request asks for.
    """

    request: Request
    network: NetworkSource
    inputs: InputsSource

    @property
    def embedded(self) -> bool:
        """Whether neither network nor inputs come from files."""
        return self.request.data is None and self.request.inputs is None

    def load_network(self, progress: Progress | None = None) -> Network:
        """Return the network: in memory, or streamed where the request says so.

        `progress` is called with (layers done, layers in all; 0 while not known).
        """
        return self.network.open() if self.request.streamed else self.network.load(progress)

    def count_inputs(self) -> tuple[int, int] | None:
        """Return how many inputs are asked for, and how many there are.

        None where only reading all of them would tell.
        """
        total = self.inputs.count()
        if total is None:
            return None
        return wanted(self.request.first_inputs, total, self.inputs.name), total

    def load_inputs(self) -> tuple[Features, int]:
        """Load the inputs that are asked for; returns also how many there are."""
        return self.inputs.load(self.request.first_inputs)

    def load_truth(self, layers: int, inputs: int, total: int) -> Truth | None:
        """Load the truth that the request names, or that lies beside network and inputs.

        None where there is none; see `load_truth`.
        """
        request = self.request
        if request.truth is not None:
            return truth_for(request.truth, total, inputs)
        # The truth of a folder or store is that of its own inputs.
        if request.data is None or request.inputs is not None:
            return None
        return load_truth(request.data, self.network.neurons, layers, total, inputs)


def resolve(request: Request) -> Source:
    """Find where the network, its inputs and its truth come from.

    Without `data` the network is the challenge's RadiX-Net, generated from `seed`; without
    `data` and `inputs` the inputs are the bundled digits, resized.

    Raises
    ------
    InputError
        If there is no such folder or file, or it holds a network or inputs of another number of
        neurons.
    """
    data, neurons, layers, bias = request.data, request.neurons, request.layers, request.bias
    y_max: float | None = Y_MAX if request.y_max is None else request.y_max
    network: NetworkSource
    inputs: InputsSource
    if data is None:
        neurons = DEFAULT_NEURONS if neurons is None else neurons
        layers = DEFAULT_LAYERS if layers is None else layers
        generate = partial(GeneratedLayers, neurons, layers, request.seed, bias)
        name = f"generated RadiX-Net, seed {request.seed}"
        network = NetworkSource(GENERATED, name, neurons, y_max, generate)
        inputs = digit_inputs(neurons)
    elif _is_folder(data):
        network = TextNetwork(data, neurons, layers, bias, y_max)
        inputs = TextInputs(data, network.neurons)
    else:
        store = open_store(data, neurons)
        y_max = store.y_max if request.y_max is None else request.y_max
        find = partial(StoredLayers, store, layers, bias)
        network = NetworkSource(STORE, str(data), store.neurons, y_max, find)
        inputs = stored_inputs(store)
    if request.inputs is not None:
        inputs = inputs_at(request.inputs, network.neurons)
    return Source(request, network, inputs)


def load_truth(
    path: Path, neurons: int, layers: int, total: int, inputs: int | None = None
) -> Truth | None:
    """Load the truth that a folder or packed store holds for a network.

    Parameters
    ----------
    path : Path
    neurons, layers : int
    total : int
        Number of inputs that the truth speaks of.
    inputs : int, optional
        How many of them are used, counted from the first; default: all.

    Returns
    -------
    Truth or None
        None where there is no truth for so many layers.

    Raises
    ------
    InputError
        If the truth is malformed or damaged (see `graphchallenge.categories.truth_for`).
    """
    if _is_folder(path):
        file = truth_paths(path, neurons).get(layers)
        return None if file is None else truth_for(file, total, inputs)
    categories = open_store(path, neurons).truth(layers)
    if categories is None:
        return None
    if categories.size and categories[-1] >= max(INPUTS, total):
        raise InputError(
            f"{path}: the truth after {layers} layers names input {categories[-1] + 1}; there are "
            f"{total}, and {INPUTS} official ones"
        )
    used = total if inputs is None else inputs
    return known_truth(categories, used, f"{path} (truth after {layers} layers)")


def _is_folder(path: Path) -> bool:
    """Tell a folder from a packed store; raise InputError where it is neither."""
    if path.is_dir():
        return True
    if is_packed_store(path):
        return False
    expected = "expected a folder in the Graph Challenge layout or a packed store"
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder; {expected}")
    hint = f"; was its folder {path.parent} meant?" if ".tar" in path.suffixes else ""
    raise InputError(f"{path}: is neither folder nor packed store; {expected}{hint}")
