"""The mathematics in plain loops over float64: slow, and short enough to check by eye."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from portable_spdnn.arrays import Array


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


def finish(
    Z: Array,
    bias: Array,
    activation: str = "none",
    lower: float | None = None,
    upper: float | None = None,
    residual: Array | None = None,
) -> Array:
    """Return min(max(activation(Z + bias + residual), lower), upper); NaN stays NaN.

    `bias` has the shape of Z, or one that NumPy broadcasts to it.
    """
    Y = np.zeros(Z.shape)
    wide = np.broadcast_to(bias, Z.shape)
    for i in range(Z.shape[0]):
        for j in range(Z.shape[1]):
            value = Z[i, j] + float(wide[i, j])
            if residual is not None:
                value += float(residual[i, j])
            value = activate(value, activation)
            if lower is not None and value < lower:
                value = lower
            if upper is not None and value > upper:
                value = upper
            Y[i, j] = value
    return Y


def product(W: Any, Y: Array) -> Array:
    """Return Y W, with W sparse."""
    Z = np.zeros((Y.shape[0], W.shape[1]))
    for k, j, weight in entries(W):
        for i in range(Y.shape[0]):
            Z[i, j] += float(Y[i, k]) * weight
    return Z


def layer(W: Any, Y: Array, bias: Array, y_max: float | None) -> Array:
    """Y'[i, j] = min(max(sum_k Y[i, k] W[k, j] + bias[j], 0), y_max); NaN stays NaN."""
    return finish(product(W, Y), bias, "relu", None, y_max)


def conv2d(
    x: Array, weights: Array, stride: Any, padding: Any, dilation: Any, groups: int = 1
) -> Array:
    """z[n, o, i, j] = sum over weights[o, c, u, v] that are not 0 of what lies beneath them.

    `stride` and `dilation` are (vertical, horizontal), `padding` ((above, below), (left, right)).
    """
    P = np.pad(x, ((0, 0), (0, 0), *padding)).astype(np.float64)
    outputs, channels, kernel_height, kernel_width = weights.shape
    height = (P.shape[2] - dilation[0] * (kernel_height - 1) - 1) // stride[0] + 1
    width = (P.shape[3] - dilation[1] * (kernel_width - 1) - 1) // stride[1] + 1
    z = np.zeros((x.shape[0], outputs, height, width))
    for o, c, u, v in np.argwhere(weights != 0):
        seen = c + o // (outputs // groups) * channels
        weight = float(weights[o, c, u, v])
        for n, i, j in np.ndindex(x.shape[0], height, width):
            row, column = i * stride[0] + u * dilation[0], j * stride[1] + v * dilation[1]
            z[n, o, i, j] += weight * float(P[n, seen, row, column])
    return z


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
    scores = {}
    for i, j, _ in entries(mask):
        total = 0.0
        for c in range(Q.shape[1]):
            total += float(Q[i, c]) * float(K[j, c])
        scores[i, j] = scale * total
    return scores


def softmax(scores: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """Return the softmax over the entries of each row; zeros where all are minus infinity."""
    probabilities = {}
    for row in {i for i, _ in scores}:
        values = {j: value for (i, j), value in scores.items() if i == row}
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
    result = np.zeros((Q.shape[0], V.shape[1]))
    for (i, j), weight in softmax(sddmm(mask, Q, K, scale)).items():
        for c in range(V.shape[1]):
            result[i, c] += weight * float(V[j, c])
    return result
