"""The density at which sparse and dense features cost the same, by a clock that work drives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from portable_spdnn.plans import crossover
from portable_spdnn.plans.crossover import (
    break_even_density,
    dense_seconds_per_edge,
    least_seconds,
    sample_features,
)


class Clock:
    """Time passes only where work says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(crossover, "time", made)
    return made


@pytest.mark.parametrize("expected", [0.0625, 0.5, 3.0])
def test_the_break_even_is_the_ratio_of_the_costs(clock: Clock, expected: float) -> None:
    W = sp.random_array((300, 40), density=0.2, rng=np.random.default_rng(1)).tocsr()

    def run_dense(Y: Any) -> None:
        clock.now += expected * Y.shape[0] * W.nnz

    def run_sparse(Y: Any) -> None:
        clock.now += (Y @ (W != 0).astype(int)).sum()  # a second for each multiply-add

    dense = dense_seconds_per_edge(W, run_dense, np.float32)
    assert dense == pytest.approx(expected)
    assert break_even_density(W, dense, run_sparse, np.float32) == pytest.approx(expected)


def test_a_layer_without_edges_is_never_sparse() -> None:
    assert break_even_density(sp.csr_array((5, 5)), 1.0, lambda Y: None, np.float32) == 0.0


def test_the_first_turn_does_not_count_and_the_least_of_the_others_does(clock: Clock) -> None:
    seconds = iter([0.125, 4.0, 2.0, 8.0])  # the first compiles, or finds everything in a cache

    def work() -> None:
        clock.now += next(seconds)

    assert least_seconds(work) == 2.0


@given(neurons=st.integers(1, 5000), density=st.floats(0.001, 1), dtype=st.sampled_from("fd"))
def test_samples_are_ones_in_canonical_rows(neurons: int, density: float, dtype: str) -> None:
    Y = sample_features(neurons, density, dtype)
    assert (Y.shape[1], Y.dtype) == (neurons, np.dtype(dtype))
    assert (Y.data == 1).all()
    checked = sp.csr_array((Y.data, Y.indices, Y.indptr), shape=Y.shape)
    assert checked.has_canonical_format
    assert (np.diff(Y.indptr) >= 1).all()
    assert (np.diff(Y.indptr) <= max(1, density * neurons)).all()
