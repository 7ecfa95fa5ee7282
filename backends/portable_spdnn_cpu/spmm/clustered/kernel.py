"""Kernels of clustered rows: panels of columns, each computed while it stays in a cache.

A worker takes the next panel from a shared counter. Features in Fortran order lie as in a tile,
and may be read where they are; those of a panel that is copied are neighbours, and start on a
cache line, as whole vector loads want. Bound: that of `tiles.layer`, and for few entries a row of
weights the copies, which go through memory once.
"""

from __future__ import annotations

import numpy as np

from portable_spdnn_cpu.activations import activate_span
from portable_spdnn_cpu.jit.compilation import Array, kernel
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.layout.large_results import NONTEMPORAL_BYTES, store_fence
from portable_spdnn_cpu.layout.packing import PackedLayers
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.tiles.copies import load_dense, store_tile
from portable_spdnn_cpu.tiles.layer import apply_layer

SPAN = 2048


@kernel
def multiply_in_place(
    counter: Array, layers: PackedLayers, src: Array, dst: Array, width: int
) -> None:
    """Compute dst, shape (neurons_out, inputs), from src, shape (neurons_in, inputs).

    Both in C order; `inputs` and `width`, that of a panel, are whole numbers of vector blocks.
    """
    inputs, size = src.shape[1], dst.size * dst.itemsize
    while True:
        begin = fetch_add(counter, 0, 1) * width
        if begin >= inputs:
            break
        apply_layer(layers, 0, src, dst, None, begin, min(begin + width, inputs), 0, size)
    if size >= NONTEMPORAL_BYTES:
        store_fence()


@kernel
def multiply_copied(
    counter: Array,
    layers: PackedLayers,
    features: Array,
    panel: Array,
    dst: Array | None,
    sums: Array,
    out: Array,
) -> None:
    """Compute out, shape (inputs, neurons_out), from features that are copied panel by panel.

    Parameters
    ----------
    counter : ndarray of int64, shape (1,)
    layers : PackedLayers
    features : ndarray, shape (inputs, neurons_in), C or Fortran order
    panel : ndarray, shape (neurons_in or more, width)
    dst : ndarray in C order, shape (neurons_out, inputs), or None
        The transpose of `out`, where that is in Fortran order: whole vector blocks of results are
        written straight to it.
    sums : ndarray, shape (neurons_out or more, width)
        Takes all other results, to be copied to `out`.
    out : ndarray, shape (inputs, neurons_out), C or Fortran order
    """
    inputs, width = features.shape[0], panel.shape[1]
    lanes = BLOCK_BYTES // panel.itemsize
    while True:
        begin = fetch_add(counter, 0, 1) * width
        if begin >= inputs:
            break
        count = min(width, inputs - begin)
        padded = (count + lanes - 1) // lanes * lanes
        load_dense(features, begin, count, layers.input_rows, panel, padded)
        if dst is not None:
            whole = count // lanes * lanes
            apply_layer(layers, 0, panel, dst, None, 0, whole, begin, dst.size * dst.itemsize)
            apply_layer(layers, 0, panel, sums, None, whole, padded, 0)
            for neuron in range(dst.shape[0]):
                for column in range(whole, count):
                    dst[neuron, begin + column] = sums[neuron, column]
        else:
            apply_layer(layers, 0, panel, sums, None, 0, padded, 0)
            store_tile(sums, np.arange(begin, begin + count), count, out)
    if out.size * out.itemsize >= NONTEMPORAL_BYTES:
        store_fence()


@kernel
def add_residual(
    values: Array, residual: Array, first: int, end: int, code: int, lower: float, upper: float
) -> None:
    """values = min(max(activation(values + residual), lower), upper) in first .. end - 1.

    Both are contiguous and of one dimension. A block of SPAN values is in the first-level cache
    when its activation is computed.
    """
    for begin in range(first, end, SPAN):
        stop = min(begin + SPAN, end)
        span, added = values[begin:stop], residual[begin:stop]
        for place in range(span.size):
            span[place] += added[place]
        activate_span(values, begin, stop, code, lower, upper)
