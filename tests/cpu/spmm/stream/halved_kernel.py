"""Run in a process of its own: a product whose last vector has columns in its first half alone.

Prints whether only that half is computed, and the registers of the kernel's multiply-adds; where a
vector takes several registers, also whether there are fewer multiply-adds than with all of it.
Raises where a result is wrong.
"""

from __future__ import annotations

import re

import numba
import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.thread_pool import ALONE
from portable_spdnn_cpu.spmm.stream.microkernels import last_is_halved
from portable_spdnn_cpu.spmm.stream.packing import BY_OFFSETS
from portable_spdnn_cpu.spmm.stream.product import StreamProduct, StreamVariant
from portable_spdnn_cpu.spmm.stream.row_loops import finish_rows, finish_signature

COLUMNS = 20  # of float32: a vector and a quarter


def main() -> None:
    """Multiply, then look at the code of the kernel that did."""
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((30, 90)) < 0.3, rng.integers(1, 5, (30, 90)), 0)
    B = rng.integers(-4, 5, (90, COLUMNS)).astype(np.float32)
    out = np.full((30, COLUMNS), np.nan, np.float32)
    A = sp.csr_array(dense.astype(np.float32))
    StreamProduct(A, Epilogue(), StreamVariant(2, 40)).multiply(B, out, None, ALONE)
    np.testing.assert_array_equal(out, dense @ B)
    halved = last_is_halved(4 * COLUMNS, 2)
    registers = multiply_adds(halved)
    print(halved, *sorted(set(registers)))
    if VECTOR_BYTES < BLOCK_BYTES:
        print(len(registers) < len(multiply_adds(False)))


def multiply_adds(halved: bool) -> list[str]:
    """Return the registers of the multiply-adds of a kernel for two vectors."""
    signature = finish_signature(2, np.dtype(np.float32), BY_OFFSETS, False, halved, BLOCK_BYTES)
    compiled = numba.njit(nogil=True)(finish_rows.py_func)
    compiled.compile(signature)
    return re.findall(r"vfmadd\w+ps.*%([yz]mm)", "".join(compiled.inspect_asm().values()))


if __name__ == "__main__":
    main()
