"""Which form suits a matrix and a number of columns, by a model of what each costs.

The constants, in `costs`, are fitted to random products: with vectors of 64 bytes on a Zen 5 and a
Zen 4, where two thirds of the products take 0.9 to 1.1 times what the model says, and on an Intel
Xeon (0.87 to 1.17 times; with up to 300,000 rows 0.8 to 1.4), with shorter ones on a Zen 3 (0.86 to
1.16 times; sliced 0.8 to 1.25). Other processors differ in all forms, which hardly changes the
choice: a handle tries those that are near.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.jit.target import VECTOR_BYTES, is_zen_4
from portable_spdnn_cpu.spmm.few_columns.costs import (
    COSTS,
    FAR_READ,
    LAST_LEVEL,
    MEMORY,
    SECOND_LEVEL,
    far_factor,
    loaded_seconds,
    memory_level_of,
)
from portable_spdnn_cpu.spmm.few_columns.lanes import LanesLayout, lay_out_lanes, window_bytes
from portable_spdnn_cpu.spmm.few_columns.rows import L1, ROW_PLACE, far_seconds, rows_seconds
from portable_spdnn_cpu.spmm.few_columns.sliced import SlicedLayout, lay_out_slices, place_bytes
from portable_spdnn_cpu.spmm.few_columns.specs import (
    STEPS,
    LanesSpec,
    RowsSpec,
    SlicedSpec,
    Spec,
)

# Up to so many columns windows have four vectors of 64 bytes, by what keeps A: there are fewer
# steps, which read fewer bytes, but each takes more permutes than in windows of two. On a Zen 5 a
# product of one column takes 0.74 to 0.94 of the time so in float32, 0.66 to 1.0 in float64; one of
# two takes up to 1.13 times as long from the second-level cache, and 0.83 to 1.0 of the time from
# the last; two to four columns take 0.65 to 0.95 from memory. On a Zen 4 two and three take 1.0 to
# 1.4 times as long from the last cache as well, and 0.85 to 1.08 times from memory.
MOST_WIDE = {SECOND_LEVEL: 1, LAST_LEVEL: 3, MEMORY: 4}
MOST_WIDE_ON_ZEN_4 = {SECOND_LEVEL: 1, LAST_LEVEL: 1, MEMORY: 4}
# Slots without an entry, for each row of A and window, by the bytes of a value: from the ratios
# that `slice_kernels` has for windows of two vectors of 64 bytes.
IDLE_SLOTS = {4: 2.2, 8: 1.6}
MAX_LANES_COLUMNS = 8  # beyond, the windows of all columns leave the registers
# The sliced form has one column or two. With two it takes 0.75 to 0.9 of the time of row by row on
# a Zen 3 in float32, and 0.63 to 1.05 in float64. With vectors of 64 bytes two columns go in lanes:
# on a Zen 5 a step of up to 16 entries takes two cycles, in which four rows of B could be loaded.
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
    level = memory_level_of(A.nnz * (A.dtype.itemsize + ROW_PLACE))
    rows = RowsSpec(*sizes, prefetches=prefetches(RowsSpec, columns, level))
    found = [Form(rows, rows_seconds(A, rows))]
    if columns <= MAX_SLICED_COLUMNS:
        place = place_bytes(A.shape[1])
        level = memory_level_of(A.nnz * (A.dtype.itemsize + place))
        ahead = prefetches(SlicedSpec, columns, level)
        sliced = lay_out_slices(A, SlicedSpec(*sizes, place, prefetches=ahead))
        found.append(Form(sliced, _sliced_seconds(A, sliced)))
    lanes = LanesSpec(*sizes, wide=is_wide(columns, SECOND_LEVEL))
    if columns <= MAX_LANES_COLUMNS and lanes.registers_of_window:
        # With the window of small A: how wide it is depends on the level, too.
        idle = IDLE_SLOTS[A.dtype.itemsize] * A.shape[0] * A.shape[1] / lanes.window
        slots = A.nnz + idle
        level = memory_level_of(slots * (A.dtype.itemsize + 1))
        ahead, wide = prefetches(LanesSpec, columns, level), is_wide(columns, level)
        lanes = replace(lanes, prefetches=ahead, wide=wide)
        spec = replace(lanes, window_bytes=window_bytes(A.shape[1], lanes))
        most = doubtful * min(form.seconds for form in found)
        # As if no lane were ever idle, before the steps are counted.
        if _lanes_seconds(A, spec, A.nnz / spec.lanes) < most:
            layout = lay_out_lanes(A, spec)
            found.append(Form(layout, _lanes_seconds(A, spec, STEPS * int(layout.starts[-1]))))
    found.sort(key=lambda form: form.seconds)
    most = doubtful * found[0].seconds  # 0 where A has no rows
    return [found[0], *(form for form in found[1:] if form.seconds < most)]


def is_wide(columns: int, level: int) -> bool:
    """Whether windows have four vectors of 64 bytes, for A that this level of memory keeps."""
    most = MOST_WIDE_ON_ZEN_4 if is_zen_4() else MOST_WIDE
    return VECTOR_BYTES == 64 and columns <= most[level]


def prefetches(form: type[Spec], columns: int, level: int) -> bool:
    """Whether entries are prefetched, of A that this level of memory keeps.

    Entries are prefetched where other layers of a network may evict them, and in lanes of two
    columns and more always: such products take 0.97 to 1.04 of the time on a Zen 5 where the
    second-level cache keeps A, with AVX2 up to 1.07; with a single column loads bind. A Zen 4 loads
    ahead as fast by itself: with prefetches products in lanes took 1.0 to 1.4 times as long,
    whatever keeps A, sliced ones 1.0 to 1.2 times, and row by row 1.0 to 1.3 times from the last
    cache, but 0.7 to 0.9 of the time from memory.
    """
    if is_zen_4():
        return form is RowsSpec and level == MEMORY
    return level != SECOND_LEVEL or (form is LanesSpec and columns > 1)


def _lanes_seconds(A: SparseOperand, spec: LanesSpec, steps: float) -> float:
    if spec.columns == 1 and spec.registers_of_window == 4:
        step = COSTS.single_step[spec.itemsize]
    else:
        fixed, each = COSTS.step[spec.registers_of_window]
        step = fixed + each * spec.columns
    computed = steps * step + _result_seconds(A, spec)
    far = loaded_seconds(steps * spec.lanes * (spec.itemsize + 1))
    # Each slice loads all rows of B, or what its steps look up if that is less. Weights pass
    # through the first level as well, and leave about half of it.
    row_of_B = spec.columns * spec.itemsize
    slices = A.shape[0] / spec.lanes
    loaded = row_of_B * min(slices * A.shape[1], steps / spec.shared_steps * spec.window)
    if spec.vector_bytes < 64:
        return max(computed + loaded * FAR_READ * far_factor(A.shape[1] * row_of_B), far)
    computed += far_seconds(loaded, A.shape[1] * row_of_B, L1 / 2)
    # Neither hides the other wholly: the exponent is fitted.
    return float((computed**3 + far**3) ** (1 / 3))


def _sliced_seconds(A: SparseOperand, layout: SlicedLayout) -> float:
    spec, steps = layout.spec, int(layout.starts[-1])
    fixed, each = COSTS.sliced_step
    computed = steps * (fixed + each * spec.lanes) + _result_seconds(A, spec)
    return max(computed, loaded_seconds(steps * spec.lanes * (spec.itemsize + spec.place_bytes)))


def _result_seconds(A: SparseOperand, spec: LanesSpec | SlicedSpec) -> float:
    """Return what it takes to begin slices and to store their rows of C."""
    slice_, result = COSTS.slice
    return A.shape[0] * (slice_ / spec.lanes + result * spec.columns)
