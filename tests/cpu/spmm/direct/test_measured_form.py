"""The choice between two forms of a kernel by what products took, which these tests make up."""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
import pytest

from portable_spdnn_cpu.spmm.direct.measured_form import (
    BY_BRANCHES,
    FORM,
    LEAST_INTERVAL,
    MATRIX,
    MOST_INTERVAL,
    PRODUCTS,
    SLOTS,
    TIMED,
    UNTIMED,
    WORDS,
    begins_trial,
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
    products: int,
    others: Callable[[int], float],
    branches: Callable[[int, int], float],
    first: int = 0,
) -> tuple[np.ndarray, float]:
    """Return the form of each product, and what all took; the first one has a form that is given.

    The form with few branches takes others(number of the product) nanoseconds, that with branches
    takes branches(number, products with it since the other was in use).
    """
    slot, forms, together, total = np.zeros(WORDS, np.int64), [], 0, 0.0
    slot[FORM] = first
    for number in range(products):
        form = int(slot[FORM])
        together = together + 1 if form == BY_BRANCHES else 0
        taken = branches(number, together) if form == BY_BRANCHES else others(number)
        forms.append(form)
        total += taken
        if slot[PRODUCTS] >= 0:
            note(slot, int(taken))
        else:
            slot[PRODUCTS] += 1
    return np.array(forms), total


def always(taken: float) -> Callable[..., float]:
    """Return a time that does not change."""
    return lambda *_: taken


def test_the_faster_form_is_kept() -> None:
    forms, _ = forms_of(10_000, always(1000), always(800))
    assert forms[0] == 0
    assert forms[20:].mean() > 0.98
    # The first product has the form that the slot is begun with.
    forms, _ = forms_of(10_000, always(1000), always(3000), BY_BRANCHES)
    assert forms[0] == BY_BRANCHES
    assert forms[20:].mean() < 0.02


@pytest.mark.parametrize("ratio", [1.02, 1.05, 1.3, 1.6, 1.99, 2.01, 4])
@pytest.mark.parametrize("first", [0, BY_BRANCHES])
def test_trials_of_a_slower_form_cost_little(ratio: float, first: int) -> None:
    # The first trial, and a later one for about each round of products.
    for products in (100, 1000, 10_000):
        _, total = forms_of(products, always(1000), always(1000 * ratio), first)
        lost = LEAST_INTERVAL + 2 * TIMED * (ratio - 1)
        lost += 2 * products / (TIMED + UNTIMED) * max(1, ratio - 1)
        assert total / 1000 - products <= lost


def test_forms_that_take_as_long_are_not_changed_often() -> None:
    forms, _ = forms_of(10_000, always(1000), lambda number, _: 1000 + number % 5)
    assert np.count_nonzero(np.diff(forms)) < 10


@pytest.mark.parametrize("first", [0, BY_BRANCHES])
def test_a_processor_may_take_long_to_learn(first: int) -> None:
    forms, _ = forms_of(4000, always(1000), lambda _, t: max(500, 4000 - 70 * t), first)
    assert forms[2000:].mean() > 0.95
    # First nothing is gained, in the end much: what the trial costs is to be little.
    for slow in (1300, 1990, 2010, 3000):
        products = 64 * MOST_INTERVAL * 4

        def learns(_: int, together: int, slow: int = slow) -> int:
            return slow if together < 60 else 600

        forms, _ = forms_of(products, always(1000), learns, first)
        assert forms[-products // 4 :].mean() > 0.9
    # It forgets at each 500th product, and learns again at once.
    forms, _ = forms_of(8000, always(1000), lambda n, _: 1500 if n % 500 < 8 else 600, first)
    assert forms[1000:].mean() > 0.9


def test_other_branches_may_come_between() -> None:
    def branches(number: int, _: int) -> int:
        return 3000 if 3000 <= number < 6000 else 600

    forms, _ = forms_of(9000, always(1000), branches)
    assert forms[100:3000].mean() > 0.98
    assert forms[3200:6000].mean() < 0.05
    assert forms[-500:].mean() > 0.98


@pytest.mark.parametrize("length", [60, 100, 150, 300])
def test_a_machine_may_be_slower_for_a_while(length: int) -> None:
    def slowed(number: int) -> float:
        return 1.25 if number // length % 2 else 1

    forms, _ = forms_of(40_000, lambda n: 1000 * slowed(n), lambda n, _: 1400 * slowed(n))
    assert forms.mean() < 0.1
    forms, _ = forms_of(40_000, lambda n: 1000 * slowed(n), lambda n, _: 700 * slowed(n))
    assert forms.mean() > 0.9


def test_matrices_have_slots_of_their_own() -> None:
    @numba.njit
    def multiplied(indptr: int, entries: int) -> tuple[bool, bool]:
        slot = slot_of(indptr, entries, True)
        was_new, was_begun = is_new(slot), begins_trial(slot)
        note_product(slot, slot[FORM], start_time(slot))
        return was_new, was_begun

    assert multiplied(64, 10) == (True, True)
    assert multiplied(64, 10) == (False, False)
    assert multiplied(128, 10)[0]
    assert not multiplied(64, 10)[0]
    assert multiplied(64, 11)[0]  # another matrix at the same address
    several = 64 * np.random.default_rng(0).choice(range(65, 1 << 20), 200, replace=False)
    assert all(multiplied(indptr, 7)[0] for indptr in several)
    # A few of so many may share a slot.
    assert sum(not multiplied(indptr, 7)[0] for indptr in several) > 180
    # Of twice as many matrices as there are slots half at least forget each other.
    many = range(64, 64 * (2 * SLOTS + 1), 64)
    assert all(multiplied(indptr, 9)[0] for indptr in many)
    assert sum(multiplied(indptr, 9)[0] for indptr in many) >= SLOTS


def test_only_the_first_worker_begins_a_slot() -> None:
    @numba.njit
    def after(indptr: int, is_first: bool) -> np.ndarray:
        slot = slot_of(indptr, 9, is_first)
        slot[PRODUCTS] += 1
        return slot.copy()

    first = after(64, True)
    assert first[PRODUCTS] == 1
    assert after(64, True)[PRODUCTS] == 2
    sharing = next(at for at in range(128, 1 << 24, 64) if after(at, False)[PRODUCTS] == 3)
    assert after(sharing, False)[MATRIX] == first[MATRIX]
    assert after(sharing, True)[PRODUCTS] == 1  # it forgets the other


def test_a_product_of_a_form_that_is_no_longer_in_use_is_not_counted() -> None:
    @numba.njit
    def noted(slot: np.ndarray, form: int, started: int) -> None:
        note_product(slot, form, started)

    slot = np.zeros(WORDS, np.int64)
    noted(slot, BY_BRANCHES, 1)
    assert not slot.any()
    noted(slot, 0, 1)
    assert slot[PRODUCTS] == 1
    slot[PRODUCTS] = -5
    noted(slot, 0, 0)
    assert slot[PRODUCTS] == -4
