"""Arrays as they are given to a handle: which are taken without checks, and that all are right."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import mmap
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from concurrent_calls import check_calls_at_a_time
from guard_pages import array_before_a_guard_page
from hypothesis import given
from hypothesis import strategies as st
from offsets import at_offset

import portable_spdnn as ps
from portable_spdnn_cpu.jit import array_objects
from portable_spdnn_cpu.machine.thread_pool import ALONE
from portable_spdnn_cpu.spmm import cost_model
from portable_spdnn_cpu.spmm.dense import DenseProduct
from portable_spdnn_cpu.spmm.dense_layout import Layout
from portable_spdnn_cpu.spmm.few_columns.choice import forms
from portable_spdnn_cpu.spmm.few_columns.product import FewColumnsProduct
from portable_spdnn_cpu.spmm.plain_arrays import NOT_PLAIN, layout_function

NUMBA = ps.get_backend("numba", threads=1)
ROWS, INNER = 23, 37


def weights(dtype: Any = np.float32) -> Any:
    kept = np.random.default_rng(0).random((ROWS, INNER)) < 0.3
    values = np.random.default_rng(1).standard_normal((ROWS, INNER))
    return sp.csr_array(np.where(kept, values, 0).astype(dtype))


def values(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 2) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def in_memory(kind: str, array: Any) -> Any:
    """Return the values of an array, of a type and in memory of some kind."""
    if kind == "plain" or (kind == "transposed" and array.ndim == 1):
        return array.copy()
    if kind == "transposed":
        return np.asfortranarray(array)
    if kind == "apart":
        wide = np.zeros(tuple(2 * size for size in array.shape), array.dtype)
        wide[(slice(None, None, 2),) * array.ndim] = array
        return wide[(slice(None, None, 2),) * array.ndim]
    if kind == "gaps":  # between rows, as in a slice of columns
        columns = array.reshape(len(array), -1)
        wide = np.full((len(array), columns.shape[1] + 5), np.nan, array.dtype)
        found = wide[:, 2 : 2 + columns.shape[1]]
        found[...] = columns
        return found[:, 0] if array.ndim == 1 else found
    if kind == "transposed gaps":
        return array.copy() if array.ndim == 1 else in_memory("gaps", array.T).T
    if kind == "backwards":
        return array[::-1].copy()[::-1]
    if kind == "misaligned":
        raw = np.empty(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
        raw[...] = array
        return raw
    if kind == "aligned":
        raw = np.empty(array.nbytes + 64, np.uint8)
        first = -raw.ctypes.data % 64
        found = raw[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
        found[...] = array
        return found
    assert kind == "subclass"
    return array.copy().view(np.memmap)


@functools.cache
def handle_of(dtype: Any, columns: int | None) -> Any:
    return NUMBA.spmm_handle(weights(dtype), columns)


KINDS = [
    "plain", "transposed", "gaps", "transposed gaps", "apart", "backwards", "misaligned", "aligned",
    "subclass",
]  # fmt: skip


@given(
    st.sampled_from([0, 1, 2, 3, 8, 15, 16, 33]),
    st.sampled_from(KINDS),
    st.sampled_from([None, *KINDS]),
    st.sampled_from([None, "plain", "transposed", "aligned"]),
    st.sampled_from([np.float32, np.float64]),
    st.booleans(),
)
def test_products_of_arrays_of_every_kind(columns, kind, added, taken, dtype, prepared):
    """0 columns stand for a vector."""
    A, shape = weights(dtype), (columns,) if columns else ()
    handle = handle_of(dtype, max(1, columns) if prepared else None)
    B = in_memory(kind, values((INNER, *shape), dtype))
    residual = None if added is None else in_memory(added, values((ROWS, *shape), dtype, 3))
    expected = A.astype(np.float64) @ B + (0 if residual is None else residual)
    out = None
    if taken is not None:
        out = in_memory(
            "plain" if taken == "transposed" else taken, np.full((ROWS, *shape), 7, dtype)
        )
    for _ in range(2):  # what the first call has chosen is taken by the second
        C = handle.multiply(B, out, residual)
        assert C is out or out is None
        assert C.dtype == dtype
        np.testing.assert_allclose(C, expected, rtol=1e-4, atol=1e-4)


@given(
    st.sampled_from([1, 2, 5, 16, 33]),
    st.sampled_from(KINDS),
    st.sampled_from([None, *KINDS]),
    st.booleans(),
)
def test_layers_of_arrays_of_every_kind(inputs, kind, added, takes):
    W = weights()
    handle = NUMBA.layer_handle(W, epilogue=ps.Epilogue(activation="relu"))
    Y = in_memory(kind, values((inputs, ROWS)))
    residual = None if added is None else in_memory(added, values((inputs, INNER), seed=3))
    expected = np.maximum(Y @ W.toarray() + (0 if residual is None else residual), 0)
    out = np.full((inputs, INNER), 7, np.float32) if takes else None
    for _ in range(2):
        found = handle.apply(Y, out, residual)
        assert found is out or out is None
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [2, 8, 24, 64])
def test_b_and_residuals_in_fortran_order_need_no_checks(columns, monkeypatch):
    A = weights()
    handle: Any = NUMBA.spmm_handle(A)
    B = in_memory("transposed", values((INNER, columns)))
    handle.multiply(B)
    monkeypatch.setattr(handle, "_run", None)
    for taken in (None, np.empty((ROWS, columns), np.float32)):
        for residual in (None, *(values((ROWS, columns), seed=4).copy(order) for order in "CF")):
            found = handle.multiply(B, taken, residual)
            assert found.flags.c_contiguous
            expected = A.toarray() @ B + (0 if residual is None else residual)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["plain", "gaps"])
@pytest.mark.parametrize(
    ("is_layer", "columns"),
    [*((False, n) for n in (0, 1, 3, 24)), *((True, n) for n in (1, 3, 24))],
)
def test_plain_arrays_need_no_checks(is_layer, columns, kind, monkeypatch):
    """The second call of a shape does not reach what comes after the checks."""
    A = weights()
    if is_layer:
        handle: Any = NUMBA.layer_handle(A, epilogue=ps.Epilogue())
        call, given, out = handle.apply, (columns, ROWS), (columns, INNER)
        dense = values(given)
        expected = dense @ A.toarray()
    else:
        handle = NUMBA.spmm_handle(A)
        shape = (columns,) if columns else ()
        call, given, out = handle.multiply, (INNER, *shape), (ROWS, *shape)
        dense = values(given)
        expected = A.toarray() @ dense
    dense = in_memory(kind, dense)
    call(dense)
    monkeypatch.setattr(handle, "_run", None)
    for taken in (None, np.empty(out, np.float32)):
        for residual in (None, in_memory(kind, np.ones(out, np.float32))):
            found = call(dense, taken, residual)
            np.testing.assert_allclose(found, expected + (residual is not None), atol=1e-4)


def test_aligned_rows_of_few_columns_need_no_checks_either(monkeypatch):
    A, B = weights(np.float64), in_memory("aligned", values((INNER, 8), np.float64))
    shifted, _ = at_offset(B, 16)
    for columns in (None, 8):
        handle: Any = NUMBA.spmm_handle(A, columns)
        for operand in (B, shifted, in_memory("transposed", B)):
            handle.multiply(operand)  # chooses a kernel for each layout
        with monkeypatch.context() as patched:
            patched.setattr(handle, "_run", None)
            for operand in (B, shifted):
                np.testing.assert_allclose(handle.multiply(operand), A @ B, atol=1e-12)


def test_dense_weights_meet_infinity_once(monkeypatch):
    """BLAS would multiply it by zeros that are not stored; it is not tried twice."""
    fast = dataclasses.replace(cost_model.COSTS, dense=cost_model.COSTS.stream.l1 / 2)
    monkeypatch.setattr(cost_model, "COSTS", fast)
    A = sp.csr_array(np.where(values((400, 410)) < 2, 1, 0).astype(np.float32))
    handle: Any = NUMBA.spmm_handle(A)
    B = values((410, 320))
    handle.multiply(B)
    tried, multiply = [], DenseProduct.multiply

    def counted(self, *arguments):
        tried.append(multiply(self, *arguments))
        return tried[-1]

    monkeypatch.setattr(DenseProduct, "multiply", counted)
    monkeypatch.setattr(handle, "_run", None)
    for place in (None, (3, 5)):
        if place:
            B[place] = np.inf
        expected = A @ B.astype(np.float64)
        for _ in range(2):
            np.testing.assert_allclose(handle.multiply(B), expected, rtol=1e-4, atol=1e-3)
    assert [done is False for done in tried] == [False, False, True, True]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("columns", [1, 3, 24])
def test_calls_at_a_time_have_memory_of_their_own(columns, threads):
    handle = ps.get_backend("numba", threads=threads).spmm_handle(weights())
    operands = [values((INNER, columns), seed=seed) for seed in range(4)]
    check_calls_at_a_time(handle.multiply, operands)


@pytest.mark.parametrize("columns", [1, 3, 24])
def test_what_does_not_fit_is_named(columns):
    A, B, out = weights(), values((INNER, columns)), np.empty((ROWS, columns), np.float32)
    handle = NUMBA.spmm_handle(A)
    handle.multiply(B, out)
    memory = np.zeros(2 * INNER * columns, np.float32)
    overlapping = memory[: INNER * columns].reshape(INNER, columns)
    frozen = out.copy()
    frozen.flags.writeable = False
    wrong: list[tuple[str, tuple[Any, ...]]] = [
        ("spmm", (values((INNER + 1, columns)),)),
        ("spmm: B", (values((INNER, columns), np.float64),)),
        ("spmm: out overlaps", (overlapping, memory[4 : 4 + ROWS * columns].reshape(out.shape))),
        ("spmm: out", (B, out.astype(np.float64))),
        ("spmm: out", (B, np.empty((ROWS, columns + 1), np.float32))),
        ("spmm: out", (B, frozen)),
        ("spmm: out", (B, out[:, 0])),
        ("spmm: out", (B, out.view(np.int32))),
        ("spmm: out overlaps", (B, out, out)),
        ("spmm: residual", (B, out, values((ROWS, columns + 1)))),
        ("spmm: residual", (B, out, values((ROWS, columns), np.float64))),
    ]
    for message, arguments in wrong:
        before = arguments[0].copy()
        with pytest.raises(ps.InputError, match=message):
            handle.multiply(*arguments)
        np.testing.assert_array_equal(arguments[0], before)


@pytest.mark.parametrize("columns", [1, 8, 40])
def test_memory_mapped_operands_need_no_checks(columns, monkeypatch, tmp_path):
    A = weights()
    handle: Any = NUMBA.spmm_handle(A)
    wide = np.memmap(tmp_path / "operand", np.float32, "w+", shape=(INNER, columns + 3))
    wide[...] = values(wide.shape)
    for B in (wide[:, 1 : 1 + columns], wide[:, :columns].T.copy().T):
        expected = A @ np.asarray(B)
        handle.multiply(B)
        with monkeypatch.context() as patched:
            patched.setattr(handle, "_run", None)
            found = handle.multiply(B, residual=np.ones((ROWS, columns), np.float32))
        assert type(found) is np.ndarray
        np.testing.assert_allclose(found, expected + 1, rtol=1e-4, atol=1e-4)


def test_what_was_used_last_is_looked_at_first(monkeypatch):
    A, B = weights(), values((INNER, 3))
    handle: Any = NUMBA.spmm_handle(A)
    paths = handle._run_as_given.__self__
    for _ in range(2):
        handle.multiply(B)
    assert paths._latest is not None
    monkeypatch.setattr(paths, "_by_shape", {})
    np.testing.assert_allclose(handle.multiply(B), A @ B, rtol=1e-4, atol=1e-4)
    assert handle._run_as_given(B[:, :2].copy(), None, None) is None
    monkeypatch.undo()
    handle.multiply(values((INNER, 5)))  # chooses a kernel: all are looked up anew
    assert paths._latest is None


def test_calls_of_other_shapes_and_orders_by_turns():
    """What was used last serves only what it is made for."""
    A = weights()
    handle = NUMBA.spmm_handle(A)
    operands = [
        in_memory(kind, values((INNER, *shape), seed=seed))
        for seed, (shape, kind) in enumerate(
            itertools.product([(), (1,), (3,), (16,), (24,)], ["plain", "aligned", "transposed"])
        )
    ]
    for _ in range(3):
        for B in operands:
            out = np.full((ROWS, *B.shape[1:]), 7, np.float32)
            assert handle.multiply(B, out) is out
            np.testing.assert_allclose(out, A @ B, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(handle.multiply(B), A @ B, rtol=1e-4, atol=1e-4)


def test_where_the_fields_of_arrays_are_not_known_all_is_checked(monkeypatch):
    monkeypatch.setattr(array_objects, "FIELDS_ARE_KNOWN", False)
    A, B = weights(), values((INNER, 3))
    handle: Any = NUMBA.spmm_handle(A)
    for _ in range(2):
        np.testing.assert_allclose(handle.multiply(B), A @ B, rtol=1e-4, atol=1e-4)
    assert handle._run_as_given(B, None, None) is None
    plan = ps.plan(ps.Network([ps.Layer(A, activation="none")]), NUMBA, expected_inputs=2)
    Y = values((2, ROWS))
    np.testing.assert_allclose(plan.scores(Y), Y @ A, rtol=1e-4, atol=1e-4)
    assert plan.scores_as_given(Y) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_how_plain_arrays_lie_in_memory(dtype):
    C = np.zeros((4, 16), dtype)

    def look(B, out, transposed):
        return layout_function()(B, out, C.itemsize, transposed)

    aligned = in_memory("aligned", np.zeros((8, 16), dtype))
    assert look(aligned, C, False) == Layout.ALIGNED
    off = in_memory("aligned", np.zeros((9, 16), dtype)).ravel()[1:129].reshape(8, 16)
    assert look(off, C, False) == Layout.SHIFTED
    assert look(off[:, :15].copy(), C, False) == Layout.UNALIGNED
    assert look(aligned[:, :15].copy(), C, False) == Layout.UNALIGNED
    assert look(aligned, C, True) == Layout.FORTRAN
    assert look(aligned[:1], C, True) == Layout.UNALIGNED  # of one column: in either order
    # Slices: rows whole lines apart, other rows, single columns, transposes.
    wide = in_memory("aligned", np.zeros((8, 48), dtype))
    assert look(wide[:, :16], C, False) == look(wide[:, 16:32], C, False) == Layout.ALIGNED
    assert look(wide[:, 1:17], C, False) == Layout.SHIFTED
    assert look(in_memory("gaps", aligned), C, False) == Layout.UNALIGNED
    assert look(wide[:, :15], C, False) == look(wide[:, 0], C, False) == Layout.UNALIGNED
    assert look(wide[:, 0][:, None], C, False) == Layout.UNALIGNED
    assert look(wide[:, :16], C, True) == Layout.FORTRAN
    assert look(in_memory("transposed gaps", aligned), C, False) == Layout.FORTRAN
    assert look(in_memory("transposed gaps", aligned), C, True) == NOT_PLAIN
    assert look(in_memory("transposed", aligned), C, False) == Layout.FORTRAN
    assert look(in_memory("transposed", aligned), C, True) == NOT_PLAIN
    for kind in ("apart", "backwards", "misaligned"):
        for transposed in (False, True):
            assert look(in_memory(kind, aligned), C, transposed) == NOT_PLAIN
    for kind in ("transposed", "gaps", "transposed gaps", "apart", "backwards", "misaligned"):
        assert look(aligned, in_memory(kind, C), False) == NOT_PLAIN
    for first in (0, 1, 127):  # of as many items of both
        assert look(aligned, aligned.ravel()[first : first + 1].reshape(1, 1), False) == NOT_PLAIN
    memory = np.zeros(192, dtype)
    left, right = memory[:128].reshape(8, 16), memory[128:].reshape(4, 16)
    assert NOT_PLAIN not in (look(left, right, False), look(right, left, False))
    # C in a gap is taken for C in the memory of B; behind the last item of B it is not.
    memory = np.zeros(2 * 64 + 32, dtype)
    sliced = memory[:128].reshape(2, 64)[:, :16]
    assert look(sliced, memory[16:48].reshape(2, 16), False) == NOT_PLAIN
    assert look(sliced, memory[64 + 15 :][:16].reshape(1, 16), False) == NOT_PLAIN
    assert look(sliced, memory[64 + 16 :][:64].reshape(4, 16), False) != NOT_PLAIN


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [1, 2, 3, 5, 7, 8, 11, 15, 16, 17, 31, 32])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_few_columns_read_nothing_behind_b(columns, dtype, is_reversed):
    """The last row in memory ends where that does, and there are gaps between rows."""
    pitch = columns + 2
    inner = min(INNER, mmap.PAGESIZE // (pitch * np.dtype(dtype).itemsize))
    A = sp.csr_array(weights(dtype)[:, :inner])
    memory = array_before_a_guard_page(mmap.PAGESIZE // np.dtype(dtype).itemsize, dtype)
    B = memory[memory.size - pitch * inner :].reshape(inner, pitch)[:, pitch - columns :]
    B = B[::-1] if is_reversed else B
    B[...] = values(B.shape, dtype)
    for form in forms(A, columns, doubtful=np.inf):
        product = FewColumnsProduct(A, columns, ps.Epilogue(), 1, form)
        C = np.empty((ROWS, columns), dtype)
        product.multiply(B, C, None, ALONE)
        np.testing.assert_allclose(C, A @ B, rtol=1e-4, atol=1e-4)
