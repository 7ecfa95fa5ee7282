"""Sparse matrices in a device's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.caching import cached_property
from portable_spdnn.errors import InputError
from portable_spdnn_gpu.device.interface import Array, Device, DeviceArray

# Kernels add up to 1,024 to an index before they compare it.
INDEX_LIMIT = np.iinfo(np.int32).max - 1024


@dataclass(eq=False)
class DeviceCsr:
    """A canonical CSR matrix on a device: the columns of each row rise and are unique.

    Attributes
    ----------
    device : Device
    shape : tuple of int
    indptr, indices : device arrays of int32, shapes (rows + 1,) and (nnz,)
    data : device array of float32 or float64, shape (nnz,)
    """

    device: Device
    shape: tuple[int, int]
    indptr: DeviceArray
    indices: DeviceArray
    data: DeviceArray

    ndim = 2

    @property
    def nnz(self) -> int:
        """How many entries are stored."""
        return int(self.data.size)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the entries."""
        return self.data.dtype

    def astype(self, dtype: npt.DTypeLike) -> DeviceCsr:
        """Return the matrix with entries of another type; it shares the pattern."""
        return self.with_data(self.data.astype(dtype))

    def with_data(self, data: DeviceArray) -> DeviceCsr:
        """Return the matrix with other entries; it shares the pattern."""
        return DeviceCsr(self.device, self.shape, self.indptr, self.indices, data)

    def to_cupyx(self) -> Any:
        """Return the matrix as `cupyx.scipy.sparse.csr_matrix`, which shares its arrays.

        Raises
        ------
        InputError
            If `cupyx.scipy.sparse` cannot be used: it needs cuSPARSE.
        """
        from cupyx.scipy.sparse import csr_matrix

        try:
            shared = csr_matrix((self.data, self.indices, self.indptr), shape=self.shape)
        except ImportError as error:
            raise InputError(
                f"cupyx.scipy.sparse needs cuSPARSE, which does not load ({first_line(error)}); "
                "install CuPy with its extra ctk, as in cupy-cuda13x[ctk]"
            ) from error
        shared.has_canonical_format = True
        return shared

    @cached_property
    def row_nnz(self) -> Array:
        """How many entries each row stores, int64 in host memory; counted once."""
        return np.diff(self.device.download(self.indptr)).astype(np.int64)


def check_size(name: str, shape: tuple[int, ...], nnz: int = 0) -> None:
    """Raise InputError for a matrix with more entries, rows or columns than INDEX_LIMIT.

    `nnz` is how many entries a sparse one stores.
    """
    if max(nnz, *shape) > INDEX_LIMIT:
        stored = f" with {nnz} entries" if nnz else ""
        raise InputError(
            f"{name}: {shape[0]} x {shape[1]}{stored} is too large for the cupy "
            f"backend, which counts to {INDEX_LIMIT}; divide it"
        )


def upload_csr(device: Device, matrix: sp.sparray) -> DeviceCsr:
    """Return a copy of a scipy.sparse matrix on the device, in canonical form.

    Raises
    ------
    InputError
        If the matrix has more entries, rows or columns than INDEX_LIMIT.
    """
    csr = sp.csr_array(matrix)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    check_size("matrix", csr.shape, csr.nnz)
    data = csr.data if csr.dtype in (np.float32, np.float64) else csr.data.astype(np.float32)
    return DeviceCsr(
        device,
        csr.shape,
        device.upload(csr.indptr.astype(np.int32)),
        device.upload(csr.indices.astype(np.int32)),
        device.upload(data),
    )


def empty_csr(
    device: Device, shape: tuple[int, int], row_offsets: Array, dtype: npt.DTypeLike
) -> DeviceCsr:
    """Return a matrix whose rows begin where `row_offsets` says, with columns and entries unset.

    Parameters
    ----------
    device : Device
    shape : (int, int)
    row_offsets : ndarray of int64, shape (rows + 1,)
        Offsets in host memory; the last one is the number of entries.
    dtype : numpy dtype
        The type of the entries: float32 or float64.

    Raises
    ------
    InputError
        If the matrix has more entries, rows or columns than INDEX_LIMIT.
    """
    nnz = int(row_offsets[-1])
    check_size("sparse result", shape, nnz)
    return DeviceCsr(
        device,
        shape,
        device.upload(row_offsets.astype(np.int32)),
        device.empty((nnz,), np.int32),
        device.empty((nnz,), dtype),
    )


def download_csr(matrix: DeviceCsr) -> sp.csr_array:
    """Return a copy in host memory as csr_array."""
    parts = (matrix.data, matrix.indices, matrix.indptr)
    return sp.csr_array(tuple(map(matrix.device.download, parts)), shape=matrix.shape)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type where there is none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
