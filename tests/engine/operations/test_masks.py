"""Masks of sparse attention: each against its definition, entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.operations import masks

SIZES = [(0, 0), (1, 1), (7, 7), (20, 33), (33, 20), (5, 0)]


def assert_is(mask: Any, shape: tuple[int, int], seen: Callable[[int, int], bool]) -> None:
    assert mask.dtype == bool
    assert mask.shape == shape
    assert mask.data.all()
    expected = np.array([[seen(i, j) for j in range(shape[1])] for i in range(shape[0])], bool)
    np.testing.assert_array_equal(mask.toarray(), expected.reshape(shape))
    check = sp.csr_array((mask.data, mask.indices, mask.indptr), shape=shape)
    assert check.has_canonical_format


@pytest.mark.parametrize(("length", "keys"), SIZES)
@pytest.mark.parametrize("size", [1, 2, 5, 6, 100])
def test_masks_by_formula(length: int, keys: int, size: int) -> None:
    shape = length, keys
    band = masks.band(length, size, keys)
    assert_is(band, shape, lambda i, j: 0 <= j - (i - size // 2) < size)
    assert_is(masks.causal(length, keys), shape, lambda i, j: j <= i)
    assert_is(masks.block(length, size, keys), shape, lambda i, j: i // size == j // size)
    assert_is(masks.strided(length, size, keys), shape, lambda i, j: (i - j) % size == 0)
    both = masks.union(band, masks.causal(length, keys))
    assert_is(both, shape, lambda i, j: j <= i or 0 <= j - (i - size // 2) < size)
    each = masks.intersection(band, masks.causal(length, keys))
    assert_is(each, shape, lambda i, j: j <= i and 0 <= j - (i - size // 2) < size)


def test_random_has_its_density_everywhere_and_repeats() -> None:
    mask = masks.random(400, 0.9, seed=3, keys=600)
    stored = mask.toarray()
    assert_is(mask, (400, 600), lambda i, j: stored[i, j])
    # Ten standard deviations of a binomial distribution.
    assert abs(mask.nnz - 24_000) < 10 * np.sqrt(24_000 * 0.9)
    for part in (mask[:200], mask[:, :300], mask[:, 300:]):
        assert abs(part.nnz - 12_000) < 10 * np.sqrt(12_000 * 0.9)
    again, other = masks.random(400, 0.9, 3, 600), masks.random(400, 0.9, 4, 600)
    assert (again != mask).nnz == 0
    assert (other != mask).nnz > 0
    assert masks.random(30, 1.0).nnz == 0
    assert masks.random(30, 0.0).nnz == 900
    assert masks.random(0, 0.5).nnz == 0


def test_random_takes_no_memory_for_what_is_not_there() -> None:
    mask = masks.random(1000, 1 - 1e-9, seed=0, keys=1 << 30)
    assert mask.shape == (1000, 1 << 30)
    assert 500 < mask.nnz < 2000


def test_masks_that_do_not_fit_in_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portable_spdnn.host.available_bytes", lambda: 1 << 30)
    for call in (
        lambda: masks.random(1 << 20, 0.0),
        lambda: masks.random((1 << 31) - 1, 1.0),
        lambda: masks.band((1 << 31) - 1, 1),
        lambda: masks.causal(1 << 20),
    ):
        with pytest.raises(ps.InputError, match="mask of"):
            call()


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (lambda: masks.band(-1, 2), ("length", "-1")),
        (lambda: masks.band(3, 0), ("band: width", "0")),
        (lambda: masks.block(3, 1.5), ("block: size", "1.5")),
        (lambda: masks.strided(3, 0), ("strided: stride", "0")),
        (lambda: masks.random(3, 1.5), ("sparsity", "1.5")),
        (lambda: masks.random(3, float("nan")), ("sparsity", "nan")),
        (lambda: masks.random(3, 0.5, seed=-1), ("seed", "-1")),
        (lambda: masks.union(), ("union", "at least one")),
        (lambda: masks.union(np.eye(2)), ("union", "ndarray")),
        (lambda: masks.union(masks.band(3, 1), masks.band(4, 1)), ("(3, 3)", "(4, 4)")),
    ],
)
def test_what_is_no_mask_is_named(call: Callable[[], Any], facts: tuple[str, ...]) -> None:
    with pytest.raises(ps.InputError) as caught:
        call()
    for fact in facts:
        assert fact in str(caught.value)
