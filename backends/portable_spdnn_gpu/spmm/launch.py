"""Launches of sparse times dense: packed matrices on a device, and handles for them."""

from __future__ import annotations

import numpy as np

from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_gpu.compile.catalog import CSR_PANEL, csr_spmm, feature_rows
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.epilogue import DeviceEpilogue
from portable_spdnn_gpu.device.feature_rows import columns_innermost
from portable_spdnn_gpu.device.features import (
    STATE,
    STATE_BYTES,
    StepOperands,
    input_states,
)
from portable_spdnn_gpu.device.interface import Device, DeviceArray
from portable_spdnn_gpu.device.matrices import DeviceCsr
from portable_spdnn_gpu.spmm.packing import PackedLaunch, PackedSpmm, pack

TURNS = 4  # of the resident blocks, in which a launch of many clusters takes place
WIDTHS_TOGETHER = 256  # the states of so many consecutive numbers of columns are uploaded together


class DeviceSpmm:
    """A packed matrix in device memory, and the launches of its products.

    Parameters
    ----------
    device : Device
    packed : PackedSpmm
        The packed matrix; its host memory may have been released.
    memory : device array of uint8
        The device memory that holds the packed matrix, or will hold it when kernels run.
    precision : Precision
    """

    def __init__(
        self, device: Device, packed: PackedSpmm, memory: DeviceArray, precision: Precision
    ) -> None:
        self.device, self.packed, self.precision = device, packed, precision
        self._arrays = [
            [device.view(memory, *array) for array in launch.arrays] for launch in packed.launches
        ]

    @classmethod
    def of_csr(cls, matrix: DeviceCsr) -> DeviceSpmm:
        """Return the csr variant of a matrix that is on the device already, without a copy."""
        rows = matrix.shape[0]
        launches = (PackedLaunch(csr_spmm, (), rows, rows, CSR_PANEL),) if rows else ()
        nothing = np.empty(0, np.uint8)
        packed = PackedSpmm("csr", matrix.shape, matrix.nnz, matrix.nnz, nothing, launches, False)
        made = cls(matrix.device, packed, matrix.data, Precision(np.dtype(matrix.dtype)))
        every = matrix.device.upload(np.arange(rows, dtype=np.int32))
        made._arrays = [[matrix.indptr, matrix.indices, matrix.data, every]][: len(launches)]
        return made

    def launch(
        self,
        operands: StepOperands,
        epilogue: DeviceEpilogue,
        residual: DeviceArray | None = None,
        marks: bool = True,
    ) -> None:
        """Start the kernels.

        Parameters
        ----------
        operands : StepOperands
        epilogue : DeviceEpilogue
        residual : device array of the stored type, optional
            Added before the activation; in the layout of the features after the step.
        marks : bool
            Whether active inputs are marked.
        """
        kind = epilogue.kind(residual is not None, marks)
        last = epilogue.arguments(residual, operands.to)
        left = len(self.packed.launches)
        for launch, arrays in zip(self.packed.launches, self._arrays, strict=True):
            left -= 1
            kernel = launch.kernel(self.precision, kind)
            blocks = launch_blocks(launch, operands.pitch, self.device.resident_blocks(kernel))
            arguments = [*arrays, np.int32(launch.units), *operands.arguments(not left), *last]
            self.device.launch(kernel, (blocks, 1), arguments)


def launch_blocks(launch: PackedLaunch, columns: int, resident: int) -> int:
    """Return how many blocks a launch has, where features have room for so many columns.

    Each block takes items a fixed step apart, until none is left, so that as many suffice as are
    resident. But multiprocessors do not all read memory equally fast: where a panel has clusters
    for more than two turns of the resident blocks, TURNS times as many are launched, and those
    multiprocessors that are ahead take more of them.
    """
    turns = TURNS if launch.by_turns and launch.units > 2 * resident else 1
    return min(launch.units * -(-columns // launch.panel), turns * resident)


class PreparedSpmm:
    """C = A B, finished by an epilogue, for one sparse A and many dense B.

    B and C hold their columns innermost: of a layer A is W transposed, and the columns of B are
    the inputs.

    Parameters
    ----------
    device : Device
    A : csr_array, canonical, or DeviceCsr; shape (m, k)
        A matrix in host memory is packed and uploaded once. One on the device is used where it
        is, row by row.
    variant : str
        The name of the variant; see `pack`.

    Raises
    ------
    InputError
        If there is no such variant.
    """

    def __init__(self, device: Device, A: SparseOperand, variant: str) -> None:
        self.device, self.shape, self.dtype = device, A.shape, np.dtype(A.dtype)
        if isinstance(A, DeviceCsr):
            self._spmm = DeviceSpmm.of_csr(A)
        else:
            precision = Precision(self.dtype)
            packed = pack(A, variant, precision)
            self._spmm = DeviceSpmm(device, packed, device.upload(packed.memory), precision)
        self._states: dict[int, DeviceArray] = {}  # by their smallest number of columns

    def describe(self) -> str:
        """Return which kernels run on how many rows."""
        return self._spmm.packed.describe()

    def compile(self, epilogue: DeviceEpilogue) -> None:
        """Compile what `run` launches, with and without a residual, before it is called."""
        for launch in self._spmm.packed.launches:
            for kind in {epilogue.kind(), epilogue.kind(adds=True)}:
                self.device.resident_blocks(launch.kernel(Precision(self.dtype), kind))
        self.device.resident_blocks(feature_rows("transpose", self.dtype))

    def run(
        self,
        B: DeviceArray,
        epilogue: DeviceEpilogue,
        residual: DeviceArray | None = None,
        out: DeviceArray | None = None,
    ) -> DeviceArray:
        """Return C, shape (m, n), in C order.

        Parameters
        ----------
        B : device array, shape (k, n), of A's type
            Where it is not in C order a copy is transposed on the device, as of the residual.
        epilogue : DeviceEpilogue
        residual : device array, shape (m, n), of A's type, optional
            Added before the activation.
        out : device array, shape (m, n), in C order, optional
            The memory for C, which shares none with B.
        """
        device, columns = self.device, int(B.shape[1])
        B = columns_innermost(device, B)
        added = None if residual is None else columns_innermost(device, residual)
        C = device.empty((self.shape[0], columns), self.dtype) if out is None else out
        state = self._state(columns)
        marks = device.empty((max(columns, 1),), np.uint8)
        operands = StepOperands(B, C, columns, state, state, marks)
        self._spmm.launch(operands, epilogue, added, marks=False)
        return C

    def _state(self, columns: int) -> DeviceArray:
        """Return the `InputState` of so many columns, on the device.

        What is there stays: a kernel on any stream may still read it.
        """
        first = columns - columns % WIDTHS_TOGETHER
        states = self._states.get(first)
        if states is None:
            states = self.device.upload(input_states(first, WIDTHS_TOGETHER).ravel().view(np.uint8))
            self._states[first] = states
        return self.device.view(states, (columns - first) * STATE_BYTES, (STATE,), np.int32)
