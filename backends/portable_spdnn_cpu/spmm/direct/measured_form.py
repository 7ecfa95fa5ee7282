"""Which of two kernels takes less time for a matrix, by the time of its last products.

With a single column of B there is a kernel with a branch where each row or column of A ends, the
faster one where a processor predicts these branches, and one with few branches. What a processor
predicts depends on A, on what else it ran since, and on its make: so products are timed.

A table in each job holds what the last products of a matrix took, by the address of its offsets.
Now and then the other kernel is tried. Both give the same C, to the bit: so threads share the table
without a lock, and where it is wrong a product only takes longer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from portable_spdnn_cpu.jit.atomics import nanoseconds
from portable_spdnn_cpu.jit.compilation import Array, Emission, intrinsic, kernel_part
from portable_spdnn_cpu.jit.jobs import array_at

SLOT_BITS = 12
# Matrices: two of them share a slot, and forget each other, with a chance of 1 in so many.
SLOTS = 1 << SLOT_BITS
# Words of a slot, 0 at first.
MATRIX = 0  # which it is of
FORM = 1  # the kernel in use: PREDICTED, with a branch where each row or column ends, or 0
PRODUCTS = 2  # of this round, below 0 before the first that is timed
LEAST = 3  # nanoseconds that a product of this round took
TIMES = 4  # LEAST of the last round of form 0, and in the next word of form 1; 0: there was none
ROUNDS = 6  # since it is settled that the form stays; 0 and below while it is tried
HAS_RUNS = 7  # for `vectors`: whether some rows or columns that follow each other are equal
INTERVAL = 8  # rounds until the other form is tried; below 0 while it is
WORDS = 9
PREDICTED = 1
# A round ends with TIMED products that are timed, of a form that is tried without others before.
TIMED, UNTIMED = 4, 60
LEAST_INTERVAL, MOST_INTERVAL = 4, 64  # twice as long after each trial that changes nothing
# While the predicted form is tried, a processor may yet learn branches though it became no faster
# in so many rounds, if it takes less than HOPELESS times as long as the other: those of 20,000
# columns take a Zen 5 up to a hundred products.
PATIENCE, HOPELESS = 24, 2
LEAST_GAIN = 64  # a time is less where it is less by more than one part in so many


@kernel_part
def slot_of(indptr: int, entries: int) -> Array:
    """Return the slot of a matrix, by the address of its offsets: zeros if it was another's."""
    # Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4): the upper bits.
    multiplier = np.uint64(0x9E3779B97F4A7C15)
    matrix = np.uint64(indptr) ^ (np.uint64(entries) * multiplier)
    place = np.int64((matrix * multiplier) >> np.uint64(64 - SLOT_BITS))
    slot = array_at(table_address() + place * WORDS * 8, WORDS, np.int64)
    if slot[MATRIX] != np.int64(matrix):
        slot[:] = 0
        slot[MATRIX] = np.int64(matrix)
    return slot


@kernel_part
def is_new(slot: Array) -> bool:
    """Whether no product of the slot's matrix has ended."""
    return bool(slot[PRODUCTS] == 0 and slot[TIMES] == 0 and slot[TIMES + 1] == 0)


@kernel_part
def start_time(slot: Array) -> int:
    """Return when a product starts, in nanoseconds, if it is to be timed, or 0."""
    return nanoseconds() if slot[PRODUCTS] >= 0 else 0


@kernel_part
def note_product(slot: Array, started: int) -> None:
    """Count a product that ends now; `started` is what `start_time` returned."""
    if started:
        note_time(slot, nanoseconds() - started)
    else:
        slot[PRODUCTS] += 1


@kernel_part
def note_time(slot: Array, taken: int) -> None:
    """Count a product that took so many nanoseconds, and choose the form of the next one."""
    slot[LEAST] = taken if slot[PRODUCTS] == 0 else min(taken, slot[LEAST])
    slot[PRODUCTS] += 1
    if slot[PRODUCTS] < TIMED:
        return
    form, least = slot[FORM], slot[LEAST]
    before, other = slot[TIMES + form], slot[TIMES + 1 - form]
    slot[TIMES + form], slot[PRODUCTS] = least, 0
    is_tried, loses, wins = slot[ROUNDS] <= 0, is_less(other, least), is_less(least, other)
    if is_tried and (before == 0 or is_less(least, before)):
        return  # the processor learns
    if is_tried and form == PREDICTED and not wins and least < HOPELESS * other:
        slot[ROUNDS] -= 1
        if slot[ROUNDS] > -PATIENCE:
            return
    if form == PREDICTED and loses and not is_tried:
        slot[ROUNDS] = 0  # the processor forgot, and may learn again
        return
    slot[ROUNDS] = max(0, slot[ROUNDS]) + 1
    interval = max(LEAST_INTERVAL, abs(slot[INTERVAL]))
    if slot[INTERVAL] < 0:
        slot[INTERVAL] = LEAST_INTERVAL if wins else interval
    elif loses:
        slot[INTERVAL] = LEAST_INTERVAL
    if loses:
        try_form(slot, 1 - form)
    elif slot[ROUNDS] > interval:
        try_form(slot, 1 - form)
        slot[INTERVAL] = -min(MOST_INTERVAL, 2 * interval)
    else:
        slot[PRODUCTS] = -UNTIMED


@kernel_part
def try_form(slot: Array, form: int) -> None:
    """Use a form from now on, until it is settled which is faster."""
    slot[FORM], slot[TIMES + form], slot[ROUNDS] = form, 0, 0


@kernel_part
def is_less(time: int, other: int) -> bool:
    """Whether a time is less than another by more than one part in LEAST_GAIN."""
    return time + time // LEAST_GAIN < other


@intrinsic
def table_address(typingctx: Any) -> Emission:
    """Return the address of the words of all slots, which outlast a call and are zero at first."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.ArrayType(ir.IntType(64), SLOTS * WORDS)
        words = ir.GlobalVariable(builder.module, kind, builder.module.get_unique_name("slots"))
        words.linkage, words.initializer, words.align = "internal", ir.Constant(kind, None), 64
        return builder.ptrtoint(words, ir.IntType(64))

    return types.intp(), codegen
