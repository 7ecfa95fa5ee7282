"""What all forms of A are packed into: arrays, and the table of them that the kernel reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.spmm.few_columns.operands import TABLE
from portable_spdnn_cpu.spmm.few_columns.specs import Spec


@dataclass(frozen=True)
class PackedProduct:
    """A, ready for the kernel.

    Attributes
    ----------
    spec : LanesSpec, SlicedSpec or RowsSpec
        Row by row, that of any number of columns for which rows of B are as wide.
    table : ndarray of int64
        As `operands.TABLE`; addresses in it are of arrays that this object keeps.
    arrays : dict of str to ndarray
    parts : int
        Of the rows, of about as much work each.
    scratch_bytes : int
        That a call needs for its copy of B and for sums, zero before the first call.
    slots : int
        Entries with those that pad.
    """

    spec: Spec
    table: Array
    arrays: dict[str, Array]
    parts: int
    scratch_bytes: int
    slots: int


BEGUN = 8  # entries, or steps, which take as long as to begin and end a row, or a slice


def table_of(arrays: dict[str, Array], numbers: dict[str, int]) -> Array:
    """Return the table of `operands.TABLE`, with 0 for what a form does not have."""
    found = {name: array.ctypes.data for name, array in arrays.items()} | numbers
    return np.array([found.get(name, 0) for name in TABLE], np.int64)
