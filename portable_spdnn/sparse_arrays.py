"""Sparse operands from the user: validated, and brought to canonical CSR.

Kernels, SciPy's included, use row offsets and column indices as addresses: a wrong one makes them
read or write outside the arrays. So every operation checks the structure of its sparse operands
before it uses them, each time, because their owner may have changed the arrays since.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.arguments import is_masked
from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError

Scalar = TypeVar("Scalar", bound=np.generic)
LARGEST = 1 << 48  # extent of a matrix: the bytes of a vector of so many items can be counted
MOST_TEMPLATES = 64
# Canonical matrices without arrays, by shape, of those whose indices fit 32 bits.
_TEMPLATES: dict[tuple[int, int], sp.csr_array] = {}


def index_dtype(extent: int) -> np.dtype[Any]:
    """Return the narrowest of uint16, int32 and int64 that holds 0 .. `extent` - 1."""
    if extent <= 1 << 16:
        return np.dtype(np.uint16)
    return np.dtype(np.int32 if extent <= 1 << 31 else np.int64)


def wide_csr(
    data: Array, indices: Array, indptr: Array, shape: tuple[int, int], copy: bool = True
) -> sp.csr_array:
    """Return a csr_array with offsets and columns of int32 where it holds all, else int64.

    Not copied, they are the given ones where these are of that type.
    """
    wide = np.int32 if max(indices.size, *shape) < 1 << 31 else np.int64
    structure = (each.astype(wide, copy=copy) for each in (indices, indptr))
    return sp.csr_array((data, *structure), shape=shape)


def common_value(array: npt.NDArray[Scalar]) -> Scalar | None:
    """Return the value that all entries of a vector have, None where they differ or are none."""
    return array[0] if array.size and (array == array[0]).all() else None


def real_dtype(dtype: np.dtype[Any], name: str) -> np.dtype[Any]:
    """Return the type that numbers of `dtype` are computed in.

    Parameters
    ----------
    dtype : numpy dtype
    name : str
        What error messages call the array.

    Returns
    -------
    numpy dtype
        float64 for 64-bit integers and for floats of 64 bits or more, else float32; native.

    Raises
    ------
    InputError
        If the type is not real: complex numbers, texts, objects, dates.
    """
    if dtype.kind not in "fiub":
        raise InputError(f"{name} has type {dtype}; real numbers are expected")
    return np.dtype(np.float64 if dtype.itemsize >= 8 else np.float32)


def of_same_pattern(matrix: sp.csr_array, values: Array | None) -> sp.csr_array:
    """Return a matrix of other values, which shares its pattern; SciPy does not check it anew."""
    other = copy.copy(matrix)
    other.data = values
    return other


def marked_canonical(matrix: sp.csr_array) -> sp.csr_array:
    """Return a matrix that shares the arrays of a canonical one, and that SciPy knows to be so.

    The given one may be a user's, whose flags would be wrong once its arrays are changed.
    """
    marked = of_same_pattern(matrix, matrix.data)
    marked.has_canonical_format = True
    return marked


def unchecked_csr(
    data: Array, indices: Array, indptr: Array, shape: tuple[int, int]
) -> sp.csr_array:
    """Return a csr_array of arrays that are known to describe one in canonical form.

    It shares memory with them. SciPy's constructor takes 27 microseconds on a Zen 3, and this 5; it
    is called for the first matrix of a shape, and where indices do not have, or need, 32 bits.
    """
    template = _TEMPLATES.get(shape)
    if template is not None and indices.dtype == indptr.dtype == np.int32:
        matrix = of_same_pattern(template, data)
        matrix.indices, matrix.indptr = indices, indptr
        return matrix
    matrix = sp.csr_array((data, indices, indptr), shape=shape)
    matrix.has_canonical_format = True
    if template is None and max(shape) <= np.iinfo(np.int32).max:
        if len(_TEMPLATES) >= MOST_TEMPLATES:
            _TEMPLATES.clear()
        template = of_same_pattern(matrix, None)
        template.indices = template.indptr = None
        _TEMPLATES[shape] = template
    return matrix


def canonical_csr(name: str, array: Any, dtype: npt.DTypeLike = np.float32) -> Any:
    """Return a SciPy sparse matrix or array as a csr_array in canonical form.

    Parameters
    ----------
    name : str
        What error messages call it.
    array : scipy.sparse matrix or array of any format
    dtype : float32 or float64
        The narrowest type of its values: what it meets in an operation may need a wider one than
        `real_dtype` says.

    Returns
    -------
    scipy.sparse.csr_array
        Columns rise within each row, without duplicates, which are summed. It shares memory with
        `array` where that is in form already. Values are of the type that `real_dtype` says, or of
        `dtype`, whichever is wider.

    Raises
    ------
    InputError
        If it has not two dimensions, is not real, or an offset or index lies outside the matrix.
    """
    if type(array.shape) is tuple and array.ndim != 2:
        raise InputError(f"{name} has {array.ndim} dimension(s); 2 are expected")
    check_structure(name, array)
    if array.format in ("csr", "csc") and not array.data.size == array.indices.size == array.nnz:
        kept = slice(0, array.nnz)  # there is space to spare, maybe in one of them alone
        array = type(array)((array.data[kept], array.indices[kept], array.indptr), array.shape)
    # Before duplicates are summed: 100 + 100 is no int8.
    array = array.astype(np.result_type(real_dtype(array.dtype, name), dtype), copy=False)
    try:
        csr = array if isinstance(array, sp.csr_array) else sp.csr_array(array)
    except ValueError as error:  # such as blocks of other dimensions than SciPy expects
        raise InputError(f"{name}: SciPy does not take its arrays: {error}") from error
    if array.format not in ("coo", "csr", "csc", "bsr"):
        check_structure(name, csr)  # others, such as lil, have nothing that is checked before
    parts = csr.data, csr.indices, csr.indptr
    # There may be integers of types that SciPy would not choose, and of the other byte order.
    if csr.indices.dtype != csr.indptr.dtype or not all(part.dtype.isnative for part in parts):
        values, indices, indptr = (
            part.astype(part.dtype.newbyteorder("="), copy=False) for part in parts
        )
        csr = sp.csr_array((values, indices, indptr), shape=csr.shape)
    # Not as SciPy's flag says, which stays where the arrays have been changed since.
    if unsorted_row(csr.indptr, csr.indices) is not None:
        copies = csr.data.copy(), csr.indices.copy(), csr.indptr.copy()
        csr = sp.csr_array(copies, shape=csr.shape)
        csr.sum_duplicates()
    return marked_canonical(csr)


def unsorted_row(indptr: Array, indices: Array) -> int | None:
    """Return a row whose columns do not rise, or are there twice; None where all rise."""
    nnz = indices.size
    if nnz < 2:
        return None
    rising = indices[1:] > indices[:-1]
    starts = indptr[1:-1]
    rising[starts[(starts > 0) & (starts < nnz)] - 1] = True
    if rising.all():
        return None
    return int(np.searchsorted(indptr, int(np.argmin(rising)) + 1, "right")) - 1


def are_extents(shape: Any) -> bool:
    """Whether a shape, which an owner may have overwritten, is one that a matrix can have."""
    return (
        type(shape) is tuple
        and len(shape) == 2
        and all(
            isinstance(extent, int | np.integer)
            and type(extent) is not bool
            and 0 <= extent <= LARGEST
            for extent in shape
        )
    )


def check_structure(name: str, array: Any) -> None:
    """Raise InputError where offsets or indices of a SciPy sparse array lie outside of it."""
    if not are_extents(array.shape):
        raise InputError(
            f"{name}: its shape is {array.shape}; two integers from 0 to 2**48 are expected"
        )
    rows, columns = array.shape
    if array.format == "dok":  # a dictionary
        return
    if array.format == "lil":
        _check_lists(name, array, rows)
    names = "indptr", "indices", "offsets", "data"
    parts = [getattr(array, part) for part in names if hasattr(array, part)]
    parts += array.coords if array.format == "coo" else ()
    if not all(isinstance(part, np.ndarray) for part in parts):
        raise InputError(f"{name}: its offsets, indices and values are not all arrays of NumPy")
    if any(map(is_masked, parts)):
        raise InputError(
            f"{name} has a masked array as offsets, indices or values; fill it, such as by "
            ".filled(0), or leave its masked entries out"
        )
    if array.format == "coo":
        for axis, extent in enumerate(array.shape):
            _check_indices(name, array.coords[axis], extent, ("row", "column")[axis])
        if not array.coords[0].shape == array.coords[1].shape == array.data.shape:
            raise InputError(f"{name}: as many rows as columns and values are expected")
    elif array.format in ("csr", "csc"):
        extents, axes = (rows, columns), ("row", "column")
        if array.format == "csc":
            extents, axes = extents[::-1], axes[::-1]
        check_compressed(name, array.indptr, array.indices, array.data.shape, extents, axes)
    elif array.format == "bsr":
        height, width = array.blocksize
        extents, axes = (rows // height, columns // width), ("block row", "block column")
        check_compressed(name, array.indptr, array.indices, array.data.shape[:1], extents, axes)


def _check_lists(name: str, array: Any, rows: int) -> None:
    """Raise InputError where a matrix of lists lacks columns or values of a row."""
    lists = array.rows, array.data
    if not all(
        type(part) is np.ndarray and part.shape == (rows,) and part.dtype == object
        for part in lists
    ) or not all(
        type(columns) is list and type(values) is list and len(columns) == len(values)
        for columns, values in zip(*lists, strict=True)
    ):
        raise InputError(
            f"{name}: a list of columns, and one of as many values, is expected for each of its "
            f"{rows} rows"
        )


def check_compressed(
    name: str,
    indptr: Array,
    indices: Array,
    values: tuple[int, ...],
    extents: tuple[int, int],
    axes: tuple[str, str] = ("row", "column"),
) -> None:
    """Raise InputError where the arrays of a compressed sparse matrix do not fit together.

    Parameters
    ----------
    name : str
        What error messages call the matrix.
    indptr, indices : ndarray of integers
        Offsets and indices; of rows and columns in CSR.
    values : tuple of int
        Shape of the values.
    extents : tuple of int
        How many rows and columns there are in CSR, columns and rows in CSC.
    axes : tuple of str
        What these are called in messages.
    """
    (major, minor), (outer, inner) = extents, axes
    shapes = indptr.shape, indices.shape, values
    if not all(len(shape) == 1 for shape in shapes):
        raise InputError(
            f"{name}: {outer} offsets, {inner} indices and values have the shapes "
            f"{', '.join(map(str, shapes))}; one dimension each is expected"
        )
    if indptr.shape != (major + 1,) or indptr.dtype.kind not in "iu":
        raise InputError(
            f"{name}: {indptr.size} {outer} offsets of type {indptr.dtype}; {major} {outer}s take "
            f"{major + 1} integers"
        )
    if indptr[0] != 0 or (indptr[1:] < indptr[:-1]).any():
        raise InputError(f"{name}: {outer} offsets do not rise from 0; the last is {indptr[-1]}")
    nnz = int(indptr[-1])
    if nnz > min(indices.size, values[0]):
        raise InputError(
            f"{name}: {outer} offsets end at {nnz}, but there are "
            f"{indices.size} {inner} indices and {values[0]} values"
        )
    _check_indices(name, indices[:nnz], minor, inner)


def _check_indices(name: str, indices: Array, extent: int, what: str) -> None:
    """Raise InputError where an index is not in 0 .. `extent` - 1."""
    if indices.dtype.kind not in "iu":
        raise InputError(f"{name}: {what} indices are {indices.dtype}; integers are expected")
    if not indices.size:
        return
    # As unsigned numbers negative ones are large: one look finds both.
    native = indices.astype(indices.dtype.newbyteorder("="), copy=False)
    unsigned = native.view(f"u{native.itemsize}")
    if int(unsigned.max()) >= min(extent, np.iinfo(native.dtype).max + 1):
        wrong = int(native[int(np.argmax(unsigned))])
        raise InputError(f"{name}: {what} index {wrong} is outside 0 .. {extent - 1}")
