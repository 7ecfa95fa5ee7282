"""One layer on columns of a tile, or of features where they are: which microkernel runs where.

Bound: with clusters arithmetic, four additions a load; without, the loads, one for each edge and
vector block, from the cache that holds the tile.
"""

from __future__ import annotations

import numpy as np

from portable_spdnn_cpu.activations import RELU, activate_span
from portable_spdnn_cpu.jit.compilation import Array, kernel_part
from portable_spdnn_cpu.layout.large_results import NONTEMPORAL_BYTES, PREFETCH_BYTES
from portable_spdnn_cpu.layout.packing import (
    ACTIVATION,
    CLUSTERS,
    EDGES,
    FIRST_INDEX,
    FIRST_OFFSET,
    FIRST_ROW,
    FIRST_VALUE,
    NEURONS_OUT,
    PackedLayers,
)
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES, CLUSTER, CLUSTER_BLOCKS
from portable_spdnn_cpu.tiles.microkernels import (
    LayerOperands,
    cluster,
    single,
    wide_cluster,
    wide_single,
)


@kernel_part
def apply_layer(
    layers: PackedLayers,
    layer: int,
    src: Array,
    dst: Array,
    active: Array | None,
    begin: int,
    end: int,
    shift: int,
    size: int = 0,
) -> None:
    """Run one layer on columns of features, with or without values as planning found them.

    See `multiply_columns`.
    """
    first = layers.table[layer, FIRST_VALUE]
    if first < 0:
        multiply_columns(layers, layer, src, dst, active, begin, end, shift, None, size)
    else:
        values = layers.values[first : first + layers.table[layer, EDGES]]
        multiply_columns(layers, layer, src, dst, active, begin, end, shift, values, size)
    activate(layers, layer, dst, active, begin, end, shift)


@kernel_part
def activate(
    layers: PackedLayers,
    layer: int,
    dst: Array,
    active: Array | None,
    begin: int,
    end: int,
    shift: int,
) -> None:
    """Apply a layer's activation, in place, where microkernels have not done so already.

    Bounds alone, and so ReLU, are theirs. For any other function `dst`, which is in a cache, is
    gone through again, and who is active is found anew.
    """
    row = layers.table[layer]
    if row[ACTIVATION] <= RELU:
        return
    features = dst.reshape(dst.size)
    if active is not None:
        active[begin:end] = 0
    for neuron in range(row[NEURONS_OUT]):
        first = neuron * dst.shape[1] + shift
        activate_span(
            features, first + begin, first + end, row[ACTIVATION], layers.lower[layer],
            layers.upper[layer],
        )  # fmt: skip
        if active is not None:
            for column in range(begin, end):
                active[column] += abs(dst[neuron, column + shift])


@kernel_part
def ways_to_write(dst: Array, shift: int, size: int, is_read: bool) -> tuple[bool, bool]:
    """Return whether to prefetch lines of `dst`, and whether to write by non-temporal stores.

    `is_read`: whether an activation follows, which reads `dst`. Columns are written in whole
    blocks, the first of which starts at column `shift`.
    """
    itemsize = dst.itemsize
    places = np.int64(dst.ctypes.data) | shift * itemsize | dst.shape[1] * itemsize
    nontemporal = size >= NONTEMPORAL_BYTES and places % BLOCK_BYTES == 0 and not is_read
    return size > PREFETCH_BYTES and not nontemporal, nontemporal


@kernel_part
def multiply_columns(
    layers: PackedLayers,
    layer: int,
    src: Array,
    dst: Array,
    active: Array | None,
    begin: int,
    end: int,
    shift: int,
    values: Array | None,
    size: int = 0,
) -> None:
    """dst = W^T src + bias, within bounds, on columns begin .. end - 1: whole vector blocks.

    Bounds are those of a layer without activation or with ReLU; see `activate` for others.

    In `dst` the columns stand further on by `shift`. `size`: the bytes of `dst` where it is a
    result that caches may not hold; 0 where it stays near.

    `src` holds features, or bytes that are 0 or 1. `values` is None where all weights are equal:
    each case compiles to its own code.
    """
    row = layers.table[layer]
    outputs, clusters = row[NEURONS_OUT], row[CLUSTERS]
    bounds = (CLUSTER + 1) * clusters + outputs - CLUSTER * clusters + 1
    offsets = layers.offsets[row[FIRST_OFFSET] : row[FIRST_OFFSET] + bounds]
    indices = layers.indices[row[FIRST_INDEX] : row[FIRST_INDEX] + offsets[bounds - 1]]
    rows = layers.output_rows[row[FIRST_ROW] : row[FIRST_ROW] + outputs]
    bias = layers.bias[row[FIRST_ROW] : row[FIRST_ROW] + outputs]
    lower, upper = layers.lower[layer], layers.upper[layer]
    if row[ACTIVATION] > RELU:
        lower, upper = layers.lower.dtype.type(-np.inf), layers.lower.dtype.type(np.inf)
    operands = LayerOperands(
        dst, src, shift, active, indices, offsets, values, rows, bias, layers.weight[layer], lower,
        upper, *ways_to_write(dst, shift, size, row[ACTIVATION] > RELU),
    )  # fmt: skip
    lanes = BLOCK_BYTES // src.itemsize
    first_value = 0
    # Outputs outside, columns inside: the indices of an output are read once, and then come from
    # the first cache. As many columns as go run in the wide register tile, the rest in a narrow.
    wide = CLUSTER_BLOCKS * lanes
    whole = begin + (end - begin) // wide * wide
    for number in range(clusters):
        at, first = (CLUSTER + 1) * number, CLUSTER * number
        wide_cluster(operands, at, first_value, first, begin, whole)
        if CLUSTER_BLOCKS > 1:
            cluster(operands, at, first_value, first, whole, end)
        common = offsets[at + 1] - offsets[at]
        first_value += (CLUSTER - 1) * common + offsets[at + CLUSTER + 1] - offsets[at]
    at = (CLUSTER + 1) * clusters
    whole = begin + (end - begin) // (2 * lanes) * (2 * lanes)
    for output in range(CLUSTER * clusters, outputs):
        wide_single(operands, at, first_value, output, begin, whole)
        single(operands, at, first_value, output, whole, end)
        first_value += offsets[at + 1] - offsets[at]
        at += 1
