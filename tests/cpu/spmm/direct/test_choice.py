"""Which form of A is multiplied, and where rows of B are copied."""

from __future__ import annotations

import numpy as np
import pytest
from direct_products import matrix

import portable_spdnn as ps
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm import tuning
from portable_spdnn_cpu.spmm.cost_model import ProductSize
from portable_spdnn_cpu.spmm.dense_layout import (
    MAPPED_BYTES,
    Layout,
    is_reused,
    layout_of,
    with_aligned_rows,
)
from portable_spdnn_cpu.spmm.direct import choice
from portable_spdnn_cpu.spmm.direct.choice import suited_form
from portable_spdnn_cpu.spmm.direct.product import multiply_as_given


@pytest.fixture(autouse=True)
def _caches_of_2_and_8_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "L2", 1 << 21)
    monkeypatch.setattr(choice, "MOST_NEAR", 1 << 17)
    monkeypatch.setattr(choice, "C_BYTES", 1 << 23)
    monkeypatch.setattr(choice, "B_IN_LAST_CACHE", 1 << 22)
    monkeypatch.setattr(choice, "CSC_BYTES", 256)
    monkeypatch.setattr(choice, "IN_ORDER_IN_PANELS", True)


def operand(k: int, columns: int) -> np.ndarray:
    return np.empty((k, columns), np.float32)


def test_csc_is_converted_where_c_is_far_and_b_is_wide() -> None:
    shape = 2000, 500
    assert suited_form("csc", shape, 20_000, operand(500, 16)) == "csc"
    assert suited_form("csc", shape, 200_000, operand(500, 500)) is None
    assert suited_form("csc", shape, 5000, operand(500, 200)) == "csr"
    # B from beyond the cache is read once, where C is near.
    assert suited_form("csc", (20, 3000), 6000, operand(3000, 256)) == "csc"
    assert suited_form("csc", (20, 2000), 18_000, operand(2000, 1024)) == "csc"
    # So it is where B alone fits in the cache, and A and B together do not.
    assert suited_form("csc", (512, 4600), 47_000, operand(4600, 100)) == "csc"
    assert suited_form("csc", (512, 3600), 47_000, operand(3600, 100)) == "csr"
    assert suited_form("csc", (2000, 2000), 18_000, operand(2000, 1024)) is None
    # What is little work is not weighed.
    assert suited_form("csc", (50, 500), 53, operand(500, 300)) == "csc"
    assert suited_form("csc", (50, 500), 60, operand(500, 300)) == "csr"
    # Where most rows are empty they are not written at all.
    assert suited_form("csc", (9000, 500), 5000, operand(500, 200)) == "csc"
    # In Fortran order it would be copied as a whole, which may take less than to convert A.
    assert suited_form("csc", (20, 3000), 6000, operand(256, 3000).T) == "csr"
    assert suited_form("csc", (20, 30_000), 60_000, operand(256, 30_000).T) is None
    assert suited_form("csc", (500, 20_000), 700_000, operand(32, 20_000).T) == "csc"


def test_the_one_of_b_and_c_that_is_far_is_passed_through_in_order() -> None:
    # C of 15 MB is written by rows, of 9 MB, nearly all of which is held, by columns.
    assert suited_form("csc", (120_000, 500), 100_000, operand(500, 32)) == "csr"
    assert suited_form("csc", (70_000, 500), 100_000, operand(500, 32)) == "csc"
    # B of 10 MB is read by columns, of 2.2 MB by rows.
    assert suited_form("csc", (6000, 30_000), 80_000, operand(30_000, 80)) == "csc"
    assert suited_form("csc", (6000, 7000), 80_000, operand(7000, 80)) == "csr"
    # In Fortran order, too, whose rows are copied.
    assert suited_form("csc", (6000, 20_000), 60_000, operand(80, 20_000).T) == "csc"
    assert suited_form("csc", (6000, 8000), 60_000, operand(80, 8000).T) == "csr"


def test_b_that_is_far_is_read_by_rows_where_few_of_its_rows_are_read_twice() -> None:
    for entries, form in ((30_000, "csr"), (80_000, "csc")):
        assert suited_form("csc", (6000, 30_000), entries, operand(30_000, 80)) == form
    # Rows that no entry meets are not counted: of 40,000 the 15,000 entries leave most.
    case = "csc", (9000, 40_000), 15_000, operand(40_000, 64)
    assert suited_form(*case, finishes=True) == "csr"


def test_b_that_is_far_goes_by_columns_in_one_panel_on_a_zen_4(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "IN_ORDER_IN_PANELS", False)
    assert suited_form("csc", (512, 4600), 47_000, operand(4600, 100)) == "csr"
    # Panels have 64 columns of float32 at most.
    for columns, form in ((64, "csc"), (65, "csr")):
        found = suited_form("csc", (2000, 30_000), 2000, operand(30_000, columns), finishes=True)
        assert found == form


def test_what_it_takes_to_convert_many_entries() -> None:
    assert suited_form("csc", (2000, 500), 150_000, operand(500, 96)) == "csc"
    assert suited_form("csc", (2000, 500), 150_000, operand(500, 192)) == "csr"


def test_csc_is_converted_where_all_of_c_would_be_transposed() -> None:
    # Features in C order are B in Fortran order, and C is to be so too.
    features = np.empty((32, 500), np.float32).T
    assert suited_form("csc", (16_000, 500), 30_000, features) == "csc"
    assert suited_form("csc", (16_000, 500), 30_000, features, keeps_order=True) == "csr"
    # C of 4 MB is beyond the second level, where each entry counts.
    assert suited_form("csc", (30_000, 500), 100_000, features, keeps_order=True) == "csr"
    # Other features are copied to C order.
    apart = np.empty((32, 1000), np.float32)[:, ::2].T
    assert suited_form("csc", (16_000, 500), 30_000, apart, keeps_order=True) == "csc"
    # To convert many entries takes longer than to transpose a C of 10 kB.
    few = np.empty((32, 80), np.float32).T
    assert suited_form("csc", (80, 80), 1600, few, keeps_order=True) == "csc"


def test_csc_is_converted_where_all_of_c_would_be_finished_at_the_end() -> None:
    for entries, bare, finished in ((10_000, "csc", "csr"), (100_000, "csc", "csc")):
        case = "csc", (16_000, 500), entries, operand(500, 32)
        assert suited_form(*case) == bare
        assert suited_form(*case, finishes=True) == finished
    # Without an epilogue rows that have no entry are not written.
    assert suited_form("csc", (9000, 500), 5000, operand(500, 200)) == "csc"
    assert suited_form("csc", (9000, 500), 5000, operand(500, 200), finishes=True) == "csr"


def test_little_work_is_weighed_where_a_large_c_is_finished_or_transposed() -> None:
    transposed = np.empty((300, 50), np.float32).T
    for rows, form in ((8000 // 300, "csc"), (1 + 8000 // 300, "csr")):
        assert suited_form("csc", (rows, 50), 20, operand(50, 300), finishes=True) == form
        assert suited_form("csc", (rows, 50), 20, transposed, keeps_order=True) == form
        assert suited_form("csc", (rows, 50), 20, operand(50, 300), keeps_order=True) == "csc"


def test_much_work_goes_another_way() -> None:
    shape = 1000, 1000
    assert suited_form("csr", shape, 100_000, operand(1000, 16)) == "csr"
    assert suited_form("csr", shape, 100_000, operand(1000, 256)) == "csr"
    assert suited_form("csr", shape, 200_000, operand(1000, 256)) is None
    assert suited_form("csr", shape, 200_000, operand(256, 1000).T) is None
    assert suited_form("csr", shape, 900_000, np.empty(1000, np.float32)) == "csr"


def test_many_rows_of_a_large_b_in_fortran_order_are_not_copied_one_by_one() -> None:
    # Of so few bytes pages are at hand; of more, the system makes one for nearly each row.
    assert suited_form("csr", (500, 100_000), 9000, operand(64, 100_000).T) == "csr"
    assert suited_form("csr", (500, 100_000), 9000, operand(96, 100_000).T) is None
    assert suited_form("csr", (500, 100_000), 900, operand(96, 100_000).T) == "csr"
    # Two columns take 16 bytes of a copy.
    assert suited_form("csr", (500, 600_000), 70_000, operand(2, 600_000).T) == "csr"


def test_how_far_the_model_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "NEAR_BYTES", 1 << 21)

    def ratio(inner: int, columns: int, layout: int, out_fortran: bool = False) -> float:
        size = ProductSize(100, inner, columns, 1000, 4, layout, out_fortran, 1)
        return tuning._required_ratio(size)

    assert ratio(1000, 64, Layout.ALIGNED) == 1.0
    assert ratio(1000, 2049, Layout.ALIGNED) == 0.5  # of rows that are too long
    assert ratio(8192, 64, Layout.FORTRAN) == ratio(1000, 400, Layout.FORTRAN) == 1.2
    assert ratio(8193, 64, Layout.FORTRAN) == 0.8  # of B that is not near
    assert ratio(20_000, 65, Layout.FORTRAN) == 0.5
    for inner, columns in ((1000, 64), (20_000, 64), (20_000, 65)):
        assert ratio(inner, columns, Layout.FORTRAN, out_fortran=True) == 0.8
    for out_fortran in (False, True):  # of a copy that is mapped
        assert ratio(MAPPED_BYTES // 256, 64, Layout.FORTRAN, out_fortran) == 0.5


@pytest.mark.parametrize("columns", [16, 33, 100])
def test_rows_that_are_read_often_are_copied(columns: int) -> None:
    A, rng = matrix(5, (300, 80), 0.9), np.random.default_rng(5)
    wide = np.ascontiguousarray(rng.uniform(-1, 1, (80, columns + 7)).astype(np.float32))
    B = wide[:, 7:]
    assert is_reused(A.nnz, 80, columns, 4)
    copy = with_aligned_rows(B)
    np.testing.assert_array_equal(copy, B)
    assert copy.strides[0] % 64 == copy.ctypes.data % 64 == 0
    assert with_aligned_rows(copy) is copy
    assert (layout_of(copy) == Layout.ALIGNED) == (columns % 16 == 0)
    found = multiply_as_given(ThreadPool(1), A, B, None, None)
    np.testing.assert_allclose(found, A @ B, rtol=1e-4, atol=1e-4)


def test_rows_that_are_short_or_seldom_read_are_not_copied() -> None:
    assert not is_reused(10**7, 100, 1, 4)
    assert not is_reused(10**7, 100, 7, 8)
    assert not is_reused(10**6, 10**6, 16, 4)
    assert not is_reused(100, 1, 16, 4)
    assert is_reused(10**6, 1000, 1000, 4)
    assert not is_reused(10**6, 1000, 10**5, 4)  # 400 MB


@pytest.mark.parametrize("inputs", [20, 60_000])
def test_the_order_of_results_is_the_same_whatever_the_way(inputs: int) -> None:
    W, wide = matrix(6, (25, 40), 0.3), np.ones((inputs, 60), np.float32)
    pool, backend = ThreadPool(1), ps.get_backend("numba", threads=1)
    assert (multiply_as_given(pool, W, wide[:, :40].T, None, None) is None) == (inputs > 20)
    B, handle = wide[:, :40].T, backend.spmm_handle(W)
    for operand in (B, np.ascontiguousarray(B)):
        for C in (
            backend.spmm(W, operand),
            backend.spmm(W.T.tocsr().T, operand),
            handle.multiply(operand),
        ):
            assert C.flags.c_contiguous
            np.testing.assert_allclose(C, W @ B, rtol=1e-5)
        assert handle.multiply(operand, out=C) is C
    layer = backend.layer_handle(W)
    for order in ("C", "F"):
        Y = np.array(wide[:, :25], order=order)
        for result in (backend.layer(W, Y), backend.layer(W.tocsc(), Y), layer.apply(Y)):
            assert result.flags[f"{order}_CONTIGUOUS"]
            np.testing.assert_allclose(result, (Y @ W).clip(0), rtol=1e-5)
