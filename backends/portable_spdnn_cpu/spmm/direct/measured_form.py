"""Which of two kernels takes less time for a matrix, by the time of its last products.

With a single column of B there is a kernel with a branch where each row or column of A ends, the
faster one where a processor predicts these branches, and one with few branches. What a processor
predicts depends on A, on what else it ran since, and on its make: so products are timed.

A table in each job holds what the last products of a matrix took, by the address of its offsets and
the number of its entries. Now and then the other kernel is tried. Both give the same C, to the bit
but for the bits of a NaN: so threads share the table without a lock, and where it is wrong a
product only takes longer. Where some products of a matrix have an epilogue and others have none,
the time of the epilogue counts as that of a kernel.
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
FORM = 1  # the kernel in use: BY_BRANCHES, or 0, that with few branches
PRODUCTS = 2  # of this round, below 0 before the first that is timed
LEAST = 3  # nanoseconds that a product of this round took
TIMES = 4  # LEAST of the last round of form 0, and in the next word of form 1; 0: there was none
ROUNDS = 6  # since the form in use was settled; 0 while it is tried
LOST = 7  # nanoseconds that this trial took longer than the other form would have
INTERVAL = 8  # rounds from one trial to the next; below 0 in a trial that was due
HAS_RUNS = 9  # for `vectors`: whether some rows or columns that follow each other are equal
WORDS = 10
BY_BRANCHES = 1
# A round is TIMED products that are timed; once a form is settled, UNTIMED ones come before them.
TIMED, UNTIMED = 4, 60
# The interval doubles with each trial that finds nothing faster. A trial of branches may lose about
# the time of a product for each round of it: one of 32 products since the last trial. While they
# become faster it may lose LEARNING times as much, as a processor may yet learn them: those of
# 20,000 columns take a Zen 5 a hundred products.
LEAST_INTERVAL, MOST_INTERVAL, LEARNING = 4, 256, 8
LEAST_GAIN = 64  # a time is less where it is less by more than one part in so many


@kernel_part
def slot_of(indptr: int, entries: int, is_first: bool) -> Array:
    """Return the slot of a matrix, by the address of its offsets.

    The first worker of a product begins it with zeros if it was another's.
    """
    # Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4): the upper bits.
    multiplier = np.uint64(0x9E3779B97F4A7C15)
    matrix = np.uint64(indptr) ^ (np.uint64(entries) * multiplier)
    place = np.int64((matrix * multiplier) >> np.uint64(64 - SLOT_BITS))
    slot = array_at(table_address() + place * WORDS * 8, WORDS, np.int64)
    if is_first and slot[MATRIX] != np.int64(matrix):
        slot[:] = 0
        slot[MATRIX] = np.int64(matrix)
    return slot


@kernel_part
def begins_trial(slot: Array) -> bool:
    """Whether no product of a trial has ended; the first products of a matrix are one too."""
    return bool(slot[PRODUCTS] == 0 and slot[TIMES + slot[FORM]] == 0)


@kernel_part
def is_new(slot: Array) -> bool:
    """Whether no product of the slot's matrix has ended."""
    return bool(slot[PRODUCTS] == 0 and slot[TIMES] == 0 and slot[TIMES + 1] == 0)


@kernel_part
def start_time(slot: Array) -> int:
    """Return when a product starts, in nanoseconds, if it is to be timed, or 0."""
    return nanoseconds() if slot[PRODUCTS] >= 0 else 0


@kernel_part
def note_product(slot: Array, form: int, started: int) -> None:
    """Count a product of some form that ends now; `started` is what `start_time` returned."""
    if slot[FORM] != form:
        return  # another thread has changed it meanwhile
    if started:
        note_time(slot, max(1, nanoseconds() - started))
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
    is_tried, interval = slot[ROUNDS] == 0, max(LEAST_INTERVAL, abs(slot[INTERVAL]))
    is_slower = is_less(other, least)  # also where the other was never used: it is to be tried
    if is_tried:
        slot[LOST] += TIMED * (least - other) if other else 0
        may_lose = interval * max(other, 1)
        improves = before == 0 or is_less(least, before)
        if improves and slot[LOST] < LEARNING * may_lose:
            return
        if form == BY_BRANCHES and other and is_slower and slot[LOST] < may_lose:
            return
    slot[ROUNDS] += 1
    if slot[INTERVAL] >= 0 and is_slower:
        interval = LEAST_INTERVAL  # not by a trial that was due: what else runs has changed
    slot[INTERVAL] = interval
    if is_slower:
        try_form(slot, 1 - form)
    elif slot[ROUNDS] > interval:
        try_form(slot, 1 - form)
        slot[INTERVAL] = -min(MOST_INTERVAL, 2 * interval)
    else:
        slot[PRODUCTS] = -UNTIMED


@kernel_part
def try_form(slot: Array, form: int) -> None:
    """Use a form from now on, until it is settled which is faster."""
    slot[FORM], slot[TIMES + form], slot[ROUNDS], slot[LOST] = form, 0, 0, 0


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
        words.linkage, words.initializer = "internal", ir.Constant(kind, None)
        return builder.ptrtoint(words, ir.IntType(64))

    return types.intp(), codegen
