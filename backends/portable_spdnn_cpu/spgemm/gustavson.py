"""Kernels: sparse x sparse, one row of the result at a time (Gustavson's algorithm).

Row i of C = A B is the sum of the rows of B that row i of A names, each times A's value there. An
accumulator adds them up; rows do not depend on each other, and threads share them out.

A product has two phases. The symbolic one counts the entries of each row of C, so that C can be
allocated; the numeric one fills it. Products of one pattern repeat the numeric phase alone. The
fused layer has no symbolic phase: what its epilogue drops is known only from the values.

Source: F. G. Gustavson, "Two Fast Algorithms for Sparse Matrices: Multiplication and Permuted
Transposition", ACM TOMS 4 (1978); the two phases as in Kokkos Kernels.
"""

from __future__ import annotations

import numpy as np

from portable_spdnn.sparse_arrays import common_value
from portable_spdnn_cpu.jit.compilation import Array, kernel, kernel_part
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spgemm import row_bins
from portable_spdnn_cpu.spgemm.accumulators import RowWorkspace
from portable_spdnn_cpu.spgemm.epilogue import RowSink
from portable_spdnn_cpu.spgemm.numeric import (
    add_dense,
    add_hash,
    add_sorted,
    refill_dense,
    refill_hash,
)
from portable_spdnn_cpu.spgemm.operands import CsrOperand, Product
from portable_spdnn_cpu.spgemm.row_bins import DENSE, HASH, RowBin
from portable_spdnn_cpu.spgemm.symbolic import count_bitmaps, count_dense, count_hash

COUNTED_ROWS = 1 << 10  # rows whose products a thread counts at a time


def count_products(pool: ThreadPool, A: CsrOperand, B: CsrOperand) -> Array:
    """Return the multiply-adds of each row of A B."""
    if A.indices.size >= B.indptr.size:  # else it takes longer to look at all rows of B
        length = common_value(np.diff(B.indptr))
        if length is not None:
            return np.asarray(np.diff(A.indptr) * length)
    products = np.empty(A.indptr.size - 1, np.int64)
    counter = np.zeros(1, np.int64)
    workers = row_bins.worth_sharing(pool, A.indices.size)
    workers.run(lambda thread: count_products_of_rows(counter, A, B.indptr, products))
    return products


@kernel
def count_products_of_rows(counter: Array, A: CsrOperand, B_indptr: Array, products: Array) -> None:
    """products[i] = multiply-adds of row i of A B, for all rows that the counter gives.

    Bound: the scattered reads of B's offsets, one for each entry of A.
    """
    indptr, indices = A.indptr, A.indices
    rows = products.size
    first = fetch_add(counter, 0, COUNTED_ROWS)
    while first < rows:
        for row in range(first, min(first + COUNTED_ROWS, rows)):
            count = 0
            for k in range(indptr[row], indptr[row + 1]):
                middle = indices[k]
                count += B_indptr[middle + 1] - B_indptr[middle]
            products[row] = count
        first = fetch_add(counter, 0, COUNTED_ROWS)


@kernel_part
def chunk_rows(row_bin: RowBin, chunk: int) -> Array:
    """Return the rows of a chunk; of one beyond the last, none."""
    offsets = row_bin.chunk_offsets
    last = offsets.size - 1
    return row_bin.rows[offsets[min(chunk, last)] : offsets[min(chunk + 1, last)]]


@kernel
def count_rows(
    accumulator: int,
    counter: Array,
    row_bin: RowBin,
    product: Product,
    work: RowWorkspace,
    counts: Array,
) -> None:
    """Symbolic phase: counts[i] = entries of row i of A B, for all rows that the counter gives.

    Parameters
    ----------
    accumulator : int
        DENSE or HASH.
    counter, row_bin, product, work
        As in `add_rows`; values are not read.
    counts : ndarray of int64
        Takes the result.
    """
    rows = chunk_rows(row_bin, fetch_add(counter, 0, 1))
    while rows.size:
        if accumulator == HASH:
            count_hash(rows, product, work, counts)
        elif product.B.bitmaps.size:
            count_bitmaps(rows, product, counts)
        else:
            count_dense(rows, product, work, counts)
        rows = chunk_rows(row_bin, fetch_add(counter, 0, 1))


@kernel
def add_rows(
    accumulator: int,
    counter: Array,
    row_bin: RowBin,
    product: Product,
    work: RowWorkspace,
    sink: RowSink,
    used: int,
    chunk: int,
) -> tuple[int, int]:
    """Numeric phase: write the rows of A B that the counter gives, while they fit into the sink.

    Parameters
    ----------
    accumulator : int
        DENSE, HASH or SORTED.
    counter : ndarray of int64, shape (1,)
        The number of chunks that threads have taken.
    row_bin : RowBin
        The accumulator's rows.
    product : Product
        What to compute.
    work : RowWorkspace
        For the accumulator, in this phase.
    sink : RowSink
        Takes the rows.
    used : int
        Where the first row goes, if the sink is fused.
    chunk : int
        The chunk to begin with; -1 for one that the counter gives.

    Returns
    -------
    used, chunk : int
        Where the next row goes; and the chunk that did not fit, or one beyond the last.
    """
    if chunk < 0:
        chunk = fetch_add(counter, 0, 1)
    while chunk < row_bin.capacities.size:
        if sink.fused and used + row_bin.capacities[chunk] > sink.columns.size:
            break
        rows = chunk_rows(row_bin, chunk)
        if accumulator == DENSE:
            used = add_dense(rows, product, work, sink, used)
        elif accumulator == HASH:
            used = add_hash(rows, product, work, sink, used)
        else:
            used = add_sorted(rows, product, work, sink, used)
        chunk = fetch_add(counter, 0, 1)
    return used, chunk


@kernel
def refill_rows(
    accumulator: int,
    counter: Array,
    row_bin: RowBin,
    product: Product,
    work: RowWorkspace,
    sink: RowSink,
) -> None:
    """Numeric phase where the columns are known: write the values of the rows of A B.

    Apart from `add_rows`, so that the fused layer does not wait for its compilation.

    Parameters
    ----------
    accumulator : int
        DENSE or HASH. Sorting again, 7 to 14 ns a product, is faster than looking up where
        each belongs, 13 to 15, but for rows of less than ten products.
    counter, row_bin, product, work
        As in `add_rows`.
    sink : RowSink
        Has the columns and takes the values; not fused.
    """
    rows = chunk_rows(row_bin, fetch_add(counter, 0, 1))
    while rows.size:
        if accumulator == HASH:
            refill_hash(rows, product, work, sink)
        else:
            refill_dense(rows, product, work, sink)
        rows = chunk_rows(row_bin, fetch_add(counter, 0, 1))
