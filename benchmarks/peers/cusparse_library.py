"""cuSPARSE's SpMM, with CuPy for what is around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.errors import BackendUnavailable, InputError
from portable_spdnn_gpu.device.interface import Device, LaunchError
from portable_spdnn_gpu.device.matrices import first_line

Array = npt.NDArray[Any]
# cusparseSpMMAlg_t, which CuPy does not name: CUSPARSE_SPMM_CSR_ALG1 and _ALG2.
CSR_ALG1, CSR_ALG2 = 4, 6


@dataclass(frozen=True)
class SparseOperand:
    """A matrix in the form that a library multiplies by.

    Attributes
    ----------
    shape : tuple of int
    nnz : int
    matrix : object
        The library's own.
    parts : tuple of arrays
        Memory that `matrix` refers to.
    """

    shape: tuple[int, int]
    nnz: int
    matrix: Any
    parts: tuple[Any, ...] = ()


class CusparseLibrary:
    """cuSPARSE's SpMM, and CuPy for what is around it, on CuPy's current stream.

    CuPy's own `cupyx.cusparse.spmm` knows column-major features alone; the calls below it take
    both orders, and are made here with the algorithm that NVIDIA's documents recommend for
    each: CSR_ALG1 column-major, CSR_ALG2 row-major. Sparse descriptors are made once. The
    optional `cusparseSpMM_preprocess`, which CuPy does not offer, would serve CSR_ALG1 alone.

    Attributes
    ----------
    arrays : module
        `cupy`, whose functions have NumPy's meaning.
    device : Device
        Memory, copies and synchronization.

    Raises
    ------
    ImportError
        If cuSPARSE, or a library that it needs, does not load.

    References
    ----------
    NVIDIA, "cuSPARSE Library", section cusparseSpMM().
    """

    name = "cuSPARSE"

    def __init__(self, device: Device) -> None:
        import cupy
        from cupy_backends.cuda.libs import cusparse
        from cupyx.cusparse import DnMatDescriptor, SpMatDescriptor

        self.arrays, self.device, self._cusparse = cupy, device, cusparse
        self._dense_descriptor, self._sparse_descriptor = DnMatDescriptor, SpMatDescriptor
        runtime = cupy.cuda.runtime
        self._types = {"f": int(runtime.CUDA_R_32F), "d": int(runtime.CUDA_R_64F)}
        # Comparisons with NaN are false: it passes both bounds.
        self._activate = cupy.ElementwiseKernel(
            "T z, T bias, T limit",
            "T y",
            "T v = z + bias; v = v < (T)0 ? (T)0 : v; y = v > limit ? limit : v;",
            "bias_relu_clamp",
        )

    def prepare(self, A: Any) -> SparseOperand:
        """Return a canonical csr_array of float32 or float64 on the device, with a descriptor."""
        limit = np.iinfo(np.int32).max
        if max(A.nnz, *A.shape) > limit:
            raise InputError(
                f"cuSPARSE: a layer of {A.shape[1]} x {A.shape[0]} with {A.nnz} weights is too "
                f"large for 32-bit indices, which count to {limit}"
            )
        if not A.nnz:
            return SparseOperand(A.shape, 0, None)
        host = (A.indptr.astype(np.int32), A.indices.astype(np.int32), A.data)
        offsets, indices, data = parts = tuple(self.device.upload(part) for part in host)
        library = self._cusparse
        descriptor = library.createCsr(
            *A.shape, A.nnz, offsets.data.ptr, indices.data.ptr, data.data.ptr,
            library.CUSPARSE_INDEX_32I, library.CUSPARSE_INDEX_32I,
            library.CUSPARSE_INDEX_BASE_ZERO, self._types[A.dtype.char],
        )  # fmt: skip
        owner = self._sparse_descriptor(descriptor, library.csrGet, library.destroySpMat)
        return SparseOperand(A.shape, int(A.nnz), owner, parts)

    def multiply(self, A: SparseOperand, B: Any, C: Any, row_major: bool) -> None:
        """Start C = A B.

        Parameters
        ----------
        A : SparseOperand, shape (m, k)
        B, C : device arrays in C order
            The shapes are (k, n) and (m, n) where `row_major`, else (n, k) and (n, m): the
            transposes, which are the same matrices in column-major order.
        row_major : bool
            The order of B and C.

        Raises
        ------
        LaunchError
            If cuSPARSE refuses.
        """
        if not A.nnz:
            C.fill(0)
            return
        library, cuda_type = self._cusparse, self._types[B.dtype.char]
        b, c = self._dense(B, row_major), self._dense(C, row_major)
        plain = library.CUSPARSE_OPERATION_NON_TRANSPOSE
        one, zero = np.ones(1, B.dtype), np.zeros(1, B.dtype)
        call = (
            self.arrays.cuda.device.get_cusparse_handle(), plain, plain, one.ctypes.data,
            A.matrix.desc, b.desc, zero.ctypes.data, c.desc, cuda_type,
            CSR_ALG2 if row_major else CSR_ALG1,
        )  # fmt: skip
        try:
            workspace = self.device.empty((library.spMM_bufferSize(*call),), np.int8)
            library.spMM(*call, workspace.data.ptr)
        except library.CuSparseError as error:
            raise LaunchError(f"cuSPARSE: the product failed: {error}") from error

    def _dense(self, array: Any, row_major: bool) -> Any:
        """Return a descriptor of an array in C order, or of its transpose, column-major."""
        library = self._cusparse
        outer, inner = array.shape
        shape = (outer, inner) if row_major else (inner, outer)
        order = library.CUSPARSE_ORDER_ROW if row_major else library.CUSPARSE_ORDER_COL
        descriptor = library.createDnMat(
            *shape, inner, array.data.ptr, self._types[array.dtype.char], order
        )
        return self._dense_descriptor(descriptor, library.dnMatGet, library.destroyDnMat)

    def activate(self, z: Any, bias: Any, limit: np.generic) -> None:
        """Start z = min(max(z + bias, 0), limit) in place, in one pass."""
        self._activate(z, bias, limit, z)

    def zeros(self, size: int, dtype: Any) -> Any:
        """Return an array of zeros; raises DeviceMemoryError."""
        array = self.device.empty((size,), dtype)
        array.fill(0)
        return array


def open_cusparse(device: Device) -> CusparseLibrary:
    """Return cuSPARSE for a device.

    Raises
    ------
    BackendUnavailable
        If the library is not installed; the message says what to install.
    """
    try:
        return CusparseLibrary(device)
    except (ImportError, OSError) as error:
        raise BackendUnavailable(
            f"cuSPARSE does not load ({first_line(error)}); install CuPy with its extra ctk: "
            "cupy-cuda13x[ctk], or cupy-cuda12x[ctk] for an older driver"
        ) from error
