"""Kernels of a single product with two or more columns of B, in panels or entry by entry.

Threads share rows of A in CSR.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import job_kernel, kernel_part
from portable_spdnn_cpu.jit.jobs import array_at, next_task
from portable_spdnn_cpu.layout.large_results import NONTEMPORAL_BYTES, store_fence
from portable_spdnn_cpu.spmm.direct.by_rows import multiply_and_finish, multiply_each_entry
from portable_spdnn_cpu.spmm.direct.choice import CSC_BYTES
from portable_spdnn_cpu.spmm.direct.columns import PASSED_OVER
from portable_spdnn_cpu.spmm.direct.copies import (
    columns_into_rows,
    into_columns,
    into_rows,
    row_bytes,
    rows_together,
    takes_whole_rows,
)
from portable_spdnn_cpu.spmm.direct.finish import begin_rows, finish_all_rows
from portable_spdnn_cpu.spmm.direct.job_words import (
    B_ROW,
    COLUMNS,
    COUNTERS,
    ENTRIES,
    HELD,
    INDICES,
    INDPTR,
    OUT,
    OUT_BYTES,
    OUT_FORTRAN,
    OUT_ROW,
    REFUSED,
    ROWS,
    TASKS,
    VALUES,
    WORKERS,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.direct.job_words import B as B_AT
from portable_spdnn_cpu.spmm.direct.microkernels import (
    CSC,
    CSC_VECTOR,
    ENTRIES_CSC,
    multiply,
    multiply_panel,
)
from portable_spdnn_cpu.spmm.row_ends import adds_each_entry
from portable_spdnn_cpu.spmm.transposes import load_columns, store_columns

_adds_each_entry = kernel_part(adds_each_entry)


@job_kernel
def multiply_csr(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    """Compute C: by tasks, each some rows, until none is left or A is refused."""
    scratch = columns_into_rows(words, False, dtype, index_dtype)
    if words[OUT_FORTRAN]:
        multiply_into_columns(words, scratch, dtype, index_dtype)
        return
    rows, tasks = words[ROWS], words[TASKS]
    while not words[REFUSED]:
        task = next_task(words, COUNTERS, worker, words[WORKERS], tasks)
        if task < 0:
            break
        begin, end = task * rows // tasks, (task + 1) * rows // tasks
        if not multiply_and_finish(words, begin, end, dtype, index_dtype):
            words[REFUSED] = 1  # others may see that late; what they compute is discarded
            break
    if words[OUT_BYTES] >= NONTEMPORAL_BYTES:
        store_fence()


@kernel_part
def multiply_into_columns(words: Any, address: int, dtype: Any, index_dtype: Any) -> None:
    """Compute C in Fortran order, by one worker: some rows at a time are written at an address."""
    itemsize, rows, n = array_at(0, 1, dtype).itemsize, words[ROWS], words[COLUMNS]
    out, apart, whole = words[OUT], words[OUT_ROW] // itemsize, row_bytes(n, itemsize)
    # Else a masked store of a row would hold up the load of the residual of the next.
    row = whole if words[HELD] else n * itemsize
    words[OUT_ROW], together, width = row, rows_together(whole), row // itemsize
    for begin in range(0, rows, together):
        end = min(begin + together, rows)
        words[OUT] = address - begin * row  # row `begin` is the first in memory
        if words[HELD]:
            words[HELD] = words[OUT]
            load_columns(out, apart, address, width, width, begin, end, n, dtype)
        if not multiply_and_finish(words, begin, end, dtype, index_dtype):
            words[REFUSED] = 1
            return
        store_columns(
            out, apart, words[OUT], width, begin, end, n, n * apart * itemsize, dtype
        )  # fmt: skip


@job_kernel
def multiply_csc(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    """Compute C, by one worker."""
    itemsize = array_at(0, 1, dtype).itemsize
    out, out_row = words[OUT], words[OUT_ROW]
    scratch = columns_into_rows(words, True, dtype, index_dtype)
    entries, rows, k, n = words[ENTRIES], words[ROWS], words[K], words[COLUMNS]
    if takes_whole_rows(entries, rows, k, n, itemsize, words[OUT_FORTRAN]):
        begin_rows(words, dtype)
        valid = multiply_whole_rows(words, dtype, index_dtype)
    else:
        out, out_row = into_rows(words, scratch, dtype)
        valid = multiply_by_columns(words, dtype, index_dtype)
    if not valid:
        words[REFUSED] = 1
        return
    finish_all_rows(words, dtype)
    into_columns(words, out, out_row, dtype)


@kernel_part
def multiply_whole_rows(words: Any, dtype: Any, index_dtype: Any) -> bool:
    """Add the product of A and B to C, which `begin_rows` has begun, row of B by row.

    Returns false where an index is not below the rows of C; offsets were checked before.
    """
    rows, k, columns = words[ROWS], words[K], words[COLUMNS]
    indptr = array_at(words[INDPTR], k + 1, index_dtype)
    indices = array_at(words[INDICES], words[ENTRIES], index_dtype)
    values = array_at(words[VALUES], words[ENTRIES], dtype)
    C = array_at(words[OUT], (rows, columns), dtype)
    extent = np.uint64(rows)
    one, end = np.uint64(1), np.uint64(k)  # unsigned: see `added_columns`
    together, column = np.uint64(PASSED_OVER), np.uint64(0)
    while column < end:
        after = min(column + together, end)
        if indptr[column] == indptr[after]:
            column = after  # none of these has an entry
        while column < after:
            first, stop = np.uint64(indptr[column]), np.uint64(indptr[column + one])
            if first < stop:
                at = words[B_AT] + np.int64(column) * words[B_ROW]
                source = array_at(at, columns, dtype)
                for entry in range(first, stop):
                    row, value = np.uint64(indices[entry]), values[entry]
                    if row >= extent:
                        return False
                    target = C[row]
                    for place in range(columns):
                        target[place] += value * source[place]
            column += one
    return True


@kernel_part
def multiply_by_columns(words: Any, item: Any, index: Any) -> Any:
    """Multiply all columns of CSC by all columns of B, at least two: in panels, or entry by entry.

    Vectors have 32 bytes where a panel has few, and on a Zen 4 in all: rows of C rarely start on
    cache lines, and a store across two lines is forwarded late, or not at all, to loads of what it
    wrote.
    """
    itemsize = array_at(0, 1, item).itemsize
    lanes, k, n = CSC_VECTOR // itemsize, words[K], words[COLUMNS]
    if _adds_each_entry(words[ENTRIES], k, n * itemsize):
        return multiply_each_entry(ENTRIES_CSC, words, 0, k, n, item, index)
    if n * itemsize < 16:
        return multiply(CSC, 1, 8, item, index, words, 0, k, 0, n)
    if n * itemsize < 32:
        return multiply(CSC, 1, 16, item, index, words, 0, k, 0, n)
    valid, first = True, 0
    while first < n:
        width = min(n - first, CSC_BYTES // itemsize)
        if 0 < n - first - width < lanes:
            width -= lanes  # the last panel is to fill a vector
        valid &= multiply_panel(CSC, item, index, words, 0, k, first, width)
        first += width
    return valid
