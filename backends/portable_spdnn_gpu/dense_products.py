"""Launches of sparse times dense."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.errors import InputError
from portable_spdnn_gpu.clusters import cluster_rows
from portable_spdnn_gpu.device import Device
from portable_spdnn_gpu.kernel_catalog import (
    CLUSTER_STRIP,
    CSR_STRIP,
    MINIBATCH,
    STAGED_ROWS,
    clustered_spmm,
    csr_spmm,
    staged_spmm,
)
from portable_spdnn_gpu.staging import stage_rows

Array = npt.NDArray[Any]
DESIGNS = ("csr", "clustered", "staged")


class DenseProduct:
    """C = A B, or min(max(A B + bias, 0), y_max), for one sparse A and many dense B.

    B and C hold their columns innermost: of a layer A is W transposed, and the columns of B are
    the inputs.

    Parameters
    ----------
    device : Device
    A : csr_array, canonical, shape (m, k)
        In host memory; packed and uploaded once.
    design : str
        "csr": row by row; "clustered": rows that share columns together, the others row by
        row; "staged": through a preload map and shared memory.

    Raises
    ------
    InputError
        If the design is none of these.
    """

    def __init__(self, device: Device, A: Any, design: str) -> None:
        if design not in DESIGNS:
            raise InputError(f"kernel {design!r} is none of {', '.join(DESIGNS)}")
        self.device, self.shape, self.dtype = device, A.shape, np.dtype(A.dtype)
        self.design, self.clusters = design, 0
        self._no_bias = device.upload(np.zeros(1, self.dtype))
        rows = np.arange(A.shape[0], dtype=np.int32)
        if design == "staged":
            stages = stage_rows(A)
            parts: tuple[Array, ...] = (
                stages.block_stages, stages.stage_bounds, stages.columns, stages.slices,
                stages.positions, stages.values,
            )  # fmt: skip
            self._staged = [device.upload(part) for part in parts]
            return
        if design == "clustered":
            found = cluster_rows(A)
            self.clusters, rows = found.count, found.rest
            parts = (found.bounds, found.indices, found.starts, found.values, found.rows)
            self._clustered = [device.upload(part) for part in parts]
        self._single_rows = rows.size
        if rows.size:
            csr = (A.indptr.astype(np.int32), A.indices.astype(np.int32), A.data, rows)
            self._csr = [device.upload(part) for part in csr]

    def describe(self) -> str:
        """Say what is launched."""
        if self.design != "clustered":
            return f"{self.design}_spmm on {self.shape[0]} rows"
        return (
            f"clustered_spmm on {self.shape[0] - self._single_rows} rows in {self.clusters} "
            f"clusters, csr_spmm on {self._single_rows}"
        )

    def run(self, B: Any, bias: Any = None, y_max: float | None = None, out: Any = None) -> Any:
        """Return C, shape (m, n), in C order.

        Parameters
        ----------
        B : device array, shape (k, n), in C order, of A's type
        bias : device array, shape (m,), optional
            With it the layer's activation; without it the plain product.
        y_max : float, optional
            None for no bound.
        out : device array, shape (m, n), in C order, optional
            Takes C; shares no memory with B.
        """
        rows, columns = self.shape[0], int(B.shape[1])
        C = self.device.empty((rows, columns), self.dtype) if out is None else out
        activation = bias is not None
        limit = self.dtype.type(np.inf if y_max is None else y_max)
        tail = [self._no_bias if bias is None else bias, limit]
        if self.design == "staged":
            self.device.launch(
                staged_spmm(self.dtype, activation),
                (-(-rows // STAGED_ROWS), -(-columns // MINIBATCH)),
                [*self._staged, B, C, np.int32(rows), np.int32(columns), *tail],
            )
            return C
        if self.clusters:
            self.device.launch(
                clustered_spmm(self.dtype, activation),
                (self.clusters, -(-columns // CLUSTER_STRIP)),
                [*self._clustered, B, C, np.int32(columns), *tail],
            )
        if self._single_rows:
            self.device.launch(
                csr_spmm(self.dtype, activation),
                (self._single_rows, -(-columns // CSR_STRIP)),
                [*self._csr, B, C, np.int32(columns), *tail],
            )
        return C
