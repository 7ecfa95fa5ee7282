"""Products by the kernels of single products, whatever other way might be faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.direct import product

POOLS = ThreadPool(1), ThreadPool(3)
# "converted": to CSR, before it is multiplied.
FORMS = {"csr": sp.csr_array, "csc": sp.csc_array, "csc converted": sp.csc_array}


def matrix(seed: int, shape: tuple[int, int], density: float, dtype: Any = np.float32) -> Any:
    """Return a csr_array."""
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random(shape) < density, rng.uniform(-1, 1, shape), 0)
    return sp.csr_array(dense.astype(dtype))


def multiply(
    pool: ThreadPool,
    form: str,
    A: Any,
    B: Any,
    epilogue: ps.Epilogue | None = None,
    residual: Any = None,
    keeps_order: bool = True,
) -> Any:
    """Return C = A B, finished; None where it is refused."""
    parts = A.indptr, A.indices, A.data
    finish = None if epilogue is None else product.epilogue_arguments(epilogue, B.dtype)
    converts = form == "csc converted"
    return product.multiply(
        pool, A.format, A.shape, parts, B, finish, residual, keeps_order, converts
    )
