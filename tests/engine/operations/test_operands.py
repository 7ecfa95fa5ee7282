"""Operands: canonical form, types, and what `out` and new values must be."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.operations.operands import (
    canonical,
    cast_to_prepared,
    check_out,
    common_dtype,
    host_array,
    with_values,
)


def test_canonical_form_is_sorted_and_summed_in_a_copy() -> None:
    # Row 0 holds column 2 twice and out of order.
    A = sp.csr_array((np.array([1.0, 2, 4]), np.array([2, 0, 2]), np.array([0, 3, 3])))
    found: Any = canonical("A", A)
    assert (found.indices.tolist(), found.data.tolist()) == ([0, 2], [2.0, 5.0])
    assert A.indices.tolist() == [2, 0, 2]
    again: Any = canonical("A", found)
    assert again.data is found.data
    assert again.indices is found.indices
    assert isinstance(canonical("A", sp.coo_matrix(np.eye(2))), sp.csr_array)
    with pytest.raises(ps.InputError, match=r"A has 1 dimension\(s\); 2 are expected"):
        canonical("A", sp.coo_array(np.ones(3)))


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ("?", "f"), ("b", "f"), ("H", "f"), ("i", "f"), ("e", "f"), ("f", "f"),
        ("d", "d"), ("q", "d"), ("Q", "d"), ("fd", "d"), ("bq", "d"), ("fe", "f"),
    ],
)  # fmt: skip
def test_the_common_type_holds_all_values(types: str, expected: str) -> None:
    operands = [np.zeros((1, 1), one) for one in types]
    assert common_dtype("spmm", A=operands[0], B=operands[-1], residual=None) == np.dtype(expected)


@pytest.mark.parametrize("B", [3.0, 3, True, np.float32(3)])
def test_a_number_is_no_vector(B: Any) -> None:
    with pytest.raises(ps.InputError, match="spmm: B has 0 dimensions; 1 or 2 are expected"):
        ps.get_backend("scipy").spmm(sp.csr_array(np.eye(2)), B)


def test_what_is_not_real_is_refused() -> None:
    with pytest.raises(ps.InputError, match="spmm: B has type complex128; real numbers"):
        common_dtype("spmm", A=np.zeros((1, 1)), B=np.zeros((1, 1), complex))


def test_prepared_weights_take_what_their_type_holds() -> None:
    narrow, single, double = (np.ones((1, 2), one) for one in "efd")
    assert cast_to_prepared(single, "B", np.dtype(np.float32)) is single
    assert cast_to_prepared(narrow, "B", np.dtype(np.float32)).dtype == np.float32
    assert cast_to_prepared(single, "B", np.dtype(np.float64)).dtype == np.float64
    with pytest.raises(ps.InputError, match="B is float64 but the weights were prepared as float3"):
        cast_to_prepared(double, "B", np.dtype(np.float32))


def test_out_must_take_the_result() -> None:
    B, single = np.ones((2, 3), np.float32), np.dtype(np.float32)
    read_only = np.empty((2, 3), np.float32)
    read_only.flags.writeable = False
    check_out("spmm", None, (2, 3), single, B)
    check_out("spmm", np.empty((2, 3), np.float32), (2, 3), single, B, None)
    wrong: list[tuple[Any, str]] = [
        ([[0.0] * 3] * 2, "spmm: out is list; an ndarray, or an array of the backend's own type"),
        (np.empty((3, 2), np.float32), r"float32 of shape \(3, 2\) in C order; float32 of shape"),
        (np.empty((2, 3)), r"out is float64 of shape \(2, 3\) in C order; float32"),
        (np.empty((3, 2), np.float32).T, r"float32 of shape \(2, 3\) in Fortran order; float32"),
        (np.empty((2, 4), np.float32)[:, :3], "in neither C nor Fortran order; float32"),
        (np.empty((2, 3), np.float32)[::-1], "in neither C nor Fortran order; float32"),
        (read_only, "spmm: out is read-only"),
        (B, "out overlaps a dense operand"),
    ]
    for out, message in wrong:
        with pytest.raises(ps.InputError, match=message):
            check_out("spmm", out, (2, 3), single, B)


def test_vectors_have_one_dimension_in_errors_too() -> None:
    A, x = sp.csr_array(np.eye(5, 6, dtype=np.float32)), np.ones(6, np.float32)
    backend = ps.get_backend("scipy")
    handle = backend.spmm_handle(A)
    for multiply in (functools.partial(backend.spmm, A), handle.multiply):
        with pytest.raises(
            ps.InputError, match=r"residual has shape \(4,\); the result has \(5,\)"
        ):
            multiply(x, residual=np.ones(4, np.float32))
        with pytest.raises(ps.InputError, match=r"residual has shape \(4, 1\); .* \(5, 1\)"):
            multiply(x[:, None], residual=np.ones((4, 1), np.float32))
    with pytest.raises(ps.InputError, match=r"of shape \(4,\) in C order; .* of shape \(5,\)"):
        handle.multiply(x, out=np.empty(4, np.float32))


def test_new_values_keep_the_pattern() -> None:
    A = sp.csr_array(np.array([[0.0, 2], [1, 0]], np.float32))
    assert with_values("A", A, None) is A
    found = with_values("A", A, [3, 4])
    np.testing.assert_array_equal(found.toarray(), [[0, 3], [4, 0]])
    assert found.dtype == np.float32
    assert A.data.tolist() == [2, 1]
    with pytest.raises(ps.InputError, match=r"values for A have shape \(3,\); A stores 2"):
        with_values("A", A, [1, 2, 3])


def test_what_numpy_cannot_read_is_named() -> None:
    with pytest.raises(ps.InputError, match="B: list cannot be read as an array"):
        host_array("B", [[1.0, 2.0], [3.0]])
