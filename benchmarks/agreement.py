"""Checks that come before every timing: the reference against dense float64, all others against it.

Sums are float32 in any order: results may differ by some units in the last place of the largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

RELATIVE_TOLERANCE = 1e-5
SAMPLED_ROWS = 32


def assert_agree(result: Any, expected: Any) -> None:
    """Raise AssertionError where two results, dense or both sparse, are not close."""
    assert sp.issparse(result) == sp.issparse(expected), "one is sparse, the other dense"
    assert result.shape == expected.shape, f"{result.shape} instead of {expected.shape}"
    difference = float(abs(result - expected).max())
    scale = float(abs(expected).max())
    assert difference <= RELATIVE_TOLERANCE * scale, f"off by {difference:g} of {scale:g}"


def assert_product(C: Any, A: Any, B: Any) -> None:
    """Raise AssertionError where sampled rows of C are not those of A B in dense float64."""
    rows = np.unique(np.linspace(0, A.shape[0] - 1, SAMPLED_ROWS).astype(np.int64))
    assert_agree(_dense(C[rows]), _dense(A[rows]) @ _dense(B))


def assert_sparse_product(C: Any, A: Any, B: Any) -> None:
    """Do what `assert_product` does for sparse A and B, however wide: by what rows can reach."""
    rows = np.unique(np.linspace(0, A.shape[0] - 1, SAMPLED_ROWS).astype(np.int64))
    C, A = C[rows], A[rows]
    inner = np.unique(A.indices)
    columns = np.unique(B[inner].indices)
    assert np.isin(C.indices, columns).all(), "an entry where no product is"
    assert_agree(_dense(C[:, columns]), _dense(A[:, inner]) @ _dense(B[inner][:, columns]))


def assert_layer(C: Any, W: Any, Y: Any, bias: float, y_max: float) -> None:
    """Raise AssertionError where sampled rows of C are not min(max(Y W + bias, 0), y_max)."""
    rows = np.unique(np.linspace(0, Y.shape[0] - 1, SAMPLED_ROWS).astype(np.int64))
    assert_agree(_dense(C[rows]), np.clip(_dense(Y[rows]) @ _dense(W) + bias, 0, y_max))


def _dense(matrix: Any) -> Any:
    array = matrix.toarray() if sp.issparse(matrix) else np.asarray(matrix)
    return array.astype(np.float64)
