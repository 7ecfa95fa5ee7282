"""Sources: the forms of features that tiles are loaded from."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn_cpu.jit.compilation import Array, kernel_part, read_only
from portable_spdnn_cpu.tiles.copies import load_dense
from portable_spdnn_cpu.tiles.spilling import load_spilled

# Kinds of TileSource.
BITS, DENSE, CSR, SPILLED = range(4)


class TileSource(NamedTuple):
    """Where tiles come from: one of four kinds; the arrays of the others are empty.

    Attributes
    ----------
    kind : int
        BITS, DENSE, CSR or SPILLED.
    bits : ndarray of uint8, shape (inputs, bytes)
    dense : ndarray in C order, shape (inputs, neurons)
    indptr, indices, data : ndarray
        CSR features.
    position, stride : ndarray of int64, shape (inputs,)
        Where in the spill buffer an input's first feature is, and how far apart its features are.
    """

    kind: int
    bits: Array
    dense: Array
    indptr: Array
    indices: Array
    data: Array
    position: Array
    stride: Array


def make_source(features: Features, dtype: np.dtype[Any]) -> TileSource:
    """Describe features in host memory as the first source of tiles."""
    kind, bits, dense = BITS, np.empty((0, 0), np.uint8), np.empty((0, 0), dtype)
    indptr, indices, data = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, dtype)
    if isinstance(features, PackedFeatures):
        bits = features.bits
    elif isinstance(features, np.ndarray):
        kind, dense = DENSE, np.asarray(features, dtype, order="C")
    else:
        kind = CSR
        indptr = features.indptr.astype(np.int64, copy=False)
        indices = features.indices.astype(np.int32, copy=False)
        data = features.data.astype(dtype, copy=False)
    none = np.empty(0, np.int64)
    arrays = (bits, dense, indptr, indices, data, none, none)
    return TileSource(kind, *map(read_only, arrays))


@kernel_part
def load_tile(
    source: TileSource, buffer: Array, first: int, count: int, rows: Array, tile: Array, width: int
) -> None:
    """Fill tile[:neurons, :width] with inputs first .. first + count - 1, then zeros.

    Neuron n goes to row rows[n]; from the spill buffer rows come as they are.
    """
    neurons = rows.size
    if source.kind == DENSE:
        load_dense(source.dense, first, count, rows, tile, width)
    elif source.kind == SPILLED:
        # First: copies may run on into columns that are zeroed below.
        load_spilled(source.position, source.stride, buffer, first, count, neurons, tile)
        for neuron in range(neurons):
            tile[neuron, count:width] = 0
    else:  # the two that name their nonzeros, which are few: zeros in order, then a scatter
        for neuron in range(neurons):
            tile[neuron, :width] = 0
    if source.kind == BITS:
        for column in range(count):
            packed = source.bits[first + column]
            for position in range(packed.size):
                byte = packed[position]
                if byte:
                    for bit in range(8):
                        if byte & (128 >> bit):
                            tile[rows[8 * position + bit], column] = 1
    elif source.kind == CSR:
        for column in range(count):
            for k in range(source.indptr[first + column], source.indptr[first + column + 1]):
                tile[rows[source.indices[k]], column] = source.data[k]


@kernel_part
def load_bytes(bits: Array, first: int, count: int, rows: Array, counted: Array) -> None:
    """Fill byte [rows[neuron], column] with the bit of input first + column, 0 from `count` on.

    Eight inputs and eight neurons at a time: word [row, column / 8] holds one byte for each of
    eight inputs, and each word of eight packed bytes holds one bit of each in its bytes.
    """
    neurons, columns = counted.shape
    for position in range(bits.shape[1]):
        for column in range(columns):
            packed = np.uint64(0)
            for member in range(min(8, count - 8 * column)):
                byte = np.uint64(bits[first + 8 * column + member, position])
                packed |= byte << np.uint64(8 * member)
            for bit in range(min(8, neurons - 8 * position)):
                plane = packed >> np.uint64(7 - bit)
                row = rows[8 * position + bit]
                counted[row, column] = plane & np.uint64(0x0101010101010101)
