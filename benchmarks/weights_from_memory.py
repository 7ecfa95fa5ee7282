"""Products with pruned weights that come from memory, as those of a large network do.

Run it from the root: ``python benchmarks/weights_from_memory.py [threads]``, on one thread by
default. For each shape it makes so many random matrices that together they are three times the last
cache, and multiplies one after the other. It prints the microseconds of a product then, those of a
product whose weights are multiplied again and again, the bytes that entries would take without
padding (a value and a place of 16 bits) over the first, and how many times as fast as a dense
product it is, with dense matrices from memory as well. NumPy's BLAS has as many threads. That takes
three minutes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from threadpoolctl import ThreadpoolController

import portable_spdnn as ps
from portable_spdnn_cpu.machine.cpu_info import processor_name
from portable_spdnn_cpu.spmm.costs import LAST_CACHE

SHAPES = (1024, 1024), (2048, 2048), (4096, 4096), (11008, 4096)
ZEROS, COLUMNS = (0.7, 0.9), (1, 2, 4, 8, 16)
ENTRY_BYTES = 6
TOTAL = 3 * LAST_CACHE  # bytes of matrices
SECONDS, LEAST_ROUNDS = 0.3, 3


def least_seconds(operands: Sequence[Any], multiply: Callable[[Any], Any]) -> float:
    """Return the least seconds of a round over the operands, for each of them."""
    least, rounds, end = float("inf"), 0, time.perf_counter() + SECONDS
    while time.perf_counter() < end or rounds < LEAST_ROUNDS:
        begin = time.perf_counter()
        for operand in operands:
            multiply(operand)
        least = min(least, (time.perf_counter() - begin) / len(operands))
        rounds += 1
    return least


def main() -> None:
    """Measure and print all products."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    backend, blas = ps.get_backend("numba", threads=threads), ThreadpoolController()
    rng = np.random.default_rng(0)
    print(f"{processor_name()}, threads: {threads}")
    print("shape, zeros, columns: microseconds from memory, from a cache, GB/s, times dense")
    for rows, inner in SHAPES:
        dense = [
            rng.standard_normal((rows, inner), np.float32)
            for _ in range(-(-TOTAL // (4 * rows * inner)))
        ]
        for zeros in ZEROS:
            entries = int((1 - zeros) * rows * inner)
            matrices = [
                sp.random_array((rows, inner), density=1 - zeros, rng=rng, dtype=np.float32)
                for _ in range(-(-TOTAL // (ENTRY_BYTES * entries)))
            ]
            for columns in COLUMNS:
                B = rng.standard_normal((inner, columns), np.float32)
                handles = [backend.spmm_handle(A.tocsr(), columns=columns) for A in matrices]
                for handle in handles:
                    handle.multiply(B)
                far = least_seconds(handles, lambda handle, B=B: handle.multiply(B))
                near = least_seconds(handles[:1], lambda handle, B=B: handle.multiply(B))
                orders = [B, np.asfortranarray(B)]
                with blas.limit(limits=threads):
                    of_dense = min(least_seconds(dense, lambda A, B=B: A @ B) for B in orders)
                print(
                    f"{rows:,} x {inner:,}, {zeros:.0%}, {columns}: {far * 1e6:.1f}, "
                    f"{near * 1e6:.1f}, {ENTRY_BYTES * entries / far / 1e9:.0f}, "
                    f"{of_dense / far:.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
