"""Kernels: bias, ReLU and clamp on rows just added up; joining what workers have.

How many entries a finished row keeps is known only then. Workers therefore write finished rows one
after the other into buffers of their own, which are joined in the order of rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy.typing as npt

from portable_spdnn_cpu.jit.compilation import kernel

Array = npt.NDArray[Any]


class Target(NamedTuple):
    """Where rows go: each to its place in the result, or one after the other, finished.

    Attributes
    ----------
    finish : bool
        Whether rows become min(max(row + bias, 0), y_max), without zeros, and lie one after the
        other in columns and values, which are then the worker's own.
    bias : ndarray
    y_max : float
    worker : int
    owner, places, counts : ndarray of int64
        For each row the worker that has it, where it begins, and its entries: told where rows
        are finished. Otherwise `places` is given, and the others are not used.
    columns, values : ndarray
        Take the entries.
    """

    finish: bool
    bias: Array
    y_max: Any
    worker: int
    owner: Array
    places: Array
    counts: Array
    columns: Array
    values: Array


@kernel
def finish_row(row: int, target: Target, start: int, end: int) -> int:
    """Finish the row whose entries are start .. end - 1, closing gaps; returns its new end."""
    bias, columns, values = target.bias, target.columns, target.values
    kept = start
    for k in range(start, end):
        column = columns[k]
        value = values[k] + bias[column]
        # Comparisons are false for NaN, which therefore stays.
        if value <= 0:
            continue
        if value > target.y_max:
            value = target.y_max
        columns[kept] = column
        values[kept] = value
        kept += 1
    target.owner[row] = target.worker
    target.places[row] = start
    target.counts[row] = kept - start
    return kept


@kernel
def join_rows(target: Target, indptr: Array, C_indices: Array, C_data: Array) -> None:
    """Copy the finished rows that the target's worker owns to their places in the result."""
    columns, values = target.columns, target.values
    for row in range(target.owner.size):
        if target.owner[row] == target.worker:
            source, place = target.places[row], indptr[row]
            for k in range(indptr[row + 1] - place):
                C_indices[place + k] = columns[source + k]
                C_data[place + k] = values[source + k]
