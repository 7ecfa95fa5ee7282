r"""Merge neurons that always have the same value.

Two neurons of a layer whose inputs, weights and biases are equal have equal values for every
input of the network. Keeping one of them and adding their outgoing weights up leaves every sum
of the next layer what it was:

.. math:: \sum_{i \in c} y_i w_{ij} = y_c \sum_{i \in c} w_{ij}

for a class c of neurons of equal value y_c. The next layer, thus rewritten, may have equal
neurons in turn; so layers are merged from the first to the last. Inputs of the network stay as
they are, and the outputs are expanded again at the end. Nothing is assumed of the pattern.

The challenge's networks shrink about 23-fold: each has 16 copies of every neuron, scattered by
random permutations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network
from portable_spdnn.passes.equal_rows import equal_sparse_rows


@dataclass(frozen=True)
class MergedNetwork:
    """A network with merged neurons.

    Attributes
    ----------
    network : Network
    outputs : ndarray of int64, shape (neurons_out of the original,)
        Which output of `network` stands for each original output.
    """

    network: Network
    outputs: Array


def merge_neurons(
    network: Network, check: Callable[[Layer], None] = lambda layer: None
) -> MergedNetwork:
    """Merge equal neurons of all layers; linear in the number of weights.

    Parameters
    ----------
    network : Network
        Each layer is asked for once: a streamed network is read once, one layer at a time.
    check : callable, optional
        Given each merged layer, in order; may raise.

    Returns
    -------
    MergedNetwork
        Exact up to the order of additions: a layer of float32 in which a sum of weights would be
        rounded becomes one of float64.
    """
    layers: list[Layer] = []
    classes: Array | None = None
    for layer in network:
        merged, classes = _merge_layer(layer, classes)
        layers.append(merged)
        check(merged)
    assert classes is not None  # a network has a layer
    return MergedNetwork(Network(layers, network.y_max), classes)


def _merge_layer(layer: Layer, classes: Array | None) -> tuple[Layer, Array]:
    """Merge one layer whose input neuron i is represented by ``classes[i]``.

    Returns the layer, and the output of it that stands for each output of the original.
    """
    inputs = layer.shape[0] if classes is None else int(classes.max(initial=-1)) + 1
    source = np.repeat(np.arange(layer.shape[0]), np.diff(layer.indptr))
    if classes is not None:
        source = classes[source]
    # One row an output; sums of weights in float64, whatever the layer's type.
    weights = np.asarray(layer.data, dtype=np.float64)
    target = layer.indices.astype(np.int64)
    by_output = sp.coo_array((weights, (target, source)), shape=(layer.shape[1], inputs)).tocsr()
    by_output.sum_duplicates()
    data = by_output.data + 0  # -0 and 0 are one weight
    narrow = data.astype(layer.data.dtype)
    if (narrow == data).all():  # else sums stay as they are: float64
        data = narrow
    first, group = equal_sparse_rows(by_output.indptr, by_output.indices, data, layer.bias)
    kept = sp.csr_array((data, by_output.indices, by_output.indptr), shape=by_output.shape)[first]
    csr = kept.T.tocsr()
    csr.sort_indices()
    rest = layer.bias[first], layer.activation, layer.lower, layer.upper
    return Layer.from_csr(csr.indptr, csr.indices, csr.data, csr.shape, *rest, copy=False), group
