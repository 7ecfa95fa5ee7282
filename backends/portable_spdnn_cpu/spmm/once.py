"""A single product or layer: by the way that takes least, its preparation included."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.layout.canonical import VALUE_TYPES
from portable_spdnn_cpu.layout.csc_to_csr import transposed
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm import cost_model, tuning
from portable_spdnn_cpu.spmm.dense_layout import empty_result, layout_of
from portable_spdnn_cpu.spmm.direct import product as direct
from portable_spdnn_cpu.spmm.direct.choice import suited_form
from portable_spdnn_cpu.spmm.stream.product import StreamProduct


def multiply_once(
    workers: ThreadPool,
    A: SparseOperand,
    epilogue: Epilogue,
    B: Any,
    residual: Any,
    keeps_order: bool = False,
) -> Array:
    """Return C = A B, finished, of operands that have been checked.

    C is in C order, or in Fortran order if B is and C keeps its order.

    A and B are read as they are where that is predicted to take least. Else A is streamed against
    panels of B: as it is too, or packed before.
    """
    size = cost_model.size_of(
        A.shape, int(A.nnz), B.itemsize, B.shape[1], layout_of(B), workers, keeps_order
    )
    if suited_form("csr", A.shape, A.nnz, B, keeps_order) or tuning.direct_is_faster(size):
        parts = A.indptr, A.indices, A.data
        finish = direct.epilogue_arguments(epilogue, B.dtype)
        C = direct.multiply(workers, "csr", A.shape, parts, B, finish, residual, keeps_order)
        if C is not None:
            return C
    variant, packs = tuning.single_variant(size)
    product = StreamProduct(A, epilogue, variant, packs)
    shape, offset = (size.rows, size.columns), product.result_offset(B)
    out = empty_result(shape, A.dtype, size.out_fortran, offset)
    product.multiply(B, out, residual, workers)
    return out


def layer_once(
    workers: ThreadPool, W: sp.csr_array, epilogue: Epilogue, Y: Any, residual: Any
) -> Array:
    """Return Y' = Y W, finished, of operands that have been checked.

    Y' = Y W is Y'^T = W^T Y^T: the inputs are the columns of a product, and W in CSR is W^T in CSC.
    """
    B, added, shape = Y.T, None if residual is None else residual.T, W.shape[::-1]
    if suited := suited_form("csc", shape, W.nnz, B, keeps_order=True, finishes=True):
        parts = W.indptr, W.indices, W.data
        finish = direct.epilogue_arguments(epilogue, B.dtype)
        C = direct.multiply(
            workers, "csc", shape, parts, B, finish, added,
            keeps_order=True, converts=suited == "csr",
        )  # fmt: skip
        if C is not None:
            return C.T
    A = transposed(W)
    return multiply_once(workers, A, epilogue, B, added, keeps_order=True).T


def layer_of_csc(
    workers: ThreadPool, A: SparseOperand, epilogue: Epilogue, features: Any, residual: Any
) -> Array | None:
    """Return Y' = Y A^T, finished, for A = W^T that has been checked; None where Y is not as A is.

    Of W in CSC, which `layer_once` would bring into CSR to turn it.
    """
    given = (features,) if residual is None else (features, residual)
    if A.dtype not in VALUE_TYPES:
        return None
    if any(type(array) is not np.ndarray or array.dtype != A.dtype for array in given):
        return None
    if features.ndim != 2:
        return None
    shapes = (len(features), A.shape[1]), (len(features), A.shape[0])
    if any(array.shape != shape for array, shape in zip(given, shapes, strict=False)):
        return None
    finish = epilogue.prepared("layer", A.shape[0], A.dtype)
    B, added = features.T, None if residual is None else residual.T
    return multiply_once(workers, A, finish, B, added, keeps_order=True).T
