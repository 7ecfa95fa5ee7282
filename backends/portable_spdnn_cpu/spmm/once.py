"""A single product or layer: by the way that takes least, its preparation included."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.layout.csc_to_csr import csc_to_csr
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm import tuning
from portable_spdnn_cpu.spmm.dense_layout import Layout, empty_result, layout_of
from portable_spdnn_cpu.spmm.direct import product as direct
from portable_spdnn_cpu.spmm.direct.choice import suited_form
from portable_spdnn_cpu.spmm.stream.product import StreamProduct


def multiply_once(
    workers: ThreadPool, A: SparseOperand, epilogue: Epilogue, B: Any, residual: Any
) -> Array:
    """Return C = A B, finished, of operands that have been checked.

    A and B are read as they are where that is predicted to take least. Else A is streamed against
    panels of B: as it is too, or packed before.
    """
    layout = layout_of(B)
    size = tuning.size_of(A, B.shape[1], layout, workers)
    if suited_form("csr", A.shape, A.nnz, B) or tuning.direct_is_faster(size):
        parts = A.indptr, A.indices, A.data
        finish = direct.epilogue_arguments(epilogue)
        C = direct.multiply(workers, "csr", A.shape, parts, B, finish, residual)
        if C is not None:
            order: Literal["F", "C"] = "F" if layout == Layout.FORTRAN else "C"
            return np.asarray(C, order=order)
    variant, packs = tuning.single_variant(size)
    out = empty_result(size.rows, size.columns, A.dtype, size.fortran)
    StreamProduct(A, epilogue, variant, packs).multiply(B, out, residual, workers)
    return out


def layer_once(
    workers: ThreadPool, W: sp.csr_array, epilogue: Epilogue, Y: Any, residual: Any
) -> Array:
    """Return Y' = Y W, finished, of operands that have been checked.

    Y' = Y W is Y'^T = W^T Y^T: the inputs are the columns of a product, and W in CSR is W^T in CSC.
    """
    B, added, shape = Y.T, None if residual is None else residual.T, W.shape[::-1]
    if suited := suited_form("csc", shape, W.nnz, B):
        parts = W.indptr, W.indices, W.data
        finish = direct.epilogue_arguments(epilogue)
        C = direct.multiply(workers, "csc", shape, parts, B, finish, added, suited == "csr")
        if C is not None:
            return C.T
    A: Any = csc_to_csr(W.T)  # not None: W is canonical
    return multiply_once(workers, A, epilogue, B, added).T
