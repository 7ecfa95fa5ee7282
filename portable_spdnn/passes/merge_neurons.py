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
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.host import map_in_threads
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network
from portable_spdnn.passes.equal_rows import equal_rows, equal_sparse_rows


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
        Each layer is asked for once, in order: a streamed network is read once, a layer or two
        ahead of the one that is merged.
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
    # What does not depend on the layers before is done ahead, by a thread.
    with closing(map_in_threads(_with_inputs, network, 1)) as ahead:
        for layer, inputs in ahead:
            merged, classes = _merge_layer(layer, inputs, classes)
            layers.append(merged)
            check(merged)
    assert classes is not None  # a network has a layer
    return MergedNetwork(Network(layers, network.y_max), classes)


def _with_inputs(layer: Layer) -> tuple[Layer, Array | None]:
    """Return a layer, and for each output its inputs, rising, shape (outputs, inputs of each).

    None for these where the layer has more than one weight, or zeros, of which sums do not tell how
    many there are, or where outputs have different numbers of inputs.
    """
    outputs = layer.shape[1]
    each = layer.nnz // max(outputs, 1)
    if not (layer.constant and each):
        return layer, None
    unread = np.broadcast_to(np.int8(0), layer.indices.shape)
    by_output = sp.csr_array((unread, layer.indices, layer.indptr), shape=layer.shape).tocsc()
    if (np.diff(by_output.indptr) != each).any():
        return layer, None
    return layer, by_output.indices.reshape(outputs, each)


def _merge_layer(
    layer: Layer, inputs_of: Array | None, classes: Array | None
) -> tuple[Layer, Array]:
    """Merge one layer whose input neuron i is represented by ``classes[i]``.

    `inputs_of` is what `_with_inputs` says. Returns the layer, and the output of it that stands for
    each output of the original.
    """
    inputs = layer.shape[0] if classes is None else int(classes.max(initial=-1)) + 1
    if inputs_of is None:
        source = np.repeat(np.arange(layer.shape[0]), np.diff(layer.indptr))
        source = source if classes is None else classes[source]
        target = layer.indices.astype(np.int64)
        by_output = _summed(layer.data, target, source, (layer.shape[1], inputs))
        rows = by_output.indptr, by_output.indices, by_output.data, layer.bias
        first, group = equal_sparse_rows(*rows)
        kept = by_output[first]
    else:
        kept, first, group = _merge_equal_weights(layer, inputs_of, classes, inputs)
    csr = kept.T.tocsr()
    csr.sort_indices()
    rest = layer.bias[first], layer.activation, layer.lower, layer.upper
    return Layer.from_csr(csr.indptr, csr.indices, csr.data, csr.shape, *rest, copy=False), group


def _merge_equal_weights(
    layer: Layer, inputs_of: Array, classes: Array | None, inputs: int
) -> tuple[sp.csr_array, Array, Array]:
    """Merge a layer with one weight and the same number of inputs for every output.

    Outputs are equal where the classes of their inputs are, and their biases: so weights are summed
    for those outputs alone that are kept.

    Returns
    -------
    kept : csr_array, shape (groups, inputs)
    first, group : ndarray
        As of `equal_rows`.
    """
    outputs, each = inputs_of.shape
    # The classes of an output's inputs, and its bias; of even width, so that pairs are compared.
    rows = np.zeros((outputs, each + each % 2 + 2), np.int32)
    rows[:, :each] = inputs_of if classes is None else classes[inputs_of]
    rows[:, :each].sort(axis=1)
    bias = np.ascontiguousarray(layer.bias, np.float64)
    rows[:, -2:] = bias.view(np.int32).reshape(outputs, 2)
    first, group = equal_rows(rows)
    target = np.repeat(np.arange(first.size), each)
    weights = np.broadcast_to(layer.data[:1], target.shape)
    shape = (first.size, inputs)
    return _summed(weights, target, rows[first, :each].ravel(), shape), first, group


def _summed(weights: Array, target: Array, source: Array, shape: tuple[int, int]) -> sp.csr_array:
    """Return a row for each target, with the weights of equal sources summed.

    Sums are float64, whatever the type of the weights, unless this holds all of them.
    """
    wide = np.asarray(weights, dtype=np.float64)
    summed = sp.coo_array((wide, (target, source)), shape=shape).tocsr()
    summed.sum_duplicates()
    data = summed.data + 0  # -0 and 0 are one weight
    narrow = data.astype(weights.dtype)
    data = narrow if (narrow == data).all() else data
    return sp.csr_array((data, summed.indices, summed.indptr), shape=shape)
