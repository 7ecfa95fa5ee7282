"""Sparse matrices of arrays that are right already."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from portable_spdnn.sparse_arrays import csr_of


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(3, 4), (0, 5), (2, 0)])
def test_a_matrix_of_arrays_that_are_right_is_as_scipy_makes_it(shape: Any, index: Any) -> None:
    A = sp.random_array(shape, density=0.5, format="csr", rng=np.random.default_rng(0))
    A.sort_indices()
    parts = A.data, A.indices.astype(index), A.indptr.astype(index)
    found, other = csr_of(*parts, shape), csr_of(2 * A.data, *parts[1:], shape)
    expected = sp.csr_array(parts, shape=shape)
    assert type(found) is sp.csr_array
    assert found.shape == shape
    assert found.has_canonical_format
    for name in ("data", "indices", "indptr"):
        assert getattr(found, name).dtype == getattr(expected, name).dtype
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert np.shares_memory(found.data, A.data) or not A.nnz
    for one, factor in ((found, 1), (other, 2), (pickle.loads(pickle.dumps(found)), 1)):
        np.testing.assert_array_equal((one @ np.eye(shape[1])), factor * A.toarray())
        np.testing.assert_array_equal(one.T.toarray(), factor * A.T.toarray())
