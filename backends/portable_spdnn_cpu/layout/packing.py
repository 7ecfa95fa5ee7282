"""Networks packed for depth-first kernels: layers stand end to end in a few arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from portable_spdnn.epilogue import cast_bounds
from portable_spdnn.layer import Layer
from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn.sparse_arrays import common_value, index_dtype
from portable_spdnn_cpu.activations import Activation
from portable_spdnn_cpu.jit.compilation import Array, kernel, read_only
from portable_spdnn_cpu.layout.clusters import Clusters, cluster_outputs, lay_out
from portable_spdnn_cpu.layout.equal_outputs import EqualOutputs, equal_outputs
from portable_spdnn_cpu.layout.orders import order_clusters, permute_rows, rank_clusters
from portable_spdnn_cpu.layout.tile_shape import CLUSTER
from portable_spdnn_cpu.machine.thread_pool import ThreadPool

# Columns of PackedLayers.table.
(
    NEURONS_IN, NEURONS_OUT, EDGES, CLUSTERS, FIRST_INDEX, FIRST_OFFSET, FIRST_VALUE, FIRST_ROW,
    FIRST_INPUT_ROW, ACTIVATION,
) = range(10)  # fmt: skip
COLUMNS = 10
ABSENT = -1
# Weights of a layer from which clusters of equal outputs are looked for before it is transposed:
# with half as many, threads waited for the interpreter, and planning took a quarter longer.
LEAST_WEIGHTS = 1 << 16


class PackedLayers(NamedTuple):
    """Weights by output neuron, all layers end to end.

    The outputs of a layer stand in the order in which they are computed: clusters that share
    inputs first; see `clusters.lay_out` for offsets, indices and values. In a tile the rows of
    features are permuted; see `orders`.

    Attributes
    ----------
    table : ndarray of int64, shape (layers, COLUMNS)
        Neurons in, neurons out, edges, clusters, first index, first offset, first value (-1:
        all weights equal), first row, first input row, code of `Activation`.
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
    """Cluster and pack layers by output, each worker one at a time.

    Parameters
    ----------
    layers : sequence of Layer
    activations : sequence of Activation
        Of each layer.
    dtype : numpy dtype
        float32 or float64.
    workers : ThreadPool
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
    return _assemble([part for part in parts if part is not None], indices[:used], activations)


@dataclass
class _Part:
    """One layer on its way into PackedLayers; `weight` counts where there are no values."""

    edges: int
    clusters: int
    offsets: Array
    values: Array | None
    order: Array
    bias: Array
    input_rows: Array
    weight: float = 0.0
    first_index: int = 0


def _pack_layer(layer: Layer, dtype: np.dtype[Any], wanted: np.dtype[Any]) -> tuple[_Part, Array]:
    """Return one layer's part, and the inputs of its outputs."""
    found = equal_outputs(layer, CLUSTER) if layer.nnz >= LEAST_WEIGHTS else None
    if found is not None:
        return _pack_equal(layer, found, dtype, wanted)
    data = None if layer.constant is not None else layer.data
    offsets = np.zeros(layer.shape[1] + 1, np.int64)
    by_output = np.empty(layer.nnz, wanted)
    values = None if data is None else np.empty(layer.nnz, dtype)
    transpose(layer.indptr, layer.indices, data, offsets, by_output, values)
    bias = layer.bias.astype(dtype)
    clusters = cluster_outputs(offsets, by_output)
    return _pack_rows(offsets, by_output, values, layer.constant, bias, layer.shape[0], clusters)


def _pack_equal(
    layer: Layer, found: EqualOutputs, dtype: np.dtype[Any], wanted: np.dtype[Any]
) -> tuple[_Part, Array]:
    """Return the part of a layer of one weight, all of whose edges are in clusters of equals."""
    neurons_in, neurons_out = layer.shape
    clusters = found.lengths.size
    offsets = np.concatenate([[0], np.cumsum(found.lengths)])
    found = found.reordered(rank_clusters(offsets, found.inputs, np.arange(clusters), neurons_in))
    others = np.ones(neurons_out, np.bool_)
    others[found.groups] = False
    order = np.concatenate([found.groups.ravel(), np.flatnonzero(others)])
    # Members of clusters have no inputs of their own, and other outputs none at all.
    ends = np.repeat(np.cumsum(found.lengths), CLUSTER + 1)
    without = np.full(order.size - CLUSTER * clusters, found.inputs.size)
    offsets, indices = np.concatenate([[0], ends, without]), found.inputs.astype(wanted)
    bias = layer.bias.astype(dtype)[order]
    rows = permute_rows(indices, neurons_in)
    weight = float(layer.data[0])
    return _Part(layer.nnz, clusters, offsets, None, order, bias, rows, weight), indices


def _pack_rows(
    offsets: Array,
    by_output: Array,
    values: Array | None,
    weight: float | None,
    bias: Array,
    neurons_in: int,
    clusters: Clusters,
) -> tuple[_Part, Array]:
    """Lay out the outputs of one layer; return its part, and the inputs of its outputs."""
    order, number = clusters
    order = order_clusters(offsets, by_output, order, number, neurons_in)
    bounds = (CLUSTER + 1) * number + (order.size - CLUSTER * number) + 1
    laid_offsets, indices = np.empty(bounds, np.int64), np.empty_like(by_output)
    laid_values = None if values is None else np.empty_like(values)
    lay_out(offsets, by_output, values, order, number, laid_offsets, indices, laid_values)
    rows = permute_rows(indices[: laid_offsets[(CLUSTER + 1) * number]], neurons_in)
    part = _Part(
        by_output.size, number, laid_offsets, laid_values, order, bias[order], rows, weight or 0.0
    )
    return part, indices[: laid_offsets[-1]]


def _assemble(
    parts: list[_Part], indices: Array, activations: Sequence[Activation]
) -> PackedLayers:
    """Put layers end to end; `indices` are tile rows already."""
    table = np.full((len(parts), COLUMNS), ABSENT, np.int64)
    first_offset = first_value = first_row = first_input_row = 0
    for row, part, activation in zip(table, parts, activations, strict=True):
        row[:FIRST_VALUE] = (
            part.input_rows.size, part.order.size, part.edges, part.clusters, part.first_index,
            first_offset,
        )  # fmt: skip
        row[FIRST_ROW:] = first_row, first_input_row, activation.code
        if part.values is not None:
            row[FIRST_VALUE] = first_value
            first_value += part.edges
        first_offset += part.offsets.size
        first_row += part.order.size
        first_input_row += part.input_rows.size
    # Outputs go where the next layer reads them; those of the last layer stay in order.
    after = [part.input_rows for part in parts[1:]] + [np.arange(parts[-1].order.size)]
    dtype = parts[0].bias.dtype
    arrays = (
        table,
        indices,
        _joined([part.offsets for part in parts], np.int64),
        _joined([part.values for part in parts if part.values is not None], dtype),
        _joined([rows[part.order] for part, rows in zip(parts, after, strict=True)], np.int32),
        _joined([part.bias for part in parts], dtype),
        _joined([part.input_rows for part in parts], np.int32),
        np.array([part.weight for part in parts], dtype),
        cast_bounds([each.lower for each in activations], dtype),
        cast_bounds([each.upper for each in activations], dtype),
    )
    return PackedLayers(*map(read_only, arrays))


def _joined(arrays: list[Array], dtype: npt.DTypeLike) -> Array:
    """Put arrays end to end; one alone is not copied."""
    if len(arrays) == 1:
        return arrays[0].astype(dtype, copy=False)
    return np.concatenate([np.empty(0, dtype), *arrays], dtype=dtype)


@kernel
def transpose(
    indptr: Array, indices: Array, data: Any, offsets: Array, by_output: Array, values: Array | None
) -> None:
    """Turn CSR by input into CSR by output; `offsets` comes as zeros.

    `data` and `values` are None where the pattern is all.
    """
    # A counting sort by output; rows come in order, so that the inputs of an output rise. Indices
    # are unsigned: see `jit.compilation`.
    for k in range(indices.size):
        offsets[np.uint64(indices[k] + 1)] += 1
    for output in range(offsets.size - 1):
        offsets[output + 1] += offsets[output]
    place = offsets[:-1].copy()
    for row in range(indptr.size - 1):
        for entry in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            own = np.uint64(indices[entry])
            free = np.uint64(place[own])
            by_output[free] = row
            if values is not None:
                values[free] = data[entry]
            place[own] += 1


def pack_product(
    by_output: SparseOperand, bias: Array, activation: Activation, clusters: Clusters | None = None
) -> tuple[PackedLayers, PackedLayers]:
    """Pack one matrix that already has a row per output.

    Parameters
    ----------
    by_output : scipy.sparse.csr_array, shape (neurons_out, neurons_in)
    bias : ndarray, shape (neurons_out,)
    activation : Activation
    clusters : Clusters, optional
        Those of its outputs; looked for by default.

    Returns
    -------
    natural, permuted : PackedLayers
        With every neuron in its own row, for features as they lie; and with rows permuted as it
        suits tiles. They share all else.
    """
    neurons_in = by_output.shape[1]
    inputs = np.arange(neurons_in)
    indices = by_output.indices.astype(index_dtype(neurons_in), copy=False)
    offsets = by_output.indptr.astype(np.int64, copy=False)
    weight = common_value(by_output.data)
    if weight is not None and not np.isfinite(weight):
        weight = None  # features are added up first: 0, the sum of none, times it would be NaN
    values = by_output.data if weight is None else None
    if clusters is None:
        clusters = cluster_outputs(offsets, indices)
    part, indices = _pack_rows(offsets, indices, values, weight, bias, neurons_in, clusters)
    natural = _assemble([replace(part, input_rows=inputs)], indices, [activation])
    permuted = natural._replace(
        indices=read_only(part.input_rows.astype(indices.dtype)[indices]),
        input_rows=read_only(part.input_rows),
    )
    return natural, permuted
