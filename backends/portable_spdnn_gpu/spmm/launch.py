"""Launches of sparse times dense."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn_gpu.compile.catalog import CSR_STRIP, csr_spmm
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.device.matrices import DeviceCsr
from portable_spdnn_gpu.spmm.packing import (
    PackedLaunch,
    PackedProduct,
    pack,
    placed_arrays,
)

Array = npt.NDArray[Any]
STATES = 64  # numbers of columns that a product remembers, the latest


class PlacedProduct:
    """A packed matrix in device memory, and the launches of its products.

    Parameters
    ----------
    device : Device
    packed : PackedProduct
    memory : device array of uint8
        Holds, or will hold, the packed matrix.
    precision : Precision
    """

    def __init__(
        self, device: Device, packed: PackedProduct, memory: Any, precision: Precision
    ) -> None:
        self.device, self.packed, self.precision = device, packed, precision
        self._arrays = [placed_arrays(device, launch, memory) for launch in packed.launches]

    @classmethod
    def of_csr(cls, matrix: DeviceCsr) -> PlacedProduct:
        """Return the products of a matrix that is on the device, row by row, without a copy."""
        rows = matrix.shape[0]
        launches = (PackedLaunch(csr_spmm, (), rows, rows, CSR_STRIP),) if rows else ()
        nothing = np.empty(0, np.uint8)
        packed = PackedProduct("csr", matrix.shape, matrix.nnz, matrix.nnz, nothing, launches)
        placed = cls(matrix.device, packed, None, Precision(np.dtype(matrix.dtype)))
        every = matrix.device.upload(np.arange(rows, dtype=np.int32))
        placed._arrays = [[matrix.offsets, matrix.indices, matrix.data, every]][: len(launches)]
        return placed

    def launch(
        self,
        from_: Any,
        to: Any,
        pitch: int,
        state: Any,
        source: Any,
        alive: Any,
        bias: Any,
        y_max: float | None,
        activation: bool,
    ) -> None:
        """Start the kernels.

        Parameters
        ----------
        from_, to : device arrays of the stored type
            Features before and after: row `neuron` begins at `neuron * pitch`.
        pitch : int
        state : device array of int32, shape (4,)
            How many columns there are, and whether they lie apart: `InputState` in common.cuh.
        source : device array of int32
            Where they lie, if apart.
        alive : device array of uint8
            Set to 1 for columns that are not zero after the activation.
        bias : device array of the sums' type, shape (rows,)
        y_max : float or None
        activation : bool
            Whether bias, ReLU and clamp follow the product.
        """
        sums = self.precision.sums
        limit = sums.type(np.inf if y_max is None else y_max)
        for launch, arrays in zip(self.packed.launches, self._arrays, strict=True):
            kernel = launch.kernel(self.precision, activation)
            strips = -(-pitch // launch.strip)
            blocks = min(launch.units * strips, self.device.resident_blocks(kernel))
            self.device.launch(
                kernel,
                (blocks, 1),
                [
                    *arrays, np.int32(launch.units), from_, to, np.int32(pitch), state, source,
                    alive, bias, limit,
                ],
            )  # fmt: skip


class DenseProduct:
    """C = A B, or min(max(A B + bias, 0), y_max), for one sparse A and many dense B.

    B and C hold their columns innermost: of a layer A is W transposed, and the columns of B are
    the inputs.

    Parameters
    ----------
    device : Device
    A : csr_array, canonical, or DeviceCsr; shape (m, k)
        In host memory: packed and uploaded once. On the device: used where it is, row by row.
    design : str
        See `pack`.

    Raises
    ------
    InputError
        If there is no such design.
    """

    def __init__(self, device: Device, A: Any, design: str) -> None:
        self.device, self.shape, self.dtype = device, A.shape, np.dtype(A.dtype)
        if isinstance(A, DeviceCsr):
            self._placed = PlacedProduct.of_csr(A)
        else:
            precision = Precision(self.dtype)
            packed = pack(A, design, precision)
            self._placed = PlacedProduct(device, packed, device.upload(packed.memory), precision)
        self._nothing = device.upload(np.zeros(1, self.dtype))
        self._states: dict[int, Any] = {}  # by the number of columns, the latest last

    def describe(self) -> str:
        """Say what is launched."""
        return self._placed.packed.describe()

    def run(self, B: Any, bias: Any = None, y_max: float | None = None, out: Any = None) -> Any:
        """Return C, shape (m, n), in C order.

        Parameters
        ----------
        B : device array, shape (k, n), in C order, of A's type
        bias : device array, shape (m,), optional
            With it the layer's activation; without it the plain product.
        y_max : float, optional
            None for no bound.
        out : device array, shape (m, n), in C order, optional
            Takes C; shares no memory with B.
        """
        device, columns = self.device, int(B.shape[1])
        C = device.empty((self.shape[0], columns), self.dtype) if out is None else out
        state = self._state(columns)
        marks = device.empty((max(columns, 1),), np.uint8)
        self._placed.launch(
            B, C, columns, state, state, marks,
            self._nothing if bias is None else bias, y_max, bias is not None,
        )  # fmt: skip
        return C

    def _state(self, columns: int) -> Any:
        """Return the `InputState` of so many columns, on the device."""
        state = self._states.pop(columns, None)
        if state is None:
            state = self.device.upload(np.array([columns, 0, 0, 0], np.int32))
        self._states[columns] = state
        # Each is a block of the memory pool, and where inputs die no two batches are as wide.
        if len(self._states) > STATES:
            self._states.pop(next(iter(self._states)))
        return state
