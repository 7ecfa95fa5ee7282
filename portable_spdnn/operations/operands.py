"""Operands of operations: what they must be, and arrays of other libraries, by protocol."""

from __future__ import annotations

from typing import Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.arguments import is_masked, refuse_masked
from portable_spdnn.arrays import Array
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.errors import InputError
from portable_spdnn.sparse_arrays import canonical_csr, of_same_pattern, real_dtype

DType: TypeAlias = np.dtype[Any]
# DLPack's kDLCPU and kDLCUDAHost, which the host reads; kDLCUDA and kDLCUDAManaged.
HOST_MEMORY, CUDA_MEMORY = (1, 3), (2, 13)
# What array libraries raise where they cannot or will not give an array away.
EXPORT_ERRORS = (AttributeError, BufferError, RuntimeError, TypeError, ValueError)
NEW_VALUES = "spgemm: new values for"


def is_foreign_sparse(array: object) -> bool:
    """Whether `array` is a sparse matrix of a library that names things as SciPy does."""
    return hasattr(array, "tocsr") and hasattr(array, "format") and not sp.issparse(array)


def memory_kind(array: object) -> int:
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


def host_array(name: str, array: object) -> Array:
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
    refuse_masked(name, array)
    if isinstance(array, np.ndarray):
        return array
    if array is None or sp.issparse(array):
        raise InputError(
            f"{name} is {type(array).__name__}; a dense array is expected, such as .toarray() "
            "gives of a sparse one"
        )
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


# An array of a type that only its library knows: a backend's own, or what a user hands in.
AnyArray: TypeAlias = Any


class Operand(Protocol):
    """A matrix, dense or sparse, in host memory or in a backend's memory space."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""

    @property
    def dtype(self) -> DType:
        """Type of the entries."""

    def astype(self, dtype: DType, /) -> Self:
        """Return a copy with entries of another type."""


class DenseOperand(Operand, Protocol):
    """A dense array of two dimensions: an ndarray, or one in a backend's memory space."""

    @property
    def flags(self) -> object:
        """How the entries lie in memory, as of an ndarray."""


class SparseOperand(Operand, Protocol):
    """A matrix in CSR: of scipy.sparse, or its like in a backend's memory space.

    Users pass any format; `canonical` makes it CSR, which is what backends get and give.
    """

    @property
    def nnz(self) -> int:
        """Number of stored entries."""

    @property
    def indptr(self) -> AnyArray:
        """Where rows begin, shape (rows + 1,)."""

    @property
    def indices(self) -> AnyArray:
        """Columns, rising within a row, shape (nnz,)."""

    @property
    def data(self) -> AnyArray:
        """Values, shape (nnz,)."""


# Lists and arrays of other libraries become dense operands.
DenseLike: TypeAlias = npt.ArrayLike | DenseOperand
Kind = TypeVar("Kind", bound=Operand)


def canonical(name: str, array: AnyArray, dtype: npt.DTypeLike = np.float32) -> SparseOperand:
    """Return a sparse operand with sorted, unique columns, or raise InputError.

    A type that is not SciPy's is that of a backend, which keeps it canonical. Values are float64
    where `dtype` is or theirs needs it, else float32.
    """
    if sp.issparse(array):
        return canonical_csr(name, array, dtype)  # type: ignore[no-any-return]
    if array.ndim != 2:
        raise InputError(f"{name} has {array.ndim} dimension(s); 2 are expected")
    operand: SparseOperand = array
    return cast(operand, np.result_type(operand.dtype, dtype))


def common_dtype(name: str, **operands: Operand | None) -> DType:
    """Return float64 where an operand needs it, else float32.

    Parameters
    ----------
    name : str
        The operation, for messages.
    **operands
        By the names that messages give them; None is no operand.

    Raises
    ------
    InputError
        If an operand is not real.
    """
    given = [
        real_dtype(operand.dtype, f"{name}: {what}")
        for what, operand in operands.items()
        if operand is not None
    ]
    return np.dtype(np.float64 if np.dtype(np.float64) in given else np.float32)


def cast(array: Kind, dtype: DType) -> Kind:
    """Return `array` as `dtype`, itself where it has it."""
    return array if array.dtype == dtype else array.astype(dtype)


def cast_to_prepared(array: Kind, name: str, dtype: DType) -> Kind:
    """Return an operand in the type that weights were prepared in, or raise InputError."""
    if array.dtype != dtype and real_dtype(array.dtype, name).itemsize > dtype.itemsize:
        raise InputError(
            f"{name} is {array.dtype} but the weights were prepared as {dtype}; "
            f"convert it to {dtype}, or prepare them as float64"
        )
    return cast(array, dtype)


def check_inner(name: str, A: tuple[int, ...], B: tuple[int, ...]) -> None:
    """Raise InputError where the shapes of A and B do not fit a product A B."""
    if A[1] != B[0]:
        raise InputError(f"{name}: A is {A[0]} x {A[1]} but B has {B[0]} rows; B must have {A[1]}")


def as_columns(
    name: str, B: AnyArray, residual: AnyArray = None, out: AnyArray = None
) -> tuple[bool, AnyArray, AnyArray, AnyArray]:
    """Return whether B is a vector, and all operands, as matrices of one column where it is.

    Parameters
    ----------
    name : str
        The operation, for messages.
    B, residual, out
        B, and what goes with it: of the same number of dimensions, or None.
    """
    # A number, too, for the error below. A tuple is quicker than a union of types.
    if isinstance(B, (list, tuple, int, float)):
        B = host_array(f"{name}: B", B)
    dimensions = getattr(B, "ndim", 2)
    if dimensions == 2:
        return False, B, residual, out
    if dimensions != 1:
        raise InputError(f"{name}: B has {dimensions} dimensions; 1 or 2 are expected")
    B = _reshapable(f"{name}: B", B)
    residual = None if residual is None else _reshapable(f"{name}: residual", residual)
    for what, given in (("residual", residual), ("out", out)):
        if getattr(given, "ndim", 1) != 1:
            raise InputError(
                f"{name}: {what} has {given.ndim} dimensions but B is a vector; give it one "
                "dimension"
            )
    residual = None if residual is None else residual.reshape(-1, 1)
    if hasattr(out, "reshape"):
        out = out.reshape(-1, 1)
    return True, B.reshape(-1, 1), residual, out


def _reshapable(name: str, array: AnyArray) -> AnyArray:
    """Return an array as it is, or as an ndarray: a list, say, or what speaks DLPack alone."""
    return array if hasattr(array, "reshape") else host_array(name, array)


def check_out(
    name: str,
    out: DenseOperand | None,
    shape: tuple[int, ...],
    dtype: DType,
    *operands: Operand | None,
    is_vector: bool = False,
) -> None:
    """Raise InputError where `out` is given and cannot take the result of `operands`.

    `is_vector`: whether `out` is a column that was given as an array of one dimension.
    """
    if out is None:
        return
    flags = getattr(out, "flags", None)
    if flags is None or is_masked(out):
        raise InputError(
            f"{name}: out is {type(out).__name__}; an ndarray, or an array of the backend's own "
            "type, is expected"
        )
    if out.shape != shape or out.dtype != dtype or not flags.c_contiguous:
        fortran = "Fortran" if flags.f_contiguous else "neither C nor Fortran"
        order = "C" if flags.c_contiguous else fortran
        raise InputError(
            f"{name}: out is {out.dtype} of shape {_as_given(out.shape, is_vector)} in {order} "
            f"order; {dtype} of shape {_as_given(shape, is_vector)} in C order is expected"
        )
    if not getattr(flags, "writeable", True):
        raise InputError(f"{name}: out is read-only")
    for operand in operands:
        on_host = isinstance(operand, np.ndarray) and isinstance(out, np.ndarray)
        if on_host and np.may_share_memory(out, operand):
            raise InputError(
                f"{name}: out overlaps a dense operand or the residual; give it memory of its own"
            )


def check_residual(
    name: str,
    residual: DenseOperand | None,
    shape: tuple[int, ...],
    dtype: DType,
    is_vector: bool = False,
) -> DenseOperand | None:
    """Return a residual in the result's type, None where none is given, or raise InputError.

    Parameters
    ----------
    name : str
        The operation, for messages.
    residual : dense or None
    shape, dtype
        Of the result.
    is_vector : bool
        Whether the result is a column, and both were given as arrays of one dimension.
    """
    if residual is None:
        return None
    if residual.shape != shape:
        given, wanted = (_as_given(each, is_vector) for each in (residual.shape, shape))
        raise InputError(f"{name}: residual has shape {given}; the result has {wanted}")
    return cast_to_prepared(residual, f"{name}: residual", dtype)


def _as_given(shape: tuple[int, ...], is_vector: bool) -> tuple[int, ...]:
    """Return (m,) in place of (m, 1) where a user gave vectors, for messages."""
    return shape[:1] if is_vector else shape


def into(out: AnyArray, result: AnyArray) -> AnyArray:
    """Return a result, in `out` where that is given."""
    if out is None:
        return result
    out[...] = result
    return out


def with_values(name: str, matrix: sp.csr_array, data: npt.ArrayLike | None) -> sp.csr_array:
    """Return a csr_array with `data` as its values, sharing its pattern, or raise InputError."""
    if data is None:
        return matrix
    given = host_array(f"{NEW_VALUES} {name}", data)
    values = new_values(name, given, matrix)
    return of_same_pattern(matrix, values)


def new_values(name: str, given: Kind, matrix: SparseOperand) -> Kind:
    """Return an array of new values in the type of a sparse operand, or raise InputError."""
    real_dtype(given.dtype, f"{NEW_VALUES} {name}")
    if given.shape != (matrix.nnz,):
        raise InputError(
            f"{NEW_VALUES} {name} have shape {given.shape}; {name} stores {matrix.nnz} entries"
        )
    return cast(given, matrix.dtype)


def checked_epilogue(name: str, epilogue: object) -> Epilogue:
    """Return an epilogue, the empty one for None, or raise InputError."""
    if epilogue is None:
        return Epilogue()
    if not isinstance(epilogue, Epilogue):
        raise InputError(
            f"{name}: epilogue is {type(epilogue).__name__}; a portable_spdnn.Epilogue is expected"
        )
    return epilogue
