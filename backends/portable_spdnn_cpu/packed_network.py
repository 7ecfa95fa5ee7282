"""A network as the depth-first kernels read it: layers end to end in a few arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from portable_spdnn.network import Layer, index_dtype

Array = npt.NDArray[Any]

# Columns of PackedLayers.table.
NEURONS_IN, NEURONS_OUT, FIRST_INDEX, ROW_LENGTH, FIRST_OFFSET, FIRST_VALUE, FIRST_BIAS = range(7)
ABSENT = -1


class PackedLayers(NamedTuple):
    """Weights by output neuron, all layers end to end.

    Each layer takes the leanest of four forms: with or without values (all weights equal), with
    or without row offsets (all outputs have equally many inputs).

    Attributes
    ----------
    table : ndarray of int64, shape (layers, 7)
        Neurons in, neurons out, first index, row length (-1: see offsets), first offset
        (-1: none), first value (-1: all weights equal), first bias.
    indices : ndarray of uint16, int32 or int64
        Input neurons of each output neuron.
    offsets : ndarray of int64
        Row offsets, from 0 in each layer.
    values, bias, weight : ndarray of the plan's type
        Values of each entry; bias of each output; the weight that all share, one a layer.
    """

    table: Array
    indices: Array
    offsets: Array
    values: Array
    bias: Array
    weight: Array


def pack_layers(layers: Sequence[Layer], dtype: np.dtype[Any]) -> PackedLayers:
    """Transpose and pack layers, one at a time.

    Parameters
    ----------
    layers : sequence of Layer
    dtype : numpy dtype
        float32 or float64.

    Returns
    -------
    PackedLayers
    """
    edges = sum(layer.nnz for layer in layers)
    index = index_dtype(max(layer.shape[0] for layer in layers))
    table = np.full((len(layers), 7), ABSENT, np.int64)
    indices = np.empty(edges, index)
    weight = np.zeros(len(layers), dtype)
    offsets: list[Array] = []
    values: list[Array] = []
    biases: list[Array] = []
    first_index = first_offset = first_value = first_bias = 0
    for row, layer in enumerate(layers):
        by_output = layer.csr().tocsc()
        table[row, :3] = (*layer.shape, first_index)
        indices[first_index : first_index + layer.nnz] = by_output.indices
        first_index += layer.nnz
        lengths = np.diff(by_output.indptr)
        if lengths.size and (lengths == lengths[0]).all():
            table[row, ROW_LENGTH] = lengths[0]
        else:
            table[row, FIRST_OFFSET] = first_offset
            offsets.append(by_output.indptr.astype(np.int64))
            first_offset += by_output.indptr.size
        if layer.constant is not None:
            weight[row] = layer.constant
        else:
            table[row, FIRST_VALUE] = first_value
            values.append(by_output.data.astype(dtype, copy=False))
            first_value += layer.nnz
        table[row, FIRST_BIAS] = first_bias
        biases.append(layer.bias.astype(dtype))
        first_bias += layer.shape[1]
    return PackedLayers(
        table,
        indices,
        _joined(offsets, np.int64),
        _joined(values, dtype),
        _joined(biases, dtype),
        weight,
    )


def pack_product(by_output: Any, bias: Array) -> PackedLayers:
    """Pack one matrix that already has a row per output.

    Parameters
    ----------
    by_output : scipy.sparse.csr_array, shape (neurons_out, neurons_in)
    bias : ndarray, shape (neurons_out,)

    Returns
    -------
    PackedLayers
        With values as given: an operation that is called once does not look for structure.
    """
    neurons_out, neurons_in = by_output.shape
    table = np.array([[neurons_in, neurons_out, 0, ABSENT, 0, 0, 0]], np.int64)
    return PackedLayers(
        table,
        by_output.indices.astype(index_dtype(neurons_in), copy=False),
        by_output.indptr.astype(np.int64, copy=False),
        by_output.data,
        bias,
        np.zeros(1, bias.dtype),
    )


def _joined(parts: list[Array], dtype: npt.DTypeLike) -> Array:
    return np.concatenate(parts) if parts else np.empty(0, dtype)
