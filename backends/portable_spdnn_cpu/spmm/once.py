"""A single product: by the way that takes least, its preparation included."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm import tuning
from portable_spdnn_cpu.spmm.dense_layout import Layout, empty_result, layout_of
from portable_spdnn_cpu.spmm.direct import product as direct
from portable_spdnn_cpu.spmm.handle import size_of
from portable_spdnn_cpu.spmm.stream.product import StreamProduct


def multiply_once(
    workers: ThreadPool,
    A: SparseOperand,
    epilogue: Epilogue,
    B: Any,
    residual: Any,
) -> Array:
    """Return C = A B, finished, for a single product.

    A is read as it is where little is to be computed. Otherwise it is streamed: as it is too, or
    packed where B is wide.
    """
    layout = layout_of(B)
    size = size_of(A, B.shape[1], layout, workers)
    order: Literal["F", "C"] = "F" if layout == Layout.FORTRAN else "C"
    whole = tuning.whole_variant(size)
    variant = whole or tuning.stream_variants(size)[0]
    if B.size and (
        direct.is_suited("csr", A.nnz, size.columns, size.itemsize)
        or tuning.direct_seconds(size) < tuning.stream_seconds(size, variant)
    ):
        C = direct.multiply(workers, "csr", A.shape, (A.indptr, A.indices, A.data), B)
        return np.asarray(epilogue.apply(C, residual, per_row=True), order=order)
    out = empty_result(size.rows, size.columns, A.dtype, size.fortran)
    StreamProduct(A, epilogue, variant, pack=whole is None).multiply(B, out, residual, workers)
    return out
