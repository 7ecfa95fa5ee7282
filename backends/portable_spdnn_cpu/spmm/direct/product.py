"""C = A B for operands as a user has them: which products are done so, and how."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy import ndarray  # a name that each call looks up

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.operands import checked_epilogue, common_dtype
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.layout.canonical import INDEX_TYPES, VALUE_TYPES
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.direct.job_words import COUNTERS, REFUSED
from portable_spdnn_cpu.spmm.direct.kernel import Kernels, compiled
from portable_spdnn_cpu.spmm.stream.product import is_shared

FORMS: dict[type, str] = {
    sp.csr_array: "csr", sp.csr_matrix: "csr", sp.csc_array: "csc", sp.csc_matrix: "csc",
}  # fmt: skip
# Work is counted in entries times vectors of B, half a nanosecond each. Beyond so much of it the
# stream is faster: it copies B to where it is near and aligned, and finishes C as it is computed.
MOST_WORK = 200_000
# Vectors that the stream takes no less time for: B's only one; and those for which entries of CSC
# are multiplied sooner than they are brought into rows.
FREE_VECTORS = {"csr": 1, "csc": 4}
# For a vector of B or C more than the stream takes: to be transposed by NumPy, finished by NumPy,
# and set to zero for CSC.
TRANSPOSED, FINISHED, ZEROED = 36, 20, 4
_KERNELS: dict[tuple[Any, ...], Kernels] = {}


def is_suited(
    form: str, shape: tuple[int, ...], entries: int, B: Array, itemsize: int, finished: bool
) -> bool:
    """Whether all other ways to multiply would take longer.

    Parameters
    ----------
    form : str
        "csr" or "csc".
    shape : tuple of int
        Of A.
    entries : int
        Of A.
    B : ndarray of one dimension or two
    itemsize : int
        Of the type that is computed in.
    finished : bool
        Whether an epilogue or a residual follows.
    """
    columns = B.shape[1] if B.ndim == 2 else 1
    vectors, moved = -(-columns * itemsize // BLOCK_BYTES), 0
    if form == "csc":
        moved = ZEROED * shape[0]
    if finished:
        moved += FINISHED * shape[0]
    if columns > 1 and B.strides[1] != B.itemsize:
        moved += TRANSPOSED * sum(shape)
    return entries * (vectors - FREE_VECTORS[form]) + moved * vectors <= MOST_WORK


def multiply_as_given(
    pool: ThreadPool, A: object, B: object, epilogue: Epilogue | None, residual: object
) -> Array | None:
    """Return C = A B, finished, of what a user gave; None where that is to be validated first.

    Parameters
    ----------
    pool : ThreadPool
    A, B : object
        Taken where A is SciPy's in CSR or CSC, B an ndarray of shape (k, n) or (k,), and no other
        way is faster.
    epilogue : Epilogue, optional
    residual : object, optional
        Taken where it is an ndarray of the shape and type of C.

    Returns
    -------
    ndarray, shape (m, n) or (m,), or None
        In Fortran order where B is.

    Raises
    ------
    InputError
        If the epilogue is none, or its bias does not fit A.
    """
    form = FORMS.get(type(A))
    if form is None or type(B) is not ndarray or not 1 <= B.ndim <= 2:
        return None
    sparse: Any = A
    shape, indptr, indices, values = sparse.shape, sparse.indptr, sparse.indices, sparse.data
    if len(shape) != 2 or not type(indptr) is type(indices) is type(values) is ndarray:
        return None
    if B.dtype != values.dtype:
        if not {B.dtype.kind, values.dtype.kind} <= set("fiub"):
            return None
        dtype = common_dtype("spmm", A=values, B=B)
        values, B = values.astype(dtype, copy=False), B.astype(dtype, copy=False)
    bare = epilogue is None and residual is None
    if not is_suited(form, shape, indices.size, B, B.itemsize, not bare):
        return None
    parts = indptr, indices, values
    if bare:
        return multiply(pool, form, shape, parts, B)
    if residual is not None and not (
        type(residual) is ndarray
        and residual.dtype == B.dtype
        and residual.shape == (shape[0], *B.shape[1:])
    ):
        return None
    finish = checked_epilogue("spmm", epilogue).prepared("spmm", shape[0], B.dtype)
    C = multiply(pool, form, shape, parts, B)
    return None if C is None else np.asarray(finish.apply(C, residual, per_row=C.ndim == 2))


def multiply(
    pool: ThreadPool, form: str, shape: tuple[int, ...], parts: tuple[Array, Array, Array], B: Array
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

    Returns
    -------
    ndarray, shape (m, n) or (m,), or None
        In Fortran order where B is.
    """
    indptr, indices, values = parts
    key = form, values.dtype, indices.dtype, B.ndim
    kernels = _KERNELS.get(key)
    if kernels is None:
        if values.dtype not in VALUE_TYPES or indices.dtype not in INDEX_TYPES:
            return None
        kernels = _KERNELS[key] = compiled(*key)
    (rows, k), columns = shape, B.shape[1] if B.ndim == 2 else 1
    if indptr.dtype != indices.dtype or B.shape[0] != k or not B.size:
        return None
    if indptr.shape != (shape[form == "csc"] + 1,) or values.ndim * indices.ndim != 1:
        return None
    if B.strides[0 if columns == 1 else 1] != B.itemsize and B.size > 1:
        C = multiply(pool, form, shape, parts, np.array(B, order="C"))
        return np.asfortranarray(C) if B.flags.f_contiguous and C is not None else C
    out = np.empty((rows, columns) if B.ndim == 2 else rows, values.dtype)
    threads = pool.threads
    # All columns of a CSC are added to the same rows of C: one thread does that.
    if threads == 1 or form == "csc" or not is_shared(indices.size, shape, columns, B.itemsize):
        done = kernels.run_alone(kernels.job.address, indptr, indices, values, B, out)
        return out if done else None
    words = np.empty(COUNTERS + threads, np.int64)
    if not kernels.describe(words, threads, indptr, indices, values, B, out):
        return None
    pool.run_job(kernels.job, words)
    return None if words[REFUSED] else out
