"""What a product with A as it is runs: addresses of machine code, in a table for each kind.

The kernels of `kernel` do not know the type of values, nor how many vectors a row of C has: they
call by its address what does. There is a table for each number of columns of B, types, and way in
which A is taken. So a first product waits for code for its columns, and not for that of all widths.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import kernel_part
from portable_spdnn_cpu.jit.jobs import array_at
from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS, VECTOR_BYTES, is_zen_4
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.dense_layout import LEAST_SHIFTED_ROW
from portable_spdnn_cpu.spmm.direct.choice import CSC_BYTES
from portable_spdnn_cpu.spmm.direct.job_words import TABLE
from portable_spdnn_cpu.spmm.direct.microkernels import (
    CSC,
    CSR,
    ENTRIES_CSC,
    ENTRIES_CSR,
    SHIFTED_CSR,
    multiplying_code,
)
from portable_spdnn_cpu.spmm.row_ends import MOST_EACH_BYTES
from portable_spdnn_cpu.spmm.stream.microkernels import MAX_VECTORS

# In CSC: bytes of the vectors of panels that have fewer than FEW_VECTORS of them, and on a Zen 4 of
# all panels; in others two such vectors are one. Rows of C rarely start on cache lines, and a store
# across two lines is forwarded late, or not at all, to loads of what it wrote. A Zen 4 stores 64
# bytes as two halves: two products whose rows of C begin on cache lines take 0.73 and 0.76 of the
# time so, 15 others 0.93 to 1.02.
CSC_VECTOR, FEW_VECTORS = 32, 6
# Places in a table; what the kernels never call is 0.
#
# JOB
#     The kernel.
# CONVERSION
#     `start.convert`, which runs before where A is converted.
# LOAD_COLUMNS, STORE_COLUMNS, MET_ROWS
#     Where B or C is in Fortran order, and else maybe too: see `transposes`, and
#     `copies.copy_met_rows`.
# EACH_ENTRY, FEW_COLUMNS
#     What multiplies entry by entry, and all columns at once where they are few.
# BEGIN_ROWS, WHOLE_ROWS, FINISH_ROWS
#     In CSC: see `finish`, and `kernel.multiply_whole_rows`.
# PANELS, SHIFTED_PANELS
#     Where the places of panels of 0, 1, ... vectors begin, in CSC of CSC_VECTOR bytes, and of
#     those that begin before column 0.
(
    JOB, CONVERSION, LOAD_COLUMNS, STORE_COLUMNS, MET_ROWS, EACH_ENTRY, FEW_COLUMNS,
    BEGIN_ROWS, WHOLE_ROWS, FINISH_ROWS, PANELS,
) = range(11)  # fmt: skip
SHIFTED_PANELS = PANELS + 1 + max(MAX_VECTORS, CSC_BYTES // CSC_VECTOR)
TABLE_WORDS = SHIFTED_PANELS + MAX_VECTORS + 2
OVERLAPS = not HAS_FAST_MASKS  # see `rows.Rows`


@kernel_part
def code_of(words: Any, place: int) -> int:
    """Return an address of the table that a job's words name."""
    address: int = array_at(words[TABLE], TABLE_WORDS, np.int64)[place]
    return address


def panel_width(left: int, widest: int, least: int) -> int:
    """Return how many of the columns that are left the next panel has.

    At most `widest`, and fewer where else the last one would have fewer than `least`.
    """
    width = min(left, widest)
    return width - least if 0 < left - width < least else width


panel_width_part = kernel_part(panel_width)


def row_panels(
    columns: int, before: int, itemsize: int, overlaps: bool
) -> Iterator[tuple[bool, int]]:
    """Yield of each panel in CSR whether it begins `before` columns before 0, and its vectors."""
    lanes, first = BLOCK_BYTES // itemsize, 0
    if before:
        width = min(columns + before, (MAX_VECTORS + 1) * lanes)
        yield True, -(-width // lanes)
        first = width - before
    while first < columns:
        width = panel_width(columns - first, MAX_VECTORS * lanes, lanes if overlaps else 0)
        yield False, -(-width // lanes)
        first += width


def few_by_rows(size: int) -> tuple[int, int] | None:
    """Return the vectors, and bytes of each, that compute all columns of so many bytes in CSR.

    None where panels do.
    """
    if 64 < size <= 96 and VECTOR_BYTES == 32:  # of 64 bytes, two would be four
        return 3, 32
    if OVERLAPS and size < BLOCK_BYTES:  # one that is full, or two that overlap
        vector = 32 if size >= 32 else 16 if size >= 16 else 8
        return 1 + (size > vector), vector
    if size <= 32:
        return 1, 16 if size <= 16 else 32
    return None


def few_by_columns(size: int) -> tuple[int, int] | None:
    """Return the vectors, and bytes of each, of all columns in CSC; None where panels do."""
    return for_each_entry(size) if size < CSC_VECTOR else None


def for_each_entry(size: int) -> tuple[int, int] | None:
    """Return the vectors, and bytes of each, for columns of so many bytes, entry by entry.

    None where that is never done.
    """
    if size < 32:
        return 1, 8 if size < 16 else 16
    return (size // 32, 32) if size <= MOST_EACH_BYTES else None


def multiplying_codes(
    by_columns: bool, columns: int, dtype: np.dtype[Any], index_dtype: np.dtype[Any]
) -> dict[int, int]:
    """Return the addresses of the microkernels for so many columns, by their places in a table."""
    size = columns * dtype.itemsize
    code = functools.partial(multiplying_code, dtype=dtype, index_dtype=index_dtype)
    found = {}
    each = for_each_entry(size)
    if each:
        found[EACH_ENTRY] = code(ENTRIES_CSC if by_columns else ENTRIES_CSR, *each)
    few = few_by_columns(size) if by_columns else few_by_rows(size)
    if few:
        found[FEW_COLUMNS] = code(CSC if by_columns else CSR, *few)
        return found
    if by_columns:
        left, lanes = columns, CSC_VECTOR // dtype.itemsize
        while left:
            width = panel_width(left, CSC_BYTES // dtype.itemsize, lanes)
            vectors = width // lanes
            sizes = vectors, CSC_VECTOR
            if vectors >= FEW_VECTORS and not is_zen_4():
                sizes = vectors // 2, BLOCK_BYTES
            found[PANELS + vectors] = code(CSC, *sizes)
            left -= width
        return found
    # Where the first panel begins depends on where B does.
    may_shift = HAS_FAST_MASKS and size >= LEAST_SHIFTED_ROW and size % BLOCK_BYTES == 0
    begins = range(BLOCK_BYTES // dtype.itemsize) if may_shift else range(1)
    kinds = {
        kind for before in begins for kind in row_panels(columns, before, dtype.itemsize, OVERLAPS)
    }
    for is_shifted, vectors in kinds:
        place = (SHIFTED_PANELS if is_shifted else PANELS) + vectors
        found[place] = code(SHIFTED_CSR if is_shifted else CSR, vectors, BLOCK_BYTES)
    return found
