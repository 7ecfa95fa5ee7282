"""C = A B by the BLAS that NumPy has, for weights with too few zeros."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp
from threadpoolctl import ThreadpoolController

from portable_spdnn.epilogue import Epilogue
from portable_spdnn_cpu.activations import NONE, RELU, Activation, activate_span, activation_of
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.machine.thread_pool import ForkSafeLock, ThreadPool


class DenseProduct:
    """C = A B with the zeros of A stored, finished by an epilogue.

    Parameters
    ----------
    A : csr_array, shape (m, k)
    epilogue : Epilogue
        Its bias is None, or an array of A's type.
    """

    def __init__(self, A: sp.csr_array, epilogue: Epilogue) -> None:
        self.A = A.toarray()
        self.bias, self.activation = epilogue.bias, activation_of(epilogue, A.dtype)

    def multiply(
        self, B: Array, out: Array, residual: Array | None, pool: ThreadPool, written: int = 0
    ) -> bool:
        """Compute `out`, or return False where B is not finite: 0 x infinity would be NaN.

        Takes what `StreamProduct.multiply` takes; `written` is not used. Where an item of B is not
        finite, none in its column of the product is, so that the smaller of the two tells.
        """
        with blas_threads(pool.threads), np.errstate(all="ignore"):
            np.matmul(self.A, B, out=out)
            if not np.isfinite((B if B.size < out.size else out).sum()):
                return False
        apply_epilogue(out, self.bias, residual, self.activation)
        return True

    def describe(self) -> str:
        """Return what runs, for people."""
        return "dense, by BLAS, zeros included"

    def threads_used(self, threads: int, columns: int) -> int:
        """Return how many threads BLAS may use."""
        return threads

    @property
    def nbytes(self) -> int:
        """Bytes of memory that A takes."""
        return int(self.A.nbytes)


@contextmanager
def blas_threads(threads: int) -> Iterator[None]:
    """Let BLAS have so many threads.

    Their number is the process's: two callers at a time would each restore what the other has set.
    """
    libraries = blas_libraries()
    with _BLAS_THREADS.lock:
        before = [library.num_threads for library in libraries]
        try:
            for library in libraries:
                library.set_num_threads(threads)
            yield
        finally:
            for library, number in zip(libraries, before, strict=True):
                library.set_num_threads(number)


def apply_epilogue(
    out: Array, bias: Array | None, residual: Array | None, activation: Activation
) -> None:
    """Finish sums in place: an array in one piece, with a bias for each of its rows."""
    if bias is not None:
        out += bias[:, None]
    if residual is not None:
        out += residual
    code, lower, upper = activation
    if code in (NONE, RELU):
        if np.isfinite((lower, upper)).any():
            np.clip(out, lower, upper, out=out)
    else:
        activate_span(out.ravel(order="K"), 0, out.size, code, lower, upper)


_BLAS_THREADS = ForkSafeLock()


@functools.cache
def blas_libraries() -> list[Any]:
    """Return what sets the number of BLAS threads; to find the libraries takes a while."""
    found = ThreadpoolController().lib_controllers
    return [library for library in found if library.user_api == "blas"]
