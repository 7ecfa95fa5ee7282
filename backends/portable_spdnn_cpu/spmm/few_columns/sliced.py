"""A sliced: rows of like length in the lanes of a vector, each at its own pace.

The form is sliced ELLPACK, as in M. Kreutzer et al., "A unified sparse matrix data format for
efficient general sparse matrix-vector multiplication on modern processors with wide SIMD units",
SIAM J. Sci. Comput. 36 (2014), where it is called SELL-C-sigma; C is `lanes`, sigma ROWS_SORTED.

The arrays, for slices of `lanes` rows, in which there are as many steps as its longest row has
entries::

    values   (steps, lanes)          of A; 0 where a row has ended
    places   (steps, lanes)          rows of B, uint16 or uint32, counted from 1; 0, a row of zeros,
                                     where the row of A has ended
    starts   (slices + 1)            the first step of each slice
    rows     (slices x lanes)        rows of C, -1 where a lane has none
    bias     (slices x lanes)        of these rows
    parts    (parts + 1)             the first slice of each part, which one thread does
"""

from __future__ import annotations

import numpy as np

from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.jit.compilation import Array, kernel
from portable_spdnn_cpu.machine.cpu_info import aligned_empty
from portable_spdnn_cpu.spmm.few_columns.packing import PackedProduct
from portable_spdnn_cpu.spmm.few_columns.slices import (
    SliceLayout,
    filled_up,
    order_by_length,
    packed_slices,
)
from portable_spdnn_cpu.spmm.few_columns.specs import SlicedSpec

MAX_PLACES = 1 << 16  # rows of B, and one of zeros, that are numbered in two bytes


class SlicedLayout(SliceLayout):
    """That of the sliced form; `starts` counts steps."""

    spec: SlicedSpec


def lay_out_slices(A: SparseOperand, spec: SlicedSpec) -> SlicedLayout:
    """Decide on slices, and count their steps."""
    order = filled_up(order_by_length(A), spec.lanes)
    lengths = np.append(np.diff(A.indptr), 0)[order]
    steps = lengths.reshape(-1, spec.lanes).max(axis=1, initial=0)
    return SlicedLayout(spec, order, np.concatenate(([0], np.cumsum(steps, dtype=np.int64))))


def place_bytes(depth: int) -> int:
    """Return in how many bytes the rows of B, and the row of zeros, can be numbered."""
    return 2 if depth < MAX_PLACES else 4


def pack_slices(
    A: SparseOperand, layout: SlicedLayout, epilogue: tuple[Array, Array], parts: int
) -> PackedProduct:
    """Pack A in slices.

    Parameters
    ----------
    A : csr_array, canonical
    layout : SlicedLayout
    epilogue, parts
        As in `packed_slices`.
    """
    spec, order, starts, depth = layout.spec, layout.order, layout.starts, A.shape[1]
    shape = int(starts[-1]), spec.lanes
    values = aligned_empty(shape, A.dtype)
    places = aligned_empty(shape, np.dtype(f"u{spec.place_bytes}"))
    values[:] = 0
    places[:] = 0
    fill_slices(A.indptr, A.indices, A.data, order, starts, values, places)
    arrays = {"values": values, "places": places}
    return packed_slices(A, layout, epilogue, parts, (depth + 1) * spec.row_bytes, arrays, {})


@kernel
def fill_slices(
    indptr: Array,
    indices: Array,
    data: Array,
    order: Array,
    starts: Array,
    values: Array,
    places: Array,
) -> None:
    """Write the entries of each row."""
    lanes = values.shape[1]
    for slot in range(order.size):
        row, step, lane = order[slot], starts[slot // lanes], slot % lanes
        if row >= 0:
            for entry in range(indptr[row], indptr[row + 1]):
                values[step, lane] = data[entry]
                places[step, lane] = indices[entry] + 1
                step += 1
