"""Single products and layers beside SciPy's on the same operands.

Run it from the root: ``python benchmarks/single_products.py [threads]``, on one thread by default.
It prints SciPy's time over this package's, the least, the geometric mean and the most over shapes
and shares of zeros: of `spmm(A, B)`, by the format of A and the order of B, and of `layer(W, Y)`,
also of a `ps.Layer`; in a group of their own of products whose B or C caches do not hold. What
finishes them is NumPy's beside SciPy's product. Operands of both are the same
arrays; the two take turns, and the least time of each counts.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.arrays import Array

SHAPES = (4, 4), (16, 16), (64, 64), (128, 512), (512, 512), (1024, 1024), (2048, 512), (512, 4608)
ZEROS = 0.7, 0.9, 0.98
# Rows and columns of A with so many entries in a row, times so many columns.
LARGE, ENTRIES, LARGE_COLUMNS = ((60_000, 500), (1000, 60_000), (30_000, 30_000)), (2, 10), (24, 96)
COLUMNS = {"1 column": (1,), "2 to 15": (2, 4, 8, 15), "16 to 256": (16, 20, 32, 64, 100, 256)}
# By turns, as it is where products are single: a processor predicts where rows and columns of
# matrices end that it has seen before; a Zen 5 those of some 14,000 rows.
ROWS_BY_TURNS, LEAST_MATRICES, MOST_MATRICES = 60_000, 12, 200
SECONDS, LEAST_TURNS = 0.06, 6  # for each pair
Functions = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def by_turns(operands: list[Any], functions: Functions) -> float:
    """Return how many times as long the first function takes as the second for all operands."""
    least, turns = [math.inf, math.inf], 0
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or turns < LEAST_TURNS:
        for number, run in enumerate(functions):
            begin = time.perf_counter()
            for operand in operands:
                run(operand)
            least[number] = min(least[number], time.perf_counter() - begin)
        turns += 1
    return least[0] / least[1]


def cases(
    backend: ps.Backend, matrices: list[sp.csr_array], B: Array, bias: Array
) -> dict[str, tuple[list[Any], Functions]]:
    """Return operands, SciPy's function of one and this package's, by what they compute."""
    F, Y, long = np.asfortranarray(B), B.T.copy(), B.astype(np.float64)
    relu, R = ps.Epilogue(bias, "relu"), np.resize(B, (bias.size, B.shape[1]))
    silu, column = ps.Epilogue(bias, "silu"), bias[:, None]
    weights = [sp.csr_array(A.T) for A in matrices]
    csc = [sp.csc_array(A) for A in matrices]
    wide = [A.astype(np.float64) for A in matrices]

    def scipy_layer(W: Any) -> Any:
        return np.maximum(Y @ W + bias, 0)

    def own_layer(W: Any) -> Any:
        return backend.layer(W, Y, epilogue=relu)

    def scipy_silu(A: Any) -> Any:
        sums = A @ B + column
        return sums / (1 + np.exp(-sums))

    return {
        "spmm, CSR": (matrices, (lambda A: A @ B, lambda A: backend.spmm(A, B))),
        "spmm, CSR, float64": (wide, (lambda A: A @ long, lambda A: backend.spmm(A, long))),
        "spmm, CSR, B in Fortran order": (
            matrices, (lambda A: A @ F, lambda A: backend.spmm(A, F)),
        ),
        "spmm, CSC": (csc, (lambda A: A @ B, lambda A: backend.spmm(A, B))),
        "spmm, CSR, bias and ReLU": (
            matrices,
            (lambda A: np.maximum(A @ B + column, 0), lambda A: backend.spmm(A, B, relu)),
        ),
        "spmm, CSR, bias, residual and ReLU": (
            matrices,
            (lambda A: np.maximum(A @ B + column + R, 0), lambda A: backend.spmm(A, B, relu, R)),
        ),
        "spmm, CSR, bias and SiLU": (
            matrices, (scipy_silu, lambda A: backend.spmm(A, B, silu)),
        ),
        "layer, W in CSR, bias and ReLU": (weights, (scipy_layer, own_layer)),
        "layer, W in CSC, bias and ReLU": ([A.T for A in matrices], (scipy_layer, own_layer)),
        "layer, a Layer, bias and ReLU": (
            [(W, ps.Layer(W, bias)) for W in weights],
            (lambda both: scipy_layer(both[0]), lambda both: backend.layer(both[1], Y)),
        ),
    }  # fmt: skip


def products() -> Iterator[tuple[str, tuple[int, int], float, int]]:
    """Yield the group, the shape of A, its share of zeros and the columns of B of each product."""
    for group, counts in COLUMNS.items():
        for shape, zeros, columns in itertools.product(SHAPES, ZEROS, counts):
            yield group, shape, zeros, columns
    for shape, entries, columns in itertools.product(LARGE, ENTRIES, LARGE_COLUMNS):
        yield "B or C beyond caches", shape, 1 - entries / shape[1], columns


def main() -> None:
    """Measure and print."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    backend, rng = ps.get_backend("numba", threads=threads), np.random.default_rng(0)
    found: dict[tuple[str, str], list[float]] = {}
    for group, (rows, k), zeros, columns in products():
        least = LEAST_MATRICES if (rows, k) in SHAPES else 1
        count = min(max(ROWS_BY_TURNS // max(rows, k), least), MOST_MATRICES)
        matrices = [
            sp.random_array((rows, k), density=1 - zeros, rng=rng, dtype=np.float32).tocsr()
            for _ in range(count)
        ]
        B, bias = rng.random((k, columns), np.float32), rng.random(rows, np.float32)
        for name, (operands, functions) in cases(backend, matrices, B, bias).items():
            for operand in operands:
                expected, own = (run(operand) for run in functions)
                np.testing.assert_allclose(own, expected, rtol=1e-3, atol=1e-4)
            found.setdefault((name, group), []).append(by_turns(operands, functions))
    print(f"{backend.device}\nTimes as fast as SciPy: least, geometric mean, most")
    for (name, group), ratios in sorted(found.items()):
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{name}; {group}: {min(ratios):.2f} {mean:.2f} {max(ratios):.2f}")


if __name__ == "__main__":
    main()
