"""csr_array without SciPy's checks."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from portable_spdnn import sparse_arrays
from portable_spdnn.sparse_arrays import unchecked_csr

NARROW, WIDE = np.int32, np.int64


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kinds", [(NARROW, NARROW), (WIDE, WIDE), (NARROW, WIDE)])
@pytest.mark.parametrize("shape", [(3, 4), (0, 5), (2, 0)])
def test_unchecked_csr_is_as_scipy_makes_it(shape: Any, kinds: Any, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    A = sp.random_array(shape, density=0.5, format="csr", rng=rng, dtype=dtype)
    A.sort_indices()
    structure = A.indices.astype(kinds[0]), A.indptr.astype(kinds[1])
    expected = sp.csr_array((A.data, *structure), shape=shape)
    # The first of a shape is made another way.
    found = [unchecked_csr(factor * A.data, *structure, shape) for factor in (1, 2, 3)]
    found.append(pickle.loads(pickle.dumps(found[0])))
    for one, factor in zip(found, (1, 2, 3, 1), strict=True):
        assert type(one) is sp.csr_array
        assert one.shape == shape
        assert one.has_canonical_format
        assert one.has_sorted_indices
        for name in ("data", "indices", "indptr"):
            assert getattr(one, name).dtype == getattr(expected, name).dtype
        np.testing.assert_array_equal(one.indices, expected.indices)
        np.testing.assert_array_equal(one.indptr, expected.indptr)
        np.testing.assert_array_equal(one @ np.eye(shape[1]), factor * A.toarray())
        np.testing.assert_array_equal(one.T.toarray(), factor * A.T.toarray())


def test_what_is_done_to_one_does_not_reach_the_next() -> None:
    def new() -> Any:
        indices, indptr = np.array([[0, 2], [0, 2]], np.int32)
        return unchecked_csr(np.ones(2), indices, indptr, (1, 3))

    for _ in range(3):
        one = new()
        one.data[:], one.indices[:] = 7, 1
        one.resize(4, 5)
        one.has_canonical_format = False
        assert new().toarray().tolist() == [[1, 0, 1]]
        assert new().has_canonical_format


def test_few_templates_are_kept() -> None:
    for columns in range(1, 2 * sparse_arrays.MOST_TEMPLATES):
        A = unchecked_csr(
            np.ones(1), np.zeros(1, np.int32), np.array([0, 1], np.int32), (1, columns)
        )
        assert A.shape == (1, columns)
        assert len(sparse_arrays._TEMPLATES) <= sparse_arrays.MOST_TEMPLATES


def test_columns_that_need_wide_indices_have_them() -> None:
    indices, indptr = np.array([0, 7], np.int32), np.array([0, 2], np.int32)
    for _ in range(2):
        A = unchecked_csr(np.ones(2), indices, indptr, (1, 1 << 31))
        assert A.indices.dtype == np.int64
        assert (A + A).data.tolist() == [2, 2]
