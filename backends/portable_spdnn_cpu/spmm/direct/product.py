"""C = A B for operands as a user has them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy import empty, ndarray, zeros  # found sooner than those of np in each call

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.operands import common_dtype
from portable_spdnn.sparse_arrays import LARGEST
from portable_spdnn_cpu.activations import NONE, activation_of
from portable_spdnn_cpu.jit.compilation import Array, read_only
from portable_spdnn_cpu.jit.jobs import address_of, in_order
from portable_spdnn_cpu.layout.canonical import (
    INDEX_TYPES,
    VALUE_TYPES,
    has_canonical_structure,
)
from portable_spdnn_cpu.layout.csc_to_csr import parts_in_csr
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.cost_model import size_of
from portable_spdnn_cpu.spmm.dense_layout import (
    copied_if_reused,
    layout_of,
)
from portable_spdnn_cpu.spmm.direct.choice import (
    begins_as_zeros,
    has_few_rows,
    suited_form,
)
from portable_spdnn_cpu.spmm.direct.entry_points import compiled
from portable_spdnn_cpu.spmm.direct.start import BY_COLUMNS, CONVERTED, TAKEN
from portable_spdnn_cpu.spmm.stream.product import WAKING_WORK, is_shared
from portable_spdnn_cpu.spmm.tuning import direct_is_faster

FORMS: dict[type, str] = {
    sp.csr_array: "csr", sp.csr_matrix: "csr", sp.csc_array: "csc", sp.csc_matrix: "csc",
}  # fmt: skip
# Of its transpose: CSR holds the columns of it.
TRANSPOSED_FORMS = {"csr": "csc", "csc": "csr"}
# Bytes of items of B that entries of A are multiplied with, up to which what `multiply_as_given`
# does besides for a product without an epilogue would take longer than it saves, as measured on a
# Zen 5 without a residual. Of more rows C may be mostly zeros: see `has_few_rows`.
SMALL_BYTES = {"csr": 1 << 19, "csc": 1 << 17}
MOST_SMALL_ROWS = 16_000
SAMPLED_ENTRIES = 4096  # whose order tells whether A is sorted
NO_BIAS = np.zeros(1)
# What `epilogue_arguments` returns for the empty epilogue.
NO_EPILOGUE = NONE, NO_BIAS, -np.inf, np.inf


def multiply_as_given(
    pool: ThreadPool,
    A: object,
    B: object,
    epilogue: object,
    residual: object,
    transposed: bool = False,
) -> Array | None:
    """Return C = A B, finished, of what a user gave; None where that is to be validated first.

    Parameters
    ----------
    pool : ThreadPool
    A, B : object
        Taken where A is SciPy's in CSR or CSC, B an ndarray of shape (k, n) or (k,), and no other
        way is faster.
    epilogue : Epilogue, optional
        Taken where its bias fits A.
    residual : object, optional
        Taken where it is an ndarray of the shape and type of C.
    transposed : bool
        Whether C = A^T B is to be computed, and to be in Fortran order where B is.

    Returns
    -------
    ndarray, shape (m, n) or (m,), or None
    """
    form = FORMS.get(type(A))
    if form is None or type(B) is not ndarray or not 1 <= B.ndim <= 2:
        return None
    sparse: Any = A
    shape, indptr, indices, values = sparse.shape, sparse.indptr, sparse.indices, sparse.data
    if not type(indptr) is type(indices) is type(values) is ndarray:
        return None
    # As SciPy makes them; others are named where operands are checked.
    if type(shape) is not tuple or len(shape) != 2:
        return None
    if not type(shape[0]) is type(shape[1]) is int or max(shape) > LARGEST:
        return None
    if epilogue is None and not transposed:
        C = _multiply_small(form, shape, indptr, indices, values, B, residual)
        if C is not None:
            return C
    if transposed:
        form, shape = TRANSPOSED_FORMS[form], shape[::-1]
    if B.dtype is not values.dtype and B.dtype != values.dtype:
        if not {B.dtype.kind, values.dtype.kind} <= set("fiub"):
            return None
        dtype = common_dtype("spmm", A=values, B=B)
        values, B = values.astype(dtype, copy=False), B.astype(dtype, copy=False)
    finish = None
    if epilogue is not None:
        if type(epilogue) is not Epilogue or B.dtype not in VALUE_TYPES:
            return None
        if epilogue.bias is not None and epilogue.bias.ndim and epilogue.bias.size != shape[0]:
            return None
        finish = epilogue_arguments(epilogue, B.dtype)
    if residual is not None and not (
        type(residual) is ndarray
        and residual.dtype == B.dtype
        and residual.shape == (shape[0], *B.shape[1:])
    ):
        return None
    suited = suited_form(form, shape, indices.size, B, transposed, finish is not None)
    if suited is None:
        if B.dtype not in VALUE_TYPES:
            return None
        size = size_of(shape, indices.size, B.itemsize, B.shape[1], layout_of(B), pool, transposed)
        is_sorted = form != "csr" or begins_sorted(indptr, indices, shape[1])
        if not direct_is_faster(size, is_sorted):
            return None
        suited = "csr"
    parts = indptr, indices, values
    return multiply(pool, form, shape, parts, B, finish, residual, transposed, suited != form)


def begins_sorted(indptr: Array, indices: Array, columns: int) -> bool:
    """Whether the indices of each of the first rows of A in CSR rise strictly.

    Of as many rows as have SAMPLED_ENTRIES. True as well where arrays are not such as `multiply`
    takes.
    """
    index = indices.dtype
    if index not in INDEX_TYPES or indptr.dtype != index or not indptr.size:
        return True
    if not (are_plain_items(indptr) and are_plain_items(indices)):
        return True
    rows = int(np.searchsorted(indptr[1:-1], SAMPLED_ENTRIES)) + 1
    some = indptr[: rows + 1]
    return has_canonical_structure(read_only(some), read_only(indices[: max(0, some[-1])]), columns)


def are_plain_items(array: Array) -> bool:
    """Whether an array has one dimension, and items that follow each other and are aligned."""
    return array.ndim == 1 and array.flags.c_contiguous and array.flags.aligned


def _multiply_small(
    form: str,
    shape: tuple[int, ...],
    indptr: Array,
    indices: Array,
    values: Array,
    B: Array,
    residual: object,
) -> Array | None:
    """Return C = A B, plus a residual, in as few steps of Python as possible.

    None where another way may be faster.
    """
    given, dtype, index = B.shape, values.dtype, indices.dtype
    rows, entries = shape[0], indices.size
    if (
        B.dtype is not dtype
        or indptr.dtype is not index
        or given[0] != shape[1]
        or not 0 <= rows <= MOST_SMALL_ROWS
        or not indptr.ndim == indices.ndim == values.ndim == 1
    ):
        return None
    is_vector = len(given) == 1
    columns = 1 if is_vector else given[1]
    if entries * columns * dtype.itemsize > SMALL_BYTES[form] or not B.size:
        return None
    entry_points = compiled(dtype, index, len(given))
    if entry_points is None:
        return None
    taken = TAKEN[form]
    turns = columns > 1 and B.strides[1] != dtype.itemsize
    key = taken, columns, turns
    table = entry_points.addresses.get(key) or entry_points.table(*key)
    if residual is not None:
        of_out = (rows,) if is_vector else (rows, columns)
        if type(residual) is not ndarray or residual.dtype is not dtype or residual.shape != of_out:
            return None
        if taken == BY_COLUMNS:  # which adds to C
            out = added = np.array(residual, order="C")
        else:
            out, added = empty(of_out, dtype), in_order(residual)
        done = entry_points.run_alone_with_epilogue(
            table, indptr, indices, values, B, out, taken, address_of(added), *NO_EPILOGUE
        )
        return out if done else None
    zeroed = taken == BY_COLUMNS or (
        columns > 1 and begins_as_zeros(entries, rows, columns * dtype.itemsize)
    )
    out = (zeros if zeroed else empty)(rows if is_vector else (rows, columns), dtype)
    done = entry_points.run_alone(table, indptr, indices, values, B, out, taken, zeroed)
    return out if done else None


def layer_as_given(
    pool: ThreadPool, W: object, Y: object, epilogue: Epilogue, residual: object
) -> Array | None:
    """Return Y' = Y W, finished, as `multiply_as_given` does: Y'^T = W^T Y^T."""
    if type(Y) is not ndarray or not (residual is None or type(residual) is ndarray):
        return None
    added = None if residual is None else residual.T
    C = multiply_as_given(pool, W, Y.T, epilogue, added, transposed=True) if Y.ndim == 2 else None
    return None if C is None else C.T


def epilogue_arguments(epilogue: Epilogue, dtype: np.dtype[Any]) -> tuple[int, Array, float, float]:
    """Return what kernels take: the code of the activation, the bias, and the bounds of C.

    ReLU is a bound: its code is NONE. The bias, of float64, has one entry for all rows of C, or one
    for each.
    """
    bias: Any = epilogue.bias
    if bias is None:
        bias = NO_BIAS
    elif not bias.ndim:
        bias = bias.reshape(1)
    if bias.ndim > 1 or bias.dtype is not NO_BIAS.dtype or bias.strides != NO_BIAS.strides:
        bias = np.array(bias, np.float64).reshape(-1)
    interval = epilogue.interval
    if interval is None:
        code, lower, upper = activation_of(epilogue, dtype)
    else:
        code, (lower, upper) = NONE, interval
    return code, bias, lower, upper


def multiply(
    pool: ThreadPool,
    form: str,
    shape: tuple[int, ...],
    parts: tuple[Array, Array, Array],
    B: Array,
    finish: tuple[int, Array, float, float] | None = None,
    residual: Any = None,
    keeps_order: bool = False,
    converts: bool = False,
) -> Array | None:
    """Return C = A B, whether another way is faster or not; None where something does not fit.

    Parameters
    ----------
    pool : ThreadPool
    form : str
        "csr" or "csc".
    shape : tuple of int
        Of A.
    parts : tuple of ndarray
        Offsets, indices and values of A.
    B : ndarray of one dimension or two
        Of the type of A's values.
    finish : tuple, optional
        What `epilogue_arguments` returns.
    residual : ndarray of C's shape and type, optional
    keeps_order : bool
        Whether C is to be in Fortran order where B is; else it is in C order.
    converts : bool
        Whether to convert A in "csc" to "csr" first.

    Returns
    -------
    ndarray, shape (m, n) or (m,), or None
    """
    indptr, indices, values = parts
    entry_points = compiled(values.dtype, indices.dtype, B.ndim)
    if entry_points is None:
        return None
    (rows, k), given, item = shape, B.shape, B.itemsize
    is_csc, index = form == "csc", indices.dtype
    taken = CONVERTED if converts else TAKEN[form]
    by_columns = taken == BY_COLUMNS
    if (
        rows < 0
        or given[0] != k
        or not B.size
        or (indptr.dtype is not index and indptr.dtype != index)
    ):
        return None
    if indptr.size != shape[is_csc] + 1 or not indptr.ndim == indices.ndim == values.ndim == 1:
        return None
    columns = given[1] if len(given) == 2 else 1
    is_fortran = False
    if columns == 1:
        in_place = B.strides[0] == item
    else:
        row, column = B.strides
        in_place = column == item
        if not in_place and row == item and column >= k * item and column % item == 0:
            in_place = is_fortran = True
    if not in_place:
        B = np.array(B, order="C")
    order: Literal["C", "F"] = "F" if is_fortran and keeps_order else "C"
    if columns > 1 and not by_columns and not is_fortran:
        B = copied_if_reused(B, indices.size)
    zeroed, held = False, 0
    if residual is None:
        # Columns are added to zeros: pages of them often come from the system. Of few rows with
        # entries the others are left as zeros; a single column is written whole in CSR.
        if finish is None and order == "C" and (by_columns or columns > 1):
            zeroed = by_columns or begins_as_zeros(indices.size, rows, columns * item)
            zeroed = zeroed or has_few_rows(form, indptr, indices, rows, columns * item)
        # Not on a cache line: on pages that the system has just made, which are in a cache then,
        # non-temporal stores gain nothing.
        new = zeros if zeroed else empty
        out = new(rows if len(given) == 1 else (rows, columns), values.dtype, order)
    elif by_columns or order == "F":
        out = np.array(residual, order=order)
        held = address_of(out)
    else:
        residual, out = in_order(residual), empty(residual.shape, values.dtype)
        held = address_of(residual)
    # All columns of a CSC are added to the same rows of C: one thread does that.
    if (
        pool.threads == 1
        or by_columns
        or is_fortran
        or not is_shared(indices.size, shape, columns, item, WAKING_WORK)
    ):
        table = entry_points.table(taken, columns, is_fortran)
        # For the bare product, Python's part of a call is an eighth less.
        if finish is None and residual is None:
            done = entry_points.run_alone(table, *parts, B, out, taken, zeroed)
        else:
            finish = finish or NO_EPILOGUE
            done = entry_points.run_alone_with_epilogue(table, *parts, B, out, taken, held, *finish)
        return out if done else None
    if converts:
        converted = parts_in_csr(parts, shape)
        if converted is None:
            return None
        parts = converted
    done = entry_points.run_shared(pool, parts, B, out, held, finish or NO_EPILOGUE)
    return out if done else None
