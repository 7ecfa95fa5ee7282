"""The mathematics in plain loops over float64: slow, and short enough to check by eye.

The loops run over lists: Python takes several times as long for each number of an array.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from portable_spdnn.arrays import Array


def entries(matrix: Any) -> list[tuple[int, int, float]]:
    """Return (row, column, value) of every stored entry, duplicates as they stand."""
    coo = matrix.tocoo()
    return list(zip(coo.row.tolist(), coo.col.tolist(), floats(coo.data), strict=True))


def floats(array: Any) -> list[Any]:
    """Return the numbers of an array, which may be a sparse one, as nested lists of floats."""
    dense = array.toarray() if hasattr(array, "toarray") else array
    return cast(list[Any], np.asarray(dense, np.float64).tolist())


def spmm(A: Any, B: Array) -> Array:
    """C[i, j] = sum over stored A[i, k] of A[i, k] B[k, j]."""
    rows = floats(B)
    C = [[0.0] * B.shape[1] for _ in range(A.shape[0])]
    for i, k, value in entries(A):
        C[i] = [c + value * b for c, b in zip(C[i], rows[k], strict=True)]
    return np.array(C).reshape(A.shape[0], B.shape[1])


def spgemm(A: Any, B: Any) -> tuple[Array, set[tuple[int, int]]]:
    """Return C = A B and the pairs (i, j) that the patterns of A and B allow."""
    C = [[0.0] * B.shape[1] for _ in range(A.shape[0])]
    pattern = set()
    rows: list[list[tuple[int, float]]] = [[] for _ in range(B.shape[0])]
    for k, j, b in entries(B):
        rows[k].append((j, b))
    for i, k, a in entries(A):
        for j, b in rows[k]:
            C[i][j] += a * b
            pattern.add((i, j))
    return np.array(C).reshape(A.shape[0], B.shape[1]), pattern


def activate(z: float, activation: str) -> float:
    """Return activation(z); NaN stays NaN, and gelu, silu and hardswish of -inf are 0."""
    if math.isnan(z) or activation == "none":
        return z
    if activation == "relu":
        return max(z, 0.0)
    if activation == "tanh":
        return math.tanh(z)
    if activation == "sigmoid":
        return 1 / (1 + math.exp(-z)) if z > -700 else 0.0
    if z == -math.inf:
        return 0.0
    if activation == "gelu":
        # erfc, where 1 + erf(z / sqrt 2) would cancel
        return z * math.erfc(-z / math.sqrt(2)) / 2
    if activation == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
        return z * (1 + math.tanh(inner)) / 2
    if activation == "silu":
        return z / (1 + math.exp(-z)) if z > -700 else 0.0
    if activation == "hardswish":
        return z * min(max(z + 3, 0.0), 6.0) / 6
    raise ValueError(activation)


def _sum_of(first: list[Any], second: list[Any]) -> list[Any]:
    rows = zip(first, second, strict=True)
    return [[a + b for a, b in zip(*pair, strict=True)] for pair in rows]


def finish(
    Z: Array,
    bias: Array,
    activation: str = "none",
    lower: float | None = None,
    upper: float | None = None,
    residual: Array | None = None,
) -> Array:
    """Return min(max(activation(Z + bias + residual), lower), upper); NaN stays NaN.

    `bias` has the shape of Z, or one that NumPy broadcasts to it; `residual` has the shape of Z.
    """
    Y = _sum_of(floats(Z), floats(np.broadcast_to(bias, Z.shape)))
    if residual is not None:
        Y = _sum_of(Y, floats(residual))
    for row in Y:
        for j, z in enumerate(row):
            value = activate(z, activation)
            if lower is not None and value < lower:
                value = lower
            if upper is not None and value > upper:
                value = upper
            row[j] = value
    return np.array(Y).reshape(Z.shape)


def product(W: Any, Y: Array) -> Array:
    """Return Y W, with W sparse."""
    return spmm(W.T, Y.T).T


def layer(W: Any, Y: Array, bias: Array, y_max: float | None) -> Array:
    """Y'[i, j] = min(max(sum_k Y[i, k] W[k, j] + bias[j], 0), y_max); NaN stays NaN."""
    return finish(product(W, Y), bias, "relu", None, y_max)


def conv2d(
    x: Array, weights: Array, stride: Any, padding: Any, dilation: Any, groups: int = 1
) -> Array:
    """z[n, o, i, j] = sum over weights[o, c, u, v] that are not 0 of what lies beneath them.

    `stride` and `dilation` are (vertical, horizontal), `padding` ((above, below), (left, right)).
    """
    padded = np.pad(x, ((0, 0), (0, 0), *padding))
    P = floats(padded)
    outputs, channels, kernel_height, kernel_width = weights.shape
    height = (padded.shape[2] - dilation[0] * (kernel_height - 1) - 1) // stride[0] + 1
    width = (padded.shape[3] - dilation[1] * (kernel_width - 1) - 1) // stride[1] + 1
    shape = x.shape[0], outputs, height, width
    z = np.zeros(shape).tolist()
    for o, c, u, v in np.argwhere(weights != 0).tolist():
        seen = c + o // (outputs // groups) * channels
        weight = float(weights[o, c, u, v])
        columns = range(v * dilation[1], v * dilation[1] + width * stride[1], stride[1])
        for image, sums in zip(P, z, strict=True):
            for i in range(height):
                row = image[seen][i * stride[0] + u * dilation[0]]
                sums[o][i] = [
                    total + weight * row[column]
                    for total, column in zip(sums[o][i], columns, strict=True)
                ]
    return np.array(z).reshape(shape)


def infer(network: Any, Y: Array) -> tuple[list[int], Array, list[int]]:
    """Return categories (from 0), scores, and the inputs with a nonzero after each layer."""
    active = []
    for one in network:
        upper = [bound for bound in (one.upper,) if bound is not None]
        if one.activation == "relu" and network.y_max is not None:
            upper.append(network.y_max)
        sums = product(one.csr(np.float64), Y)
        Y = finish(sums, one.bias, one.activation, one.lower, min(upper, default=None))
        active.append(sum(any(value != 0 for value in row) for row in Y))
    categories = [i for i, row in enumerate(Y) if any(value > 0 for value in row)]
    return categories, Y, active


def sddmm(mask: Any, Q: Array, K: Array, scale: float) -> dict[tuple[int, int], float]:
    """Return scale (Q[i] . K[j]) for each stored (i, j) of a mask."""
    queries, keys = floats(Q), floats(K)
    scores = {}
    for i, j, _ in entries(mask):
        scores[i, j] = scale * sum([q * k for q, k in zip(queries[i], keys[j], strict=True)])
    return scores


def softmax(scores: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """Return the softmax over the entries of each row; zeros where all are minus infinity."""
    probabilities = {}
    rows: dict[int, dict[int, float]] = {}
    for (i, j), value in scores.items():
        rows.setdefault(i, {})[j] = value
    for row, values in rows.items():
        undefined = any(math.isnan(value) or value == math.inf for value in values.values())
        most = math.nan if undefined else max(values.values())
        weights = {
            j: 0.0 if most == -math.inf else math.exp(value - most) for j, value in values.items()
        }
        total = sum(weights.values())
        for j, weight in weights.items():
            probabilities[row, j] = 0.0 if most == -math.inf else weight / total
    return probabilities


def attention(mask: Any, Q: Array, K: Array, V: Array, scale: float) -> Array:
    """O[i] = sum over stored (i, j) of softmax(scale Q K^T)[i, j] V[j]."""
    values = floats(V)
    result = [[0.0] * V.shape[1] for _ in range(Q.shape[0])]
    for (i, j), weight in softmax(sddmm(mask, Q, K, scale)).items():
        result[i] = [total + weight * v for total, v in zip(result[i], values[j], strict=True)]
    return np.array(result).reshape(Q.shape[0], V.shape[1])
