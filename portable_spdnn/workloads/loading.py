"""Networks, inputs and truth from wherever they are: a folder, a packed store, a file.

A path is either a folder in the layout of the Sparse DNN Graph Challenge
(`graphchallenge.folder_layout`) or a packed store (`io.packed_layout`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from portable_spdnn.errors import InputError
from portable_spdnn.features import Features
from portable_spdnn.graphchallenge.configurations import (
    Y_MAX,
    Truth,
    known_truth,
    read_categories,
    truth_for,
)
from portable_spdnn.io.packed_layout import is_packed_store
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network

if TYPE_CHECKING:
    from portable_spdnn.io.packed_store import PackedStore
    from portable_spdnn.workloads.streamed_network import StreamedNetwork

PathLike = str | os.PathLike[str]
Progress = Callable[[int, int], None]


def load_network(
    path: PathLike,
    neurons: int | None = None,
    layers: int | None = None,
    bias: float | None = None,
    y_max: float | None = None,
    progress: Progress | None = None,
) -> Network:
    """Load a network into memory (from a store: map it).

    Parameters
    ----------
    path : path-like
        Folder or packed store.
    neurons : int, optional
        Default: that of the store, or of the one network in the folder.
    layers : int, optional
        The first so many layers; default: all.
    bias : float, optional
        Default: the store's own, or for a folder that of the challenge
        (`graphchallenge.challenge_bias`).
    y_max : float, optional
        Upper bound of every feature after a layer; infinity for none. Default: the store's own,
        or for a folder 32.
    progress : callable, optional
        Called with (layers done, layers in all); the latter is 0 while it is not known.

    Returns
    -------
    Network
        Weights of a folder are float32.

    Raises
    ------
    InputError
        If the path is neither folder nor store, holds no such network, or a file of it is
        missing, malformed, truncated or damaged.
    """
    source = _source(path)
    if not source.is_dir():
        return _store(source, neurons).network(layers, bias, y_max, progress)
    from portable_spdnn.graphchallenge.folder_layout import resolve_neurons
    from portable_spdnn.graphchallenge.layers_tsv import read_layers

    found = read_layers(source, resolve_neurons(source, neurons), layers, bias, progress)
    return Network(found, Y_MAX if y_max is None else y_max)


def open_network(
    path: PathLike,
    neurons: int | None = None,
    layers: int | None = None,
    bias: float | None = None,
    y_max: float | None = None,
) -> StreamedNetwork:
    """Open the network of a packed store; its layers are read when they are used.

    Parameters and errors are those of `load_network`, except that text files are refused: they
    cannot be read layer by layer again and again.
    """
    from portable_spdnn.workloads.streamed_network import StoredLayers, StreamedNetwork

    source = _source(path)
    if source.is_dir():
        raise InputError(
            f"{source}: text files are not streamed; pack them first: "
            f"portable-spdnn convert {source} --out network.spdnn"
        )
    store = _store(source, neurons)
    return StreamedNetwork(
        StoredLayers(store, layers, bias), store.y_max if y_max is None else y_max
    )


def iter_layers(
    path: PathLike,
    neurons: int | None = None,
    layers: int | None = None,
    bias: float | None = None,
) -> Iterator[Layer]:
    """Yield the layers of a network in order, in bounded memory.

    Parameters and errors are those of `load_network`.
    """
    source = _source(path)
    if not source.is_dir():
        return _store(source, neurons).iter_layers(layers, bias)
    from portable_spdnn.graphchallenge import layers_tsv
    from portable_spdnn.graphchallenge.folder_layout import resolve_neurons

    return layers_tsv.iter_layers(source, resolve_neurons(source, neurons), layers, bias)


def load_inputs(path: PathLike, neurons: int, first: int | None = None) -> Features:
    """Load features.

    Parameters
    ----------
    path : path-like
        A folder with ``sparse-images-N.tsv`` or ``.tsv.gz``, a packed store that holds inputs,
        such a text file of any name, or images in MNIST's IDX format (also gzip).
    neurons : int
    first : int, optional
        Only the first so many inputs.

    Returns
    -------
    PackedFeatures, or scipy.sparse.csr_array where a feature is neither 0 nor 1
        Shape (inputs, neurons).

    Raises
    ------
    InputError
        If there is no such file, it holds fewer than `first` inputs, its width is not
        `neurons`, or it is malformed, truncated or damaged.
    """
    return load_inputs_and_total(path, neurons, first)[0]


def load_inputs_and_total(
    path: PathLike, neurons: int, first: int | None = None
) -> tuple[Features, int]:
    """Load features, and tell how many inputs there are before `first` cuts them.

    Parameters and errors are those of `load_inputs`.
    """
    source = Path(path)
    if first is not None and first < 1:
        raise InputError(f"--first-inputs is {first}; at least 1 input is needed")
    if source.is_dir():
        source = _inputs_in(source, neurons)
    elif not source.exists():
        raise InputError(f"{source}: there is no such file")
    if is_packed_store(source):
        store = _store(source, neurons)
        features = store.inputs(first)
        return features, (store.input_shape or features.shape)[0]
    from portable_spdnn.io.idx import count_idx, is_idx

    if is_idx(source):
        from portable_spdnn.workloads.images import load_idx_features

        return load_idx_features(source, neurons, first), count_idx(source)
    from portable_spdnn.graphchallenge.folder_layout import neurons_of_inputs_name
    from portable_spdnn.graphchallenge.inputs_tsv import read_inputs

    named = neurons_of_inputs_name(source.name)
    if named is not None and named != neurons:
        raise InputError(
            f"{source}: holds inputs of {named} neurons, not {neurons}; "
            f"was --neurons meant to be {named}?"
        )
    return read_inputs(source, neurons, first)


def count_inputs(path: PathLike, neurons: int) -> int | None:
    """Return how many inputs a file holds, None where only reading all of them would tell.

    Stores and images tell; text files do not. Raises as `load_inputs`.
    """
    source = Path(path)
    if is_packed_store(source):
        shape = _store(source, neurons).input_shape
        if shape is None:
            raise InputError(f"{source}: holds no inputs; give a file with --inputs")
        return shape[0]
    if not source.exists():
        raise InputError(f"{source}: there is no such file")
    from portable_spdnn.io.idx import count_idx, is_idx

    return count_idx(source) if source.is_file() and is_idx(source) else None


def load_input_rows(path: PathLike, neurons: int, rows: slice, verify: bool = True) -> Features:
    """Load some inputs of a store or of images, without keeping the others.

    Parameters
    ----------
    path : path-like
        One whose inputs `count_inputs` tells.
    neurons : int
    rows : slice
        With start and end, within the inputs of the file.
    verify : bool
        Verify the checksum of a store's inputs, which reads all of them.

    Raises
    ------
    InputError
        As `load_inputs`.
    """
    source = Path(path)
    if is_packed_store(source):
        return _store(source, neurons).inputs(verify=verify)[rows]
    from portable_spdnn.workloads.images import load_idx_features

    return load_idx_features(source, neurons, rows.stop or None, rows)


def find_truth(path: PathLike, neurons: int, layers: int) -> Path | None:
    """Return the official truth file of a network in a folder, None where there is none."""
    from portable_spdnn.graphchallenge.folder_layout import truth_paths

    source = Path(path)
    return truth_paths(source, neurons).get(layers) if source.is_dir() else None


def load_truth(
    path: PathLike,
    neurons: int,
    layers: int,
    total_inputs: int,
    inputs_at_hand: int | None = None,
) -> Truth | None:
    """Load the truth that a folder or store holds for a network.

    Parameters
    ----------
    path : path-like
        Folder or packed store.
    neurons, layers : int
    total_inputs : int
        Number of inputs in the input file.
    inputs_at_hand : int, optional
        How many of them are used, counted from the first; default: all.

    Returns
    -------
    Truth or None
        None where there is no truth for so many layers.

    Raises
    ------
    InputError
        If the truth is malformed or damaged (see `graphchallenge.truth_for`).
    """
    source = _source(path)
    if source.is_dir():
        file = find_truth(source, neurons, layers)
        return None if file is None else truth_for(file, total_inputs, inputs_at_hand)
    categories = _store(source, neurons).truth(layers)
    if categories is None:
        return None
    at_hand = total_inputs if inputs_at_hand is None else inputs_at_hand
    return known_truth(categories, at_hand, f"{source} (truth after {layers} layers)")


def convert(
    directory: PathLike,
    out: PathLike,
    neurons: int | None = None,
    layers: int | None = None,
    bias: float | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a network of a folder, its inputs and its truth to a packed store.

    Every file is read once. A few layers and the inputs (one bit a feature where all are 0 or
    1) are in memory at a time.

    Parameters
    ----------
    directory : path-like
        A folder in the layout of the challenge. Inputs and truth are taken where present.
    out : path-like
        The store; an earlier file of that name is replaced when the new one is complete.
    neurons, layers, bias, progress
        As in `load_network`.

    Raises
    ------
    InputError
        For the reasons that `load_network` and `load_inputs` name, or if the disk is full.
        Nothing is written then.
    """
    from portable_spdnn.graphchallenge.folder_layout import (
        inputs_path,
        resolve_neurons,
        truth_paths,
    )
    from portable_spdnn.graphchallenge.layers_tsv import read_inputs, stream_layers
    from portable_spdnn.io.packed_store import PackedStoreWriter

    source = _source(directory)
    if not source.is_dir():
        raise InputError(f"{source}: is a packed store already")
    width = resolve_neurons(source, neurons)
    with PackedStoreWriter(out, y_max=Y_MAX) as store:
        for depth, file in truth_paths(source, width).items():
            store.set_truth(depth, read_categories(file))
        inputs = inputs_path(source, width)
        if inputs is not None:
            store.set_inputs(read_inputs(inputs, width)[0])
        for number, layer in stream_layers(source, width, layers, bias, progress):
            store.add_layer(number, layer)


def _source(path: PathLike) -> Path:
    source = Path(path)
    if source.is_dir() or is_packed_store(source):
        return source
    expected = "expected a folder in the Graph Challenge layout or a packed store"
    if not source.exists():
        raise InputError(f"{source}: there is no such file or folder; {expected}")
    hint = f"; was its folder {source.parent} meant?" if ".tar" in source.suffixes else ""
    raise InputError(f"{source}: is neither folder nor packed store; {expected}{hint}")


def _store(path: Path, neurons: int | None) -> PackedStore:
    from portable_spdnn.io.packed_store import PackedStore

    store = PackedStore(path)
    if neurons is not None and neurons != store.neurons:
        raise InputError(
            f"{path}: holds a network of {store.neurons} neurons, not {neurons}; "
            f"was --neurons meant to be {store.neurons}?"
        )
    return store


def _inputs_in(directory: Path, neurons: int) -> Path:
    from portable_spdnn.graphchallenge.folder_layout import inputs_path

    found = inputs_path(directory, neurons)
    if found is None:
        raise InputError(
            f"{directory}: holds no sparse-images-{neurons}.tsv or .tsv.gz; "
            "name an input file with --inputs"
        )
    return found
