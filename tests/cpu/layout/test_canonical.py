"""The compiled look at sparse matrices agrees with the careful one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn_cpu.layout.canonical import is_canonical


def csr(values: Any, indices: Any, indptr: Any, shape: tuple[int, int]) -> Any:
    """Return a csr_array with just these arrays, however wrong they are."""
    matrix = sp.csr_array(shape, dtype=np.float32)
    matrix.data = np.asarray(values, np.float32)
    matrix.indices, matrix.indptr = np.asarray(indices, np.int32), np.asarray(indptr, np.int32)
    return matrix


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-2, 5), max_size=8), st.lists(st.integers(-1, 9), min_size=1, max_size=6)
)
def test_what_passes_is_sorted_unique_and_within(indices: list[int], indptr: list[int]) -> None:
    matrix = csr(np.ones(len(indices)), indices, indptr, (len(indptr) - 1, 4))
    rows = [indices[first:end] for first, end in itertools.pairwise(indptr)]
    expected = (
        indptr[0] == 0
        and indptr[-1] == len(indices)
        and indptr == sorted(indptr)
        and all(row == sorted(set(row)) and not set(row) - {0, 1, 2, 3} for row in rows)
    )
    assert is_canonical(matrix) == expected


@pytest.mark.parametrize("kind", ["float16", ">f4", "int8", "complex64"])
def test_other_types_are_looked_at_carefully(kind: str) -> None:
    eye = sp.csr_array(np.eye(3))
    eye.data = eye.data.astype(kind)
    assert not is_canonical(eye)


def test_other_formats_and_memory_are_looked_at_carefully() -> None:
    eye = sp.csr_array(np.eye(3))
    assert is_canonical(eye)
    assert not any(map(is_canonical, (eye.tocsc(), eye.tocoo(), sp.csr_matrix(eye), np.eye(3))))
    strided = eye.copy()
    strided.data = np.ones(6)[::2]
    assert not is_canonical(strided)
    short = eye.copy()
    short.data = np.ones(2)
    assert not is_canonical(short)


def test_a_backend_sees_what_changed_since_the_last_call() -> None:
    backend, matrix = ps.get_backend("numba"), sp.csr_array(np.ones((2, 3), np.float32))
    ones = np.ones((3, 2), np.float32)
    assert (backend.spmm(matrix, ones) == 3).all()
    matrix.indices[:3] = [2, 0, 0]
    assert backend.spmm(matrix, np.eye(3, dtype=np.float32)).tolist() == [[2, 0, 1], [1, 1, 1]]
    matrix.indices[0] = 3
    with pytest.raises(ps.InputError, match="outside"):
        backend.spmm(matrix, ones)


@pytest.mark.parametrize("name", ["scipy", "numba"])
def test_space_to_spare_in_one_array_alone(name: str) -> None:
    backend = ps.get_backend(name)
    for part in ("data", "indices"):
        matrix = sp.csr_matrix(np.eye(2, dtype=np.float32))
        setattr(matrix, part, np.append(getattr(matrix, part), 1))
        found = backend.spmm(matrix, np.eye(2, dtype=np.float32))
        np.testing.assert_array_equal(found, np.eye(2))
