"""Launches of sparse times sparse, in two phases: count, then fill."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.backend import SpgemmHandle
from portable_spdnn.errors import InputError
from portable_spdnn_gpu.compile.catalog import SPGEMM_ROWS, spgemm
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.device.matrices import DeviceCsr, empty_csr

Array = npt.NDArray[Any]


class DeviceSpgemmHandle(SpgemmHandle):
    """C = A B on the device: count the entries of each row, then write them in order."""

    def __init__(self, A: DeviceCsr, B: DeviceCsr) -> None:
        self.A, self.B = A, B
        compile_spgemm(A.device, A.dtype, activation=False)
        self._offsets: Array | None = None

    def symbolic(self) -> Array:
        """Return the row offsets of C; see `SpgemmHandle.symbolic`."""
        if self._offsets is None:
            self._offsets = count_entries(self.A, self.B)
        return self._offsets

    def numeric(self, A_data: Any = None, B_data: Any = None) -> DeviceCsr:
        """Return C; see `SpgemmHandle.numeric`."""
        A, B = with_values("A", self.A, A_data), with_values("B", self.B, B_data)
        return fill_entries(A, B, self.symbolic())


def compile_spgemm(device: Device, dtype: Any, activation: bool) -> None:
    """Compile both phases, before a product is asked for."""
    for phase in ("count", "fill"):
        device.resident_blocks(spgemm(phase, dtype, activation))


def with_values(name: str, matrix: DeviceCsr, data: Any) -> DeviceCsr:
    """Return `matrix` with `data`, from the host or the device, as its values."""
    if data is None:
        return matrix
    if not matrix.device.owns(data):
        data = matrix.device.upload(np.ascontiguousarray(data, dtype=matrix.dtype))
    if data.shape != (matrix.nnz,):
        raise InputError(
            f"spgemm: {data.size} new values for {name}, which stores {matrix.nnz} entries"
        )
    return matrix.with_data(data.astype(matrix.dtype))


def sparse_layer(W: DeviceCsr, Y: DeviceCsr, bias: Array, y_max: float | None) -> DeviceCsr:
    """Y' = min(max(Y W + bias, 0), y_max) without stored zeros; no bias is positive."""
    on_device = W.device.upload(np.ascontiguousarray(bias))
    return fill_entries(Y, W, count_entries(Y, W, on_device, y_max), on_device, y_max)


def count_entries(
    A: DeviceCsr, B: DeviceCsr, bias: Any = None, y_max: float | None = None
) -> Array:
    """Return the row offsets of C, or of the activated product where there is a bias.

    They are int64 and in host memory.
    """
    device = A.device
    row_nnz = device.empty((A.shape[0],), np.int32)
    _launch("count", A, B, bias, y_max, [row_nnz])
    offsets = np.zeros(A.shape[0] + 1, np.int64)
    np.cumsum(device.download(row_nnz), out=offsets[1:])
    return offsets


def fill_entries(
    A: DeviceCsr, B: DeviceCsr, offsets: Array, bias: Any = None, y_max: float | None = None
) -> DeviceCsr:
    """Return C, whose rows begin where `offsets` says, or the activated product."""
    C = empty_csr(A.device, (A.shape[0], B.shape[1]), offsets, A.dtype)
    _launch("fill", A, B, bias, y_max, [C.offsets, C.indices, C.data])
    return C


def _launch(
    phase: str, A: DeviceCsr, B: DeviceCsr, bias: Any, y_max: float | None, results: list[Any]
) -> None:
    dtype = A.dtype
    given = A.device.upload(np.zeros(1, dtype)) if bias is None else bias
    limit = dtype.type(np.inf if y_max is None else y_max)
    A.device.launch(
        spgemm(phase, dtype, bias is not None),
        (-(-A.shape[0] // SPGEMM_ROWS), 1),
        [
            A.offsets, A.indices, A.data, B.offsets, B.indices, B.data, np.int32(A.shape[0]),
            np.int32(B.shape[1]), given, limit, *results,
        ],
    )  # fmt: skip
