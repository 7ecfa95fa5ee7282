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
from portable_spdnn_cpu.spmm.direct.added_columns import add_columns
from portable_spdnn_cpu.spmm.direct.choice import MOSTLY_EMPTY
from portable_spdnn_cpu.spmm.direct.finish import (
    begin_rows,
    finish_all_rows,
    finish_rows,
    finish_sums,
)
from portable_spdnn_cpu.spmm.direct.job_words import (
    ACTIVATION,
    COUNTERS,
    ENTRIES,
    FINISHES_LATER,
    HAS_EPILOGUE,
    INDPTR,
    REFUSED,
    ROWS,
    TASKS,
    WORKERS,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.direct.measured_form import (
    BY_BRANCHES,
    FORM,
    HAS_RUNS,
    begins_trial,
    is_new,
    note_product,
    slot_of,
    start_time,
)
from portable_spdnn_cpu.spmm.direct.microkernels import (
    CSR,
    EQUAL_CSC,
    EQUAL_CSR,
    NONEMPTY_CSR,
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
    # Rows that are finished one by one have one form alone.
    is_first = worker == 0 and not has_epilogue
    slot = slot_of(words[INDPTR], words[ENTRIES], is_first)
    if is_first and begins_trial(slot):
        note_lengths(slot, words, rows, 0, index_dtype)
    form, runs, started = slot[FORM], slot[HAS_RUNS], start_time(slot) if is_first else 0
    while not words[REFUSED]:
        task = next_task(words, COUNTERS, worker, words[WORKERS], tasks)
        if task < 0:
            break
        begin, end = task * rows // tasks, (task + 1) * rows // tasks
        if not multiply_rows(words, begin, end, form == BY_BRANCHES, runs, dtype, index_dtype):
            words[REFUSED] = 1
            break
        if words[FINISHES_LATER]:
            finish_sums(words, begin, end, dtype)
        elif has_epilogue and words[ACTIVATION] != NONE:
            finish_rows(words, begin, end, dtype)
    if is_first and not words[REFUSED]:
        note_product(slot, form, started)


@kernel_part
def note_lengths(slot: Any, words: Any, extent: int, tolerance: int, index_dtype: Any) -> None:
    """Note what the lengths of rows 0 .. extent - 1 of A, or of columns in CSC, suggest.

    A new matrix is first multiplied by branches where they are even, but not in runs.
    """
    is_filled = words[ENTRIES] >= extent
    slot[HAS_RUNS] = is_filled and has_runs(words, extent, index_dtype)
    if is_new(slot) and is_filled and not slot[HAS_RUNS]:
        slot[FORM] = BY_BRANCHES if are_even(words, extent, tolerance, index_dtype) else 0


@kernel_part
def multiply_rows(
    words: Any, begin: int, end: int, by_branches: bool, runs: int, dtype: Any, index_dtype: Any
) -> Any:
    """Multiply rows begin .. end - 1 of CSR; returns false where an index is beyond B.

    `by_branches` is whether there is one where each row ends, `runs` whether to look for runs of
    rows that have as many entries each.
    """
    if words[HAS_EPILOGUE]:
        return multiply_apart(CSR, words, begin, end, dtype, index_dtype)
    indptr = array_at(words[INDPTR], end + 1, index_dtype)
    entries, rows = indptr[end] - indptr[begin], end - begin
    if MOSTLY_EMPTY * entries < rows or (by_branches and entries < rows):
        return multiply_apart(NONEMPTY_CSR, words, begin, end, dtype, index_dtype)
    if by_branches:
        return multiply_apart(PREDICTED_CSR, words, begin, end, dtype, index_dtype)
    valid = True
    while valid and begin < end:
        after, equal = run_of(words, begin, end, index_dtype) if runs else (end, False)
        if equal:
            valid = multiply_apart(EQUAL_CSR, words, begin, after, dtype, index_dtype)
        else:
            valid = multiply_apart(CSR, words, begin, after, dtype, index_dtype)
        begin = after
    return valid


@kernel_part
def has_runs(words: Any, extent: int, index_dtype: Any) -> bool:
    """Whether RUN rows that follow each other, or columns in CSC, all have as many entries."""
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
    k, begin, valid = words[K], 0, True
    slot = slot_of(words[INDPTR], words[ENTRIES], True)
    if begins_trial(slot):
        note_lengths(slot, words, k, 1, index_dtype)
    form, started = slot[FORM], start_time(slot)
    looks_for_runs = form != BY_BRANCHES and slot[HAS_RUNS]
    while valid and begin < k:
        end, equal = run_of(words, begin, k, index_dtype) if looks_for_runs else (k, False)
        if equal:
            valid = multiply_apart(EQUAL_CSC, words, begin, end, dtype, index_dtype)
        else:
            valid = add_columns(words, begin, end, form == BY_BRANCHES, dtype, index_dtype)
        begin = end
    if valid:
        note_product(slot, form, started)
        finish_all_rows(words, dtype)
    else:
        words[REFUSED] = 1
