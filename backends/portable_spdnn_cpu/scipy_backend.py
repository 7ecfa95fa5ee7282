"""The serial reference: scipy.sparse, one readable line per step of the mathematics."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.backend import Availability, Backend
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn.operations.convolutions.interface import CONVOLUTIONS
from portable_spdnn.operations.convolutions.windows import seen_windows
from portable_spdnn.operations.handles import SpgemmHandle
from portable_spdnn.operations.heads import PreparedAttention
from portable_spdnn.operations.operands import DenseOperand, with_values
from portable_spdnn_cpu.machine.cpu_info import processor_name

WINDOW_ENTRIES = 1 << 22  # of what is copied for one product


class ScipyBackend(Backend):
    """Everything in scipy.sparse on one thread.

    Written to be compared with the paper, not to be fast. Whole networks run in the neutral
    layer loop; with the plan option `keep_dead_inputs` it is the Graph Challenge's serial
    reference, which carries every input through every layer.
    """

    name = "scipy"
    execution_space = "serial"
    priority = 0
    optional_operations = CONVOLUTIONS | {"sddmm", "sparse_softmax", "sparse_attention"}

    @classmethod
    def availability(cls) -> Availability:
        """Available wherever the package is: SciPy is a dependency."""
        versions = {"scipy": scipy.__version__, "numpy": np.__version__}
        return Availability.yes(f"{processor_name()}, 1 thread", versions)

    def run_spmm(
        self, A: sp.csr_array, B: DenseOperand, epilogue: Epilogue, residual: DenseOperand | None
    ) -> Array:
        """C = A B, finished."""
        return np.asarray(epilogue.apply(A @ B, residual, per_row=True))

    def make_spgemm_handle(self, A: sp.csr_array, B: sp.csr_array) -> SpgemmHandle:
        """Return a handle for C = A B."""
        return ScipySpgemmHandle(A, B)

    def run_layer(
        self,
        W: sp.csr_array,
        Y: DenseOperand | sp.csr_array,
        epilogue: Epilogue,
        residual: DenseOperand | None,
    ) -> Array | sp.csr_array:
        """Y' = Y W, finished; of a sparse product the stored entries, since zeros stay zeros."""
        return epilogue.apply(Y @ W, residual)

    def run_sddmm(
        self, masks: list[sp.csr_array], Q: Array, K: Array, scale: float
    ) -> list[sp.csr_array]:
        """S = scale Q K^T at the entries of the masks, row by row."""
        scores = []
        for mask, q, k in zip(_each_head(masks, len(Q)), Q, K, strict=True):
            row = functools.partial(_sampled_row, Q=q, K=k, scale=Q.dtype.type(scale))
            scores.append(_by_row(mask, row, Q.dtype))
        return scores

    def run_sparse_softmax(self, matrices: list[sp.csr_array]) -> list[sp.csr_array]:
        """P = softmax of each row over its stored entries."""
        return [_by_row(S, lambda i, columns, row: _softmax(row), S.dtype) for S in matrices]

    def make_attention(self, masks: list[sp.csr_array], d: int | None) -> PreparedAttention:
        """Return the function (Q, K, V, scale, out) -> O; the masks are taken as they are."""

        def run(Q: Array, K: Array, V: Array, scale: float, out: Array | None) -> Array:
            S = self.run_sddmm(masks, Q, K, scale)
            P = self.run_sparse_softmax(S)
            O = [p @ v for p, v in zip(P, V, strict=True)]  # noqa: E741 - its name in the papers
            return np.stack(O, out=out) if O else np.empty((0, Q.shape[1], V.shape[2]), Q.dtype)

        return run

    def run_conv(
        self,
        x: DenseOperand,
        weights: Array,
        geometry: ConvGeometry,
        epilogue: Epilogue,
        residual: DenseOperand | None,
    ) -> Array:
        """Each image a product: weights times the matrix of what each result sees (im2col)."""
        windows = seen_windows(np.asarray(x), geometry)
        y = np.zeros(geometry.output_shape(windows.shape[0]), weights.dtype)
        pruned = [sp.csr_array(matrix) for matrix in weights.reshape(geometry.matrix_shape)]
        images, _, height, width = y.shape
        grouped = y.reshape(images, geometry.groups, geometry.group_outputs, height, width)
        step = max(1, WINDOW_ENTRIES // max(1, pruned[0].shape[1] * width))  # rows of a result
        for image, group, top in np.ndindex(images, geometry.groups, -(-height // step)):
            rows = slice(top * step, (top + 1) * step)
            seen = windows[image, group, :, :, :, rows]
            columns = seen.reshape(pruned[group].shape[1], seen.shape[3] * width)
            grouped[image, group, :, rows] = (pruned[group] @ columns).reshape(
                geometry.group_outputs, seen.shape[3], width
            )
        if epilogue.bias is not None:
            y += epilogue.bias[:, None, None]
        if residual is not None:
            y += residual
        return epilogue.activated(y)


def _each_head(masks: list[sp.csr_array], heads: int) -> list[sp.csr_array]:
    """Return a mask for each head, where there may be one for all."""
    return masks if len(masks) == heads else masks * heads


def _by_row(
    pattern: sp.csr_array, row_values: Callable[[int, Array, Array], Array], dtype: Any
) -> sp.csr_array:
    """Return a csr_array of a pattern, with row_values(i, columns, values of row i) in row i."""
    indptr, indices, data = pattern.indptr.copy(), pattern.indices.copy(), pattern.data
    values = np.empty(indices.size, dtype)
    for i, (begin, end) in enumerate(itertools.pairwise(indptr)):
        if begin < end:
            values[begin:end] = row_values(i, indices[begin:end], data[begin:end])
    return sp.csr_array((values, indices, indptr), shape=pattern.shape)


def _sampled_row(i: int, columns: Array, _: Array, Q: Array, K: Array, scale: Any) -> Array:
    """Return scale (Q[i] . K[j]) for the columns j."""
    with np.errstate(invalid="ignore"):  # inf - inf and 0 x inf are NaN
        scores: Array = scale * (K[columns] @ Q[i])
    return scores


def _softmax(row: Array) -> Array:
    """Return exp(s - m) / sum exp(s - m) with m the largest; zeros where all are -inf."""
    m = row.max()
    if m == -np.inf:
        return np.zeros_like(row)
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, as the formula says
        exponentials = np.exp(row - m)
    total: Array = exponentials / exponentials.sum()
    return total


class ScipySpgemmHandle(SpgemmHandle):
    """C = A B by `A @ B`; the symbolic phase multiplies the patterns."""

    def __init__(self, A: sp.csr_array, B: sp.csr_array) -> None:
        self.A, self.B = A, B
        self._indptr: Array | None = None

    def symbolic(self) -> Array:
        """Return the row offsets of C; see `SpgemmHandle.symbolic`."""
        if self._indptr is None:
            ones = [
                sp.csr_array((np.ones(M.nnz, np.float64), M.indices, M.indptr), shape=M.shape)
                for M in (self.A, self.B)
            ]
            self._indptr = (ones[0] @ ones[1]).indptr.astype(np.int64)
        return self._indptr

    def numeric(self, A_data: Array | None = None, B_data: Array | None = None) -> sp.csr_array:
        """Return C; see `SpgemmHandle.numeric`."""
        C = with_values("A", self.A, A_data) @ with_values("B", self.B, B_data)
        C.sort_indices()
        return C
