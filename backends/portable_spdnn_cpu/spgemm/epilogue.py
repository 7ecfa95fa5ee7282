"""Kernels: where finished rows go, and the fused layer's epilogue on a row just added up.

How many entries a row keeps is known only after its epilogue. Each thread therefore writes the
rows of a fused layer one after the other into buffers of its own, and the threads then gather
these in the order of the rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from portable_spdnn_cpu.activations import NONE, RELU, activate
from portable_spdnn_cpu.jit.compilation import Array, kernel, kernel_part, read_only


class RowEpilogue(NamedTuple):
    """y = min(max(activation(sum + bias), lower), upper), of which only nonzero y are kept.

    Attributes
    ----------
    bias : ndarray, shape (columns,)
        What is added to the entries of each column.
    activation : int
        The place of the activation in `ACTIVATIONS`.
    lower, upper : scalars of the values' type
        Infinite where there is no bound.
    """

    bias: Array
    activation: int
    lower: np.floating[Any]
    upper: np.floating[Any]


@cache
def no_epilogue(value_type: np.dtype[Any]) -> RowEpilogue:
    """Return an epilogue for sinks that apply none."""
    zero = value_type.type(0)
    return RowEpilogue(read_only(np.empty(0, value_type)), NONE, zero, zero)


class RowSink(NamedTuple):
    """Takes finished rows: at their places in the result, or one after the other if fused.

    Attributes
    ----------
    fused : bool
        Whether rows go through an epilogue and lie one after the other, in a buffer that is the
        thread's own.
    epilogue : RowEpilogue
        What they go through.
    thread : int
        The number of the thread that writes.
    starts : ndarray of int64, shape (rows,)
        Where each row begins in `columns` and `values`. Written if fused.
    counts, owners : ndarray of int64, shape (rows,)
        The entries of each row, and the thread that has it. Written if fused, else not used.
    columns, values : ndarray
        Take the entries.
    """

    fused: bool
    epilogue: RowEpilogue
    thread: int
    starts: Array
    counts: Array
    owners: Array
    columns: Array
    values: Array


@kernel_part
def apply_epilogue(row: int, sink: RowSink, start: int, end: int) -> int:
    """Apply the epilogue to a row, entries start .. end - 1, closing gaps; returns its new end."""
    bias, activation, lower, upper = sink.epilogue
    columns, values = sink.columns, sink.values
    if activation == RELU:
        lower = max(lower, values.dtype.type(0))
    activated = activation > RELU
    if activated:  # in a loop of its own: the calls would slow down the one below
        for k in range(np.uint64(start), np.uint64(end)):  # unsigned, as in `numeric`
            values[k] = activate(values[k] + bias[np.uint64(columns[k])], activation)
    # Without branches, which would depend on the signs of sums: all entries are written, and the
    # next one writes over what is 0.
    kept = np.uint64(start)
    for k in range(np.uint64(start), np.uint64(end)):
        column = columns[k]
        value = values[k] if activated else values[k] + bias[np.uint64(column)]
        # Comparisons are false for NaN, which therefore stays.
        value = lower if value <= lower else value
        value = upper if value > upper else value
        columns[kept], values[kept] = column, value
        kept += np.uint64(value != 0)
    sink.owners[row] = sink.thread
    sink.starts[row] = start
    sink.counts[row] = np.int64(kept) - start
    return start + int(sink.counts[row])


@kernel
def gather_rows(sink: RowSink, C_indptr: Array, C_indices: Array, C_data: Array) -> None:
    """Copy the rows that the sink's thread has to their places in the result."""
    columns, values = sink.columns, sink.values
    # By the thread that wrote them: they may still be in its caches. Bound: memory.
    for row in range(sink.owners.size):
        if sink.owners[row] == sink.thread:
            source, place = np.uint64(sink.starts[row]), np.uint64(C_indptr[row])
            for k in range(np.uint64(sink.counts[row])):
                C_indices[place + k] = columns[source + k]
                C_data[place + k] = values[source + k]
