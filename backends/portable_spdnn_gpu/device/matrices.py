"""Sparse matrices in a device's memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.errors import InputError
from portable_spdnn_gpu.device.interface import Device

Array = npt.NDArray[Any]
INDEX_LIMIT = np.iinfo(np.int32).max


@dataclass(eq=False)
class DeviceCsr:
    """A canonical CSR matrix on a device: the columns of each row rise and are unique.

    Attributes
    ----------
    device : Device
    shape : tuple of int
    offsets, indices : device arrays of int32, shapes (rows + 1,) and (nnz,)
    data : device array of float32 or float64, shape (nnz,)
    prepared : dict
        What was derived from the matrix and is kept to be used again, by name.
    """

    device: Device
    shape: tuple[int, int]
    offsets: Any
    indices: Any
    data: Any
    prepared: dict[str, Any] = field(default_factory=dict, repr=False)

    ndim = 2

    @property
    def nnz(self) -> int:
        """How many entries are stored."""
        return int(self.data.size)

    @property
    def dtype(self) -> Any:
        """The type of the entries."""
        return self.data.dtype

    def astype(self, dtype: Any) -> DeviceCsr:
        """Return the matrix with entries of another type; it shares the pattern."""
        return self.with_data(self.data.astype(dtype))

    def with_data(self, data: Any) -> DeviceCsr:
        """Return the matrix with other entries; it shares the pattern."""
        return DeviceCsr(self.device, self.shape, self.offsets, self.indices, data)

    def to_cupyx(self) -> Any:
        """Return the matrix as `cupyx.scipy.sparse.csr_matrix`, which shares its arrays.

        Raises
        ------
        InputError
            If `cupyx.scipy.sparse` cannot be used: it needs cuSPARSE.
        """
        from cupyx.scipy.sparse import csr_matrix

        try:
            shared = csr_matrix((self.data, self.indices, self.offsets), shape=self.shape)
        except ImportError as error:
            raise InputError(
                f"cupyx.scipy.sparse needs cuSPARSE, which does not load ({first_line(error)}); "
                "install CuPy with its extra ctk, as in cupy-cuda13x[ctk]"
            ) from error
        shared.has_canonical_format = True
        return shared

    def row_nnz(self) -> Array:
        """Return how many entries each row stores, in host memory; counted once."""
        if "row_nnz" not in self.prepared:
            offsets = self.device.download(self.offsets)
            self.prepared["row_nnz"] = np.diff(offsets).astype(np.int64)
        return np.asarray(self.prepared["row_nnz"])


def upload_csr(device: Device, matrix: Any) -> DeviceCsr:
    """Return a copy of a scipy.sparse matrix on the device, in canonical form.

    Raises
    ------
    InputError
        If the matrix has more entries or columns than 32-bit indices count.
    """
    csr = sp.csr_array(matrix)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    if max(csr.nnz, *csr.shape) > INDEX_LIMIT:
        raise InputError(
            f"a matrix of {csr.shape[0]} x {csr.shape[1]} with {csr.nnz} entries is too large for "
            f"the cupy backend, which counts to {INDEX_LIMIT}; divide it"
        )
    data = csr.data if csr.dtype in (np.float32, np.float64) else csr.data.astype(np.float32)
    return DeviceCsr(
        device,
        csr.shape,
        device.upload(csr.indptr.astype(np.int32)),
        device.upload(csr.indices.astype(np.int32)),
        device.upload(data),
    )


def empty_csr(device: Device, shape: tuple[int, int], row_offsets: Array, dtype: Any) -> DeviceCsr:
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
        If the matrix has more entries than 32-bit indices count.
    """
    nnz = int(row_offsets[-1])
    if nnz > INDEX_LIMIT:
        raise InputError(
            f"the sparse result has {nnz} entries; the cupy backend counts to {INDEX_LIMIT}: "
            "give fewer rows at a time, or dense features"
        )
    return DeviceCsr(
        device,
        shape,
        device.upload(row_offsets.astype(np.int32)),
        device.empty((nnz,), np.int32),
        device.empty((nnz,), dtype),
    )


def download_csr(matrix: DeviceCsr) -> Any:
    """Return a copy in host memory as csr_array."""
    device = matrix.device
    parts = (matrix.data, matrix.indices, matrix.offsets)
    return sp.csr_array(tuple(device.download(part) for part in parts), shape=matrix.shape)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type where there is none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
