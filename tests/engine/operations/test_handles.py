"""Handles: what they say of themselves, and what goes with dense features alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.operations.handles import DescribedCall
from portable_spdnn_cpu.scipy_backend import ScipyBackend

EYE, SCIPY = sp.csr_array(np.eye(3)), ps.get_backend("scipy")


class Preparing(ScipyBackend):
    """A backend that says what it prepared."""

    def make_spmm(self, A: Any, columns: int | None, epilogue: ps.Epilogue) -> Any:
        run = super().make_spmm(A, columns, epilogue)
        return DescribedCall(run, lambda: f"made for {columns} columns")

    def make_layer(self, W: Any, inputs: int | None, epilogue: ps.Epilogue) -> Any:
        run = super().make_layer(W, inputs, epilogue)
        return DescribedCall(run, lambda: f"made for {inputs} inputs")


def test_a_handle_says_what_its_backend_prepared() -> None:
    handle = Preparing().spmm_handle(EYE, columns=7)
    assert handle.describe() == "made for 7 columns"
    assert (handle.shape, handle.dtype) == ((3, 3), np.float64)
    assert repr(handle) == "<SpmmHandle of 3 x 3 float64 weights>"
    np.testing.assert_array_equal(np.asarray(handle.multiply(np.eye(3))), np.eye(3))
    layer = Preparing().layer_handle(EYE, inputs=5)
    assert layer.describe() == "made for 5 inputs"
    np.testing.assert_array_equal(np.asarray(layer.apply(np.eye(3))), np.eye(3))
    with pytest.raises(ps.InputError, match="layer: inputs"):
        Preparing().layer_handle(EYE, inputs=0)
    assert ps.get_backend("scipy").spmm_handle(EYE).describe() == "nothing was prepared"
    spgemm = ps.get_backend("scipy").spgemm_handle(EYE, EYE)
    assert spgemm.describe() == "all rows are computed in the same way"


def test_out_and_residual_go_with_dense_features() -> None:
    handle = ps.get_backend("scipy").layer_handle(EYE)
    for name in ("out", "residual"):
        with pytest.raises(ps.InputError, match=f"layer: {name} goes with dense features; these"):
            handle.apply(EYE, **{name: np.zeros((3, 3))})
    out = np.full((2, 3), np.nan)
    assert handle.apply(np.ones((2, 3)), out, residual=np.ones((2, 3))) is out
    assert (out == 2).all()


def test_the_same_memory_is_not_both_features_and_result() -> None:
    both = np.ones((3, 3))
    with pytest.raises(ps.InputError, match="layer: out overlaps a dense operand"):
        ps.get_backend("scipy").layer_handle(EYE).apply(both, both)


def test_weights_the_other_way_round_are_named() -> None:
    W, Y = sp.csr_array(np.ones((3, 2))), np.ones((5, 2))
    for layer in (SCIPY.layer_handle(W).apply, partial(SCIPY.layer, W)):
        with pytest.raises(ps.InputError, match=r"are 3 x 2 but .* to be transposed, by \.T"):
            layer(Y)
    assert SCIPY.layer(W.T, Y).shape == (5, 3)


def test_out_of_a_vector_is_a_vector() -> None:
    handle = ps.get_backend("scipy").spmm_handle(EYE)
    out = np.empty(3)
    assert handle.multiply([1.0, 2.0, 3.0], out, residual=[1.0, 1.0, 1.0]) is out
    assert out.tolist() == [2.0, 3.0, 4.0]
    with pytest.raises(ps.InputError, match="spmm: out is list; an ndarray"):
        handle.multiply(np.ones(3), [0.0, 0.0, 0.0])
    with pytest.raises(ps.InputError, match="spmm: out has 2 dimensions but B is a vector"):
        handle.multiply(np.ones(3), np.empty((3, 1)))
    for multiply in (handle.multiply, partial(SCIPY.spmm, EYE)):
        with pytest.raises(ps.InputError, match="spmm: residual has 2 dimensions but B is a vec"):
            multiply(np.ones(3), residual=np.ones((3, 1)))
