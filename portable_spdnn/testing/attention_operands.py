"""What the contract of sddmm, softmax and attention is tried on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.testing.operands import refused

# Queries, keys, d, d_v: empty, single, around 16 and 64, beyond 64, and of no round number.
SHAPES = [
    (1, 1, 1, 1), (0, 4, 3, 2), (4, 0, 3, 2), (1, 70, 16, 1), (70, 1, 5, 3), (9, 40, 7, 20),
    (8, 16, 16, 16), (17, 33, 15, 48), (40, 64, 64, 64), (33, 31, 17, 65), (20, 130, 100, 80),
]  # fmt: skip
DENSITIES = [0.0, 0.05, 0.4, 0.9, 1.0]


def tolerance(dtype: Any) -> dict[str, Any]:
    """Return the rounding of scores of up to 100 terms of order 1, and of their softmax."""
    return {"rtol": 1e-4, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-11, "atol": 1e-12}


def has(backend: ps.Backend, operation: str) -> None:
    """Skip where a backend has not an operation, once it says who has it."""
    if operation in backend.optional_operations:
        return
    with refused(backend.name, operation, error=NotImplementedError):
        getattr(backend, operation)()
    pytest.skip(f"backend {backend.name} has no {operation}, and need not")


def pattern(rng: np.random.Generator, shape: tuple[int, int], density: float) -> Any:
    """Return a mask with an empty and a full row where there are some; it stores odd values."""
    stored = rng.random(shape) < density
    if shape[0] > 3:
        stored[1], stored[2] = False, density > 0
    mask = sp.csr_array(stored.astype(np.float64))
    mask.data[:] = rng.choice([0.0, -1.0, 3.0], mask.nnz)
    return mask


def operands(rng: np.random.Generator, shape: Any, dtype: Any, heads: int) -> tuple[Any, Any, Any]:
    """Return Q, K and V with entries in -1 .. 1."""
    m, n, d, d_v = shape
    sizes = ((heads, m, d), (heads, n, d), (heads, n, d_v))
    Q, K, V = (rng.uniform(-1, 1, size).astype(dtype) for size in sizes)
    return Q, K, V
