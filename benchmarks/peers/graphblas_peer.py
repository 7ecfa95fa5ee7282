"""SuiteSparse:GraphBLAS: products into full matrices; LAGraph's loop for whole networks."""

from __future__ import annotations

from typing import Any

import graphblas as gb
import numpy as np

import portable_spdnn as ps

# Blocking: an operation ends when its work is done, not when its result is asked for.
gb.init("suitesparse", blocking=True)
from graphblas import binary, semiring  # noqa: E402


class GraphblasPeer:
    """python-graphblas. Whole networks follow LAGraph_dnn: multiply, bias, keep > 0, clamp."""

    name = "GraphBLAS"

    def __init__(self, threads: int) -> None:
        gb.ss.config["nthreads"] = threads
        self.threads = threads
        self.version = "SuiteSparse " + ".".join(map(str, gb.ss.about["library_version"]))

    def spmm(self, A: Any, B: Any) -> Any:
        return self._accumulating(A, B, np.zeros(A.shape[0], np.float32))

    def layer(self, A: Any, B: Any, bias: Any, y_max: float) -> Any:
        product = self._accumulating(A, B, bias)
        lowest, highest = _single(0), _single(y_max)

        def run() -> Any:
            C = product()
            C << C.apply(binary.max, right=lowest)
            C << C.apply(binary.min, right=highest)
            return C

        return run

    @staticmethod
    def _accumulating(A: Any, B: Any, bias: Any) -> Any:
        """Return C += A B from the bias on: a full result is far faster than a new one."""
        W, Y = gb.io.from_scipy_sparse(A), gb.Matrix.from_dense(B)
        C = gb.Matrix.from_dense(np.zeros((A.shape[0], B.shape[1]), np.float32))
        start = _single(bias[0])  # one bias for all rows, as in the challenge

        def run() -> Any:
            C << start
            C(binary.plus) << W.mxm(Y, semiring.plus_times)
            return C

        return run

    def spgemm(self, A: Any, B: Any) -> Any:
        left, right = gb.io.from_scipy_sparse(A), gb.io.from_scipy_sparse(B)
        return lambda: left.mxm(right, semiring.plus_times).new()

    def inference(self, network: ps.Network, features: Any) -> Any:
        weights = [gb.io.from_scipy_sparse(one.csr()) for one in network]
        biases = [gb.Vector.from_dense(one.bias.astype(np.float32)).diag() for one in network]
        inputs = gb.io.from_scipy_sparse(features.csr(np.float32))
        zero, highest = _single(0), _single(network.y_max)

        def run() -> Any:
            Y = inputs.dup()
            for W, bias in zip(weights, biases, strict=True):
                Y << Y.mxm(W, semiring.plus_times)
                Y << Y.mxm(bias, semiring.plus_plus)
                Y << Y.select(">", zero)
                Y << Y.apply(binary.min, right=highest)
            return Y.reduce_rowwise(gb.monoid.max).new().to_coo()[0].astype(np.int64)

        return run

    def host(self, result: Any) -> Any:
        if not isinstance(result, gb.Matrix):
            return result
        full = result.nvals == result.nrows * result.ncols
        return result.to_dense() if full else gb.io.to_scipy_sparse(result, format="csr")


def _single(value: float) -> Any:
    """Return a scalar of the matrices' type; any other would convert them to its own."""
    return gb.Scalar.from_value(float(value), dtype="FP32")
