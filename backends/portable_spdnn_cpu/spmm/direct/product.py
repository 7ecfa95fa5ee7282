"""C = A B for operands as a user has them: which products are done so, and how."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.operands import checked_epilogue, common_dtype
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.layout.canonical import INDEX_TYPES, VALUE_TYPES
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.direct.job_words import COUNTERS, REFUSED
from portable_spdnn_cpu.spmm.direct.kernel import Kernels, compiled
from portable_spdnn_cpu.spmm.stream.product import is_shared

# Entries, times vectors of B, from which to copy B to where it is near and aligned pays.
MOST_WORK = 200_000
# Vectors of B up to which that is more work than to bring the entries of CSC into rows.
MOST_VECTORS = {"csr": 1, "csc": 4}
FORMS: dict[type, str] = {
    sp.csr_array: "csr", sp.csr_matrix: "csr", sp.csc_array: "csc", sp.csc_matrix: "csc",
}  # fmt: skip
_KERNELS: dict[tuple[Any, ...], Kernels] = {}


def is_suited(form: str, entries: int, columns: int, itemsize: int) -> bool:
    """Whether a product is so little work that all else would take longer."""
    vectors = -(-columns * itemsize // BLOCK_BYTES)
    return vectors <= MOST_VECTORS[form] or entries * vectors <= MOST_WORK


def multiply_as_given(
    pool: ThreadPool, A: object, B: object, epilogue: Epilogue | None, residual: object
) -> Array | None:
    """Return C = A B, finished, of what a user gave; None where there may be an error.

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
    """
    form = FORMS.get(type(A))
    if form is None or type(B) is not np.ndarray:
        return None
    sparse: Any = A
    indices, shape = sparse.indices, sparse.shape
    if B.ndim > 1 and not is_suited(form, indices.size, B.shape[1], B.itemsize):
        return None
    if len(shape) != 2 or not (residual is None or type(residual) is np.ndarray):
        return None
    C = multiply(pool, form, shape, (sparse.indptr, indices, sparse.data), B)
    if C is None or (epilogue is None and residual is None):
        return C
    if residual is not None and (residual.dtype, residual.shape) != (C.dtype, C.shape):
        return None
    finish = checked_epilogue("spmm", epilogue).prepared("spmm", C.shape[0], C.dtype)
    return np.asarray(finish.apply(C, residual, per_row=C.ndim == 2))


def multiply(
    pool: ThreadPool, form: str, shape: tuple[int, ...], parts: tuple[Array, Array, Array], B: Array
) -> Array | None:
    """Return C = A B, of any size; else as `multiply_as_given`.

    Parameters
    ----------
    pool : ThreadPool
    form : str
        "csr" or "csc".
    shape : tuple of int
        Of A.
    parts : tuple of ndarray
        Offsets, indices and values of A.
    B : ndarray
    """
    indptr, indices, values = parts
    if B.dtype != values.dtype:
        if not {B.dtype.kind, values.dtype.kind} <= set("fiub"):
            return None
        dtype = common_dtype("spmm", A=values, B=B)
        return multiply(pool, form, shape, (indptr, indices, values.astype(dtype)), B.astype(dtype))
    key = form, values.dtype, indices.dtype, B.ndim
    kernels = _KERNELS.get(key)
    if kernels is None:
        known = values.dtype in VALUE_TYPES and indices.dtype in INDEX_TYPES
        if not known or B.ndim not in (1, 2):
            return None
        kernels = _KERNELS[key] = compiled(*key)
    (rows, k), columns = shape, B.shape[1] if B.ndim == 2 else 1
    if indptr.dtype != indices.dtype or B.shape[0] != k or not B.size:
        return None
    if indptr.shape != (shape[form == "csc"] + 1,) or values.ndim * indices.ndim != 1:
        return None
    if not B.flags.c_contiguous:
        C = multiply(pool, form, shape, parts, np.ascontiguousarray(B))
        return np.asfortranarray(C) if B.flags.f_contiguous and C is not None else C
    width = columns if form == "csr" or columns == 1 else padded(columns, B.itemsize)
    out = np.empty((rows, width) if B.ndim == 2 else rows, values.dtype)
    threads = pool.threads
    # Columns of A would be added to the same rows of C by all threads.
    if threads == 1 or form == "csc" or not is_shared(indices.size, shape, columns, B.itemsize):
        if not kernels.run_alone(kernels.job.address, indptr, indices, values, B, out):
            return None
    else:
        words = np.empty(COUNTERS + threads, np.int64)
        if not kernels.describe(words, threads, indptr, indices, values, B, out):
            return None
        pool.run_job(kernels.job, words)
        if words[REFUSED]:
            return None
    return out if width == columns else out[:, :columns].copy()


def padded(columns: int, itemsize: int) -> int:
    """Return the columns of vectors as wide as the kernel takes for so many."""
    size = columns * itemsize
    vector = 16 if size <= 16 else 32 if size <= 32 else BLOCK_BYTES
    return -(-size // vector) * vector // itemsize
