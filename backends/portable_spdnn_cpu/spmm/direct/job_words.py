"""What a job of a single product is: the places of its words, an array of int64.

Addresses are of the first item; rows of B and of C lie B_ROW and OUT_ROW bytes apart.

WORKERS, TASKS
    How many there are.
ROWS, COLUMNS, K
    Of C, and the rows of B.
ENTRIES
    Of A: the fewer of its indices and values.
INDPTR, INDICES, VALUES, B, B_ROW, OUT, OUT_ROW
    The arrays.
REFUSED
    Set where A's structure is invalid: C is not complete then.
COUNTERS
    The first counter of `next_task`; there is one for each worker.
"""

from __future__ import annotations

from portable_spdnn_cpu.jit.jobs import COUNTER_PADDING

(
    WORKERS, TASKS, ROWS, COLUMNS, K, ENTRIES, INDPTR, INDICES, VALUES, B, B_ROW, OUT, OUT_ROW,
    REFUSED,
) = range(14)  # fmt: skip
COUNTERS = REFUSED + 1 + COUNTER_PADDING
