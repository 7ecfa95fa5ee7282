"""Run in a process of its own: streamed weights in code for other processors.

Prints whether loads of single words are slow, the most vectors that a panel has, and how many sums
take entries by turns with each width; raises where a result is wrong.
"""

from __future__ import annotations

import itertools

import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn_cpu.jit.target import has_slow_word_loads
from portable_spdnn_cpu.machine.cpu_info import aligned_empty
from portable_spdnn_cpu.machine.thread_pool import ALONE
from portable_spdnn_cpu.spmm.stream.microkernels import LONG_ROW, MAX_VECTORS, chains
from portable_spdnn_cpu.spmm.stream.product import StreamProduct, StreamVariant

# Of rows in a block: both sides of where offsets come by two groups, of one row and of a pair.
COUNTS = [0, *(count for most in (LONG_ROW // 2, LONG_ROW) for count in (most - 1, most, most + 1))]


def main() -> None:
    """Multiply with panels of one vector, of some, and of as many as there are."""
    rng, inner = np.random.default_rng(0), 90
    counts = rng.permutation(np.repeat([*COUNTS, 3, inner], 5))
    dense = np.zeros((counts.size, inner))
    for row, count in zip(dense, counts, strict=True):
        row[rng.choice(inner, count, replace=False)] = rng.integers(1, 5, count)
    cases = [
        (np.float32, StreamVariant(vectors, k_block), 5)
        for vectors in sorted({1, 3, MAX_VECTORS})
        for k_block in (40, inner)
    ]
    cases += [(np.float32, StreamVariant(3, inner, 1, 2, in_place=True), 0)]
    cases += [(np.float64, StreamVariant(3, 40), 5)]
    for (dtype, variant, missing), pack in itertools.product(cases, (True, False)):
        # Rows of whole cache lines, but for the last items that are missing.
        B = aligned_empty((inner, 640 // np.dtype(dtype).itemsize), dtype)
        B[:] = rng.integers(-4, 5, B.shape)
        B = B[:, : B.shape[1] - missing]
        out = np.full((counts.size, B.shape[1]), np.nan, dtype)
        A = sp.csr_array(dense.astype(dtype))
        StreamProduct(A, Epilogue(), variant, pack).multiply(B, out, None, ALONE)
        np.testing.assert_array_equal(out, dense @ B)
    by_turns = [chains(vectors) for vectors in range(1, MAX_VECTORS + 1)]
    print(has_slow_word_loads(), MAX_VECTORS, *by_turns)


if __name__ == "__main__":
    main()
