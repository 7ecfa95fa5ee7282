"""What a job of a single product is: the places of its words, an array of int64.

Addresses are of the first item; rows of B and of C lie B_ROW and OUT_ROW bytes apart.

WORKERS, TASKS
    How many there are.
ROWS, COLUMNS, K
    Of C, and the rows of B.
ENTRIES
    Of A, for which there are columns and values.
INDPTR, INDICES, VALUES, B, B_ROW, OUT, OUT_ROW
    The arrays.
REFUSED
    Set where A's structure is none: C is not complete then.
COUNTERS
    The first counter of `next_task`; there is one for each worker.
"""

from __future__ import annotations

(
    WORKERS, TASKS, ROWS, COLUMNS, K, ENTRIES, INDPTR, INDICES, VALUES, B, B_ROW, OUT, OUT_ROW,
    REFUSED,
) = range(14)  # fmt: skip
COUNTERS = 24  # a cache line of their own: words before them are read
