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

import numpy as np

from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.jit.target import VECTOR_BYTES, is_zen
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.spmm.few_columns.lanes import LanesLayout, lay_out_lanes, window_bytes
from portable_spdnn_cpu.spmm.few_columns.rows import L1, block_seconds, column_blocks, far_seconds
from portable_spdnn_cpu.spmm.few_columns.sliced import SlicedLayout, lay_out_slices, place_bytes
from portable_spdnn_cpu.spmm.few_columns.specs import (
    ENTRIES,
    LAST_LEVEL,
    MEMORY,
    SECOND_LEVEL,
    STEPS,
    LanesSpec,
    RowsSpec,
    SlicedSpec,
)

# In lanes, of a step and for each column of B, by the vectors of a window, of four for two columns
# and more; and of a step for a single column with windows of four, by the bytes of a value.
STEP = {4: (5e-11, 3.7e-10), 2: (1.6e-10, 2.2e-10), 1: (1.1e-10, 6.3e-10)}
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
# Of A so many times as large as the second-level cache some bytes come from beyond it, and all.
FAR_FROM, ALL_FAR = 0.7, 1.1
# The same of the last cache and memory, and what a byte from memory takes besides: on a Zen 5, for
# all processors.
LAST_CACHE = cache_bytes(3) or 1 << 25  # where the system does not say
MEMORY_FROM, ALL_IN_MEMORY, MEMORY_BYTE = 0.4, 1.5, 1e-11
# Slots without an entry, for each row of A and window, by the bytes of a value: from the ratios
# that `slice_kernels` has for windows of two vectors of 64 bytes.
IDLE_SLOTS = {4: 2.2, 8: 1.6}
ROW_PLACE = 2  # bytes of a place row by row
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
    sizes = columns, A.dtype.itemsize, VECTOR_BYTES
    rows = RowsSpec(*sizes, memory_level=memory_level_of(A.nnz * (A.dtype.itemsize + ROW_PLACE)))
    found = [Form(rows, _rows_seconds(A, rows))]
    if columns <= MAX_SLICED_COLUMNS:
        place = place_bytes(A.shape[1])
        level = memory_level_of(A.nnz * (A.dtype.itemsize + place))
        sliced = lay_out_slices(A, SlicedSpec(*sizes, place, memory_level=level))
        found.append(Form(sliced, _sliced_seconds(A, sliced)))
    lanes = LanesSpec(*sizes)
    if columns <= MAX_LANES_COLUMNS and lanes.registers_of_window:
        # With the window of small A: how wide it is depends on the level, too.
        idle = IDLE_SLOTS[A.dtype.itemsize] * A.shape[0] * A.shape[1] / lanes.window
        slots = A.nnz + idle
        lanes = replace(lanes, memory_level=memory_level_of(slots * (A.dtype.itemsize + 1)))
        spec = replace(lanes, window_bytes=window_bytes(A.shape[1], lanes))
        most = doubtful * min(form.seconds for form in found)
        # As if no lane were ever idle, before the steps are counted.
        if _lanes_seconds(A, spec, A.nnz / spec.lanes) < most:
            layout = lay_out_lanes(A, spec)
            found.append(Form(layout, _lanes_seconds(A, spec, STEPS * int(layout.starts[-1]))))
    found.sort(key=lambda form: form.seconds)
    most = doubtful * found[0].seconds  # 0 where A has no rows
    return [found[0], *(form for form in found[1:] if form.seconds < most)]


def memory_level_of(size: float) -> int:
    """Return the `Spec.memory_level` of so many bytes of A."""
    if size > MEMORY_FROM * LAST_CACHE:
        return MEMORY
    return LAST_LEVEL if size > FAR_FROM * cache_bytes(2) else SECOND_LEVEL


def _lanes_seconds(A: SparseOperand, spec: LanesSpec, steps: float) -> float:
    if spec.columns == 1 and spec.registers_of_window == 4:
        step = SINGLE_STEP[spec.itemsize]
    else:
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
    return max(computed, _loaded_seconds(entries * (spec.itemsize + ROW_PLACE)))


def _loaded_seconds(size: float) -> float:
    """Return what it takes to bring so many bytes of A from beyond the second-level cache."""
    far = np.interp(size / cache_bytes(2), (FAR_FROM, ALL_FAR), (0, FAR_BYTE_OF_A))
    besides = np.interp(size / LAST_CACHE, (MEMORY_FROM, ALL_IN_MEMORY), (0, MEMORY_BYTE))
    return float(size * (far + besides))
