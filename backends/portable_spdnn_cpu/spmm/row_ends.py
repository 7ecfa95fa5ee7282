"""Whether each entry of A is added to C by itself, without a branch where a row ends.

A branch that a processor does not predict takes as long as several entries. `direct.each_entry` has
none, but loads and stores a row of C for each entry.
"""

from __future__ import annotations

from typing import Any

from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES

# Rows whose ends a processor predicts in the next product: a Zen 5 those of some 14,000.
PREDICTED_ROWS = 1 << 14
COMPARED = 64  # rows at most that are compared with the next
MOST_EACH_BYTES = 2 * BLOCK_BYTES  # of a row of C to which entries are added by themselves


def adds_each_entry(entries: int, rows: int, row_bytes: int) -> bool:
    """Whether A has so few entries for its rows, or columns in CSC, that each is added by itself.

    By the bytes of a row of C, as measured on a Zen 5: three for two rows where it is a cache line
    at most, one for two where it is two.
    """
    most = rows + rows // 2 if row_bytes <= BLOCK_BYTES else rows // 2
    return entries <= most and row_bytes <= MOST_EACH_BYTES


def may_add_each_entry(entries: int, rows: int, row_bytes: int) -> bool:
    """Whether each entry is added by itself too where the lengths of rows vary.

    As measured on an Intel Xeon, where a branch on each row takes up to 2.5 times as long: three in
    a row of A for 16 bytes of C at most, two for 32. Of fewer rows a processor predicts the ends.
    """
    most = 3 * rows if 4 * row_bytes <= BLOCK_BYTES else 2 * rows
    return rows > PREDICTED_ROWS and entries <= most and 2 * row_bytes <= BLOCK_BYTES


def lengths_vary(indptr: Any, begin: int, end: int) -> bool:
    """Whether, of rows begin .. end - 1, a quarter or more are not as long as the next."""
    compared = differ = 0
    for row in range(begin, end - 1, (end - begin) // COMPARED + 1):
        middle = indptr[row + 1]
        differ += middle - indptr[row] != indptr[row + 2] - middle
        compared += 1
    return 4 * differ >= max(compared, 1)
