"""A network as the depth-first kernels read it: layers end to end in a few arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from portable_spdnn.network import Layer, index_dtype
from portable_spdnn_cpu.compiled import kernel, read_only
from portable_spdnn_cpu.workers import Workers

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


def pack_layers(layers: Sequence[Layer], dtype: np.dtype[Any], workers: Workers) -> PackedLayers:
    """Transpose and pack layers, each worker one at a time.

    Parameters
    ----------
    layers : sequence of Layer
    dtype : numpy dtype
        float32 or float64.
    workers : Workers

    Returns
    -------
    PackedLayers
    """
    ends = np.cumsum([layer.nnz for layer in layers])
    starts = ends - [layer.nnz for layer in layers]
    indices = np.empty(int(ends[-1]), index_dtype(max(layer.shape[0] for layer in layers)))
    offsets = [np.zeros(layer.shape[1] + 1, np.int64) for layer in layers]
    values = [
        None if layer.constant is not None else np.empty(layer.nnz, dtype) for layer in layers
    ]
    waiting = iter(range(len(layers)))  # shared: next() is atomic

    def work(worker: int) -> None:
        for row in waiting:
            layer = layers[row]
            by_output = indices[starts[row] : ends[row]]
            data = None if values[row] is None else layer.data
            transpose(layer.indptr, layer.indices, data, offsets[row], by_output, values[row])

    workers.run(work)

    table = np.full((len(layers), 7), ABSENT, np.int64)
    weight = np.zeros(len(layers), dtype)
    ragged: list[Array] = []
    different: list[Array] = []
    first_offset = first_value = first_bias = 0
    for row, layer in enumerate(layers):
        table[row, :3] = (*layer.shape, starts[row])
        lengths = np.diff(offsets[row])
        if lengths.size and (lengths == lengths[0]).all():
            table[row, ROW_LENGTH] = lengths[0]
        else:
            table[row, FIRST_OFFSET] = first_offset
            ragged.append(offsets[row])
            first_offset += offsets[row].size
        own = values[row]
        if own is None:
            weight[row] = layer.constant
        else:
            table[row, FIRST_VALUE] = first_value
            different.append(own)
            first_value += own.size
        table[row, FIRST_BIAS] = first_bias
        first_bias += layer.shape[1]
    return _packed(
        table,
        indices,
        _joined(ragged, np.int64),
        _joined(different, dtype),
        _joined([layer.bias.astype(dtype) for layer in layers], dtype),
        weight,
    )


@kernel
def transpose(
    indptr: Array,
    indices: Array,
    data: Any,
    offsets: Array,
    by_output: Array,
    values: Array | None,
) -> None:
    """Turn CSR by input into CSR by output; `offsets` comes as zeros.

    `data` and `values` are None where the pattern is all.
    """
    for k in range(indices.size):
        offsets[indices[k] + 1] += 1
    for output in range(offsets.size - 1):
        offsets[output + 1] += offsets[output]
    place = offsets[:-1].copy()
    for row in range(indptr.size - 1):
        for k in range(indptr[row], indptr[row + 1]):
            output = indices[k]
            by_output[place[output]] = row
            if values is not None:
                values[place[output]] = data[k]
            place[output] += 1


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
    return _packed(
        table,
        by_output.indices.astype(index_dtype(neurons_in), copy=False),
        by_output.indptr.astype(np.int64, copy=False),
        by_output.data,
        bias,
        np.zeros(1, bias.dtype),
    )


def _joined(parts: list[Array], dtype: npt.DTypeLike) -> Array:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _packed(*arrays: Array) -> PackedLayers:
    return PackedLayers(*map(read_only, arrays))
