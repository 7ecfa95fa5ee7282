"""Single products, `spmm(A, B)`, beside SciPy's on the same operands.

Run it from the root: ``python benchmarks/single_products.py [threads]``. It prints, by the form of
the sparse operand and by columns, SciPy's time over this package's: the least, the geometric mean
and the most over shapes and shares of zeros. Operands of both are the same arrays; the two take
turns, and the least time of each counts.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

import portable_spdnn as ps

SHAPES = (4, 4), (16, 16), (64, 64), (128, 512), (512, 512), (1024, 1024), (2048, 512), (512, 4608)
ZEROS = 0.7, 0.9, 0.98
COLUMNS = 1, 2, 4, 8, 15, 16, 32, 64, 256
FORMS = {"CSR": sp.csr_array, "CSC": sp.csc_array}
SECONDS = 0.05  # for each pair


def by_turns(first: Callable[[], object], second: Callable[[], object]) -> float:
    """Return how many times as long the first takes as the second."""
    least = [math.inf, math.inf]
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for number, run in enumerate((first, second)):
            begin = time.perf_counter()
            run()
            least[number] = min(least[number], time.perf_counter() - begin)
    return least[0] / least[1]


def main() -> None:
    """Measure and print."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    backend, rng = ps.get_backend("numba", threads=threads), np.random.default_rng(0)
    print(f"{backend.device}\nTimes as fast as SciPy: least, geometric mean, most")
    for form, make in FORMS.items():
        for columns in COLUMNS:
            ratios = []
            for shape in SHAPES:
                for zeros in ZEROS:
                    A = make(sp.random_array(shape, density=1 - zeros, rng=rng, dtype=np.float32))
                    B = rng.random((shape[1], columns), np.float32)
                    np.testing.assert_allclose(backend.spmm(A, B), A @ B, rtol=1e-4, atol=1e-4)
                    ratios.append(
                        by_turns(lambda A=A, B=B: A @ B, lambda A=A, B=B: backend.spmm(A, B))  # type: ignore[misc]
                    )
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"{form}, {columns:3} columns: {min(ratios):.2f} {mean:.2f} {max(ratios):.2f}")


if __name__ == "__main__":
    main()
