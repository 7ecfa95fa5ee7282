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
SHIFTED
    Whether the first panel begins before column 0, on the cache line of B in which that lies where
    panels are read in B, and else on that of C.
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
LOAD_COLUMNS, STORE_COLUMNS
    Addresses of the code that copies columns to rows, and rows to columns, which B, C and a
    residual in Fortran order take; 0 as long as none was: see `spmm.transposes`.
WHOLE, REST
    The first of PANEL_WORDS words about whole panels, and about the last, narrower one: its
    VECTORS, and the addresses of `panels.copy_rows`, `row_loops.sum_rows` and
    `row_loops.finish_rows` for so many; 0 where there is no such panel, and where panels are not
    copied, or no sums wait in memory.
WORKSPACE_BYTES, SUMS_BYTES
    Of memory, aligned on vectors, for each worker: sums, and then the panels.
OUT_BYTES
    Of all that is written before it is read: of C, or of several results.
"""

from __future__ import annotations

from portable_spdnn_cpu.jit.job_start import FIRST_OWN, FIRST_WORDS

WORKERS, COUNTERS, B, OUT, RESIDUAL, WORKSPACE = FIRST_WORDS
(
    PARTS, K, COLUMNS, WIDTH, PANELS, LINE, K_BLOCK, IN_PLACE, SHIFTED,
    B_STRIDE, B_FORTRAN, OUT_STRIDE, OUT_FORTRAN, RESIDUAL_STRIDE,
    BIAS, ACTIVATION, LOWER, UPPER, BOUNDED, LOAD_COLUMNS, STORE_COLUMNS,
    WORKSPACE_BYTES, SUMS_BYTES, OUT_BYTES, WHOLE,
) = range(FIRST_OWN, FIRST_OWN + 25)  # fmt: skip
VECTORS, COPY_ROWS, SUM_ROWS, FINISH_ROWS, PANEL_WORDS = range(5)
REST = WHOLE + PANEL_WORDS
FIRST_PART = REST + PANEL_WORDS
# Words of each part, from FIRST_PART on: its rows, how many blocks they have, and the arrays of
# `packing.StreamPart`. Where A is not packed there is one block, FIRST_VISIT is 0, and VISITS,
# OFFSETS and VALUES are A's indptr, indices and data.
(
    BEGIN, END, BLOCKS, VISITS, FIRST_VISIT, FIRST_ENTRY, OFFSETS, VALUES, PART_WORDS,
) = range(9)  # fmt: skip
