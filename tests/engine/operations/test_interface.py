"""What users call: whose bias, bounds and epilogue hold, and what is no epilogue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps

EYE = sp.csr_array(np.eye(2))
SCIPY = ps.get_backend("scipy")


def applied(weights: Any, **arguments: Any) -> list[float]:
    """Return what a layer makes of an input of 1 and 5, the same by a handle."""
    Y = np.array([[1.0, 5.0]])
    found: Any = SCIPY.layer(weights, Y, **arguments)
    again: Any = SCIPY.layer_handle(weights, **arguments).apply(Y)
    assert found.tolist() == again.tolist()
    return list(found[0])


def test_a_layer_keeps_of_its_own_what_is_not_given() -> None:
    layer = ps.Layer(np.eye(2), bias=-2.0, activation="relu", upper=4)
    assert applied(layer) == [0, 3]
    assert applied(layer, bias=1.0) == [2, 4]
    assert applied(layer, y_max=2.5) == [0, 2.5]
    assert applied(layer, y_max=8) == [0, 3]
    assert applied(layer, epilogue=ps.Epilogue(-2.0)) == [-1, 3]
    linear = ps.Layer(np.eye(2), bias=-2.0, activation="none")
    assert applied(linear, y_max=1) == [-1, 3]  # y_max bounds ReLU layers alone


def test_bare_weights_are_a_layer_of_the_challenge() -> None:
    assert applied(EYE) == [1, 5]
    assert applied(EYE, bias=[-2, -2], y_max=2) == [0, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SCIPY.layer(EYE, np.eye(2), ps.Epilogue()), "bias is an Epilogue; give it as epi"),
        (lambda: SCIPY.layer(EYE, np.eye(2), y_max=1, epilogue=ps.Epilogue()), "leave out the oth"),
        (lambda: SCIPY.layer(EYE, np.eye(2), epilogue=0.5), "layer: epilogue is float; a portable"),
        (lambda: SCIPY.spmm(EYE, np.eye(2), "relu"), "spmm: epilogue is str; a portable_spdnn.Ep"),
        (
            lambda: SCIPY.spmm_handle(EYE, columns=True),
            "spmm: columns is True; it must be",
        ),
        (
            lambda: SCIPY.spmm_handle(EYE, columns=2.0),
            "spmm: columns is 2.0; it must be",
        ),
        (lambda: SCIPY.layer(np.eye(2), np.eye(2)), "layer: weights is ndarray; a scipy.sparse"),
    ],
)
def test_what_does_not_go_together(call: Any, message: str) -> None:
    with pytest.raises(ps.InputError, match=message):
        call()


def test_a_wide_residual_widens_the_result() -> None:
    narrow, wide = np.ones((2, 2), np.float32), np.ones((2, 2))
    A = sp.csr_array(np.eye(2, dtype=np.float32))
    assert SCIPY.spmm(A, narrow).dtype == np.float32
    assert SCIPY.spmm(A, narrow, residual=wide).dtype == np.float64
    assert SCIPY.layer(A, narrow, residual=wide).dtype == np.float64
