"""The `cupy` backend: CUDA kernels."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.backend import Availability, Backend
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.errors import InputError
from portable_spdnn.kernel_model import Limits
from portable_spdnn.network import Network
from portable_spdnn.operations.handles import DescribedCall, Prepared, SpgemmHandle
from portable_spdnn.operations.operands import host_array
from portable_spdnn.plans.base import NetworkPlan
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.availability import cuda_availability, cuda_device_numbers
from portable_spdnn_gpu.device.cuda_device import CudaDevice
from portable_spdnn_gpu.device.epilogue import DeviceEpilogue
from portable_spdnn_gpu.device.feature_rows import (
    active_inputs,
    columns_innermost,
    count_nonzeros,
    take_inputs,
    take_sparse_inputs,
    write_transposed,
)
from portable_spdnn_gpu.device.features import DeviceFeatures
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.device.limits import measure
from portable_spdnn_gpu.device.matrices import DeviceCsr, download_csr, upload_csr
from portable_spdnn_gpu.device.operands import (
    adopt_dense,
    adopt_sparse,
    is_device_sparse,
    is_on_device,
)
from portable_spdnn_gpu.network.plan import DevicePlan
from portable_spdnn_gpu.network.steps import KERNELS
from portable_spdnn_gpu.spgemm.launch import DeviceSpgemmHandle, compile_spgemm, sparse_layer
from portable_spdnn_gpu.spmm.launch import PreparedSpmm
from portable_spdnn_gpu.spmm.packing import by_output

Array = npt.NDArray[Any]


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

    def upload(self, array: Any) -> Any:
        """Return `array` on the device, sparse ones as `DeviceCsr`; one that is there as it is."""
        if isinstance(array, DeviceCsr) or self.cuda.owns(array):
            return array
        if sp.issparse(array):
            return upload_csr(self.cuda, array)
        if is_device_sparse(self.cuda, array):
            return adopt_sparse(self.cuda, "array", array)
        if is_on_device(self.cuda, array):
            return adopt_dense(self.cuda, "array", array)
        return self.cuda.upload(host_array("array", array))

    def download(self, array: Any) -> Any:
        """Return `array` as an ndarray or csr_array in host memory; one that is there as it is."""
        if isinstance(array, DeviceCsr):
            return download_csr(array)
        if is_device_sparse(self.cuda, array):
            return download_csr(adopt_sparse(self.cuda, "features", array))
        if is_on_device(self.cuda, array):
            return self.cuda.download(adopt_dense(self.cuda, "features", array))
        return array

    def synchronize(self) -> None:
        """Wait until all work that was started is done."""
        self.cuda.synchronize()

    def is_sparse(self, array: Any) -> bool:
        """Whether `array` is of scipy.sparse or cupyx.scipy.sparse, or a `DeviceCsr`."""
        if isinstance(array, DeviceCsr) or sp.issparse(array):
            return True
        return is_device_sparse(self.cuda, array)

    # -- operations -------------------------------------------------------------------------

    def run_spmm(self, A: Any, B: Any, epilogue: Epilogue, residual: Any) -> Any:
        """C = A B, finished, in the csr variant, which takes no preparation."""
        product = PreparedSpmm(self.cuda, A, "csr")
        B, residual = self._innermost(B), self._innermost(residual)
        return product.run(B, self._epilogue(epilogue, A.shape[0], A.dtype), residual)

    def make_spmm(self, A: Any, columns: int | None, epilogue: Epilogue) -> Prepared:
        """Return the function (B, out, residual) -> C, with A clustered and packed."""
        product = PreparedSpmm(self.cuda, self._host_csr(A), "clustered")
        finish = self._epilogue(epilogue, A.shape[0], A.dtype)
        product.compile(finish)
        self.cuda.synchronize()

        def run(B: Any, out: Any, residual: Any) -> Any:
            B, residual = self._innermost(B), self._innermost(residual)
            self._check_apart("spmm", out, B, residual)
            return product.run(B, finish, residual, self._device_out("spmm", out))

        return DescribedCall(run, product.describe)

    def _innermost(self, array: Any) -> Any:
        """Return an array on the device with its columns innermost; None for None."""
        return None if array is None else columns_innermost(self.cuda, self.upload(array))

    def _epilogue(self, epilogue: Epilogue, rows: int, dtype: Any) -> DeviceEpilogue:
        return DeviceEpilogue(self.cuda, epilogue, rows, dtype)

    def make_spgemm_handle(self, A: Any, B: Any) -> SpgemmHandle:
        """Return a handle for C = A B."""
        handle = DeviceSpgemmHandle(self.upload(A), self.upload(B))
        self.cuda.synchronize()  # what is prepared may be used on any stream from now on
        return handle

    def run_layer(self, W: Any, Y: Any, epilogue: Epilogue, residual: Any) -> Any:
        """Y' = Y W, finished in one pass; dense results have inputs innermost."""
        finish = self._epilogue(epilogue, W.shape[1], W.dtype)
        if self.is_sparse(Y):
            return sparse_layer(self.upload(W), self.upload(Y), finish)
        if not isinstance(W, DeviceCsr):
            product = PreparedSpmm(self.cuda, by_output(W), "csr")
        elif "by output" in W.prepared:
            product = W.prepared["by output"]
        else:
            # Weights that were uploaded without a handle are packed by the first call.
            product = PreparedSpmm(self.cuda, by_output(download_csr(W)), "clustered")
            self.cuda.synchronize()
            W.prepared["by output"] = product
        return self._dense_layer(product, Y, finish, None, residual)

    def make_layer(self, W: Any, epilogue: Epilogue) -> Prepared:
        """Return the function (Y, out, residual) -> Y', with W prepared for any Y."""
        product = PreparedSpmm(self.cuda, by_output(self._host_csr(W)), "clustered")
        finish = self._epilogue(epilogue, W.shape[1], W.dtype)
        product.compile(finish)
        if epilogue.zeros_stay:  # sparse Y are exact
            W = self.upload(W)
            compile_spgemm(self.cuda, W.dtype, finish.kind(marks=True))
        self.cuda.synchronize()

        def run(Y: Any, out: Any, residual: Any) -> Any:
            if self.is_sparse(Y):
                return sparse_layer(W, self.upload(Y), finish)
            return self._dense_layer(product, Y, finish, out, residual)

        return DescribedCall(run, product.describe)

    def _dense_layer(
        self, product: PreparedSpmm, Y: Any, epilogue: DeviceEpilogue, out: Any, residual: Any
    ) -> Any:
        Y = self.upload(Y)
        if residual is not None:
            residual = self.upload(residual)
        self._check_apart("layer", out, Y, residual)
        by_neuron = columns_innermost(self.cuda, Y.T)
        added = None if residual is None else columns_innermost(self.cuda, residual.T)
        result = product.run(by_neuron, epilogue, added)
        if out is None:
            return result.T
        write_transposed(self.cuda, result, self._device_out("layer", out))
        return out

    def _host_csr(self, matrix: Any) -> Any:
        return download_csr(matrix) if isinstance(matrix, DeviceCsr) else matrix

    def _device_out(self, name: str, out: Any) -> Any:
        if out is not None and not self.cuda.owns(out):
            raise InputError(
                f"{name}: out is {type(out).__name__}, not on the device; give a cupy.ndarray"
            )
        return out

    def _check_apart(self, name: str, out: Any, *operands: Any) -> None:
        if self._device_out(name, out) is None:
            return
        if any(each is not None and self.cuda.overlaps(out, each) for each in operands):
            raise InputError(f"{name}: out overlaps a dense operand; give it memory of its own")

    def measure_limits(self) -> Limits:
        """Measure what the device can do at most; this takes a second or two."""
        with self.cuda.bound():
            return measure(self.cuda)

    # -- validation ---------------------------------------------------------------------------

    def sparse_operand(self, name: str, array: Any) -> Any:
        """Return a sparse operand in canonical form; see `Backend.sparse_operand`."""
        if is_device_sparse(self.cuda, array):
            array = adopt_sparse(self.cuda, name, array)
        return super().sparse_operand(name, array)

    def dense_operand(self, name: str, array: Any) -> Any:
        """Return a dense operand on the device; see `Backend.dense_operand`."""
        if self.is_sparse(array):
            raise InputError(f"{name} is {type(array).__name__}, sparse; a dense array is expected")
        if is_on_device(self.cuda, array):
            array = adopt_dense(self.cuda, name, array)
        else:
            array = host_array(name, array)
        array = super().dense_operand(name, array)
        # Arrays of types that CUDA does not have are refused or converted before they are used.
        numeric = array.dtype.kind in "fiub" and array.dtype.itemsize <= 8
        return self.upload(array) if numeric else array

    def build_plan(self, network: Network, options: PlanOptions) -> NetworkPlan | None:
        """Return a plan that stays on the device; sparse features take the neutral layer loop."""
        if options.path == "spgemm":
            for option in ("kernel", "storage", "device_memory", "profile"):
                value = getattr(options, option)
                if value != getattr(PlanOptions(), option):
                    raise InputError(
                        f"path spgemm takes no option {option} ({value!r}); leave one of them out"
                    )
            return None
        plan = DevicePlan(self, network, options)
        self.cuda.synchronize()  # it may run on another stream than it was made on
        return plan

    # -- what the layer loop asks about features ---------------------------------------------

    def active_inputs(self, features: Any) -> Array:
        """Return the rows with a nonzero feature (NaN is one): int64, rising, host memory."""
        if self.is_sparse(features):
            return np.flatnonzero(self.upload(features).row_nnz())
        return active_inputs(self.cuda, self.upload(features))

    def nonzeros(self, features: Any) -> int:
        """Return how many features are nonzero, or stored where they are sparse."""
        if self.is_sparse(features):
            return int(features.nnz)
        return count_nonzeros(self.cuda, self.upload(features))

    def take_inputs(self, features: Any, rows: Array) -> Any:
        """Return the given rows of features, on the device."""
        if self.is_sparse(features):
            return take_sparse_inputs(self.upload(features), rows)
        return take_inputs(self.cuda, self.upload(features), rows)

    def multiply_adds(self, weights: Any, features: Any) -> int:
        """Return the multiply-adds of Y W: for sparse Y those of its stored entries alone."""
        if not self.is_sparse(features):
            return int(features.shape[0]) * int(weights.nnz)
        row_nnz = self.upload(weights).row_nnz()
        if row_nnz.size and (row_nnz == row_nnz[0]).all():
            return int(features.nnz) * int(row_nnz[0])
        return int(row_nnz[self.cuda.download(self.upload(features).indices)].sum())
