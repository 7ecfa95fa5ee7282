"""Epilogues: what they compute, what they refuse, and when zeros stay zeros."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.epilogue import ACTIVATIONS
from portable_spdnn.testing import oracle

VALUES = np.array(
    [-np.inf, -1e30, -88.8, -17.0, -3.0, -0.5, -1e-7, -0.0, 0.0, 1e-7, 0.5, 3.0, 17.0, 88.8, np.inf]
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_apply_is_the_mathematics(activation: str, dtype: Any) -> None:
    sums = np.stack([VALUES, VALUES[::-1], np.full_like(VALUES, np.nan)]).astype(dtype)
    bias = np.linspace(-1, 1, sums.shape[1])
    residual = np.full_like(sums, 0.25)
    for lower, upper in ((None, None), (-0.1, None), (None, 2.0), (0.5, 0.75)):
        epilogue = ps.Epilogue(bias, activation, lower, upper)
        expected = oracle.finish(sums.astype(np.float64), bias, activation, lower, upper, residual)
        found = epilogue.apply(sums.copy(), residual)
        assert found.dtype == dtype
        scale = np.maximum(1, np.abs(np.where(np.isfinite(sums), sums, 1)))
        bound = (2e-6 if dtype == np.float32 else 2e-14) * scale
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        with np.errstate(invalid="ignore"):  # of infinities, which are the same
            assert (same | (np.abs(found - expected) <= bound)).all()


def test_bias_goes_with_rows_or_columns() -> None:
    sums = np.zeros((2, 3))
    assert ps.Epilogue([1, 2, 3]).apply(sums.copy())[1].tolist() == [1, 2, 3]
    assert ps.Epilogue([1, 2]).apply(sums.copy(), per_row=True)[1].tolist() == [2, 2, 2]
    assert ps.Epilogue(4).apply(sums.copy(), per_row=True).tolist() == [[4] * 3] * 2


def test_sparse_sums_lose_what_becomes_zero() -> None:
    sums = sp.csr_array(np.array([[1.0, 0, -2], [0, 0.5, 0]]))
    found = ps.Epilogue([-1, -1, 0], "relu").apply(sums)
    assert found.nnz == 0
    linear = ps.Epilogue(activation="none", upper=0.75).apply(sp.csr_array(np.array([[1.0, -2]])))
    assert linear.toarray().tolist() == [[0.75, -2]]


@given(
    activation=st.sampled_from(ACTIVATIONS),
    bias=st.lists(st.sampled_from([-1.0, -0.0, 0.0, 1e-3, 2.0]), min_size=1, max_size=4),
    lower=st.sampled_from([None, -1.0, 0.0, 0.5]),
    upper=st.sampled_from([None, -0.5, 0.0, 6.0]),
)
def test_zeros_stay_where_every_output_of_a_zero_row_is_zero(
    activation: str, bias: list[float], lower: float | None, upper: float | None
) -> None:
    if lower is not None and upper is not None and lower > upper:
        with pytest.raises(ps.InputError, match=r"lower .* above upper"):
            ps.Epilogue(bias, activation, lower, upper)
        return
    epilogue = ps.Epilogue(bias, activation, lower, upper)
    row = oracle.finish(np.zeros((1, len(bias))), np.array(bias), activation, lower, upper)
    assert epilogue.zeros_stay == bool((row == 0).all())
    layer = ps.Layer(np.ones((2, len(bias))), bias, activation, lower, upper)
    assert layer.zeros_stay == epilogue.zeros_stay


@given(
    activation=st.sampled_from(["none", "relu"]),
    lower=st.sampled_from([None, -1.0, 0.5]),
    upper=st.sampled_from([None, -0.5, 0.25, 6.0]),
    value=st.floats(-10, 10),
)
def test_the_interval_says_all_of_linear_and_relu(
    activation: str, lower: float | None, upper: float | None, value: float
) -> None:
    if lower is not None and upper is not None and lower > upper:
        return
    epilogue = ps.Epilogue(None, activation, lower, upper)
    low, high = epilogue.interval or (np.nan, np.nan)
    assert min(max(value, low), high) == epilogue.apply(np.array([[value]]))[0, 0]
    assert ps.Epilogue(activation="gelu").interval is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"activation": "swish"}, "activation is 'swish'; choose one of none, relu, gelu"),
        ({"bias": np.zeros((2, 2))}, "bias is float64 of 2 dimensions"),
        ({"activation": ["relu"]}, "activation is \\['relu'\\]"),
        ({"bias": [1, [2]]}, "bias is no vector of numbers"),
        ({"upper": 10**400}, "upper is '1000"),
        ({"lower": True}, "lower is 'True'"),
        ({"bias": "much"}, "bias is <U4"),
        ({"lower": "low"}, "lower is 'low'; a finite number"),
        ({"upper": np.nan}, "upper is 'nan'; a finite number"),
        ({"lower": np.inf}, "lower is 'inf'; a finite number"),
        ({"lower": 2, "upper": 1}, "lower is 2.0, above upper, which is 1.0"),
    ],
)
def test_what_is_no_epilogue_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ps.InputError, match=message):
        ps.Epilogue(**arguments)


def test_an_epilogue_keeps_its_own_bias() -> None:
    bias = np.zeros(3)
    epilogue = ps.Epilogue(bias, lower=-np.inf, upper=np.inf)
    bias[0] = 5
    assert epilogue.bias.tolist() == [0, 0, 0]
    assert (epilogue.lower, epilogue.upper) == (None, None)
    with pytest.raises(ValueError, match="read-only"):
        epilogue.bias[0] = 1
    with pytest.raises(ps.InputError, match="bias is a masked array"):
        ps.Epilogue(np.ma.array([1.0, 2.0], mask=[False, True]))


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "tanh", "sigmoid"])
@pytest.mark.parametrize("bias", [-8.0, -20.0, -38.0, -1e4])
def test_what_underflows_is_not_zero(activation: str, bias: float) -> None:
    # Another backend may not round it to zero: inputs may not leave.
    assert not ps.Epilogue(bias, activation).zeros_stay
    clipped = ps.Epilogue(bias, activation, lower=0.0, upper=0.0)
    assert clipped.zeros_stay


def test_pickled_layers_and_epilogues_are_the_same() -> None:
    layers = [
        ps.Layer(np.eye(3) / 16, -0.3),
        ps.Layer(sp.csr_array(np.diag([1.0, 2, 3])), [0, -1, -2], "gelu", -1, 2),
        ps.Layer(np.zeros((3, 0))),
    ]
    network = ps.Network(layers, y_max=32)
    again = pickle.loads(pickle.dumps(network))
    assert again.fingerprint() == network.fingerprint()
    assert again.layers[0].constant == 1 / 16
    assert again.layers[0].data.strides == again.layers[0].bias.strides == (0,)
    epilogue = pickle.loads(pickle.dumps(ps.Epilogue([1, 2], "silu", upper=3)))
    assert epilogue.bias.tolist() == [1, 2]
    assert not epilogue.bias.flags.writeable
