"""Products of few multiply-adds in one pass: as the two phases give them, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from spgemm_settings import matrix, same_bits

import portable_spdnn as ps
from portable_spdnn_cpu.spgemm.single_pass import (
    MOST_COLUMNS,
    MOST_CONVERTED,
    MOST_PRODUCTS,
    MOST_SORTED,
    multiply_as_given,
)

BACKEND = ps.get_backend("numba", threads=1)


def two_phases(A: Any, B: Any) -> Any:
    return BACKEND.spgemm_handle(A, B).numeric()


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_results_are_those_of_two_phases_to_the_bit(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    m, k = data.draw(st.tuples(st.integers(0, 12), st.integers(0, 40)))
    n = data.draw(st.sampled_from([0, 1, 5, 63, 64, 65, 300, MOST_COLUMNS]))
    density = data.draw(st.sampled_from([0.02, 0.2, 0.9]))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    wild = data.draw(st.booleans())
    A = matrix(rng, (m, k), density, dtype, wild)
    B = matrix(rng, (k, n), min(density, 400 / max(1, n)), dtype, wild)
    index = data.draw(st.sampled_from([np.int32, np.int64]))
    for operand in (A, B):
        operand.indices, operand.indptr = (
            operand.indices.astype(index),
            operand.indptr.astype(index),
        )
    C = multiply_as_given(A, B)
    assert C is not None
    same_bits(C, two_phases(A, B))
    assert C.dtype == dtype
    assert C.shape == (m, n)
    assert C.indices.size == C.data.size == C.nnz
    assert C.indices.dtype == C.indptr.dtype == np.int32
    copy = sp.csr_array((C.data, C.indices, C.indptr), shape=C.shape)
    assert copy.has_canonical_format


@pytest.mark.parametrize("entries", [MOST_SORTED // 2, MOST_SORTED // 2 + 1])
def test_rows_of_which_products_meet(entries: int) -> None:
    """Two rows of B in every order, whose columns are the same, alternate, or are apart."""
    columns = 4 * entries + 300
    for step, shift in ((2, 0), (2, 1), (2, -1), (1, entries), (1, -entries), (1, 150)):
        first = 100 + step * np.arange(entries)
        B = sp.lil_array((2, columns))
        B[0, first], B[1, first + shift] = np.arange(1, entries + 1), -1.5
        B = sp.csr_array(B)
        A = sp.csr_array(np.array([[2.0, 3.0], [0.0, -1.0], [1.0, 0.0], [0.0, 0.0]]))
        C = multiply_as_given(A, B)
        assert C is not None
        np.testing.assert_array_equal(C.toarray(), A.toarray() @ B.toarray())
        same_bits(C, two_phases(A, B))


def test_a_zero_is_never_negative() -> None:
    A = sp.csr_array((np.array([-0.0, -1.0, 1.0]), [0, 0, 1], [0, 1, 3]), shape=(2, 2))
    B = sp.csr_array(np.ones((2, 1)))
    C = multiply_as_given(A, B)
    assert C is not None
    assert C.data.tolist() == [0.0, 0.0]  # an entry that cancels is stored
    assert not np.signbit(C.data).any()


def operands() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    return tuple(
        sp.random_array(shape, density=0.4, format="csr", dtype=np.float32, rng=rng)
        for shape in ((9, 11), (11, 8))
    )


def shuffled(B: Any) -> None:
    B.indices[B.indptr[0] : B.indptr[1]] = B.indices[B.indptr[0] : B.indptr[1]][::-1].copy()


def doubled(B: Any) -> None:
    B.indices[B.indptr[2] + 1] = B.indices[B.indptr[2]]


def beyond(B: Any) -> None:
    B.indices[-1] = B.shape[1]


def negative(B: Any) -> None:
    B.indices[B.indptr[4]] = -1


def falling(B: Any) -> None:
    B.indptr[3] = B.indptr[4] + 1


def not_from_zero(B: Any) -> None:
    B.indptr[0] = 1


def too_far(B: Any) -> None:
    B.indptr[-1] += 1


CHANGES = (shuffled, doubled, beyond, negative, falling, not_from_zero, too_far)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_canonical_goes_another_way(change: Callable[[Any], None], which: int) -> None:
    A, B = both = operands()
    change(both[which])
    assert multiply_as_given(A, B) is None
    if change in (shuffled, doubled):
        expected = A.toarray() @ B.toarray()
        np.testing.assert_allclose(BACKEND.spgemm(A, B).toarray(), expected, atol=1e-5)
        return
    with pytest.raises(ps.InputError, match=f"spgemm: {'AB'[which]}: "):
        BACKEND.spgemm(A, B)


def test_rows_that_are_not_met_are_looked_at_too() -> None:
    _, B = operands()
    A = sp.csr_array((2, 11), dtype=np.float32)
    assert multiply_as_given(A, B) is not None
    beyond(B)
    assert multiply_as_given(A, B) is None


def test_other_operands_go_another_way() -> None:
    A, B = operands()
    wide = sp.csr_array((11, MOST_COLUMNS + 1), dtype=np.float32)
    strided = B.copy()
    strided.data = np.repeat(B.data, 2)[::2]
    masked = B.copy()
    masked.data = np.ma.array(B.data)
    listed = B.copy()
    listed.data = B.data.tolist()
    others = [
        B.toarray(), B.tocoo(), B.astype(complex), wide, strided, masked, listed, B[:-1], 3,
    ]  # fmt: skip
    for other in others:
        assert multiply_as_given(A, other) is None
    assert multiply_as_given(None, B) is None
    for left in (sp.csr_matrix(A), A):
        C = multiply_as_given(left, sp.csr_matrix(B))
        assert type(C) is sp.csr_array
        same_bits(C, two_phases(A, B))


@pytest.mark.parametrize("second", ["f4", "f8", ">f4", "i1", "i4", "u8", "?", "f2"])
@pytest.mark.parametrize("first", ["f4", "f8", "i8"])
def test_values_of_other_types_are_converted(first: str, second: str) -> None:
    A, B = operands()
    A.data, B.data = (8 * A.data).astype(first), (8 * B.data).astype(second)
    C = multiply_as_given(A, B)
    assert C is not None
    expected = two_phases(A, B)
    assert C.dtype == expected.dtype
    same_bits(C, expected)
    sums = A.astype(np.float64).toarray() @ B.astype(np.float64).toarray()
    np.testing.assert_allclose(C.toarray(), sums, rtol=1e-4, atol=1e-4)


def test_transposes_in_csc_are_converted() -> None:
    A, B = operands()
    expected = two_phases(A, B)
    for left, right in ((A, B.tocsc()), (A.tocsc(), B), (sp.csc_matrix(A), sp.csc_matrix(B))):
        C = multiply_as_given(left, right)
        assert C is not None
        same_bits(C, expected)
    columns = sp.csc_array(B)
    for change in CHANGES:
        lying = columns.copy()
        change(lying)
        if change is shuffled:  # rows of a column, which are in order once they are converted
            same_bits(multiply_as_given(A, lying), two_phases(A, lying))
        elif change is beyond:
            lying.indices[-1] = B.shape[0]
            assert multiply_as_given(A, lying) is None
        else:
            assert multiply_as_given(A, lying) is None
    large = sp.csc_array(np.ones((1, MOST_CONVERTED + 1), np.float32))
    assert multiply_as_given(sp.csr_array((2, 1), dtype=np.float32), large) is None


@pytest.mark.parametrize("products", [MOST_PRODUCTS, MOST_PRODUCTS + 1])
def test_how_many_multiply_adds_are_few(products: int) -> None:
    """One row of A meets as many rows of B as there are multiply-adds, all in one column."""
    A = sp.csr_array(np.ones((1, products), np.float32))
    B = sp.csr_array(np.ones((products, 1), np.float32))
    C = multiply_as_given(A, B)
    assert (C is not None) == (products <= MOST_PRODUCTS)
    assert BACKEND.spgemm(A, B).toarray().tolist() == [[products]]


def test_operands_keep_their_flags_and_results_are_their_own() -> None:
    A, B = operands()
    for operand in (A, B):
        operand.has_canonical_format = operand.has_sorted_indices = False
    first, second = BACKEND.spgemm(A, B), BACKEND.spgemm(A, B)
    assert [A._has_canonical_format, B._has_canonical_format] == [False, False]
    first.data[:] = first.indices[:] = 0
    np.testing.assert_allclose(second.toarray(), A.toarray() @ B.toarray(), atol=1e-5)
