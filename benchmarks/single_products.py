"""Single products and layers beside SciPy's on the same operands.

Run it from the root: ``python benchmarks/single_products.py [threads]``, on one thread by default.
It prints SciPy's time over this package's, the least, the geometric mean and the most over shapes
and shares of zeros: of `spmm(A, B)`, by the form of A and the order of B, and of `layer(W, Y)` with
bias and ReLU, beside SciPy's product and NumPy's. Operands of both are the same arrays; the two
take turns, and the least time of each counts.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.arrays import Array

SHAPES = (4, 4), (16, 16), (64, 64), (128, 512), (512, 512), (1024, 1024), (2048, 512), (512, 4608)
ZEROS = 0.7, 0.9, 0.98
COLUMNS = {"1 column": (1,), "2 to 15": (2, 4, 8, 15), "16 to 256": (16, 32, 64, 256)}
SECONDS, LEAST_TURNS = 0.03, 20  # for each pair
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def by_turns(first: Callable[[], object], second: Callable[[], object]) -> float:
    """Return how many times as long the first takes as the second."""
    least, turns = [math.inf, math.inf], 0
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or turns < LEAST_TURNS:
        for number, run in enumerate((first, second)):
            begin = time.perf_counter()
            run()
            least[number] = min(least[number], time.perf_counter() - begin)
        turns += 1
    return least[0] / least[1]


def pairs(backend: ps.Backend, A: sp.csr_array, B: Array, bias: Array) -> dict[str, Pair]:
    """Return SciPy's product and this package's, by what they are."""
    csc, F, Y, W = sp.csc_array(A), np.asfortranarray(B), B.T.copy(), sp.csr_array(A.T)
    wide, long = A.astype(np.float64), B.astype(np.float64)
    relu = ps.Epilogue(bias, "relu")
    return {
        "spmm, CSR": (lambda: A @ B, lambda: backend.spmm(A, B)),
        "spmm, CSR, float64": (lambda: wide @ long, lambda: backend.spmm(wide, long)),
        "spmm, CSR, B in Fortran order": (lambda: A @ F, lambda: backend.spmm(A, F)),
        "spmm, CSC": (lambda: csc @ B, lambda: backend.spmm(csc, B)),
        "spmm, CSR, bias and ReLU": (
            lambda: np.maximum(A @ B + bias[:, None], 0),
            lambda: backend.spmm(A, B, relu),
        ),
        "layer, bias and ReLU": (
            lambda: np.maximum(Y @ W + bias, 0),
            lambda: backend.layer(W, Y, epilogue=relu),
        ),
    }


def main() -> None:
    """Measure and print."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    backend, rng = ps.get_backend("numba", threads=threads), np.random.default_rng(0)
    found: dict[tuple[str, str], list[float]] = {}
    for group, counts in COLUMNS.items():
        for (rows, k), zeros, columns in itertools.product(SHAPES, ZEROS, counts):
            A = sp.random_array((rows, k), density=1 - zeros, rng=rng, dtype=np.float32).tocsr()
            B, bias = rng.random((k, columns), np.float32), rng.random(rows, np.float32)
            for name, (scipy, own) in pairs(backend, A, B, bias).items():
                np.testing.assert_allclose(own(), scipy(), rtol=1e-3, atol=1e-4)
                found.setdefault((name, group), []).append(by_turns(scipy, own))
    print(f"{backend.device}\nTimes as fast as SciPy: least, geometric mean, most")
    for (name, group), ratios in sorted(found.items()):
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{name}; {group}: {min(ratios):.2f} {mean:.2f} {max(ratios):.2f}")


if __name__ == "__main__":
    main()
