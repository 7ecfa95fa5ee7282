"""Kernels of a single product with a single column of B.

They are jobs of their own: as a part of those for several columns, their loops would have too few
registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from portable_spdnn_cpu.activations import NONE
from portable_spdnn_cpu.jit.compilation import job_kernel, kernel_part
from portable_spdnn_cpu.jit.jobs import array_at, next_task
from portable_spdnn_cpu.spmm.direct.added_columns import LEAST_SHORT, add_columns
from portable_spdnn_cpu.spmm.direct.finish import begin_rows, finish_all_rows, finish_rows
from portable_spdnn_cpu.spmm.direct.job_words import (
    ACTIVATION,
    COUNTERS,
    ENTRIES,
    HAS_EPILOGUE,
    INDPTR,
    REFUSED,
    ROWS,
    TASKS,
    WORKERS,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.direct.measured_form import (
    FORM,
    HAS_RUNS,
    PREDICTED,
    is_new,
    note_product,
    slot_of,
    start_time,
)
from portable_spdnn_cpu.spmm.direct.microkernels import (
    CSR,
    EQUAL_CSC,
    EQUAL_CSR,
    FILLED_CSR,
    PREDICTED_CSR,
    multiply_apart,
)
from portable_spdnn_cpu.spmm.direct.unrolled import MOST_EQUAL

# Rows or columns that are looked at together: whether they all have as many entries, as nearly all
# of a band or a stencil have.
RUN = 32
# At most one of so many rows or columns may be uneven. Of many, SAMPLES are looked at, of SAMPLE
# that follow each other.
EVEN_FOR_ONE_UNEVEN, SAMPLES, SAMPLE = 8, 16, 32


@job_kernel
def multiply_csr(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    """Compute C: by tasks, each some rows, until none is left or A is refused."""
    rows, tasks, has_epilogue = words[ROWS], words[TASKS], words[HAS_EPILOGUE]
    slot = slot_of(words[INDPTR], words[ENTRIES])
    if worker == 0 and not has_epilogue and is_new(slot):
        slot[FORM] = are_even(words, rows, 0, index_dtype)
        slot[HAS_RUNS] = has_runs(words, rows, index_dtype)
    predicted, runs, started = slot[FORM] == PREDICTED, slot[HAS_RUNS] == 1, start_time(slot)
    while not words[REFUSED]:
        task = next_task(words, COUNTERS, worker, words[WORKERS], tasks)
        if task < 0:
            break
        begin, end = task * rows // tasks, (task + 1) * rows // tasks
        if not multiply_rows(words, begin, end, predicted, runs, dtype, index_dtype):
            words[REFUSED] = 1
            break
        if has_epilogue and words[ACTIVATION] != NONE:
            finish_rows(words, begin, end, dtype)
    if worker == 0 and not words[REFUSED] and not has_epilogue:
        note_product(slot, started)


@kernel_part
def multiply_rows(
    words: Any, begin: int, end: int, predicted: bool, runs: bool, dtype: Any, index_dtype: Any
) -> Any:
    """Multiply rows begin .. end - 1 of CSR; returns false where an index is beyond B."""
    if words[HAS_EPILOGUE]:
        return multiply_apart(CSR, words, begin, end, dtype, index_dtype)
    valid, indptr = True, array_at(words[INDPTR], end + 1, index_dtype)
    entries, rows = indptr[end] - indptr[begin], end - begin
    if entries < rows and (predicted or LEAST_SHORT * entries < rows):
        return multiply_apart(FILLED_CSR, words, begin, end, dtype, index_dtype)
    while valid and begin < end:
        after, equal = run_of(words, begin, end, index_dtype) if runs else (end, False)
        if equal:
            valid = multiply_apart(EQUAL_CSR, words, begin, after, dtype, index_dtype)
        elif predicted:
            valid = multiply_apart(PREDICTED_CSR, words, begin, after, dtype, index_dtype)
        else:
            valid = multiply_apart(CSR, words, begin, after, dtype, index_dtype)
        begin = after
    return valid


@kernel_part
def has_runs(words: Any, extent: int, index_dtype: Any) -> bool:
    """Whether RUN rows, or columns in CSC, of so many all have as many entries.

    Where there are more of them than entries, that is not looked for.
    """
    if words[ENTRIES] < extent:
        return False
    for begin in range(0, max(1, extent - RUN + 1), RUN):
        if are_equal(words, begin, min(begin + RUN, extent), index_dtype):
            return True
    return False


@kernel_part
def run_of(words: Any, begin: int, limit: int, index_dtype: Any) -> Any:
    """Return where a run of rows, or columns in CSC, ends, in steps of RUN; and if it is equal."""
    end = min(begin + RUN, limit)
    equal = are_equal(words, begin, end, index_dtype)
    while end < limit:
        # With the last one before, whose length others of the run are to have.
        first, after = end - 1 if equal else end, min(end + RUN, limit)
        if are_equal(words, first, after, index_dtype) != equal:
            break
        end = after
    return end, equal


@kernel_part
def are_equal(words: Any, begin: int, end: int, index_dtype: Any) -> bool:
    """Whether rows, or columns in CSC, all have as many entries, at most MOST_EQUAL."""
    if end <= begin:
        return False
    indptr = array_at(words[INDPTR], end + 1, index_dtype)
    length, together = indptr[begin + 1] - indptr[begin], indptr[end] - indptr[begin]
    # Others rarely have as many together as if all were like the first.
    if length > MOST_EQUAL or (end - begin) * length != together:
        return False
    if together == 0:
        return True
    one, differ = np.uint64(1), np.int64(0)
    for number in range(np.uint64(begin), np.uint64(end)):  # unsigned: see `added_columns`
        differ |= (indptr[number + one] - indptr[number]) ^ length
    return bool(differ == 0)


@kernel_part
def are_even(words: Any, extent: int, tolerance: int, index_dtype: Any) -> bool:
    """Whether nearly all of so many rows, or columns in CSC, are as long as the one before.

    Give or take `tolerance` entries; samples tell. As in bands, a processor then predicts where
    they end.
    """
    indptr = array_at(words[INDPTR], extent + 1, index_dtype)
    one, uneven, seen = np.uint64(1), np.uint64(0), np.uint64(0)
    for start in range(1, extent, max(SAMPLE, extent // SAMPLES)):
        stop = min(start + SAMPLE, extent)
        seen += np.uint64(stop - start)
        for number in range(np.uint64(start), np.uint64(stop)):  # unsigned: see `are_equal`
            more = indptr[number + one] - 2 * indptr[number] + indptr[number - one]
            uneven += np.uint64((more < -tolerance) | (more > tolerance))
    return bool(uneven * np.uint64(EVEN_FOR_ONE_UNEVEN) <= seen)


@job_kernel
def multiply_csc(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    """Compute C, by one worker."""
    begin_rows(words, dtype)
    k, entries = words[K], words[ENTRIES]
    slot, begin, valid = slot_of(words[INDPTR], entries), 0, True
    if is_new(slot):
        slot[FORM] = entries >= k and are_even(words, k, 1, index_dtype)
        slot[HAS_RUNS] = has_runs(words, k, index_dtype)
    predicted, runs, started = slot[FORM] == PREDICTED, slot[HAS_RUNS] == 1, start_time(slot)
    while valid and begin < k:
        end, equal = run_of(words, begin, k, index_dtype) if runs else (k, False)
        if equal:
            valid = multiply_apart(EQUAL_CSC, words, begin, end, dtype, index_dtype)
        else:
            valid = add_columns(words, begin, end, predicted, dtype, index_dtype)
        begin = end
    if valid:
        note_product(slot, started)
        finish_all_rows(words, dtype)
    else:
        words[REFUSED] = 1
