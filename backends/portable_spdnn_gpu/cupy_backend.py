"""The `cupy` backend: CUDA kernels."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.backend import Availability, Backend
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.errors import InputError
from portable_spdnn.kernel_model import Limits
from portable_spdnn.network import Network
from portable_spdnn.operations.handles import DescribedCall, Prepared, SpgemmHandle
from portable_spdnn.operations.operands import DenseOperand, SparseOperand, host_array
from portable_spdnn.plans.base import NetworkPlan
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.availability import cuda_availability, cuda_device_numbers
from portable_spdnn_gpu.device.cuda_device import CudaDevice
from portable_spdnn_gpu.device.epilogue import DeviceEpilogue
from portable_spdnn_gpu.device.feature_rows import (
    active_inputs,
    count_nonzeros,
    take_inputs,
    write_transposed,
)
from portable_spdnn_gpu.device.features import DeviceFeatures
from portable_spdnn_gpu.device.interface import Array, Device, DeviceArray
from portable_spdnn_gpu.device.limits import measure
from portable_spdnn_gpu.device.matrices import DeviceCsr, check_size, download_csr, upload_csr
from portable_spdnn_gpu.device.operands import (
    adopt_dense,
    adopt_sparse,
    check_type,
    is_device_sparse,
    is_on_device,
)
from portable_spdnn_gpu.network.plan import DevicePlan
from portable_spdnn_gpu.network.steps import KERNELS
from portable_spdnn_gpu.spgemm.launch import DeviceSpgemmHandle, compile_spgemm, sparse_layer
from portable_spdnn_gpu.spmm.launch import PreparedSpmm
from portable_spdnn_gpu.spmm.output_rows import by_output


class CupyBackend(Backend):
    """CUDA through CuPy: own kernels, compiled for the device at hand when first used.

    Operations take arrays of the host (copied) and of the device (used where they are; see
    `portable_spdnn_gpu.device.operands`), and give arrays of the device: `cupy.ndarray`, and
    `DeviceCsr`, of which `to_cupyx` makes a `cupyx.scipy.sparse` matrix. All work is started on
    CuPy's current stream. Dense features are kept with the inputs innermost: an array of shape
    (inputs, neurons) in Fortran order.

    A handle or a plan chooses its variant, packs the weights and compiles its kernels when it is
    made; the calls that it serves only launch.

    Parameters
    ----------
    threads : int, optional
        Accepted as by every backend; one thread of the host drives the device.
    device : int, optional
        The number of the device. By default it is the current device of the calling thread.
        Calls on another device have to stand in `bound`.
    """

    name = "cupy"
    execution_space = "cuda"
    memory_space = "device"
    priority = 100
    plan_options = frozenset({"kernel", "storage", "device_memory", "devices", "profile"})
    kernels = KERNELS
    tunes = True  # whether plans measure the tile sizes of staged_spmm, once for a class of layers

    def __init__(self, threads: int | None = None, device: int | None = None) -> None:
        super().__init__(threads)
        self.cuda = self.open_device(device)
        # Buffers by precision, shared by plans that do not run at the same time, and freed with
        # the last of these.
        self.features: WeakValueDictionary[Precision, DeviceFeatures] = WeakValueDictionary()
        # Weights that were uploaded without a handle, as the first dense product packed them.
        self._packed: WeakKeyDictionary[DeviceCsr, PreparedSpmm] = WeakKeyDictionary()

    @classmethod
    def availability(cls) -> Availability:
        """Available where CuPy and NVRTC load and there are a driver and a device."""
        return cuda_availability()

    @property
    def device(self) -> str:
        """The name and architecture of the device."""
        return self.cuda.description

    def open_device(self, number: int | None) -> Device:
        """Return the device of a number, or the current one, which kernels are launched on."""
        return CudaDevice(number)

    def device_numbers(self) -> tuple[int, ...]:
        """Return the numbers of the CUDA devices that this process may use."""
        return cuda_device_numbers()

    def on_device(self, number: int) -> CupyBackend:
        """Return a backend on the device of a number: this one if it is on that device."""
        return self if number == self.cuda.number else type(self)(self.threads, number)

    def bound(self) -> AbstractContextManager[Any]:
        """Return a context in which the calling thread's current device is the backend's."""
        return self.cuda.bound()

    # -- memory ---------------------------------------------------------------------------

    def upload(self, array: object) -> DeviceArray | DeviceCsr:
        """Return `array` on the device, sparse ones as `DeviceCsr`; one that is there as it is."""
        return self._sparse(array) if self.is_sparse(array) else self._dense(array)

    def _sparse(self, matrix: object) -> DeviceCsr:
        if isinstance(matrix, DeviceCsr):
            return matrix
        if is_device_sparse(self.cuda, matrix):
            return adopt_sparse(self.cuda, "array", matrix)
        return upload_csr(self.cuda, matrix)

    def _dense(self, array: object) -> DeviceArray:
        if self.cuda.owns(array):
            return array
        if is_on_device(self.cuda, array):
            return adopt_dense(self.cuda, "array", array)
        given = host_array("array", array)
        native = given.dtype.newbyteorder("=")
        check_type("array", native)
        return self.cuda.upload(given.astype(native, copy=False))

    def download(self, array: Any) -> Any:
        """Return `array` as an ndarray or csr_array in host memory; one that is there as it is."""
        if isinstance(array, DeviceCsr) or is_device_sparse(self.cuda, array):
            return download_csr(self._sparse(array))
        if is_on_device(self.cuda, array):
            return self.cuda.download(adopt_dense(self.cuda, "features", array))
        return array

    def synchronize(self) -> None:
        """Wait until all work that was started is done."""
        self.cuda.synchronize()

    def is_sparse(self, array: object) -> bool:
        """Whether `array` is of scipy.sparse or cupyx.scipy.sparse, or a `DeviceCsr`."""
        known = isinstance(array, DeviceCsr) or sp.issparse(array)
        return known or is_device_sparse(self.cuda, array)

    # -- operations -------------------------------------------------------------------------

    def run_spmm(
        self, A: SparseOperand, B: DenseOperand, epilogue: Epilogue, residual: DenseOperand | None
    ) -> DeviceArray:
        """C = A B, finished, in the csr variant, which takes no preparation."""
        product = PreparedSpmm(self.cuda, A, "csr")
        finish = DeviceEpilogue(self.cuda, epilogue, A.shape[0], A.dtype)
        return self._dense_product("spmm", product, B, finish, None, residual)

    def make_spmm(self, A: SparseOperand, columns: int | None, epilogue: Epilogue) -> Prepared:
        """Return the function (B, out, residual) -> C, with A clustered and packed."""
        product = PreparedSpmm(self.cuda, self.download(A), "clustered")
        finish = DeviceEpilogue(self.cuda, epilogue, A.shape[0], A.dtype)
        product.compile(finish)
        self.cuda.synchronize()

        def run(B: DenseOperand, out: object, residual: DenseOperand | None) -> DeviceArray:
            return self._dense_product("spmm", product, B, finish, out, residual)

        return DescribedCall(run, product.describe)

    def make_spgemm_handle(self, A: SparseOperand, B: SparseOperand) -> SpgemmHandle:
        """Return a handle for C = A B."""
        handle = DeviceSpgemmHandle(self._sparse(A), self._sparse(B))
        self.cuda.synchronize()  # what is prepared may be used on any stream from now on
        return handle

    def run_layer(
        self,
        W: SparseOperand,
        Y: DenseOperand | SparseOperand,
        epilogue: Epilogue,
        residual: DenseOperand | None,
    ) -> DeviceArray | DeviceCsr:
        """Y' = Y W, finished in one pass; dense results have inputs innermost."""
        finish = DeviceEpilogue(self.cuda, epilogue, W.shape[1], W.dtype)
        if self.is_sparse(Y):
            return sparse_layer(self._sparse(W), self._sparse(Y), finish)
        if not isinstance(W, DeviceCsr):
            product = PreparedSpmm(self.cuda, by_output(W), "csr")
        elif W in self._packed:
            product = self._packed[W]
        else:
            product = PreparedSpmm(self.cuda, by_output(download_csr(W)), "clustered")
            self.cuda.synchronize()
            self._packed[W] = product
        return self._dense_product("layer", product, Y, finish, None, residual)

    def make_layer(self, W: SparseOperand, inputs: int | None, epilogue: Epilogue) -> Prepared:
        """Return the function (Y, out, residual) -> Y', with W prepared for any Y."""
        product = PreparedSpmm(self.cuda, by_output(self.download(W)), "clustered")
        finish = DeviceEpilogue(self.cuda, epilogue, W.shape[1], W.dtype)
        product.compile(finish)
        if epilogue.zeros_stay:  # sparse Y are exact
            W = self._sparse(W)
            compile_spgemm(self.cuda, W.dtype, finish.kind(marks=True))
        self.cuda.synchronize()

        def run(
            Y: DenseOperand | SparseOperand, out: object, residual: DenseOperand | None
        ) -> DeviceArray | DeviceCsr:
            if self.is_sparse(Y):
                return sparse_layer(self._sparse(W), self._sparse(Y), finish)
            return self._dense_product("layer", product, Y, finish, out, residual)

        return DescribedCall(run, product.describe)

    def _dense_product(
        self, name: str, product: PreparedSpmm, operand: Any, epilogue: DeviceEpilogue,
        out: object, residual: DenseOperand | None,
    ) -> DeviceArray:  # fmt: skip
        """Return A B for the name "spmm", and for "layer" Y W, which is A Y^T transposed."""
        check_size(f"{name}: {'B' if name == 'spmm' else 'features'}", operand.shape)
        given = self._dense(operand)
        added = None if residual is None else self._dense(residual)
        if out is not None:
            if not self.cuda.owns(out):
                raise InputError(
                    f"{name}: out is {type(out).__name__}, not on the device; give a cupy.ndarray"
                )
            if any(each is not None and self.cuda.overlaps(out, each) for each in (given, added)):
                raise InputError(f"{name}: out overlaps a dense operand; give it memory of its own")
        if name == "spmm":
            return product.run(given, epilogue, added, out)
        result = product.run(given.T, epilogue, None if added is None else added.T)
        if out is None:
            return result.T
        write_transposed(self.cuda, result, out)
        return out

    def measure_limits(self) -> Limits:
        """Measure what the device can do at most; this takes a second or two."""
        with self.cuda.bound():
            return measure(self.cuda)

    # -- validation ---------------------------------------------------------------------------

    def sparse_operand(
        self, name: str, array: object, dtype: npt.DTypeLike = np.float32
    ) -> SparseOperand:
        """Return a sparse operand in canonical form; see `Backend.sparse_operand`."""
        if is_device_sparse(self.cuda, array):
            array = adopt_sparse(self.cuda, name, array, dtype)
        return super().sparse_operand(name, array, dtype)

    def dense_operand(self, name: str, array: object) -> DenseOperand:
        """Return a dense operand in the memory where it is; see `Backend.dense_operand`.

        One in host memory stays there until it has the type that is computed in; `_dense` then
        uploads it.
        """
        if self.is_sparse(array):
            raise InputError(f"{name} is {type(array).__name__}, sparse; a dense array is expected")
        on_device = is_on_device(self.cuda, array)
        taken = adopt_dense(self.cuda, name, array) if on_device else host_array(name, array)
        return super().dense_operand(name, taken)

    def build_plan(self, network: Network, options: PlanOptions) -> NetworkPlan | None:
        """Return a plan that stays on the device; sparse features take the neutral layer loop."""
        if options.path == "spgemm":
            for option, value in options.backend_specific().items():
                raise InputError(
                    f"path spgemm takes no option {option} ({value!r}); leave one of them out"
                )
            return None
        return DevicePlan(self, network, options)

    # -- what the layer loop asks about features ---------------------------------------------

    def active_inputs(self, features: DenseOperand | SparseOperand) -> Array:
        """Return the rows with a nonzero feature (NaN is one): int64, rising, host memory."""
        return active_inputs(self.cuda, self.upload(features))

    def nonzeros(self, features: DenseOperand | SparseOperand) -> int:
        """Return how many features are nonzero, or stored where they are sparse."""
        return count_nonzeros(self.cuda, self.upload(features))

    def take_inputs(
        self, features: DenseOperand | SparseOperand, rows: Array
    ) -> DeviceArray | DeviceCsr:
        """Return the given rows of features, on the device."""
        return take_inputs(self.cuda, self.upload(features), rows)
