"""Networks, inputs and whole workloads loaded from wherever they are.

A path is either a folder in the layout of the Sparse DNN Graph Challenge
(`graphchallenge.folder_layout`) or a packed store (`io.packed_layout`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from portable_spdnn.arrays import Progress
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features
from portable_spdnn.graphchallenge.categories import Truth, read_categories
from portable_spdnn.graphchallenge.configurations import Y_MAX
from portable_spdnn.graphchallenge.folder_layout import inputs_path, truth_paths
from portable_spdnn.graphchallenge.inputs_tsv import read_inputs
from portable_spdnn.graphchallenge.layers_tsv import stream_layers
from portable_spdnn.io.packed_writer import PackedStoreWriter
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network
from portable_spdnn.workloads.networks import TextNetwork
from portable_spdnn.workloads.sources import Request, Source, resolve
from portable_spdnn.workloads.streamed_network import StreamedNetwork

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Workload:
    """A network and inputs in memory.

    Attributes
    ----------
    source : Source
        Where they come from.
    network : Network
    features : PackedFeatures or csr_array
    truth : Truth or None
    load_seconds : float
    """

    source: Source
    network: Network
    features: Features
    truth: Truth | None
    load_seconds: float


def load_workload(request: Request, progress: Progress | None = None) -> Workload:
    """Load or generate what `request` names.

    Parameters
    ----------
    request : Request
    progress : callable, optional
        Called with (layers done, layers in all; 0 while not known).

    Raises
    ------
    InputError
        If a file is missing or malformed, or the request does not fit what the files hold.
    """
    start = time.perf_counter()
    source = resolve(request)
    network = source.load_network(progress)
    features, total = source.load_inputs()
    truth = source.load_truth(len(network), features.shape[0], total)
    return Workload(source, network, features, truth, time.perf_counter() - start)


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
        (`graphchallenge.configurations.challenge_bias`).
    y_max : float, optional
        Upper bound of every feature after a ReLU layer; infinity for none. Default: the store's,
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

    Examples
    --------
    >>> import pathlib, tempfile, numpy as np, portable_spdnn as ps
    >>> from portable_spdnn.graphchallenge.tsv_writing import write_layer
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> (folder / "neuron32").mkdir()
    >>> write_layer(folder / "neuron32" / "n32-l1.tsv", ps.Layer(np.eye(32) / 16))
    >>> ps.load_network(folder, neurons=32, bias=-0.25)
    Network(32 neurons, 1 layers, 32 edges, y_max=32.0)
    """
    return resolve(Request(Path(path), neurons, layers, bias=bias, y_max=y_max)).load_network(
        progress
    )


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

    Examples
    --------
    >>> import os, tempfile, numpy as np, portable_spdnn as ps
    >>> from portable_spdnn.io.packed_writer import PackedStoreWriter
    >>> path = os.path.join(tempfile.mkdtemp(), "network.spdnn")
    >>> with PackedStoreWriter(path, y_max=32.0) as store:
    ...     store.add_layer(1, ps.Layer(np.eye(4), -0.3))
    >>> ps.infer(ps.open_network(path), np.eye(4), "scipy", memory="4GiB").categories.tolist()
    [0, 1, 2, 3]
    """
    return resolve(Request(Path(path), neurons, layers, bias=bias, y_max=y_max)).network.open()


def iter_layers(
    path: PathLike, neurons: int | None = None, layers: int | None = None, bias: float | None = None
) -> Iterator[Layer]:
    """Yield the layers of a network in order, in bounded memory.

    Parameters and errors are those of `load_network`.

    Examples
    --------
    >>> import pathlib, tempfile, numpy as np, portable_spdnn as ps
    >>> from portable_spdnn.graphchallenge.tsv_writing import write_layer
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> (folder / "neuron32").mkdir()
    >>> write_layer(folder / "neuron32" / "n32-l1.tsv", ps.Layer(np.eye(32) / 16))
    >>> next(ps.iter_layers(folder, neurons=32, bias=-0.25))
    Layer(32 x 32, 32 edges)
    """
    return resolve(Request(Path(path), neurons, layers, bias=bias)).network.iter_layers()


def load_inputs(path: PathLike, neurons: int | None = None, first: int | None = None) -> Features:
    """Load features.

    Parameters
    ----------
    path : path-like
        A folder with ``sparse-images-N.tsv`` or ``.tsv.gz``, a packed store that holds inputs,
        such a text file of any name, or images in MNIST's IDX format (also gzip).
    neurons : int, optional
        Width of the network's input; a packed store knows its own.
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

    Examples
    --------
    >>> import os, tempfile, numpy as np, portable_spdnn as ps
    >>> from portable_spdnn.graphchallenge.tsv_writing import write_inputs
    >>> path = os.path.join(tempfile.mkdtemp(), "sparse-images-32.tsv")
    >>> write_inputs(path, ps.PackedFeatures.from_dense(np.eye(3, 32)))
    >>> ps.load_inputs(path, neurons=32).nnz
    3
    """
    request = Request(neurons=neurons, inputs=Path(path), first_inputs=first)
    return resolve(request).load_inputs()[0]


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
    network = resolve(Request(Path(directory), neurons)).network
    if not isinstance(network, TextNetwork):
        raise InputError(f"{directory}: is a packed store already")
    folder, width = Path(directory), network.neurons
    with PackedStoreWriter(out, y_max=Y_MAX) as store:
        for depth, file in truth_paths(folder, width).items():
            store.set_truth(depth, read_categories(file))
        inputs = inputs_path(folder, width)
        if inputs is not None:
            store.set_inputs(read_inputs(inputs, width)[0])
        for number, layer in stream_layers(folder, width, layers, bias, progress):
            store.add_layer(number, layer)
