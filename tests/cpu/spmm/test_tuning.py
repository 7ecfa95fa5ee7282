"""Choosing the fastest of several ways from the times of calls."""

from __future__ import annotations

from portable_spdnn_cpu.spmm.tuning import PATIENCE, TRIALS, MeasuredChoice


def call(choice: MeasuredChoice, seconds: list[float], times: int = 1) -> list[int]:
    """Make some calls that take seconds[way]; return the ways they went."""
    went = []
    for _ in range(times):
        way = choice.next()
        choice.note(way, seconds[way])
        went.append(way)
    return went


def test_every_way_is_tried_and_the_fastest_kept() -> None:
    choice = MeasuredChoice(3)
    assert sorted(call(choice, [3.0, 1.0, 2.0], 3 * TRIALS)) == sorted([0, 1, 2] * TRIALS)
    assert call(choice, [3.0, 1.0, 2.0], PATIENCE) == [1] * PATIENCE


def test_one_disturbed_call_does_not_decide() -> None:
    choice = MeasuredChoice(2)
    call(choice, [2.0, 9.0], 2)
    call(choice, [2.0, 1.0], 2 * TRIALS - 2)
    assert choice.kept == 1


def test_a_wrong_choice_is_found_out_and_a_way_that_became_slow_given_up() -> None:
    choice = MeasuredChoice(2)
    call(choice, [2.0, 9.0], 2 * TRIALS)  # way 1 was disturbed all the time
    assert choice.kept == 0
    call(choice, [2.0, 1.0], PATIENCE + 2 * TRIALS)
    assert choice.kept == 1
    call(choice, [2.0, 8.0], 2 * PATIENCE + 2 * TRIALS)
    assert choice.kept == 0


def test_ever_fewer_calls_are_spent_on_trying() -> None:
    choice = MeasuredChoice(4)
    went = call(choice, [4.0, 3.0, 2.0, 1.0], 100 * PATIENCE)
    assert went.count(3) > 0.97 * len(went)
    assert set(went[-20 * PATIENCE :]) == {3}


def test_a_single_way_is_never_in_question() -> None:
    choice = MeasuredChoice(1)
    assert call(choice, [1.0], 3) + call(choice, [100.0], 500) == [0] * 503
