"""The contract of sampled products and of the sparse softmax, for backends that have them."""

from __future__ import annotations

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
from portable_spdnn.testing.operands import DTYPES, host, random_sparse, refused


def check_values(found: Any, mask: Any, expected: Any, dtype: Any) -> None:
    """Compare a csr result with the oracle's entries, and its pattern with the mask's."""
    assert found.dtype == dtype
    assert found.shape == mask.shape
    assert found.has_canonical_format
    np.testing.assert_array_equal(found.indptr, mask.indptr)
    np.testing.assert_array_equal(found.indices, mask.indices)
    values = [expected[i, j] for i, j, _ in oracle.entries(mask)]
    np.testing.assert_allclose(found.data, np.array(values), **tolerance(dtype))


# -- sddmm --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("density", DENSITIES)
def test_sddmm(backend: ps.Backend, shape: Any, density: float, dtype: Any) -> None:
    has(backend, "sddmm")
    rng = np.random.default_rng(1)
    Q, K, _ = operands(rng, shape, dtype, 2)
    masks = [pattern(rng, shape[:2], density) for _ in range(2)]
    one = host(backend, backend.sddmm(masks[0], Q[0], K[0]))
    check_values(one, masks[0], oracle.sddmm(masks[0], Q[0], K[0], 1.0), dtype)
    for given in (masks[0], masks):
        found = backend.sddmm(given, Q, K, scale=-0.5)
        assert isinstance(found, list)
        assert len(found) == 2
        for head, scores in enumerate(found):
            mask = masks[head if given is masks else 0]
            expected = oracle.sddmm(mask, Q[head], K[head], -0.5)
            check_values(host(backend, scores), mask, expected, dtype)


def test_sddmm_keeps_the_pattern_and_the_operands(backend: ps.Backend) -> None:
    has(backend, "sddmm")
    rng = np.random.default_rng(2)
    mask = pattern(rng, (6, 9), 0.5)
    Q, K, _ = operands(rng, (6, 9, 4, 1), np.float32, 1)
    before = mask.copy(), Q.copy(), K.copy()
    found = host(backend, backend.sddmm(mask, Q[0], K[0]))
    found.data[:] = 7
    found.indices[:] = 0
    np.testing.assert_array_equal(mask.indices, before[0].indices)
    np.testing.assert_array_equal(mask.data, before[0].data)
    np.testing.assert_array_equal(Q, before[1])
    np.testing.assert_array_equal(K, before[2])
    for form in (mask.tocoo(), mask.tocsc(), mask.astype(bool)):
        stored = sp.csr_array(form)
        again = host(backend, backend.sddmm(form, Q[0], K[0]))
        assert again.nnz == stored.nnz


def test_scores_of_a_head_are_its_own(backend: ps.Backend) -> None:
    has(backend, "sddmm")
    mask, Q = pattern(np.random.default_rng(3), (5, 5), 0.6), np.ones((3, 5, 2), np.float32)
    Q[0, :3] = 0
    scores: Any = backend.sddmm(mask, Q, Q)
    first, *others = (host(backend, S) for S in scores)
    expected = [S.toarray() for S in others]
    first.eliminate_zeros()  # moves indices and offsets where they lie
    for S, before in zip(others, expected, strict=True):
        np.testing.assert_array_equal(S.toarray(), before)


def test_sddmm_without_heads(backend: ps.Backend) -> None:
    has(backend, "sddmm")
    none = np.ones((0, 3, 16))
    assert backend.sddmm([], none, none) == []
    assert backend.sddmm(sp.csr_array(np.eye(3)), none, none) == []


def test_sddmm_of_nan_and_infinity(backend: ps.Backend) -> None:
    has(backend, "sddmm")
    mask = sp.csr_array(np.array([[1, 1, 0], [0, 1, 1]]))
    Q = np.array([[1.0, 0], [np.inf, 1]])
    K = np.array([[np.nan, 1], [1, 2], [0, 1.0]])
    found = host(backend, backend.sddmm(mask, Q, K))
    np.testing.assert_array_equal(found.data, [np.nan, 1, np.inf, np.nan])


# -- softmax ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (0, 5), (5, 0), (9, 40), (33, 130), (70, 3)], ids=str)
@pytest.mark.parametrize("spread", [1.0, 30.0, 1e4])
def test_softmax(backend: ps.Backend, shape: Any, spread: float, dtype: Any) -> None:
    has(backend, "sparse_softmax")
    rng = np.random.default_rng(3)
    matrices = [random_sparse(rng, shape, density, dtype) for density in (0.05, 0.5, 1.0)]
    for S in matrices:
        S.data *= dtype(spread)
    kept = [S.copy() for S in matrices]
    several = backend.sparse_softmax(matrices)
    assert isinstance(several, list)
    for S, before, found in zip(matrices, kept, several, strict=True):
        expected = oracle.softmax({(i, j): value for i, j, value in oracle.entries(S)})
        check_values(host(backend, found), S, expected, dtype)
        check_values(host(backend, backend.sparse_softmax(S)), S, expected, dtype)
        np.testing.assert_array_equal(S.data, before.data)


@pytest.mark.parametrize("index", [np.uint32, np.uint64, np.int64])
def test_softmax_of_indices_of_any_type(backend: ps.Backend, index: Any) -> None:
    has(backend, "sparse_softmax")
    S = sp.csr_array(np.eye(3, dtype=np.float32))
    S.indices, S.indptr = S.indices.astype(index), S.indptr.astype(index)
    found = host(backend, backend.sparse_softmax(S))
    assert found.toarray().tolist() == np.eye(3).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_at_infinity(backend: ps.Backend, dtype: Any) -> None:
    has(backend, "sparse_softmax")
    inf, nan = np.inf, np.nan
    rows = [[-inf, -inf, -inf], [-inf, 0, 0], [0, nan, 1], [inf, 0, -inf], [-inf, nan, -inf]]
    # Each row also behind forty more columns, beyond what a vector holds.
    wide = [[*row, *[-inf] * 40] for row in rows]
    expected = [[0, 0, 0], [0, 0.5, 0.5], [nan] * 3, [nan] * 3, [nan] * 3]
    for values in (rows, wide):
        array = np.array(values, dtype)
        stored = sp.csr_array(np.ones(array.shape, dtype))
        S = sp.csr_array((array.ravel(), stored.indices, stored.indptr), shape=array.shape)
        found = host(backend, backend.sparse_softmax(S)).toarray()
        np.testing.assert_array_equal(found[:, :3], expected)
        rest = np.nan_to_num(found[:, 3:], nan=-1)
        assert (rest == np.array([[0], [0], [-1], [-1], [-1]])).all()


def test_sddmm_and_softmax_name_what_does_not_fit(backend: ps.Backend) -> None:
    has(backend, "sddmm")
    has(backend, "sparse_softmax")
    mask, Q = sp.csr_array(np.ones((4, 5))), np.ones((2, 4, 3))
    K = np.ones((2, 5, 3))
    with refused("sddmm", "mask is 4 x 5", "Q", 5):
        backend.sddmm(mask, K, K)
    with refused("sddmm", "mask is 4 x 5", "K", 4):
        backend.sddmm(mask, Q, Q)
    with refused("sddmm", "Q has 2 columns", "K 3"):
        backend.sddmm(mask, Q[..., :2], K)
    with refused("sddmm", "heads", 1, 2):
        backend.sddmm(mask, Q[:1], K)
    with refused("sddmm", "Q", "4 dimension", "batch"):
        backend.sddmm(mask, Q[None], K[None])
    with refused("sddmm", "3 masks", "2 heads"):
        backend.sddmm([mask] * 3, Q, K)
    with refused("sddmm", "head 1", "(5, 4)"):
        backend.sddmm([mask, sp.csr_array(mask.T)], Q, K)
    with refused("sddmm", "mask", "ndarray"):
        backend.sddmm(np.ones((4, 5)), Q, K)  # type: ignore[arg-type]
    with refused("sddmm", "dimensions", "Q 3", "K 2"):
        backend.sddmm(mask, Q, K[0])
    with refused("sddmm", "Q", "1 dimension"):
        backend.sddmm(mask, Q[0, 0], K[0])
    for scale in (np.inf, np.nan, "1"):
        with refused("scale", scale):
            backend.sddmm(mask, Q, K, scale)  # type: ignore[arg-type]
    with refused("sparse_softmax", "ndarray"):
        backend.sparse_softmax(np.ones((2, 2)))  # type: ignore[arg-type]
