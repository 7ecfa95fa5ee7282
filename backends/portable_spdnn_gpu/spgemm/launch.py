"""Launches of sparse times sparse, in two phases: count, then fill."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.handles import SpgemmHandle
from portable_spdnn.operations.operands import NEW_VALUES, host_array, new_values
from portable_spdnn_gpu.compile.catalog import NO_EPILOGUE, SPGEMM_ROWS, spgemm
from portable_spdnn_gpu.device.epilogue import DeviceEpilogue
from portable_spdnn_gpu.device.interface import Argument, Array, Device, DeviceArray
from portable_spdnn_gpu.device.matrices import DeviceCsr, empty_csr

Values = Array | DeviceArray | None  # new ones, of the host or the device; None for the old ones


class DeviceSpgemmHandle(SpgemmHandle):
    """C = A B on the device: count the entries of each row, then write them in order."""

    def __init__(self, A: DeviceCsr, B: DeviceCsr) -> None:
        self.A, self.B = A, B
        compile_spgemm(A.device, A.dtype, NO_EPILOGUE)
        self._offsets: Array | None = None

    def symbolic(self) -> Array:
        """Return the row offsets of C; see `SpgemmHandle.symbolic`."""
        if self._offsets is None:
            self._offsets = count_entries(self.A, self.B)
        return self._offsets

    def numeric(self, A_data: Values = None, B_data: Values = None) -> DeviceCsr:
        """Return C; see `SpgemmHandle.numeric`."""
        A, B = with_values("A", self.A, A_data), with_values("B", self.B, B_data)
        return fill_entries(A, B, self.symbolic())


def compile_spgemm(device: Device, dtype: npt.DTypeLike, epilogue: int) -> None:
    """Compile both phases, before a product is asked for."""
    for phase in ("count", "fill"):
        device.resident_blocks(spgemm(phase, dtype, epilogue))


def with_values(name: str, matrix: DeviceCsr, data: Values) -> DeviceCsr:
    """Return `matrix` with `data`, from the host or the device, as its values."""
    if data is None:
        return matrix
    device = matrix.device
    if device.owns(data):
        return matrix.with_data(device.contiguous(new_values(name, data, matrix)))
    given = new_values(name, host_array(f"{NEW_VALUES} {name}", data), matrix)
    return matrix.with_data(device.upload(given))


def sparse_layer(W: DeviceCsr, Y: DeviceCsr, epilogue: DeviceEpilogue) -> DeviceCsr:
    """Y' = Y W finished by an epilogue, without stored zeros; zeros stay zeros."""
    return fill_entries(Y, W, count_entries(Y, W, epilogue), epilogue)


def count_entries(A: DeviceCsr, B: DeviceCsr, epilogue: DeviceEpilogue | None = None) -> Array:
    """Return the row offsets of C, or of the finished product where there is an epilogue.

    They are int64 and in host memory.
    """
    device = A.device
    row_nnz = device.empty((A.shape[0],), np.int32)
    _launch("count", A, B, epilogue, [row_nnz])
    offsets = np.zeros(A.shape[0] + 1, np.int64)
    np.cumsum(device.download(row_nnz), out=offsets[1:])
    return offsets


def fill_entries(
    A: DeviceCsr, B: DeviceCsr, offsets: Array, epilogue: DeviceEpilogue | None = None
) -> DeviceCsr:
    """Return C, whose rows begin where `offsets` says, or the finished product."""
    C = empty_csr(A.device, (A.shape[0], B.shape[1]), offsets, A.dtype)
    _launch("fill", A, B, epilogue, [C.indptr, C.indices, C.data])
    return C


def _launch(
    phase: str,
    A: DeviceCsr,
    B: DeviceCsr,
    epilogue: DeviceEpilogue | None,
    results: list[DeviceArray],
) -> None:
    # A layer keeps only what is not 0: it needs an epilogue, be it one that changes nothing.
    kind = NO_EPILOGUE if epilogue is None else epilogue.kind(marks=True)
    last = epilogue or DeviceEpilogue(A.device, Epilogue(), 1, A.dtype)
    arguments: list[Argument] = [
        A.indptr, A.indices, A.data, B.indptr, B.indices, B.data, np.int32(A.shape[0]),
        np.int32(B.shape[1]), last.bias, *last.scalars, *results,
    ]  # fmt: skip
    grid = -(-A.shape[0] // SPGEMM_ROWS), 1
    A.device.launch(spgemm(phase, A.dtype, kind), grid, arguments)
