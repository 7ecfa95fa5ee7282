"""Which form suits a matrix and a number of columns, by a model of what each costs.

The constants are seconds on one thread, fitted to the shapes of pruned networks on one core of
2023 with AVX-512 and, for one vector of a window, with AVX2; the model was within a tenth of what
was measured there. Other processors differ in both forms, which hardly changes the choice.
"""

from __future__ import annotations

from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.spmm.few_columns.lanes import LanesLayout, lay_out_lanes, window_bytes
from portable_spdnn_cpu.spmm.few_columns.specs import ENTRIES, STEPS, LanesSpec, RowsSpec

# In lanes, of a step and for each column of B, by the vectors that a permute looks up.
STEP = {2: (4.5e-10, 2.8e-10), 1: (3.5e-10, 2.2e-10)}
GATHERED_STEP, GATHERED_ENTRY = 2.5e-10, 2.3e-10  # the latter for each lane and column
LANES_RESULT = 2.5e-10  # for each entry of C
# Row by row, of an entry by the bytes of a value, and for each byte of a row of B.
ENTRY, ROW_BYTE = {4: 2.2e-10, 8: 2.8e-10}, 1.4e-12
VISIT = 1.5e-9  # where a row begins and ends
MISSED_BYTE = 1.5e-11  # of A, where it does not stay in the second-level cache
MAX_LANES_COLUMNS = 8  # beyond, the windows of all columns leave the registers


def choose(
    A: SparseOperand, columns: int, vector_bytes: int
) -> tuple[LanesLayout | RowsSpec, float]:
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
        The seconds that a product is expected to take on one thread.
    """
    itemsize = A.dtype.itemsize
    rows = RowsSpec(columns, itemsize, vector_bytes)
    lanes = LanesSpec(columns, itemsize, vector_bytes)
    lanes = LanesSpec(columns, itemsize, vector_bytes, window_bytes(A.shape[1], lanes))
    by_rows = _rows_seconds(A, rows)
    # As if no lane were ever idle, before the steps are counted.
    if columns > MAX_LANES_COLUMNS or _lanes_seconds(A, lanes, A.nnz / lanes.lanes) > by_rows:
        return rows, by_rows
    layout = lay_out_lanes(A, lanes)
    in_lanes = _lanes_seconds(A, lanes, STEPS * int(layout.starts[-1]))
    return (layout, in_lanes) if in_lanes < by_rows else (rows, by_rows)


def _lanes_seconds(A: SparseOperand, spec: LanesSpec, steps: float) -> float:
    fixed, each = GATHERED_STEP, GATHERED_ENTRY * spec.lanes
    if spec.registers_of_window:
        fixed, each = STEP[spec.registers_of_window]
    results = A.shape[0] * spec.columns * LANES_RESULT
    missed = _missed_seconds(steps * spec.lanes * (spec.itemsize + 1))
    return steps * (fixed + each * spec.columns) + results + missed


def _rows_seconds(A: SparseOperand, spec: RowsSpec) -> float:
    entries = float(A.nnz + A.shape[0] * (ENTRIES - 1) / 2)  # half a word of padding each
    each = ENTRY[spec.itemsize] + spec.row_bytes * ROW_BYTE
    missed = _missed_seconds(entries * (spec.itemsize + 2))
    return entries * each + A.shape[0] * VISIT + missed


def _missed_seconds(size: float) -> float:
    """Return what it takes to bring the bytes of A from beyond the second-level cache."""
    return size * MISSED_BYTE if size > cache_bytes(2) else 0.0
