"""The choice between two forms of a kernel by what products took, which these tests make up."""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np

from portable_spdnn_cpu.spmm.direct.measured_form import (
    FORM,
    PREDICTED,
    PRODUCTS,
    WORDS,
    is_new,
    note_product,
    note_time,
    slot_of,
    start_time,
)


@numba.njit
def note(slot: np.ndarray, taken: int) -> None:
    note_time(slot, taken)


def forms_of(
    products: int, other: int, predicted: Callable[[int, int], int], slot: np.ndarray | None = None
) -> np.ndarray:
    """Return which form each product has: 1 is the predicted one.

    The other takes `other` nanoseconds, it takes predicted(number of the product, products with it
    since the other was in use).
    """
    slot, forms, together = np.zeros(WORDS, np.int64) if slot is None else slot, [], 0
    for number in range(products):
        form = int(slot[FORM])
        forms.append(form)
        together = together + 1 if form == PREDICTED else 0
        if slot[PRODUCTS] >= 0:
            note(slot, other if form != PREDICTED else predicted(number, together))
        else:
            slot[PRODUCTS] += 1
    return np.array(forms)


def test_the_faster_form_is_kept() -> None:
    forms = forms_of(10_000, 1000, lambda *_: 800)
    assert forms[0] != PREDICTED
    assert forms[20:].mean() > 0.98
    forms = forms_of(10_000, 1000, lambda *_: 3000)
    assert 0 < forms.mean() < 0.01
    # The first product has the form that the slot is begun with.
    slot = np.zeros(WORDS, np.int64)
    slot[FORM] = PREDICTED
    forms = forms_of(10_000, 1000, lambda *_: 3000, slot)
    assert forms[0] == PREDICTED
    assert forms[20:].mean() < 0.01


def test_forms_that_take_as_long_are_not_changed_often() -> None:
    forms = forms_of(10_000, 1000, lambda number, _: 1000 + number % 5)
    assert np.count_nonzero(np.diff(forms)) < 15


def test_a_processor_may_take_long_to_learn() -> None:
    forms = forms_of(2000, 1000, lambda _, together: max(500, 4000 - 30 * together))
    assert forms[200:].mean() > 0.95
    # First nothing is gained, in the end much.
    forms = forms_of(4000, 1000, lambda _, together: 1700 if together < 60 else 600)
    assert forms[1000:].mean() > 0.9
    # It forgets at each 500th product, and learns again at once.
    forms = forms_of(8000, 1000, lambda number, _: 1500 if number % 500 < 8 else 600)
    assert forms[1000:].mean() > 0.95


def test_other_branches_may_come_between() -> None:
    def predicted(number: int, _: int) -> int:
        return 3000 if 3000 <= number < 6000 else 600

    forms = forms_of(9000, 1000, predicted)
    assert forms[100:3000].mean() > 0.98
    assert forms[3200:6000].mean() < 0.05
    assert forms[-500:].mean() > 0.98


def test_matrices_have_slots_of_their_own() -> None:
    @numba.njit
    def multiplied(indptr: int, entries: int) -> bool:
        slot = slot_of(indptr, entries)
        was_new = is_new(slot)
        note_product(slot, start_time(slot))
        return bool(was_new)

    assert multiplied(64, 10)
    assert not multiplied(64, 10)
    assert multiplied(128, 10)
    assert not multiplied(64, 10)
    assert multiplied(64, 11)  # another matrix at the same address
    several = 64 * np.random.default_rng(0).choice(range(65, 1 << 20), 200, replace=False)
    assert all(multiplied(indptr, 7) for indptr in several)
    # A few of so many may share a slot.
    assert sum(not multiplied(indptr, 7) for indptr in several) > 180
