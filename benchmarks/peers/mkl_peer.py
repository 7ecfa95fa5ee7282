"""Intel MKL: the inspector-executor SpMM with hints and optimize; SpGEMM by sparse_dot_mkl."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from dense_batches import BATCH, infer_in_batches

import portable_spdnn as ps
from portable_spdnn.dlmc.collection import aligned_empty


def _library() -> str:
    """Return the library of the mkl wheel, which lies outside of the loader's paths."""
    found = sorted((Path(sys.prefix) / "lib").glob("libmkl_rt.so*"))
    if not found:
        raise ImportError("the mkl wheel is not installed: it has no libmkl_rt.so")
    return str(found[0])


os.environ.setdefault("MKL_RT", _library())
import sparse_dot_mkl  # noqa: E402

_mkl = ctypes.CDLL(os.environ["MKL_RT"])
_NON_TRANSPOSE, _ROW_MAJOR, _GENERAL = 10, 101, 20
_CALLS = 1000  # that the hint announces


class _Description(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("mode", ctypes.c_int), ("diagonal", ctypes.c_int))


_DESCRIPTION = _Description(_GENERAL, 0, 0)


def _pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _require(status: int, call: str) -> None:
    if status:
        raise RuntimeError(f"{call} returned {status}")


class _Matrix:
    """A matrix in MKL's own form, optimised for products with `columns` dense columns."""

    def __init__(self, A: Any, columns: int) -> None:
        self.shape = A.shape
        self.kept = A.indptr.astype(np.int32), A.indices.astype(np.int32), A.data.copy()
        self.handle = ctypes.c_void_p()
        indptr, indices, data = self.kept
        _require(
            _mkl.mkl_sparse_s_create_csr(
                ctypes.byref(self.handle), 0, *map(ctypes.c_int, A.shape), _pointer(indptr),
                ctypes.c_void_p(indptr.ctypes.data + indptr.itemsize), _pointer(indices),
                _pointer(data),
            ),
            "mkl_sparse_s_create_csr",
        )  # fmt: skip
        _require(
            _mkl.mkl_sparse_set_mm_hint(
                self.handle, _NON_TRANSPOSE, _DESCRIPTION, _ROW_MAJOR, columns, _CALLS
            ),
            "mkl_sparse_set_mm_hint",
        )
        _require(_mkl.mkl_sparse_optimize(self.handle), "mkl_sparse_optimize")

    def times(self, B: Any, C: Any) -> Any:
        """C = A B, both dense in C order."""
        columns = B.shape[1]
        _require(
            _mkl.mkl_sparse_s_mm(
                _NON_TRANSPOSE, ctypes.c_float(1), self.handle, _DESCRIPTION, _ROW_MAJOR,
                _pointer(B), columns, columns, ctypes.c_float(0), _pointer(C), columns,
            ),
            "mkl_sparse_s_mm",
        )  # fmt: skip
        return C


class MklPeer:
    """MKL, with the elementwise part in place."""

    name = "MKL"

    def __init__(self, threads: int) -> None:
        self.threads = threads
        _mkl.MKL_Set_Num_Threads(threads)
        self.version = sparse_dot_mkl.get_version_string().partition("Version ")[2].split("-")[0]

    def spmm(self, A: Any, B: Any) -> Any:
        W, C = _Matrix(A, B.shape[1]), aligned_empty((A.shape[0], B.shape[1]))
        return lambda: W.times(B, C)

    def layer(self, A: Any, B: Any, bias: Any, y_max: float) -> Any:
        product, column, highest = self.spmm(A, B), bias[:, None], np.float32(y_max)

        def run() -> Any:
            C = product()
            C += column
            return np.clip(C, 0, highest, out=C)

        return run

    def spgemm(self, A: Any, B: Any) -> Any:
        return lambda: sparse_dot_mkl.dot_product_mkl(A, B)

    def inference(self, network: ps.Network, features: Any) -> Any:
        weights = [
            (_Matrix(one.csr().T.tocsr(), BATCH), one.bias.astype(np.float32)[:, None])
            for one in network
        ]
        highest = np.float32(network.y_max)

        def layer(W: Any, Y: Any) -> Any:
            C = W[0].times(Y, np.empty((W[0].shape[0], Y.shape[1]), np.float32))
            C += W[1]
            return np.clip(C, 0, highest, out=C)

        return lambda: infer_in_batches(
            weights,
            features,
            layer,
            lambda Y: Y.max(axis=0) > 0,
            lambda Y, kept: np.ascontiguousarray(Y[:, kept]),
            lambda Y: Y,
        )

    def host(self, result: Any) -> Any:
        return result
