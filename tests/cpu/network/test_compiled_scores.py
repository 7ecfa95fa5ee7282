"""Scores of a group of inputs in one call of compiled code, through all layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from concurrent_calls import check_calls_at_a_time

import portable_spdnn as ps
from portable_spdnn.epilogue import ACTIVATIONS
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.network import compiled_scores, layer_products
from portable_spdnn_cpu.network.layer_products import LayerProductsPlan
from portable_spdnn_cpu.spmm.few_columns import product as few_columns


def network_of(
    widths: Sequence[int], density: float = 0.3, activation: str = "relu", **bounds: float
) -> ps.Network:
    rng = np.random.default_rng(sum(widths))
    return ps.Network(
        ps.Layer(
            rng.normal(size=shape) * (rng.random(shape) < density),
            rng.normal(size=shape[1]),
            activation,
            **bounds,
        )
        for shape in pairwise(widths)
    )


def made(network: ps.Network, threads: int = 1, **options: Any) -> LayerProductsPlan:
    plan = make_plan(ps.get_backend("numba", threads), network, ps.PlanOptions(**options))
    assert isinstance(plan, LayerProductsPlan)
    return plan


def inputs_of(inputs: int, neurons: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(inputs).normal(size=(inputs, neurons)).astype(dtype)


@pytest.fixture
def always_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let any number of inputs go in pieces, whatever the model and the caches are."""
    monkeypatch.setattr(compiled_scores, "AROUND_LAYERS", 1.0)
    monkeypatch.setattr(layer_products, "CACHE_SHARE", 1000.0)  # all inputs are one group


def check_scores(plan: LayerProductsPlan, Y: Any, rtol: float) -> Any:
    """Check scores, and those of the usual way, against the oracle."""
    expected = oracle.infer(plan.network, np.asarray(Y))[1]
    usual = plan._run_whole(plan._own_products, Y)
    found = plan.scores(Y)
    for scores in (usual, found):
        # Sums that cancel are off by units in the last place of what they add up.
        atol = rtol * np.abs(expected).max(initial=1)
        np.testing.assert_allclose(scores, expected, rtol=rtol, atol=atol)
    assert found.flags.c_contiguous
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("widths", [(20, 33, 47, 9), (1, 5), (6, 1), (64, 300, 2), (3, 1, 260, 1)])
@pytest.mark.usefixtures("always_in_pieces")
def test_scores_of_any_number_of_inputs(widths: Sequence[int], dtype: Any) -> None:
    plan, rtol = made(network_of(widths), dtype=dtype), 1e-5 if dtype == np.float32 else 1e-13
    for inputs in (*range(1, 35), 63, 64, 65, 130):
        Y = inputs_of(inputs, widths[0], dtype)
        assert plan.scores_as_given(Y) is None  # nothing is known of so many yet
        first = check_scores(plan, Y, rtol)
        kept = first.copy()
        for _ in range(2):
            assert np.array_equal(plan.scores_as_given(Y), kept)
        # Each input is computed by itself, but for those of a column alone.
        reverse = plan.scores_as_given(np.ascontiguousarray(Y[::-1]))
        np.testing.assert_allclose(reverse, kept[::-1], rtol=rtol, atol=rtol)
        assert np.array_equal(first, kept)  # nobody writes to it again


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.usefixtures("always_in_pieces")
def test_every_activation_and_bounds(activation: str, dtype: Any) -> None:
    bounds = {"lower": -0.25, "upper": 1.5} if activation != "none" else {}
    plan = made(network_of((20, 33, 18), activation=activation, **bounds), dtype=dtype)
    for inputs in (1, 5, 40):
        Y = inputs_of(inputs, 20, dtype)
        check_scores(plan, Y, 1e-5 if dtype == np.float32 else 1e-12)
        assert plan.scores_as_given(Y) is not None


def test_layers_without_weights_inputs_or_outputs() -> None:
    layers = [
        ps.Layer(sp.csr_array((6, 4)), 0.25, "sigmoid"),
        ps.Layer(np.arange(8.0).reshape(4, 2)),
    ]
    plan = made(ps.Network(layers))
    Y = inputs_of(3, 6)
    check_scores(plan, Y, 1e-6)
    assert plan.scores_as_given(Y) is not None
    plan = made(ps.Network([ps.Layer(sp.csr_array((4, 0))), ps.Layer(sp.csr_array((0, 3)), 0.5)]))
    for _ in range(2):
        assert plan.scores(np.ones((2, 4), np.float32)).tolist() == [[0.5] * 3] * 2
    assert plan.scores_as_given(np.ones((2, 4), np.float32)) is None


def test_a_layer_that_is_there_several_times() -> None:
    """Memory that earlier calls have used serves another layer; nothing goes where they wrote."""
    layer = network_of((12, 12), activation="tanh").layers[0]
    plan = made(ps.Network([layer] * 4))
    Y = inputs_of(8, 12)
    before = [plan._run_whole(plan._own_products, Y) for _ in range(2)]
    check_scores(plan, Y, 1e-5)
    kept = [scores.copy() for scores in before]
    for scores in before:
        scores[...] = 7
    plan.scores(Y + 1)
    assert plan.scores_as_given(Y) is not None
    assert all((scores == 7).all() for scores in before)
    assert np.array_equal(plan.scores(Y), kept[0])


def test_expected_inputs_take_one_call_from_the_first_on() -> None:
    plan = made(network_of((20, 33, 9)), expected_inputs=3)
    assert plan.scores_as_given(inputs_of(3, 20)) is not None
    assert plan.scores_as_given(inputs_of(4, 20)) is None


@pytest.mark.parametrize("first", ["plain", "fortran", "float64"])
def test_features_in_other_orders_and_of_other_types(first: str) -> None:
    """Whatever comes first, others are the same to the bit."""
    plan, Y = made(network_of((20, 33, 9))), inputs_of(8, 20)
    forms = {
        "plain": Y, "fortran": np.asfortranarray(Y), "float64": Y.astype(np.float64),
        "gaps": np.pad(Y, ((0, 0), (2, 3)), constant_values=np.nan)[:, 2:-3],
        "apart": np.repeat(Y, 2, axis=1)[:, ::2], "list": Y.tolist(), "mapped": Y.view(np.memmap),
        "reversed": Y[::-1].copy()[::-1],
    }  # fmt: skip
    expected = plan.scores(forms[first])
    for name, form in forms.items():
        assert np.array_equal(plan.scores(form), expected)
        assert (plan.scores_as_given(form) is None) == (name not in ("plain", "gaps", "mapped"))


def test_what_is_wrong_is_told() -> None:
    plan, Y = made(network_of((20, 33, 9))), inputs_of(4, 20)
    plan.scores(Y)
    for value in (np.nan, np.inf, -np.inf):
        Y[3, 19] = value
        assert plan.scores_as_given(Y) is None
        assert plan.scores_as_given(np.pad(Y, ((0, 0), (0, 1)))[:, :-1]) is None
        with pytest.raises(ps.InputError, match=r"input 3, neuron 19 .* is NaN or infinite"):
            plan.scores(Y)
    with pytest.raises(ps.InputError, match="21 columns"):
        plan.scores(inputs_of(4, 21))
    grow = ps.Network([ps.Layer([[3e38, -3e38], [3e38, 3e38]], 1.0, "none")] * 2)
    plan, Y = made(grow), np.array([[-3.0, 3.0], [3.0, -3.0]], np.float32)
    for _ in range(2):
        with pytest.raises(ps.NumericalError, match="overflowed"):
            plan.scores(Y)


def test_all_features_are_looked_at() -> None:
    """Of those with gaps too: no score would tell of this one, as activations make it 0."""
    plan = made(ps.Network([ps.Layer(np.diag(np.arange(1.0, 6)), activation="relu")] * 2))
    wide = np.ones((4, 8), np.float32)
    for Y in (wide[:, :5], np.ones((4, 5), np.float32)):
        plan.scores(Y)
        assert plan.scores_as_given(Y) is not None
        for place in np.ndindex(Y.shape):
            Y[place] = -np.inf
            assert plan.scores_as_given(Y) is None
            Y[place] = 1
    wide[:, 5:] = np.nan
    assert plan.scores_as_given(wide[:, :5]) is not None


@pytest.mark.parametrize("threads", [1, 3])
def test_scores_that_threads_would_share(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_columns, "SHARING", 0.0)
    plan, Y = made(network_of((200, 300, 7)), threads), inputs_of(3, 200)
    check_scores(plan, Y, 1e-5)
    assert (plan.scores_as_given(Y) is None) == (threads > 1)


def test_where_one_call_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    network, Y = network_of((300, 600, 7)), inputs_of(100, 300)
    for name, value in (("AROUND_LAYERS", -1.0), ("LEAST_GAIN", 1e9)):
        with monkeypatch.context() as patched:
            patched.setattr(compiled_scores, name, value)
            plan = made(network)
            check_scores(plan, Y, 1e-5)
            assert plan.scores_as_given(Y) is None


@pytest.mark.usefixtures("always_in_pieces")
def test_the_plan_tells() -> None:
    plan = made(network_of((20, 33, 9)))
    assert "one call" not in plan.describe()
    for inputs in (3, 1, 40, 33, 64):
        plan.scores(inputs_of(inputs, 20))
    told = plan.describe().splitlines()
    assert "Scores take one call of compiled code for inputs: 1, 3." in told
    assert "Scores take one call of compiled code for inputs, in pieces: 33, 40, 64." in told
    for inputs in range(1, 20):
        plan.scores(inputs_of(inputs, 20))
    assert "15, 16 and 3 others." in plan.describe()


@pytest.mark.usefixtures("always_in_pieces")
def test_calls_at_a_time_have_memory_of_their_own() -> None:
    plan = made(network_of((30, 80, 12)))
    Y = inputs_of(100, 30)
    check_calls_at_a_time(plan.scores, [Y, Y[:50], Y[8:24], Y[3:4], Y[:33]])
