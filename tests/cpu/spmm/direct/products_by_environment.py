"""Multiply matrices of some types by some columns, with the vectors that the environment asks for.

The first argument names the types, as in "float32,float64"; the others the numbers of columns.

Run by `test_product`.
"""

from __future__ import annotations

import sys

import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn_cpu.jit.target import VECTOR_BYTES, has_fast_gathers
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.direct.product import epilogue_arguments, multiply
from portable_spdnn_cpu.spmm.transposes import NEAR_BYTES, ROWS_TURNED


def main() -> None:
    """Compare all widths with SciPy; print whether there are gathers, vectors, and comparisons."""
    rng, pool, done = np.random.default_rng(0), ThreadPool(2), 0
    for make in (sp.csr_array, sp.csc_array):
        for dtype in map(np.dtype, sys.argv[1].split(",")):
            for shape in ((40, 37), (3, 90)):
                A = make(sp.random_array(shape, density=0.3, rng=rng, dtype=dtype))
                for columns in map(int, sys.argv[2:]):
                    B = rng.random((shape[1], columns)).astype(dtype)
                    parts, residual = (A.indptr, A.indices, A.data), rng.random((shape[0], columns))
                    residual, bias = residual.astype(dtype), rng.random(shape[0])
                    C = multiply(pool, A.format, A.shape, parts, B)
                    np.testing.assert_allclose(C, A @ B, rtol=1e-4, atol=1e-4)
                    finish = epilogue_arguments(Epilogue(bias, "tanh"), dtype)
                    for operand in (B, np.asfortranarray(B)):
                        C = multiply(pool, A.format, A.shape, parts, operand, finish, residual)
                        expected = np.tanh(A @ B + bias[:, None] + residual)
                        np.testing.assert_allclose(C, expected, rtol=1e-4, atol=1e-4)
                    done += 1
    # Some processors copy such a B some rows at a time, others all of it at once.
    k = NEAR_BYTES // (33 * dtype.itemsize) + ROWS_TURNED
    A = sp.eye_array(k, dtype=dtype, format="csr")
    B = np.asfortranarray(rng.random((k, 33)).astype(dtype))
    C = multiply(pool, "csr", A.shape, (A.indptr, A.indices, A.data), B)
    np.testing.assert_array_equal(C, B)
    print(has_fast_gathers(), VECTOR_BYTES, done)


main()
