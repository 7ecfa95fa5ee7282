"""CSC becomes the CSR that SciPy makes of it; what is invalid is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from portable_spdnn_cpu.layout.csc_to_csr import csc_to_csr


def matrix(seed: int, shape: tuple[int, int], density: float = 0.3) -> sp.csc_array:
    rng = np.random.default_rng(seed)
    return sp.random_array(shape, density=density, rng=rng, dtype=np.float32).tocsc()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1000), st.integers(0, 30), st.integers(0, 30), st.floats(0, 1),
    st.sampled_from([np.int32, np.int64]), st.booleans(),
)  # fmt: skip
def test_the_same_as_scipys(
    seed: int, rows: int, columns: int, density: float, index: Any, spare: bool
) -> None:
    A = matrix(seed, (rows, columns), density)
    A.indices, A.indptr = A.indices.astype(index), A.indptr.astype(index)
    expected = A.tocsr()
    if spare:  # space after the last entry
        A.indices, A.data = np.append(A.indices, A.indices[:2]), np.append(A.data, A.data[:2])
    found = csc_to_csr(A)
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(found, part), getattr(expected, part))
    assert found.shape == expected.shape


def test_entries_that_are_there_twice_stay() -> None:
    A = sp.csc_array((np.array([1.0, 2, 3]), np.array([1, 1, 0]), np.array([0, 2, 3])), (2, 2))
    found = csc_to_csr(A)
    assert found.indices.tolist() == [1, 0, 0]
    assert found.data.tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("part", "place", "value"),
    [
        ("indices", 0, -1), ("indices", -1, 20), ("indices", 3, 1 << 30), ("indptr", 0, 1),
        ("indptr", 0, -1), ("indptr", 3, -5), ("indptr", 3, 1 << 30), ("indptr", -1, 1 << 30),
    ],
)  # fmt: skip
def test_what_is_invalid_is_refused(part: str, place: int, value: int) -> None:
    A = matrix(1, (20, 25))
    getattr(A, part)[place] = value
    assert csc_to_csr(A) is None


@pytest.mark.parametrize("shape", [(-1, 5), (5, 5, 1)])
def test_a_shape_that_is_none_is_refused(shape: tuple[int, ...]) -> None:
    A = sp.csc_array(np.eye(5))
    A._shape = shape
    assert csc_to_csr(A) is None


def test_what_does_not_fit_is_left_to_others() -> None:
    A = matrix(2, (20, 25))
    assert all(csc_to_csr(other) is None for other in (A.tocsr(), A.tocoo(), A.toarray(), "A"))
    for part, other in (
        ("indptr", A.indptr[:-1]), ("indptr", A.indptr.astype(np.int64)),
        ("indptr", A.indptr.tolist()), ("indices", A.indices[:-1]), ("data", A.data[:-1]),
        ("data", A.data[:, None]), ("data", A.data.astype(np.float16)), ("data", None),
    ):  # fmt: skip
        lying = A.copy()
        setattr(lying, part, other)
        assert csc_to_csr(lying) is None
