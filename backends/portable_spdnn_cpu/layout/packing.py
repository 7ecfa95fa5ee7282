"""Networks packed for depth-first kernels.

Layers stand end to end in a few arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from portable_spdnn.epilogue import ACTIVATIONS, Epilogue
from portable_spdnn.layer import Layer, common_value, index_dtype
from portable_spdnn_cpu.jit.compilation import kernel, read_only
from portable_spdnn_cpu.jit.thread_pool import ThreadPool
from portable_spdnn_cpu.layout.clusters import cluster_outputs, lay_out
from portable_spdnn_cpu.layout.orders import order_clusters, permute_rows
from portable_spdnn_cpu.layout.tile_shape import CLUSTER

Array = npt.NDArray[Any]

# Columns of PackedLayers.table.
(
    NEURONS_IN, NEURONS_OUT, EDGES, CLUSTERS, FIRST_INDEX, FIRST_OFFSET, FIRST_VALUE, FIRST_ROW,
    FIRST_INPUT_ROW, ACTIVATION,
) = range(10)  # fmt: skip
COLUMNS = 10
ABSENT = -1
# Codes of activations are their places in `epilogue.ACTIVATIONS`.
NO_ACTIVATION, RELU = range(2)


class Activation(NamedTuple):
    """What follows a layer's sums: y = min(max(activation(z), lower), upper).

    Attributes
    ----------
    code : int
    lower, upper : float
        Of ReLU, `lower` is at least 0: kernels that know bounds alone need no more.
    """

    code: int = NO_ACTIVATION
    lower: float = -np.inf
    upper: float = np.inf


def activation_of(epilogue: Epilogue) -> Activation:
    """Return what an epilogue does after the bias, in the form of kernels."""
    code = ACTIVATIONS.index(epilogue.activation)
    if epilogue.interval is not None:
        return Activation(code, *epilogue.interval)
    lower = -np.inf if epilogue.lower is None else epilogue.lower
    upper = np.inf if epilogue.upper is None else epilogue.upper
    return Activation(code, lower, upper)


class PackedLayers(NamedTuple):
    """Weights by output neuron, all layers end to end.

    The outputs of a layer stand in the order in which they are computed: clusters that share
    inputs first; see `clusters.lay_out` for offsets, indices and values. In a tile the rows of
    features are permuted; see `orders`.

    Attributes
    ----------
    table : ndarray of int64, shape (layers, COLUMNS)
        Neurons in, neurons out, edges, clusters, first index, first offset, first value (-1:
        all weights equal), first row, first input row, code of the activation.
    indices : ndarray of uint16, int32 or int64
        Tile rows of the inputs of each output.
    offsets : ndarray of int64
        From 0 in each layer.
    values : ndarray of the plan's type
        Of layers whose weights differ.
    output_rows, bias : ndarray of int32, ndarray of the plan's type
        Tile row and bias of each output, in the order of computation.
    input_rows : ndarray of int32
        Tile row of each input of each layer.
    weight, lower, upper : ndarray of the plan's type, shape (layers,)
        The weight that all edges share; the bounds of the activation.
    """

    table: Array
    indices: Array
    offsets: Array
    values: Array
    output_rows: Array
    bias: Array
    input_rows: Array
    weight: Array
    lower: Array
    upper: Array


def pack_layers(
    layers: Sequence[Layer],
    activations: Sequence[Activation],
    dtype: np.dtype[Any],
    workers: ThreadPool,
) -> PackedLayers:
    """Transpose, cluster and pack layers, each worker one at a time.

    Parameters
    ----------
    layers : sequence of Layer
    activations : sequence of Activation
        Of each layer.
    dtype : numpy dtype
        float32 or float64.
    workers : ThreadPool

    Returns
    -------
    PackedLayers
    """
    wanted = index_dtype(max(layer.shape[0] for layer in layers))
    # Room for all indices; what clusters save is never touched, and takes no memory.
    indices = np.empty(sum(layer.nnz for layer in layers), wanted)
    parts: list[_Part | None] = [None] * len(layers)
    waiting = iter(range(len(layers)))  # shared: next() is atomic
    reserve = Lock()
    used = 0

    def work(worker: int) -> None:
        nonlocal used
        for number in waiting:
            part, own = _pack_layer(layers[number], dtype, wanted)
            with reserve:
                part.first_index = used
                used += own.size
            end = part.first_index + own.size
            np.take(part.input_rows.astype(wanted), own, out=indices[part.first_index : end])
            parts[number] = part

    workers.run(work)
    done = [part for part in parts if part is not None]
    table = np.full((len(layers), COLUMNS), ABSENT, np.int64)
    weight = np.zeros(len(layers), dtype)
    first_offset = first_value = first_row = first_input_row = 0
    for number, (layer, part) in enumerate(zip(layers, done, strict=True)):
        table[number, :6] = (
            *layer.shape, layer.nnz, part.clusters, part.first_index, first_offset,
        )  # fmt: skip
        table[number, FIRST_ROW:] = first_row, first_input_row, activations[number].code
        if part.values is None:
            weight[number] = layer.constant
        else:
            table[number, FIRST_VALUE] = first_value
            first_value += layer.nnz
        first_offset += part.offsets.size
        first_row += layer.shape[1]
        first_input_row += layer.shape[0]
    values = [part.values for part in done if part.values is not None]
    # Outputs go where the next layer reads them; those of the last layer stay in order.
    after = [part.input_rows for part in done[1:]] + [
        np.arange(layers[-1].shape[1], dtype=np.int32)
    ]
    return _packed(
        table,
        indices[:used],
        np.concatenate([part.offsets for part in done]),
        np.concatenate(values) if values else np.empty(0, dtype),
        np.concatenate([there[part.order] for part, there in zip(done, after, strict=True)]),
        np.concatenate([part.bias for part in done]),
        np.concatenate([part.input_rows for part in done]),
        weight,
        np.array([each.lower for each in activations], dtype),
        np.array([each.upper for each in activations], dtype),
    )


@dataclass
class _Part:
    """One layer on its way into PackedLayers."""

    clusters: int
    offsets: Array
    values: Array | None
    order: Array
    bias: Array
    input_rows: Array
    first_index: int = 0


def _pack_layer(layer: Layer, dtype: np.dtype[Any], wanted: np.dtype[Any]) -> tuple[_Part, Array]:
    """Return one layer's part, and the inputs of its outputs."""
    data = None if layer.constant is not None else layer.data
    offsets = np.zeros(layer.shape[1] + 1, np.int64)
    by_output = np.empty(layer.nnz, wanted)
    values = None if data is None else np.empty(layer.nnz, dtype)
    transpose(layer.indptr, layer.indices, data, offsets, by_output, values)
    return _pack_rows(offsets, by_output, values, layer.bias.astype(dtype), layer.shape[0])


def _pack_rows(
    offsets: Array, by_output: Array, values: Array | None, bias: Array, neurons_in: int
) -> tuple[_Part, Array]:
    """Cluster the outputs of one layer; return its part, and the inputs of its outputs."""
    order, clusters = cluster_outputs(offsets, by_output)
    order = order_clusters(offsets, by_output, order, clusters, neurons_in)
    bounds = (CLUSTER + 1) * clusters + (order.size - CLUSTER * clusters) + 1
    laid_offsets, indices = np.empty(bounds, np.int64), np.empty_like(by_output)
    laid_values = None if values is None else np.empty_like(values)
    lay_out(offsets, by_output, values, order, clusters, laid_offsets, indices, laid_values)
    of_clusters = indices[: laid_offsets[(CLUSTER + 1) * clusters]]
    input_rows = permute_rows(of_clusters, neurons_in)
    part = _Part(clusters, laid_offsets, laid_values, order, bias[order], input_rows)
    return part, indices[: laid_offsets[-1]]


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


def pack_product(
    by_output: Any, bias: Array, activation: Activation, prepare: bool
) -> tuple[PackedLayers, PackedLayers]:
    """Pack one matrix that already has a row per output.

    Parameters
    ----------
    by_output : scipy.sparse.csr_array, shape (neurons_out, neurons_in)
    bias : ndarray, shape (neurons_out,)
    activation : Activation
    prepare : bool
        Look for equal weights and for clusters. An operation that is called once does not.

    Returns
    -------
    natural, permuted : PackedLayers
        With every neuron in its own row, for features as they lie; and with rows permuted as it
        suits tiles. They share all else.
    """
    neurons_out, neurons_in = by_output.shape
    inputs, outputs = np.arange(neurons_in), np.arange(neurons_out)
    indices = by_output.indices.astype(index_dtype(neurons_in), copy=False)
    offsets = by_output.indptr.astype(np.int64, copy=False)
    part = _Part(0, offsets, by_output.data, outputs, bias, inputs)
    weight = np.zeros(1, bias.dtype)
    if prepare:
        shared = common_value(by_output.data)
        data = by_output.data if shared is None else None
        part, indices = _pack_rows(offsets, indices, data, bias, neurons_in)
        weight[0] = 0 if shared is None else shared
    first_value = ABSENT if part.values is None else 0
    row = (
        neurons_in, neurons_out, by_output.nnz, part.clusters, 0, 0, first_value, 0, 0,
        activation.code,
    )  # fmt: skip
    natural = _packed(
        np.array([row], np.int64),
        indices,
        part.offsets,
        np.empty(0, bias.dtype) if part.values is None else part.values,
        part.order.astype(np.int32),
        part.bias,
        inputs.astype(np.int32),
        weight,
        np.array([activation.lower], bias.dtype),
        np.array([activation.upper], bias.dtype),
    )
    if not prepare:
        return natural, natural
    permuted = natural._replace(
        indices=read_only(part.input_rows.astype(indices.dtype)[indices]),
        input_rows=read_only(part.input_rows),
    )
    return natural, permuted


def _packed(*arrays: Array) -> PackedLayers:
    return PackedLayers(*map(read_only, arrays))
