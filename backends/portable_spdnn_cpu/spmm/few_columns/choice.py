"""Which form suits a matrix and a number of columns, by a model of what each costs.

The constants are seconds on one thread, fitted to random products: with vectors of 64 bytes on a
Zen 5, where two thirds of the products take 0.9 to 1.1 times what the model says, with shorter ones
on a Zen 3 (0.86 to 1.16 times; sliced 0.8 to 1.25). Other processors differ in all forms, which
hardly changes the choice, but for what A costs from beyond the second-level cache: a handle tries
those that are near.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.jit.target import VECTOR_BYTES, is_zen
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.spmm.few_columns.lanes import LanesLayout, lay_out_lanes, window_bytes
from portable_spdnn_cpu.spmm.few_columns.rows import L1, block_seconds, column_blocks, far_seconds
from portable_spdnn_cpu.spmm.few_columns.sliced import SlicedLayout, lay_out_slices, place_bytes
from portable_spdnn_cpu.spmm.few_columns.specs import (
    ENTRIES,
    STEPS,
    LanesSpec,
    RowsSpec,
    SlicedSpec,
)

# In lanes, of a step and for each column of B, by the vectors of a window.
STEP = {2: (1.6e-10, 2.2e-10), 1: (1.1e-10, 6.3e-10)}
# Of a step with windows of four vectors, for a single column, by the bytes of a value.
SINGLE_STEP = {4: 5.2e-10, 8: 6.3e-10}
# Of a step of the sliced form, and of each lane and column.
SLICED_STEP = 3.0e-10, 1.3e-10 if VECTOR_BYTES == 64 else 2.4e-10
# Of a slice, and for each entry of C: with vectors of 64 bytes, and with shorter ones, which were
# measured when items of C were stored one by one.
SLICE, SHORT_SLICE = (4.3e-9, 9.0e-11), (2.2e-9, 4.4e-10)
# Row by row, of an entry by the bytes of a value, and for each byte of a row of B: with vectors of
# 64 bytes, and shorter ones.
ENTRY, ROW_BYTE = {4: 1.4e-10, 8: 1.5e-10}, 1.5e-12
SHORT_ENTRY, SHORT_ROW_BYTE = {4: 1.2e-10, 8: 1.9e-10}, 7.3e-12
# Of a byte of A from beyond the second-level cache: of a Zen 3 where vectors are shorter than 64
# bytes, else of a Zen 5, which a Zen 4 shares, or of an Intel core.
FAR_BYTE_OF_A = 3.5e-11
if VECTOR_BYTES == 64:
    FAR_BYTE_OF_A = 1e-11 if is_zen() else 4e-11
# Sizes of A, in those of that cache: some bytes come from beyond it, and all of them.
FAR_FROM, ALL_FAR = 0.7, 1.1
MAX_LANES_COLUMNS = 8  # beyond, the windows of all columns leave the registers
# Beyond, row by row always took less time: on a Zen 5, and with shorter vectors on a Zen 3.
MAX_SLICED_COLUMNS = 1 if VECTOR_BYTES == 64 else 2


class Form(NamedTuple):
    """A form of A, and the seconds that a product is expected to take on one thread."""

    layout: LanesLayout | SlicedLayout | RowsSpec
    seconds: float


def forms(A: SparseOperand, columns: int, doubtful: float = 1.0) -> list[Form]:
    """Return the forms that may be the fastest, the fastest by the model first.

    Parameters
    ----------
    A : csr_array, canonical
    columns : int
    doubtful : float
        What takes so many times as long as another form, by the model, may still be the faster one.
    """
    rows = RowsSpec(columns, A.dtype.itemsize, VECTOR_BYTES)
    found = [Form(rows, _rows_seconds(A, rows))]
    sizes = columns, A.dtype.itemsize, VECTOR_BYTES
    if columns <= MAX_SLICED_COLUMNS:
        sliced = lay_out_slices(A, SlicedSpec(*sizes, place_bytes(A.shape[1])))
        found.append(Form(sliced, _sliced_seconds(A, sliced)))
    lanes = LanesSpec(*sizes)
    if columns <= MAX_LANES_COLUMNS and lanes.registers_of_window:
        spec = replace(lanes, window_bytes=window_bytes(A.shape[1], lanes))
        most = doubtful * min(form.seconds for form in found)
        # As if no lane were ever idle, before the steps are counted.
        if _lanes_seconds(A, spec, A.nnz / spec.lanes) < most:
            layout = lay_out_lanes(A, spec)
            found.append(Form(layout, _lanes_seconds(A, spec, STEPS * int(layout.starts[-1]))))
    found.sort(key=lambda form: form.seconds)
    most = doubtful * found[0].seconds  # 0 where A has no rows
    return [found[0], *(form for form in found[1:] if form.seconds < most)]


def _lanes_seconds(A: SparseOperand, spec: LanesSpec, steps: float) -> float:
    step = SINGLE_STEP[spec.itemsize]
    if spec.registers_of_window in STEP:
        fixed, each = STEP[spec.registers_of_window]
        step = fixed + each * spec.columns
    computed = steps * step + _result_seconds(A, spec)
    far = _loaded_seconds(steps * spec.lanes * (spec.itemsize + 1))
    if spec.vector_bytes < 64:
        return max(computed, far)
    # Each slice loads all rows of B, or what its steps look up if that is less. Weights pass
    # through the first level as well, and leave about half of it.
    row_of_B = spec.columns * spec.itemsize
    slices = A.shape[0] / spec.lanes
    loaded = min(slices * A.shape[1], steps / spec.shared_steps * spec.window)
    computed += far_seconds(loaded * row_of_B, A.shape[1] * row_of_B, L1 / 2)
    # Neither hides the other wholly: the exponent is fitted.
    return float((computed**3 + far**3) ** (1 / 3))


def _sliced_seconds(A: SparseOperand, layout: SlicedLayout) -> float:
    spec, steps = layout.spec, int(layout.starts[-1])
    fixed, each = SLICED_STEP
    computed = steps * (fixed + each * spec.lanes * spec.columns) + _result_seconds(A, spec)
    return max(computed, _loaded_seconds(steps * spec.lanes * (spec.itemsize + spec.place_bytes)))


def _result_seconds(A: SparseOperand, spec: LanesSpec | SlicedSpec) -> float:
    """Return what it takes to begin slices and to store their rows of C."""
    slice_, result = SLICE if spec.vector_bytes == 64 else SHORT_SLICE
    return A.shape[0] * (slice_ / spec.lanes + result * spec.columns)


def _rows_seconds(A: SparseOperand, spec: RowsSpec) -> float:
    entries = float(A.nnz + A.shape[0] * (ENTRIES - 1) / 2)  # half a word of padding each
    if spec.vector_bytes == 64:
        each = ENTRY[spec.itemsize] + spec.row_bytes * ROW_BYTE
    else:
        row_bytes = max(spec.row_bytes, spec.vector_bytes)
        each = SHORT_ENTRY[spec.itemsize] + row_bytes * SHORT_ROW_BYTE
    computed = entries * each + block_seconds(A, spec, column_blocks(A, spec))
    return max(computed, _loaded_seconds(entries * (spec.itemsize + 2)))


def _loaded_seconds(size: float) -> float:
    """Return what it takes to bring so many bytes of A from beyond the second-level cache."""
    share = (size / cache_bytes(2) - FAR_FROM) / (ALL_FAR - FAR_FROM)
    return size * FAR_BYTE_OF_A * min(max(share, 0.0), 1.0)
