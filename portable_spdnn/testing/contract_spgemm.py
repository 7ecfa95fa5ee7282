"""The contract of spgemm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn.testing.operands import (
    DTYPES,
    SHAPES,
    host,
    random_sparse,
    refused,
    tolerance,
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("density", [0.05, 0.4])
def test_spgemm(backend: ps.Backend, shape: Any, density: float, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    A = random_sparse(rng, shape[:2], density, dtype)
    B = random_sparse(rng, shape[1:], density, dtype)
    expected, pattern = oracle.spgemm(A, B)
    handle = backend.spgemm_handle(A, B)
    assert isinstance(handle, ps.SpgemmHandle)
    assert handle.describe()
    offsets = handle.symbolic()
    assert offsets.dtype == np.int64
    rows = np.bincount([i for i, _ in pattern], minlength=shape[0])[: shape[0]]
    np.testing.assert_array_equal(offsets, np.concatenate(([0], np.cumsum(rows))))
    C = host(backend, handle.numeric())
    assert C.shape == expected.shape
    assert C.dtype == dtype
    assert C.has_canonical_format
    assert {(i, j) for i, j, _ in oracle.entries(C)} <= pattern
    np.testing.assert_allclose(C.toarray(), expected, **tolerance(dtype))


def test_spgemm_leaves_operands_alone_and_shares_no_memory_with_them(backend: ps.Backend) -> None:
    rng = np.random.default_rng(5)
    A, B = random_sparse(rng, (6, 7), 0.5, np.float32), sp.eye_array(7, dtype="f4", format="csr")
    kept = [array.copy() for M in (A, B) for array in (M.data, M.indices, M.indptr)]
    C = host(backend, backend.spgemm(A, B))
    np.testing.assert_array_equal(C.toarray(), A.toarray())
    for result in (C.data, C.indices, C.indptr):
        result[:] = 0
    for array, before in zip(
        (array for M in (A, B) for array in (M.data, M.indices, M.indptr)), kept, strict=True
    ):
        np.testing.assert_array_equal(array, before)


def test_operands_keep_their_own_flags(backend: ps.Backend) -> None:
    indptr, indices = np.array([0, 3], np.int32), np.array([0, 1, 2], np.int32)
    A = sp.csr_array((np.array([1, 2, 4], np.float32), indices, indptr), shape=(1, 3))
    backend.spgemm(A, sp.eye_array(3, dtype=np.float32, format="csr"))
    A.indices[1] = 0  # SciPy looks at it anew, unless it was told that there are no duplicates
    A.sum_duplicates()
    assert A.nnz == 2
    assert A.toarray().tolist() == [[3, 0, 4]]


def test_spgemm_handle_is_reused_with_new_values(backend: ps.Backend) -> None:
    rng = np.random.default_rng(4)
    A = random_sparse(rng, (30, 20), 0.3, np.float64)
    B = random_sparse(rng, (20, 25), 0.3, np.float64)
    handle = backend.spgemm_handle(A, B)
    first = host(backend, handle.numeric()).toarray()
    new = rng.uniform(-1, 1, A.nnz)
    second = host(backend, handle.numeric(A_data=new)).toarray()
    changed = sp.csr_array((new, A.indices, A.indptr), shape=A.shape)
    np.testing.assert_allclose(second, oracle.spgemm(changed, B)[0], atol=1e-12)
    doubled = host(backend, handle.numeric(B_data=2 * B.data)).toarray()
    np.testing.assert_allclose(doubled, 2 * first, atol=1e-12)
    np.testing.assert_array_equal(host(backend, handle.numeric()).toarray(), first)
    with refused("A", A.nnz):
        handle.numeric(A_data=np.ones(A.nnz + 1))


def test_spgemm_propagates_nan_and_names_what_does_not_fit(backend: ps.Backend) -> None:
    A = sp.csr_array(np.array([[np.nan, 0], [0, 1.0]]))
    C = host(backend, backend.spgemm(A, sp.csr_array(np.eye(2)))).toarray()
    np.testing.assert_array_equal(C, [[np.nan, 0], [0, 1]])
    with refused("spgemm", "A", "2 x 2", "B", 3):
        backend.spgemm(A, sp.csr_array((3, 3)))
    with refused("spgemm", "B", "ndarray"):
        backend.spgemm(A, np.eye(2))  # type: ignore[arg-type]
