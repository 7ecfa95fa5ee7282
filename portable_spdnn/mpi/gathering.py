"""Finished batches of all ranks, brought to rank 0: features after the last layer as arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.mpi.ranks import Ranks
from portable_spdnn.plans.batch import Batch


def gather_batches(ranks: Ranks, batches: list[Batch]) -> list[list[Batch]] | None:
    """Bring all batches to rank 0; returns them by rank there, None elsewhere."""
    rows = [batch.output.fetched().rows for batch in batches]
    light = [replace(batch, output=replace(batch.output, rows=None)) for batch in batches]
    forms = [None if row is None else isinstance(row, np.ndarray) for row in rows]
    gathered = ranks.comm.gather((light, forms))
    if gathered is None:
        for row in rows:
            for array in _arrays_of(row):
                ranks.send_array(array, 0)
        return None
    complete = [batches]
    for rank, (theirs, dense) in enumerate(gathered[1:], start=1):
        complete.append([])
        for batch, is_dense in zip(theirs, dense, strict=True):
            row = None if is_dense is None else _receive_rows(ranks, rank, is_dense)
            complete[-1].append(replace(batch, output=replace(batch.output, rows=row)))
    return complete


def _arrays_of(rows: Any) -> list[Array]:
    if rows is None:
        return []
    if isinstance(rows, np.ndarray):
        return [rows]
    return [np.array(rows.shape), rows.data, rows.indices, rows.indptr]


def _receive_rows(ranks: Ranks, source: int, dense: bool) -> Any:
    if dense:
        return ranks.receive_array(source)
    shape, data, indices, indptr = (ranks.receive_array(source) for _ in range(4))
    return sp.csr_array((data, indices, indptr), shape=tuple(int(n) for n in shape))
