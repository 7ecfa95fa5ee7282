"""Inputs of features on a device.

Dense features have shape (inputs, neurons) in Fortran order: in memory [neuron][input], with the
inputs innermost, as the kernels of feature_rows.cu read them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from portable_spdnn_gpu.compile.catalog import FEATURE_THREADS, TRANSPOSE_TILE, feature_rows
from portable_spdnn_gpu.device.interface import Array, Device, DeviceArray
from portable_spdnn_gpu.device.matrices import DeviceCsr, empty_csr

TAKE_ROWS = FEATURE_THREADS // 32  # rows that a block of take_sparse copies, one for each warp


def active_inputs(device: Device, features: DeviceArray | DeviceCsr) -> Array:
    """Return the inputs with a nonzero feature (NaN is one): int64, rising, in host memory."""
    if isinstance(features, DeviceCsr):
        return np.flatnonzero(features.row_nnz)
    return np.flatnonzero(_for_each_input(device, "mark_active", features, np.uint8))


def count_nonzeros(device: Device, features: DeviceArray | DeviceCsr) -> int:
    """Return how many features are not zero, or stored where they are sparse."""
    if isinstance(features, DeviceCsr):
        return features.nnz
    return int(_for_each_input(device, "count_nonzeros", features, np.int32).sum(dtype=np.int64))


def _for_each_input(
    device: Device, kernel: str, features: DeviceArray, dtype: npt.DTypeLike
) -> Array:
    """Return what a kernel finds for each input, in host memory."""
    by_neuron = columns_innermost(device, features.T)
    neurons, inputs = by_neuron.shape
    found = device.empty((inputs,), dtype)
    device.launch(
        feature_rows(kernel, by_neuron.dtype),
        (-(-inputs // FEATURE_THREADS), 1),
        [by_neuron, np.int32(neurons), np.int32(inputs), found],
    )
    return device.download(found)


def take_inputs(
    device: Device, features: DeviceArray | DeviceCsr, rows: Array
) -> DeviceArray | DeviceCsr:
    """Return the given inputs of features, of shape (rows.size, neurons)."""
    chosen, count = device.upload(np.asarray(rows, np.int32)), np.int32(rows.size)
    if isinstance(features, DeviceCsr):
        offsets = np.concatenate(([0], np.cumsum(features.row_nnz[rows])))
        part = empty_csr(device, (rows.size, features.shape[1]), offsets, features.dtype)
        device.launch(
            feature_rows("take_sparse", features.dtype),
            (-(-rows.size // TAKE_ROWS), 1),
            [
                features.indptr, features.indices, features.data, chosen, count,
                part.indptr, part.indices, part.data,
            ],
        )  # fmt: skip
        return part
    by_neuron = columns_innermost(device, features.T)
    neurons, inputs = by_neuron.shape
    taken = device.empty((neurons, rows.size), by_neuron.dtype)
    device.launch(
        feature_rows("take_dense", by_neuron.dtype),
        (neurons, -(-rows.size // FEATURE_THREADS)),
        [by_neuron, np.int32(inputs), chosen, count, taken],
    )
    return taken.T


def columns_innermost(device: Device, matrix: DeviceArray) -> DeviceArray:
    """Return a device matrix in C order: itself, or transposed by a kernel."""
    matrix = device.contiguous(matrix)
    if matrix.flags.c_contiguous:
        return matrix
    turned = device.empty(matrix.shape, matrix.dtype)
    write_transposed(device, matrix.T, turned)
    return turned


def write_transposed(device: Device, matrix: DeviceArray, out: DeviceArray) -> None:
    """Write the transpose of `matrix` to `out`; both in C order."""
    rows, columns = matrix.shape
    grid = (-(-columns // TRANSPOSE_TILE), -(-rows // TRANSPOSE_TILE))
    kernel = feature_rows("transpose", matrix.dtype)
    device.launch(kernel, grid, [matrix, np.int32(rows), np.int32(columns), out])
