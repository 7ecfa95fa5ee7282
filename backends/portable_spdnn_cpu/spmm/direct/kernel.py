"""Kernels of a single product with two or more columns of B, in panels or entry by entry.

Threads share rows of A in CSR.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import job_kernel, kernel_part
from portable_spdnn_cpu.jit.jobs import (
    array_at,
    call_code,
    call_code_for_integer,
    code_address,
    next_task,
    pointer_at,
)
from portable_spdnn_cpu.layout.large_results import NONTEMPORAL_BYTES, store_fence
from portable_spdnn_cpu.spmm.direct.by_rows import multiply_and_finish
from portable_spdnn_cpu.spmm.direct.choice import CSC_BYTES
from portable_spdnn_cpu.spmm.direct.code_table import (
    BEGIN_ROWS,
    CSC_VECTOR,
    EACH_ENTRY,
    FEW_COLUMNS,
    FINISH_ROWS,
    LOAD_COLUMNS,
    PANELS,
    STORE_COLUMNS,
    WHOLE_ROWS,
    code_of,
    panel_width_part,
)
from portable_spdnn_cpu.spmm.direct.columns import PASSED_OVER
from portable_spdnn_cpu.spmm.direct.copies import (
    columns_into_rows,
    into_columns,
    into_rows,
    row_bytes,
    rows_together,
    takes_whole_rows,
)
from portable_spdnn_cpu.spmm.direct.job_words import (
    B_ROW,
    COLUMNS,
    COUNTERS,
    ENTRIES,
    HELD,
    INDICES,
    INDPTR,
    ITEM,
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
from portable_spdnn_cpu.spmm.row_ends import adds_each_entry

_adds_each_entry = kernel_part(adds_each_entry)


@job_kernel
def multiply_csr(worker: int, words: Any, index_dtype: Any) -> None:
    """Compute C: by tasks, each some rows, until none is left or A is refused."""
    scratch = columns_into_rows(words)
    if words[OUT_FORTRAN]:
        multiply_into_columns(words, scratch, index_dtype)
        return
    rows, tasks = words[ROWS], words[TASKS]
    while not words[REFUSED]:
        task = next_task(words, COUNTERS, worker, words[WORKERS], tasks)
        if task < 0:
            break
        begin, end = task * rows // tasks, (task + 1) * rows // tasks
        if not multiply_and_finish(words, begin, end, index_dtype):
            words[REFUSED] = 1  # others may see that late; what they compute is discarded
            break
    if words[OUT_BYTES] >= NONTEMPORAL_BYTES:
        store_fence()


@kernel_part
def multiply_into_columns(words: Any, address: int, index_dtype: Any) -> None:
    """Compute C in Fortran order, by one worker: some rows at a time are written at an address."""
    itemsize, rows, n = words[ITEM], words[ROWS], words[COLUMNS]
    out, apart, whole = words[OUT], words[OUT_ROW] // itemsize, row_bytes(n, itemsize)
    # Else a masked store of a row would hold up the load of the residual of the next.
    row = whole if words[HELD] else n * itemsize
    words[OUT_ROW], together, width = row, rows_together(whole), row // itemsize
    for begin in range(0, rows, together):
        end = min(begin + together, rows)
        words[OUT] = address - begin * row  # row `begin` is the first in memory
        if words[HELD]:
            words[HELD] = words[OUT]
            copied = out, apart, address, width, width, begin, end, n
            call_code(code_of(words, LOAD_COLUMNS), copied)
        if not multiply_and_finish(words, begin, end, index_dtype):
            words[REFUSED] = 1
            return
        written = out, apart, words[OUT], width, begin, end, n, n * apart * itemsize
        call_code(code_of(words, STORE_COLUMNS), written)


@job_kernel
def multiply_csc(worker: int, words: Any) -> None:
    """Compute C, by one worker."""
    itemsize = words[ITEM]
    out, out_row = words[OUT], words[OUT_ROW]
    scratch = columns_into_rows(words)
    entries, rows, k, n = words[ENTRIES], words[ROWS], words[K], words[COLUMNS]
    if takes_whole_rows(entries, rows, k, n, itemsize, words[OUT_FORTRAN]):
        call_code(code_of(words, BEGIN_ROWS), (words,))
        valid = call_code_for_integer(code_of(words, WHOLE_ROWS), (words,)) != 0
    else:
        out, out_row = into_rows(words, scratch)
        valid = multiply_by_columns(words)
    if not valid:
        words[REFUSED] = 1
        return
    call_code(code_of(words, FINISH_ROWS), (words,))
    into_columns(words, out, out_row)


@functools.cache
def whole_rows_code(dtype: np.dtype[Any], index_dtype: np.dtype[Any]) -> int:
    """Return the address of `multiply_whole_rows` for `call_code_for_integer`."""
    return code_address(multiply_whole_rows, "i", dtype.type, index_dtype.type, returns=True)


@job_kernel
def multiply_whole_rows(address: int, dtype: Any, index_dtype: Any) -> int:
    """Add the product of A and B to C, which `begin_rows` has begun, row of B by row.

    The words of the job are at `address`. Returns 0 where an index is not below the rows of C;
    offsets were checked before.
    """
    words = pointer_at(address, np.int64)
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
                        return 0
                    target = C[row]
                    for place in range(columns):
                        target[place] += value * source[place]
            column += one
    return 1


@kernel_part
def multiply_by_columns(words: Any) -> bool:
    """Multiply all columns of CSC by all columns of B, at least two: in panels, or entry by entry.

    What vectors panels have `code_table` says.
    """
    itemsize, k, n = words[ITEM], words[K], words[COLUMNS]
    code = code_of(words, FEW_COLUMNS)
    if _adds_each_entry(words[ENTRIES], k, n * itemsize):
        code = code_of(words, EACH_ENTRY)
    if code:
        return bool(call_code_for_integer(code, (words, 0, k, 0, n)))
    lanes, valid, first = CSC_VECTOR // itemsize, 1, 0
    while first < n:
        width = panel_width_part(n - first, CSC_BYTES // itemsize, lanes)
        panel = code_of(words, PANELS + width // lanes)
        valid &= call_code_for_integer(panel, (words, 0, k, first, width))
        first += width
    return valid != 0
