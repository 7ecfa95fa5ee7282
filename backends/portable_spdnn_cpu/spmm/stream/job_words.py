"""What a job of the stream kernel is: the places of its words, an array of int64.

Addresses are of the first item; strides count items; 0 is no address.

WORKERS, COUNTERS, B, OUT, RESIDUAL, WORKSPACE
    As `jit.job_start` has them.
PARTS
    How many there are.
K, COLUMNS, WIDTH, PANELS
    Rows of B, its columns, those of a panel, and panels of a group: 1 unless read in place.
LINE
    Items of a cache line.
K_BLOCK
    Rows of B in a block.
IN_PLACE
    Whether panels are read in B, whose rows are whole cache lines long and apart; A is one block.
ON_LINES
    Whether panels that are copied begin where cache lines of C do.
B_STRIDE, B_FORTRAN
    Item (k, j) of B lies at k x stride + j, or j x stride + k in Fortran order.
OUT_STRIDE, OUT_FORTRAN
    Of C, likewise.
RESIDUAL_STRIDE
    Of the residual, which is in the order of C.
BIAS
    An item for each row of C.
ACTIVATION, LOWER, UPPER, BOUNDED
    The code of `activations.Activation`, the bits of its bounds as float64, and whether they are
    finite.
PANEL_KERNEL, REST_KERNEL, SHIFTED_REST_KERNEL
    Addresses of the kernels that compute whole panels, and what is left of the columns, where the
    first panel begins at column 0, and where it begins before.
WORKSPACE_BYTES, SUMS_BYTES
    Of memory, aligned on vectors, for each worker: sums, and then the panels.
OUT_BYTES
    Of C.
"""

from __future__ import annotations

from portable_spdnn_cpu.jit.job_start import FIRST_OWN, FIRST_WORDS

WORKERS, COUNTERS, B, OUT, RESIDUAL, WORKSPACE = FIRST_WORDS
(
    PARTS, K, COLUMNS, WIDTH, PANELS, LINE, K_BLOCK, IN_PLACE, ON_LINES,
    B_STRIDE, B_FORTRAN, OUT_STRIDE, OUT_FORTRAN, RESIDUAL_STRIDE,
    BIAS, ACTIVATION, LOWER, UPPER, BOUNDED, PANEL_KERNEL, REST_KERNEL, SHIFTED_REST_KERNEL,
    WORKSPACE_BYTES, SUMS_BYTES, OUT_BYTES, FIRST_PART,
) = range(FIRST_OWN, FIRST_OWN + 26)  # fmt: skip
# Words of each part, from FIRST_PART on. Where ROWS is 0, A is not packed: there is one block, and
# COUNTS is A's indptr.
BEGIN, END, BLOCKS, ROWS, COUNTS, FIRST_ROW, FIRST_ENTRY, OFFSETS, VALUES, PART_WORDS = range(10)
