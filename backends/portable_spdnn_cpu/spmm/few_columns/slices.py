"""Slices of rows of like length, one in each lane of a vector: what lanes and sliced share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.spmm.few_columns.packing import BEGUN, PackedProduct, table_of
from portable_spdnn_cpu.spmm.few_columns.specs import Spec
from portable_spdnn_cpu.spmm.row_parts import divide

ROWS_SORTED = 1024  # a whole number of any spec's slices


@dataclass(frozen=True)
class SliceLayout:
    """Which rows share a slice, and how much is to be done for it.

    Attributes
    ----------
    spec : LanesSpec or SlicedSpec
    order : ndarray of int64
        Rows of A, -1 for none, a whole number of slices.
    starts : ndarray of int64
        The first step of each slice, or chunk of steps, and where the last ends.
    chunk : int
        Steps that `starts` counts as one.
    """

    chunk: ClassVar[int] = 1
    spec: Spec
    order: Array
    starts: Array


def order_by_length(A: SparseOperand) -> Array:
    """Return the rows of A, ordered within every ROWS_SORTED of them.

    So threads, which do some slices each, share few cache lines of C.
    """
    return np.lexsort((np.diff(A.indptr), np.arange(A.shape[0]) // ROWS_SORTED))


def filled_up(order: Array, lanes: int) -> Array:
    """Return rows, and -1 to fill up to whole slices."""
    return np.concatenate((order, np.full(-len(order) % lanes, -1)))


def packed_slices(
    A: SparseOperand,
    layout: SliceLayout,
    epilogue: tuple[Array, Array],
    parts: int,
    scratch_bytes: int,
    arrays: dict[str, Array],
    numbers: dict[str, int],
) -> PackedProduct:
    """Return A as it was packed, with what both forms have.

    Parameters
    ----------
    A : csr_array, canonical
    layout : SliceLayout
    epilogue : ndarray, ndarray
        The bias of each row, and both bounds, of A's type.
    parts : int
        How many parts to divide the rows into, at most.
    scratch_bytes : int
        That the copy of B takes.
    arrays, numbers : dict of str to ndarray, and to int
        What the form adds to the table: arrays, "values" among them, and numbers.
    """
    bias, bounds = epilogue
    spec, order, starts = layout.spec, layout.order, layout.starts
    divided = np.unique(divide(starts, parts, BEGUN // layout.chunk))
    arrays = arrays | {
        "starts": starts, "rows": order.astype(np.int32), "parts": divided, "bounds": bounds,
        "bias": np.append(bias, A.dtype.type(0))[order],
    }  # fmt: skip
    numbers = {"height": A.shape[0], "depth": A.shape[1], **numbers}
    return PackedProduct(
        spec, table_of(arrays, numbers), arrays, len(divided) - 1,
        scratch_bytes, arrays["values"].size,
    )  # fmt: skip
