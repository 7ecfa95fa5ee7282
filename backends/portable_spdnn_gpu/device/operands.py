"""Operands that are on the device already, whatever library made them.

Arrays and sparse matrices of other libraries are taken as they are, without a copy: dense ones
through DLPack or the CUDA array interface (versions 0 to 3), sparse ones of `cupyx.scipy.sparse`
part by part. What is started on them runs on CuPy's current stream: DLPack lets the producer
make that stream wait for its own work, and the stream that a CUDA array interface names is
waited for. An interface that names none (as those before version 3) promises that its array is
ready.

Sources: "DLPack: Open In Memory Tensor Structure", Python specification; Numba's documents,
"CUDA Array Interface (Version 3)".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.errors import InputError
from portable_spdnn.operations.operands import (
    CUDA_MEMORY,
    EXPORT_ERRORS,
    HOST_MEMORY,
    cast,
    is_foreign_sparse,
    memory_kind,
)
from portable_spdnn.sparse_arrays import real_dtype
from portable_spdnn_gpu.device.interface import Device, DeviceArray
from portable_spdnn_gpu.device.matrices import DeviceCsr, check_size


def is_on_device(device: Device, array: object) -> bool:
    """Whether the entries of an array, dense or sparse, are anywhere but in host memory."""
    if is_foreign_sparse(array):
        return is_on_device(device, getattr(array, "data", None))
    return device.owns(array) or memory_kind(array) not in HOST_MEMORY


def is_device_sparse(device: Device, array: object) -> bool:
    """Whether `array` is a sparse matrix of another library with its entries on a device."""
    return is_foreign_sparse(array) and is_on_device(device, array)


def adopt_dense(device: Device, name: str, array: object) -> DeviceArray:
    """Return an array of the device on the memory of `array`, whoever made that.

    Parameters
    ----------
    device : Device
    name : str
        What error messages call the operand.
    array : array of the device, or an object with ``__dlpack__`` or ``__cuda_array_interface__``
        An array of real numbers, of any shape and strides; it may be read-only. What is returned
        keeps it from being freed.

    Returns
    -------
    array of the device
        The array has the same type and strides, and shares the memory.

    Raises
    ------
    InputError
        If the array is in memory that CUDA does not reach or on another CUDA device, has a mask,
        has no type that the device computes with, or its library does not export it.
    """
    if device.owns(array):
        check_type(name, array.dtype)
        return array
    kind = memory_kind(array)
    if kind not in CUDA_MEMORY:
        raise InputError(
            f"{name} is in the memory of a device of another kind (number {kind} of DLPack); "
            "copy it to host memory or to a CUDA device"
        )
    try:
        interface = getattr(array, "__cuda_array_interface__", {})
    except EXPORT_ERRORS as error:  # PyTorch raises where the tensor takes part in a gradient
        raise _not_given(name, array, error) from error
    if interface.get("mask") is not None:
        raise InputError(
            f"{name} has a mask, which no operation applies; fill the entries that it hides"
        )
    if "typestr" in interface:
        check_type(name, np.dtype(interface["typestr"]))
    try:
        adopted = device.adopt(array)
    except EXPORT_ERRORS as error:
        raise _not_given(name, array, error) from error
    check_type(name, adopted.dtype)
    return adopted


def _not_given(name: str, array: object, error: Exception) -> InputError:
    return InputError(f"{name}: {type(array).__name__} cannot be used where it is: {error}")


def check_type(name: str, dtype: np.dtype[Any]) -> None:
    """Raise InputError for entries that the device does not compute with."""
    if dtype.kind not in "fiub" or dtype.itemsize > 8 or dtype.byteorder == ">":
        raise InputError(
            f"{name} has type {dtype}; real numbers of up to 64 bits, little-endian, are "
            "expected: convert it to float32 or float64"
        )


def adopt_sparse(
    device: Device, name: str, matrix: Any, dtype: npt.DTypeLike = np.float32
) -> DeviceCsr:
    """Return a sparse matrix of another library, with its entries on the device, as DeviceCsr.

    Parameters
    ----------
    device : Device
    name : str
        What error messages call the operand.
    matrix : cupyx.scipy.sparse matrix or array, shape (m, n)
        A matrix in CSR with sorted, unique columns, int32 indices and entries of float32 or
        float64, not narrower than `dtype`, is shared without a copy, and is not to be changed
        while the result is in use. From any
        other one its library makes a CSR matrix on the device; `matrix` stays as it is.
    dtype : float32 or float64
        The narrowest type in which duplicates are summed.

    Raises
    ------
    InputError
        If the matrix does not have two dimensions, is not real, has parts that do not fit
        together, or is larger than the backend counts; or for the reasons
        of `adopt_dense`.
    """
    if len(matrix.shape) != 2:
        raise InputError(f"{name} has {len(matrix.shape)} dimension(s); 2 are expected")
    check_type(name, matrix.dtype)
    needed = np.result_type(real_dtype(matrix.dtype, name), dtype)
    csr = matrix if matrix.dtype == needed else matrix.astype(needed)
    csr = csr if csr.format == "csr" else csr.tocsr()
    if not csr.has_canonical_format:
        csr = csr.copy() if csr is matrix else csr
        csr.sum_duplicates()
    rows, columns = (int(extent) for extent in csr.shape)
    offsets, indices, data = (
        adopt_dense(device, f"{name}: {part}", getattr(csr, part))
        for part in ("indptr", "indices", "data")
    )
    check_size(name, (rows, columns), data.size)
    if offsets.shape != (rows + 1,) or indices.shape != data.shape or data.ndim != 1:
        raise InputError(
            f"{name}: row offsets of shape {offsets.shape}, columns of {indices.shape} and "
            f"entries of {data.shape} do not make a matrix of {rows} rows"
        )
    index = np.dtype(np.int32)
    parts = (cast(offsets, index), cast(indices, index), cast(data, needed))
    return DeviceCsr(device, (rows, columns), *(device.contiguous(part) for part in parts))
