"""Which form suits a matrix and a number of columns, by a model of what each costs.

The constants are seconds on one thread, as measured on one core of 2023 with AVX-512. Other
processors are slower or faster in both forms, which hardly changes which one is chosen.
"""

from __future__ import annotations

from typing import Any

from portable_spdnn_cpu.spmm.few_columns.packing import LanesLayout, lay_out_lanes, window_bytes
from portable_spdnn_cpu.spmm.few_columns.specs import ENTRIES, LanesSpec, RowsSpec

# Of a step in lanes, and for each column of B, by the vectors that a permute looks up.
STEP = {2: (4e-10, 2e-10), 1: (4e-10, 2e-10), 0: (4e-10, 2e-9)}
SLICE = 1e-8  # where a slice begins and ends
ENTRY = {4: 2.4e-10, 8: 2.5e-10, 16: 3.3e-10}  # row by row, by the width of B's rows
VISIT = 4e-9  # where a row begins and ends in a block
MAX_LANES_COLUMNS = 8  # beyond, the windows of all columns leave the registers
PART = 2e-5  # seconds that a part of the rows takes at least
MAX_PARTS = 64


def choose(A: Any, columns: int, vector_bytes: int) -> tuple[LanesLayout | RowsSpec, float]:
    """Choose a form.

    Parameters
    ----------
    A : csr_array, canonical
    columns : int
    vector_bytes : int

    Returns
    -------
    LanesLayout or RowsSpec
    float
        The seconds that a product is expected to take.
    """
    itemsize = A.dtype.itemsize
    rows = RowsSpec(columns, itemsize, vector_bytes)
    filled = A.nnz + A.shape[0] * (ENTRIES - 1) / 2
    vectors = max(1, rows.row_bytes // vector_bytes)
    rows_seconds = filled * ENTRY[rows.width] * max(1, vectors) + A.shape[0] * VISIT
    if columns > MAX_LANES_COLUMNS:
        return rows, rows_seconds
    spec = LanesSpec(columns, itemsize, vector_bytes)
    spec = LanesSpec(columns, itemsize, vector_bytes, window_bytes(A.shape[1], spec))
    step, column = STEP[spec.registers_of_window]
    each = step + columns * column
    if A.nnz / spec.lanes * each > rows_seconds:
        return rows, rows_seconds
    layout = lay_out_lanes(A, spec)
    steps, slices = 4 * int(layout.starts[-1]), len(layout.starts) - 1
    seconds = steps * each + slices * SLICE
    return (layout, seconds) if seconds < rows_seconds else (rows, rows_seconds)
