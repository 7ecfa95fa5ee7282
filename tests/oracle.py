"""The mathematics in plain loops over float64: slow, and short enough to check by eye."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def entries(matrix: Any) -> list[tuple[int, int, float]]:
    """Return (row, column, value) of every stored entry, duplicates as they stand."""
    coo = matrix.tocoo()
    return [(int(i), int(j), float(v)) for i, j, v in zip(coo.row, coo.col, coo.data, strict=True)]


def spmm(A: Any, B: Array) -> Array:
    """C[i, j] = sum over stored A[i, k] of A[i, k] B[k, j]."""
    C = np.zeros((A.shape[0], B.shape[1]))
    for i, k, value in entries(A):
        for j in range(B.shape[1]):
            C[i, j] += value * float(B[k, j])
    return C


def spgemm(A: Any, B: Any) -> tuple[Array, set[tuple[int, int]]]:
    """Return C = A B and the pairs (i, j) that the patterns of A and B allow."""
    C = np.zeros((A.shape[0], B.shape[1]))
    pattern = set()
    for i, k, a in entries(A):
        for row, j, b in entries(B):
            if row == k:
                C[i, j] += a * b
                pattern.add((i, j))
    return C, pattern


def layer(W: Any, Y: Array, bias: Array, y_max: float | None) -> Array:
    """Y'[i, j] = min(max(sum_k Y[i, k] W[k, j] + bias[j], 0), y_max); NaN stays NaN."""
    Z = np.zeros((Y.shape[0], W.shape[1]))
    for k, j, weight in entries(W):
        for i in range(Y.shape[0]):
            Z[i, j] += float(Y[i, k]) * weight
    for i in range(Z.shape[0]):
        for j in range(Z.shape[1]):
            value = Z[i, j] + float(bias[j])
            if value < 0:
                value = 0.0
            if y_max is not None and value > y_max:
                value = y_max
            Z[i, j] = value
    return Z


def infer(network: Any, Y: Array) -> tuple[list[int], Array, list[int]]:
    """Return categories (from 0), scores, and the inputs alive after each layer."""
    alive = []
    for one in network:
        Y = layer(one.csr(np.float64), Y, one.bias, network.y_max)
        alive.append(sum(any(value != 0 for value in row) for row in Y))
    categories = [i for i, row in enumerate(Y) if any(value > 0 for value in row)]
    return categories, Y, alive
