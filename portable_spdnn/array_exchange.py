"""Arrays of other libraries, by protocol."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.errors import InputError

Array = npt.NDArray[Any]
# DLPack's kDLCPU and kDLCUDAHost, which the host reads; kDLCUDA and kDLCUDAManaged.
HOST_MEMORY, CUDA_MEMORY = (1, 3), (2, 13)
# What array libraries raise where they cannot or will not give an array away.
EXPORT_ERRORS = (AttributeError, BufferError, RuntimeError, TypeError, ValueError)


def is_foreign_sparse(array: Any) -> bool:
    """Whether `array` is a sparse matrix of a library that names things as SciPy does."""
    return hasattr(array, "tocsr") and hasattr(array, "format") and not sp.issparse(array)


def memory_kind(array: Any) -> int:
    """Return where the entries of an array are, as DLPack's device type; 1 for the host.

    An array that speaks no protocol counts as the host's: NumPy is to try it. Of a sparse matrix
    it is its values that are asked.
    """
    if isinstance(array, np.ndarray) or sp.issparse(array):
        return HOST_MEMORY[0]
    if is_foreign_sparse(array):
        return memory_kind(getattr(array, "data", None))
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[0])
    return CUDA_MEMORY[0] if hasattr(array, "__cuda_array_interface__") else HOST_MEMORY[0]


def host_array(name: str, array: Any) -> Array:
    """Return an array_like of host memory as an ndarray, without a copy where that can be.

    Parameters
    ----------
    name : str
        What error messages call it.
    array : array_like, or an object with ``__dlpack__``

    Returns
    -------
    ndarray

    Raises
    ------
    InputError
        If it is on a device, or NumPy cannot read it.
    """
    if isinstance(array, np.ndarray):
        return array
    if memory_kind(array) not in HOST_MEMORY:
        raise InputError(
            f"{name}: {type(array).__module__}.{type(array).__qualname__} is in a device's memory "
            "and must be in the host's here; copy it (.get() of CuPy, .cpu() of PyTorch), or use "
            "the backend of the device"
        )
    reads_itself = hasattr(array, "__array__") or hasattr(array, "__array_interface__")
    try:
        if hasattr(array, "__dlpack__") and not reads_itself:
            return np.from_dlpack(array)
        return np.asarray(array)
    except EXPORT_ERRORS as error:
        raise InputError(
            f"{name}: {type(array).__name__} cannot be read as an array: {error}"
        ) from error
