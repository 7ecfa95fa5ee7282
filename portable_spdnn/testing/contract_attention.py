"""The contract of sparse attention, for backends that have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn.testing.attention_operands import (
    DENSITIES,
    SHAPES,
    has,
    operands,
    pattern,
    tolerance,
)
from portable_spdnn.testing.operands import DTYPES, host, refused


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("density", DENSITIES)
def test_attention(backend: ps.Backend, shape: Any, density: float, dtype: Any) -> None:
    has(backend, "sparse_attention")
    rng = np.random.default_rng(4)
    masks = [pattern(rng, shape[:2], density) for _ in range(2)]
    Q, K, V = operands(rng, shape, dtype, 2)
    scale = shape[2] ** -0.5
    for given in (masks[0], masks):
        found = host(backend, backend.sparse_attention(Q, K, V, given))
        assert found.dtype == dtype
        assert found.shape == (2, shape[0], shape[3])
        for head in range(2):
            mask = masks[head if given is masks else 0]
            expected = oracle.attention(mask, Q[head], K[head], V[head], scale)
            np.testing.assert_allclose(found[head], expected, **tolerance(dtype))
    flat = host(backend, backend.sparse_attention(Q[0], K[0], V[0], masks[0], scale=-2.0))
    expected = oracle.attention(masks[0], Q[0], K[0], V[0], -2.0)
    np.testing.assert_allclose(flat, expected, **tolerance(dtype))


MASKS = {
    "band": lambda: ps.masks.band(150, 40),
    "random": lambda: ps.masks.random(150, 0.9, 1),
    "block": lambda: ps.masks.block(150, 37),
    "strided": lambda: ps.masks.strided(150, 7),
    "causal": lambda: ps.masks.causal(150),
    "band and random": lambda: ps.masks.union(ps.masks.band(150, 32), ps.masks.random(150, 0.95)),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_handle(backend: ps.Backend, name: str, dtype: Any) -> None:
    has(backend, "sparse_attention")
    rng = np.random.default_rng(5)
    mask = MASKS[name]()
    handle = backend.attention_handle(mask, d=32)
    assert handle.shape == (150, 150)
    assert handle.describe()
    kept = mask.copy()
    mask.indices[:] = 0  # the handle has a mask of its own
    for heads in (1, 3):
        Q, K, V = operands(rng, (150, 150, 32, 24), dtype, heads)
        expected = [
            oracle.attention(kept, q, k, v, 32**-0.5) for q, k, v in zip(Q, K, V, strict=True)
        ]
        found = host(backend, handle.attend(Q, K, V))
        np.testing.assert_allclose(found, expected, **tolerance(dtype))
        out = backend.upload(np.full((heads, 150, 24), np.nan, dtype))
        assert handle.attend(Q, K, V, out) is out
        np.testing.assert_array_equal(host(backend, out), found)
    with refused("out", "(1, 150, 24)"):
        handle.attend(Q[:1], K[:1], V[:1], np.empty((2, 150, 24), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_a_batch(backend: ps.Backend, dtype: Any) -> None:
    has(backend, "sparse_attention")
    rng = np.random.default_rng(10)
    masks = [ps.masks.random(40, 0.7, seed, keys=50) for seed in range(3)]
    Q, K, V = operands(rng, (40, 50, 16, 24), dtype, 6)
    forms: dict[str, Callable[[Any], Any]] = {
        "C order": lambda one: one,
        # As a product with fused weights gives them: token by token, the heads side by side.
        "fused": lambda one: one.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3),
        "one head for all": lambda one: np.broadcast_to(one[:, :1], one.shape),
    }
    for name, form in forms.items():
        q, k, v = (form(one.reshape(2, 3, *one.shape[1:])) for one in (Q, K, V))
        for given in (masks[0], masks):
            handle = backend.attention_handle(given)
            out = backend.upload(np.full((2, 3, 40, 24), np.nan, dtype))
            assert handle.attend(q, k, v, out) is out
            found = host(backend, handle.attend(q, k, v))
            assert found.shape == (2, 3, 40, 24)
            assert found.dtype == dtype
            np.testing.assert_array_equal(host(backend, out), found, name)
            for number, head in np.ndindex(2, 3):
                mask = masks[head if given is masks else 0]
                expected = oracle.attention(
                    mask, q[number, head], k[number, head], v[number, head], 0.25
                )
                np.testing.assert_allclose(found[number, head], expected, **tolerance(dtype))
    for shape in ((0, 3), (2, 0), (1, 1)):
        q, k, v = (np.ones((*shape, *one.shape[1:]), dtype) for one in (Q, K, V))
        found = host(backend, backend.sparse_attention(q, k, v, masks[0]))
        assert found.shape == (*shape, 40, 24)
    with refused("sparse_attention", "Q", "(1, 6, 40, 16)", "K", "(2, 3, 50, 16)", "batch"):
        backend.sparse_attention(Q[None], K.reshape(2, 3, 50, 16), V[None], masks[0])
    with refused("sparse_attention", "V", "(2, 3, 50, 24)", "K", "(1, 6, 50, 16)"):
        backend.sparse_attention(Q[None], K[None], V.reshape(2, 3, 50, 24), masks[0])
    with refused("sparse_attention", "3 masks", "6 heads"):
        backend.sparse_attention(Q[None], K[None], V[None], masks)
    with refused("sparse_attention", "Q", "5 dimension", "batch"):
        backend.sparse_attention(Q[None, None], K[None], V[None], masks[0])


def test_attention_of_strided_and_unaligned_views(backend: ps.Backend) -> None:
    has(backend, "sparse_attention")
    rng = np.random.default_rng(6)
    mask = ps.masks.random(50, 0.6, 3)
    Q, K, V = operands(rng, (50, 50, 32, 32), np.float32, 2)
    expected = [oracle.attention(mask, q, k, v, 32**-0.5) for q, k, v in zip(Q, K, V, strict=True)]

    def unaligned(array: Any) -> Any:
        moved = np.empty(array.nbytes + 5, np.uint8)[5:].view(array.dtype).reshape(array.shape)
        moved[...] = array
        return moved

    def interleaved(array: Any) -> Any:
        return np.repeat(array, 2, axis=2)[:, :, ::2]

    def turned(array: Any) -> Any:
        return np.ascontiguousarray(array.transpose(1, 2, 0)).transpose(2, 0, 1)

    def reversed_rows(array: Any) -> Any:
        return np.ascontiguousarray(array[:, ::-1])[:, ::-1]

    for form in (unaligned, interleaved, turned, reversed_rows):
        q, k, v = (form(one) for one in (Q, K, V))
        for one in (q, k, v):
            one.flags.writeable = False
        found = host(backend, backend.sparse_attention(q, k, v, mask))
        np.testing.assert_allclose(found, expected, **tolerance(np.float32))
    mixed = host(backend, backend.sparse_attention(Q, K.astype(np.float64), V, mask))
    assert mixed.dtype == np.float64
    np.testing.assert_allclose(mixed, expected, **tolerance(np.float64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_does_not_overflow(backend: ps.Backend, dtype: Any) -> None:
    has(backend, "sparse_attention")
    rng = np.random.default_rng(7)
    Q, K, V = operands(rng, (40, 40, 16, 16), dtype, 1)
    mask = ps.masks.union(ps.masks.band(40, 20), ps.masks.random(40, 0.8, 5))
    for factor in (30.0, -30.0):  # scores of thousands; few digits of them are left
        found = host(backend, backend.sparse_attention(factor * Q, 30 * K, V, mask, 1.0))
        expected = oracle.attention(mask, factor * Q[0], 30 * K[0], V[0], 1.0)
        np.testing.assert_allclose(found[0], expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("name", MASKS)
def test_attention_of_nan_and_infinity(backend: ps.Backend, name: str) -> None:
    has(backend, "sparse_attention")
    rng = np.random.default_rng(8)
    mask = MASKS[name]()
    with np.errstate(invalid="ignore"):
        for which in range(3):
            for bad in (np.nan, np.inf, -np.inf):
                Q, K, V = operands(rng, (150, 150, 20, 18), np.float32, 1)
                (Q, K, V)[which][0, rng.integers(0, 150, 3), rng.integers(0, 18, 3)] = bad
                found = host(backend, backend.sparse_attention(Q[0], K[0], V[0], mask))
                expected = oracle.attention(mask, Q[0], K[0], V[0], 20**-0.5)
                np.testing.assert_allclose(found, expected, **tolerance(np.float32))


@pytest.mark.parametrize("queries", [3, 150])  # few entries for each key, and many
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_attention_of_values_near_the_largest_of_the_type(
    backend: ps.Backend, queries: int, dtype: Any
) -> None:
    has(backend, "sparse_attention")
    rng = np.random.default_rng(9)
    for mask in (np.ones((queries, 150)), rng.random((queries, 150)) < 0.3):
        Q, K, V = operands(rng, (queries, 150, 16, 16), dtype, 1)
        V, large = np.abs(V), dtype(0.9 * np.finfo(dtype).max)  # sums are infinite, means are not
        found = host(
            backend, backend.sparse_attention(Q[0], K[0], large * V[0], sp.csr_array(mask))
        )
        expected = oracle.attention(sp.csr_array(mask), Q[0], K[0], V[0], 0.25)
        np.testing.assert_allclose(found / large, expected, **tolerance(dtype))


def test_attention_of_scores_that_are_minus_infinity(backend: ps.Backend) -> None:
    has(backend, "sparse_attention")
    for mask in (sp.csr_array(np.ones((20, 40))), ps.masks.random(20, 0.8, 2, keys=40)):
        Q, K, V = np.ones((20, 3)), np.ones((40, 3)), np.arange(40.0)[:, None]
        K[::2, 0] = -np.inf
        found = host(backend, backend.sparse_attention(Q, K, V, mask))
        np.testing.assert_allclose(found, oracle.attention(mask, Q, K, V, 3**-0.5), rtol=1e-6)
        K[:, 0] = -np.inf
        found = host(backend, backend.sparse_attention(Q, K, V, mask))
        np.testing.assert_array_equal(found, np.zeros((20, 1)))


def test_attention_names_what_does_not_fit(backend: ps.Backend) -> None:
    has(backend, "sparse_attention")
    mask, Q = sp.csr_array(np.ones((4, 5))), np.ones((2, 4, 3))
    K, V = np.ones((2, 5, 3)), np.ones((2, 5, 6))
    backend.sparse_attention(Q, K, V, mask)
    with refused("sparse_attention", "mask is 4 x 5", "Q", 5):
        backend.sparse_attention(K, K, V, mask)
    with refused("sparse_attention", "3 masks", "2 heads"):
        backend.sparse_attention(Q, K, V, [mask] * 3)
    with refused("sparse_attention", "V", 4, "K", 5):
        backend.sparse_attention(Q, K, V[:, :4], mask)
    with refused("sparse_attention", "d", 0):
        backend.attention_handle(mask, d=0)
    with refused("sparse_attention", "V", "2", "Q 3"):
        backend.sparse_attention(Q, K, V[0], mask)
    for least in (-1e4, np.finfo(np.float32).min, -np.inf):
        with refused("mask stores -", "csr_array(mask == 0)"):
            hidden = np.where(np.tri(*mask.shape), 0, least)
            backend.sparse_attention(Q, K, V, sp.csr_array(hidden))
    with refused("complex"):
        backend.sparse_attention(Q.astype(complex), K, V, mask)
