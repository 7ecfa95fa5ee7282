"""spgemm in two phases, and the fused layer on sparse features."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.backend import SpgemmHandle
from portable_spdnn.network import common_value
from portable_spdnn_cpu import masked_rows
from portable_spdnn_cpu import sparse_rows as kernels
from portable_spdnn_cpu.compiled import read_only
from portable_spdnn_cpu.scipy_backend import with_values
from portable_spdnn_cpu.workers import Workers

Array = npt.NDArray[Any]
MOST_ROWS = 256  # of a chunk: enough to hide the counter, few enough to balance


class RowSpgemmHandle(SpgemmHandle):
    """C = A B row by row on all workers; see `sparse_rows` for the kernels.

    Offsets are 64-bit throughout, so C may have more than 2^31 entries.
    """

    def __init__(self, workers: Workers, A: Any, B: Any) -> None:
        self.workers, self.A, self.B = workers, A, B
        self._rows = as_rows(A), as_rows(B)
        self._masks = self._make_masks()
        self._indptr: Array | None = None
        self._indices: Array | None = None  # kept from the second product on
        self._repeats = False

    def _make_masks(self) -> Array | None:
        """Return the columns of B's rows as bits, where uniting those is the cheaper way."""
        rows, columns = self.B.shape
        words = -(-columns // 64)
        cheap = words * rows <= masked_rows.WORDS_PER_ENTRY * self.B.nnz
        if not cheap or 8 * words * rows > masked_rows.MOST_MASK_BYTES:
            return None
        masks = np.zeros((rows, words), np.uint64)
        masked_rows.fill_masks(self._rows[1], masks)
        return read_only(masks)

    def symbolic(self) -> Array:
        """Return the row offsets of C; see `SpgemmHandle.symbolic`."""
        if self._indptr is None:
            counts = np.zeros(self.A.shape[0] + 1, np.int64)
            counter, chunk = np.zeros(1, np.int64), _chunk(self.A.shape[0], self.workers.threads)
            A, B = self._rows
            masks = self._masks

            def work(worker: int) -> None:
                if masks is None:
                    kernels.count_rows(counter, chunk, A, B, counts[1:])
                else:
                    masked_rows.count_rows_by_masks(counter, chunk, A, masks, counts[1:])

            self.workers.run(work)
            self._indptr = read_only(np.cumsum(counts))
        return self._indptr

    def numeric(self, A_data: Array | None = None, B_data: Array | None = None) -> Any:
        """Return C; see `SpgemmHandle.numeric`."""
        A, B = self._rows
        if A_data is not None:
            A = as_rows(with_values("A", self.A, A_data))
        if B_data is not None:
            B = as_rows(with_values("B", self.B, B_data))
        indptr = self.symbolic()
        nnz = int(indptr[-1])
        data = np.empty(nnz, A.data.dtype)
        counter, chunk = np.zeros(1, np.int64), _chunk(self.A.shape[0], self.workers.threads)
        known, masks = self._indices, self._masks
        weight = common_value(B.data)
        # A copy: what the caller does to one result must not reach the next.
        indices = np.empty(nnz, B.indices.dtype) if known is None else known.copy()

        def work(worker: int) -> None:
            if known is not None:
                kernels.refill_rows(counter, chunk, A, B, weight, indptr, indices, data)
            elif masks is not None:
                masked_rows.fill_rows_by_masks(
                    counter, chunk, A, B, weight, masks, indptr, indices, data
                )
            else:
                kernels.fill_rows(counter, chunk, A, B, indptr, indices, data)

        self.workers.run(work)
        if known is None and self._repeats:
            self._indices = indices.copy()
        self._repeats = True
        return _csr(data, indices, indptr, (self.A.shape[0], B.columns))


def sparse_layer(workers: Workers, W: Any, Y: Any, bias: Array, y_max: float | None) -> Any:
    """Y' = min(max(Y W + bias, 0), y_max) for sparse Y and bias <= 0, in one pass over Y.

    Parameters
    ----------
    workers : Workers
    W : csr_array, shape (neurons_in, neurons_out)
    Y : csr_array, shape (inputs, neurons_in)
    bias : ndarray, shape (neurons_out,)
    y_max : float or None

    Returns
    -------
    csr_array, shape (inputs, neurons_out)
        Canonical, without stored zeros.
    """
    inputs = Y.shape[0]
    owner, place = np.zeros(inputs, np.int64), np.zeros(inputs, np.int64)
    counts = np.zeros(inputs + 1, np.int64)
    counter, chunk = np.zeros(1, np.int64), _chunk(inputs, workers.threads)
    highest = bias.dtype.type(np.inf if y_max is None else y_max)
    buffers: list[tuple[Array, Array]] = [(np.empty(0), np.empty(0))] * workers.threads

    left, right = as_rows(Y), as_rows(W)

    def work(worker: int) -> None:
        buffers[worker] = kernels.layer_rows(
            counter, chunk, left, right, read_only(bias), highest, owner, place, counts[1:], worker
        )

    workers.run(work)
    indptr = np.cumsum(counts)
    indices = np.empty(int(indptr[-1]), right.indices.dtype)
    data = np.empty(int(indptr[-1]), Y.dtype)

    def join(worker: int) -> None:
        kernels.join_rows(worker, *buffers[worker], owner, place, indptr, indices, data)

    workers.run(join)
    return _csr(data, indices, indptr, (inputs, W.shape[1]))


def as_rows(matrix: Any) -> kernels.Rows:
    """Bring a csr_array to the one type that kernels are compiled for; copies what differs."""
    narrow = np.int32 if matrix.shape[1] <= 1 << 31 else np.int64
    unsigned = np.uint32 if narrow == np.int32 else np.uint64
    return kernels.Rows(
        read_only(matrix.indptr.astype(np.int64, copy=False)),
        read_only(matrix.indices.astype(narrow, copy=False).view(unsigned)),
        read_only(matrix.data),
        int(matrix.shape[1]),
    )


def _chunk(rows: int, threads: int) -> int:
    return max(1, min(MOST_ROWS, rows // (16 * threads)))


def _csr(data: Array, indices: Array, indptr: Array, shape: tuple[int, int]) -> Any:
    signed = np.int32 if indices.dtype == np.uint32 else np.int64
    indices = indices.view(signed)
    if indptr[-1] < 1 << 31:
        indptr = indptr.astype(np.int32)
    C = sp.csr_array((data, indices, indptr), shape=shape)
    C.has_canonical_format = True
    return C
