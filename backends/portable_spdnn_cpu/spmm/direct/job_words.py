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
ITEM
    Bytes of a value.
TABLE
    The address of a table, as `code_table` has it.
B_FORTRAN, OUT_FORTRAN
    Whether it is the columns of B, or of C, and not the rows, that lie in one piece, B_ROW or
    OUT_ROW bytes apart.
OUT_BYTES
    Of all that is written before it is read: of C, or of several results.
SCRATCH
    The address of memory, `copies.scratch_bytes` of it, for one worker.
HOLDS_ZEROS
    Whether C holds zeros already, so that the kernel need not write them; 0 with an epilogue or a
    residual.
HELD
    The address of the residual, 0 if there is none. It lies as C does: C itself, or, by rows,
    another array, so that no load of a row waits for a masked store of the row before.
HAS_EPILOGUE
    Whether microkernels, or passes over C before and after them, do what follows the sums.
FINISHES_LATER
    Whether it is done after all sums of a task instead, by `finish.finish_sums`, of a single column
    in CSR: then HAS_EPILOGUE is 0. Where both are, BIAS to UPPER are not set.
BIAS, BIAS_STEP
    The address of the bias of row 0, a float64, and the bytes to that of the next row.
ACTIVATION
    As `activations.Activation.code` is; NONE for ReLU too, which is a bound.
LOWER, UPPER
    Bounds of C, as the bits of float64.
REFUSED
    Set where A's structure is invalid: C is not complete then.
COUNTERS
    The first counter of `next_task`; there is one for each worker.
"""

from __future__ import annotations

from portable_spdnn_cpu.jit.jobs import COUNTER_PADDING

(
    WORKERS, TASKS, ROWS, COLUMNS, K, ENTRIES, INDPTR, INDICES, VALUES, B, B_ROW, OUT, OUT_ROW,
    ITEM, TABLE,
    B_FORTRAN, OUT_FORTRAN, OUT_BYTES, SCRATCH, HOLDS_ZEROS, HELD, HAS_EPILOGUE, FINISHES_LATER,
    BIAS, BIAS_STEP, ACTIVATION, LOWER, UPPER, REFUSED,
) = range(29)  # fmt: skip
COUNTERS = REFUSED + 1 + COUNTER_PADDING
