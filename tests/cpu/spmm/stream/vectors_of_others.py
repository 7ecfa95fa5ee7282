"""Run in a process of its own: streamed weights in code for other processors.

Prints whether loads of single words are slow, the most vectors that a panel has, and how many sums
take entries by turns with each width; raises where a result is wrong.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn_cpu.jit.target import has_slow_word_loads
from portable_spdnn_cpu.machine.thread_pool import ALONE
from portable_spdnn_cpu.spmm.stream.microkernels import MAX_VECTORS, chains
from portable_spdnn_cpu.spmm.stream.product import StreamProduct, StreamVariant


def main() -> None:
    """Multiply with panels of one vector, of some, and of as many as there are."""
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((70, 90)) < 0.3, rng.integers(-4, 5, (70, 90)), 0)
    B = rng.integers(-4, 5, (90, 150)).astype(np.float32)
    A = sp.csr_array(dense.astype(np.float32))
    for vectors in sorted({1, 3, MAX_VECTORS}):
        for k_block in (40, 90):
            for pack in (True, False):
                variant = StreamVariant(vectors, k_block)
                out = np.full((70, 150), np.nan, np.float32)
                StreamProduct(A, Epilogue(), variant, pack).multiply(B, out, None, ALONE)
                np.testing.assert_array_equal(out, dense @ B)
    by_turns = [chains(vectors) for vectors in range(1, MAX_VECTORS + 1)]
    print(has_slow_word_loads(), MAX_VECTORS, *by_turns)


if __name__ == "__main__":
    main()
