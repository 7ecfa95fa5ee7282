"""Kernels of a single product with a single column of B.

They are jobs of their own: as a part of those for several columns, their loops would have too few
registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from portable_spdnn_cpu.activations import NONE
from portable_spdnn_cpu.jit.compilation import Array, job_kernel, kernel_part
from portable_spdnn_cpu.jit.intrinsics import prefetch, stay_apart, store_repeated
from portable_spdnn_cpu.jit.jobs import array_at, next_task
from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS, cpu_name
from portable_spdnn_cpu.spmm.direct.finish import begin_rows, finish_all_rows, finish_rows
from portable_spdnn_cpu.spmm.direct.history import OF_LONG, REMEMBERED, multiplied_since
from portable_spdnn_cpu.spmm.direct.job_words import (
    ACTIVATION,
    COUNTERS,
    ENTRIES,
    HAS_EPILOGUE,
    INDICES,
    INDPTR,
    OUT,
    REFUSED,
    ROWS,
    TASKS,
    VALUES,
    WORKERS,
    B,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.direct.microkernels import (
    CSC,
    CSR,
    EQUAL_CSC,
    EQUAL_CSR,
    FILLED_CSC,
    FILLED_CSR,
    PREDICTED_CSR,
    multiply,
)
from portable_spdnn_cpu.spmm.direct.predicted import CHECKS_AHEAD
from portable_spdnn_cpu.spmm.direct.sparse_microkernel import AHEAD
from portable_spdnn_cpu.spmm.direct.unrolled import MOST_EQUAL

BLOCK_ENTRIES = 512  # that are added together
# Rows or columns that are looked at together: whether they all have as many entries, as nearly all
# of a band or a stencil have.
RUN = 32
# Items of B that are written for a column without a loop, as many as a tuple has numbers (of which
# its type tells, so that they are a constant for Numba), and up to how many entries in a column on
# average. From one entry in LEAST_SHORT columns to MOST_SHORT in each that takes less time than a
# loop for each column, where ends are not predicted, as measured on a Zen 5.
EIGHT, SIXTEEN, MANY = (0,) * 8, (0,) * 16, (0,) * 32
LEAST_SHORT, MOST_OF_EIGHT, MOST_OF_SIXTEEN, MOST_SHORT = 2, 3, 11, 20
# Rows of at most so many entries on average, and of one in LEAST_SHORT rows at least, have a branch
# after each entry where their ends are predicted: on a Zen 3, whose figure all without fast masks
# get, that takes 0.9 of the time of blocks, on a Zen 5 0.75 to 0.95. 0: not measured.
MOST_PREDICTED = 32 if not HAS_FAST_MASKS else 4 if cpu_name() == "znver5" else 0
# At most one of so many rows or columns may be uneven. Of many, SAMPLES are looked at, of SAMPLE
# that follow each other.
EVEN_FOR_ONE_UNEVEN, SAMPLES, SAMPLE = 8, 16, 32


@job_kernel
def multiply_csr(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    """Compute C: by tasks, each some rows, until none is left or A is refused."""
    rows, tasks = words[ROWS], words[TASKS]
    predicted = False
    if MOST_PREDICTED and words[WORKERS] == 1 and not words[HAS_EPILOGUE]:
        predicted = multiplied_since(words[INDPTR], rows, words[ENTRIES]) <= REMEMBERED
    while not words[REFUSED]:
        task = next_task(words, COUNTERS, worker, words[WORKERS], tasks)
        if task < 0:
            break
        begin, end = task * rows // tasks, (task + 1) * rows // tasks
        if not multiply_rows(words, begin, end, predicted, dtype, index_dtype):
            words[REFUSED] = 1
            break
        if words[HAS_EPILOGUE] and words[ACTIVATION] != NONE:
            finish_rows(words, begin, end, dtype)


@kernel_part
def multiply_rows(
    words: Any, begin: int, end: int, predicted: bool, dtype: Any, index_dtype: Any
) -> Any:
    """Multiply rows begin .. end - 1 of CSR; returns false where an index is beyond B."""
    if words[HAS_EPILOGUE]:
        return multiply_apart(CSR, words, begin, end, dtype, index_dtype)
    valid, indptr = True, array_at(words[INDPTR], end + 1, index_dtype)
    if LEAST_SHORT * (indptr[end] - indptr[begin]) < end - begin:
        return multiply_apart(FILLED_CSR, words, begin, end, dtype, index_dtype)
    while valid and begin < end:
        after, equal = run_of(words, begin, end, index_dtype)
        lines, here = after - begin, indptr[after] - indptr[begin]
        is_short = lines <= LEAST_SHORT * here and here <= MOST_PREDICTED * lines
        if equal:
            valid = multiply_apart(EQUAL_CSR, words, begin, after, dtype, index_dtype)
        elif (
            MOST_PREDICTED
            and is_short
            and (predicted or are_even(words, begin, after, 0, index_dtype))
        ):
            valid = multiply_apart(PREDICTED_CSR, words, begin, after, dtype, index_dtype)
        else:
            valid = multiply_apart(CSR, words, begin, after, dtype, index_dtype)
        begin = after
    return valid


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
    for number in range(np.uint64(begin), np.uint64(end)):  # unsigned: see `add_short_columns`
        differ |= (indptr[number + one] - indptr[number]) ^ length
    return bool(differ == 0)


@kernel_part
def are_even(words: Any, begin: int, end: int, tolerance: int, index_dtype: Any) -> bool:
    """Whether nearly all rows, or columns in CSC, have as many entries as the one before.

    Give or take `tolerance`; samples tell. A processor then predicts where they end, as in bands;
    where it does not, that costs less than it saves elsewhere, as measured on a Zen 3.
    """
    indptr = array_at(words[INDPTR], end + 1, index_dtype)
    one, uneven, seen = np.uint64(1), np.uint64(0), np.uint64(0)
    apart = max(SAMPLE, (end - begin) // SAMPLES)
    for start in range(begin + 1, end, apart):
        stop = min(start + SAMPLE, end)
        seen += np.uint64(stop - start)
        for number in range(np.uint64(start), np.uint64(stop)):  # see `add_short_columns`
            more = indptr[number + one] - 2 * indptr[number] + indptr[number - one]
            uneven += np.uint64((more < -tolerance) | (more > tolerance))
    return bool(uneven * np.uint64(EVEN_FOR_ONE_UNEVEN) <= seen)


@kernel_part
def multiply_apart(
    form: tuple[int, ...], words: Any, begin: int, end: int, dtype: Any, index_dtype: Any
) -> Any:
    """Multiply by a microkernel; returns false where an index is beyond the array it is of.

    As parts of a larger function its loops would have too few registers.
    """
    stay_apart()
    return multiply(form, 0, 0, dtype, index_dtype, words, begin, end, 0, 1)


@job_kernel
def multiply_csc(worker: int, words: Any, dtype: Any, index_dtype: Any) -> None:
    """Compute C, by one worker."""
    begin_rows(words, dtype)
    entries, k = words[ENTRIES], words[K]
    indptr = array_at(words[INDPTR], k + 1, index_dtype)
    since = multiplied_since(words[INDPTR], k, entries)
    begin, valid = 0, True
    if LEAST_SHORT * entries < k:  # runs are not looked for
        valid = multiply_apart(FILLED_CSC, words, 0, k, dtype, index_dtype)
        begin = k
    while valid and begin < k:
        end, equal = run_of(words, begin, k, index_dtype)
        if equal:
            valid = multiply_apart(EQUAL_CSC, words, begin, end, dtype, index_dtype)
            begin = end
            continue
        columns, here = end - begin, indptr[end] - indptr[begin]
        is_short = columns <= LEAST_SHORT * here and here <= MOST_SHORT * columns
        average = here // columns
        predicted = since <= REMEMBERED + OF_LONG * average * average
        if predicted or not is_short or are_even(words, begin, end, 1, index_dtype):
            valid = add_columns(words, begin, end, dtype, index_dtype)
        elif here <= MOST_OF_EIGHT * columns:
            valid = add_short_columns(words, begin, end, EIGHT, dtype, index_dtype)
        elif here <= MOST_OF_SIXTEEN * columns:
            valid = add_short_columns(words, begin, end, SIXTEEN, dtype, index_dtype)
        else:
            valid = add_short_columns(words, begin, end, MANY, dtype, index_dtype)
        begin = end
    if valid:
        finish_all_rows(words, dtype)
    else:
        words[REFUSED] = 1


@kernel_part
def add_columns(words: Any, begin: int, end: int, dtype: Any, index_dtype: Any) -> Any:
    """Add columns begin .. end - 1 of A to C, each times its item of B.

    Returns false where an index is not below the rows of C; offsets were checked before.
    """
    if CHECKS_AHEAD:
        indptr = array_at(words[INDPTR], words[K] + 1, index_dtype)
        indices = array_at(words[INDICES], words[ENTRIES], index_dtype)
        first, last = np.uint64(indptr[begin]), np.uint64(indptr[end])
        if not are_below(indices, first, last, np.uint64(words[ROWS])):
            return False
    return multiply_apart(CSC, words, begin, end, dtype, index_dtype)


@kernel_part
def are_below(indices: Array, first: Any, stop: Any, extent: Any) -> bool:
    """Whether indices `first` .. `stop` - 1 are from 0 to `extent` - 1."""
    beyond: np.bool_ = np.bool_(False)
    for entry in range(first, stop):
        beyond |= np.uint64(indices[entry]) >= extent
    return bool(not beyond)


@kernel_part
def add_short_columns(
    words: Any, begin: int, until: int, written: tuple[int, ...], dtype: Any, index_dtype: Any
) -> bool:
    """Do what `add_columns` does, where a processor does not predict how long a column is.

    First an item of B is written for each entry of its column of A, as many at once as `written`
    has numbers, of which those of the next column overwrite what is too many; then the entries of
    many columns are added in one loop.
    """
    stay_apart()
    k = words[K]
    indptr = array_at(words[INDPTR], k + 1, index_dtype)
    indices = array_at(words[INDICES], words[ENTRIES], index_dtype)
    values = array_at(words[VALUES], words[ENTRIES], dtype)
    x, C = array_at(words[B], k, dtype), array_at(words[OUT], words[ROWS], dtype)
    items = np.empty(BLOCK_ENTRIES + len(written), dtype)
    # Unsigned: of a signed index Numba asks at each use whether it counts from the end.
    one, most, at_once = np.uint64(1), np.uint64(BLOCK_ENTRIES), np.uint64(len(written))
    column, columns = np.uint64(begin), np.uint64(until)
    while column < columns:
        base = np.uint64(indptr[column])
        first, end = np.uint64(0), column
        while end < columns:
            stop = np.uint64(indptr[end + one]) - base
            if stop > most:
                break
            item = x[end]
            store_repeated(items, first, item, written)
            for place in range(first + at_once, stop):
                items[place] = item
            first = stop
            end += one
        if end > column:
            if not add_entries(indices, values, items, base, first, C):
                return False
            column = end
            continue
        # A column of more entries, in parts.
        items[:] = x[column]
        last = np.uint64(indptr[column + one])
        while base < last:
            count = min(most, last - base)
            if not add_entries(indices, values, items, base, count, C):
                return False
            base += count
        column += one
    return True


@kernel_part
def add_entries(
    indices: Array, values: Array, items: Array, first: Any, count: Any, C: Array
) -> bool:
    """Add so many entries from `first` on to C, each times its item of B; all are unsigned."""
    extent = np.uint64(C.size)
    for number in range(count):
        entry = first + number
        prefetch(values, entry + AHEAD)
        prefetch(indices, entry + AHEAD)
        row = np.uint64(indices[entry])
        if row >= extent:
            return False
        C[row] += values[entry] * items[number]
    return True
