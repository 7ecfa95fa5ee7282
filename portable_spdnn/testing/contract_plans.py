"""The contract of whole networks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.testing import oracle
from portable_spdnn.testing.operands import (
    DTYPES,
    random_sparse,
    refused,
    tolerance,
)

# -- plans --------------------------------------------------------------------------------------


def small_network(seed: int, *, bias: tuple[float, float] = (-0.3, 0.0)) -> ps.Network:
    """Layers of changing width: ragged, fixed row length, equal weights, both, and empty rows."""
    rng = np.random.default_rng(seed)
    layers = []
    for rows, columns, density in [(20, 37, 0.3), (37, 37, 0.2), (37, 18, 0.05), (18, 26, 0.5)]:
        values = np.where(rng.random((rows, columns)) < density, rng.uniform(-0.5, 1), 0)
        values[values != 0] = rng.uniform(-0.5, 1, np.count_nonzero(values))
        layers.append(ps.Layer(values.astype(np.float32), rng.uniform(*bias, columns)))
    ring = sum(np.roll(np.eye(26), shift, axis=1) for shift in (0, 1, 5)) / 4
    layers.append(ps.Layer(ring, bias[0]))
    layers.append(ps.Layer(sp.random_array((26, 26), density=0.2, rng=rng) > 0, bias[0]))
    return ps.Network(layers, y_max=2.0)


def some_inputs(inputs: int, neurons: int = 20) -> Any:
    """Binary features of every density, some of them empty."""
    rng = np.random.default_rng(inputs)
    return rng.random((inputs, neurons)) < rng.random((inputs, 1)) * 0.5


@pytest.mark.parametrize("bias", [(-0.3, 0.0), (-0.3, 0.2)], ids=["bias<=0", "bias>0"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", [0, 1, 2, 33, 150])
def test_plan(backend: ps.Backend, inputs: int, dtype: Any, bias: Any) -> None:
    network = small_network(7, bias=bias)
    Y = some_inputs(inputs)
    categories, scores, active = oracle.infer(network, Y)
    paths = ["auto", "spmm"] + (["spgemm"] if bias[1] <= 0 else [])
    for path in paths:
        # One input at a time, where that is not too slow. Six inputs and fewer are a batch of 7.
        sizes = (7, 1) if inputs < 7 else (None, 7, inputs + 1, 1 if inputs < 100 else 3)
        for batch_size in sizes:
            for keep in (False, True):
                options = ps.PlanOptions(dtype, path, batch_size, keep)
                result = make_plan(backend, network, options).run(Y)
                assert result.categories.dtype == np.int64
                assert result.categories.tolist() == categories
                np.testing.assert_allclose(result.scores, scores, rtol=1e-4, atol=1e-5)
                assert [record.alive_inputs for record in result.records] == active
                assert result.inputs == inputs
                assert result.edges == network.edges
                assert 0 <= result.executed_edges <= inputs * network.edges
                assert result.plan_seconds > 0
                assert result.inference_seconds > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_plan_takes_features_in_every_form(backend: ps.Backend, dtype: Any) -> None:
    network = small_network(8)
    Y = some_inputs(40)
    plan = make_plan(backend, network, ps.PlanOptions(dtype))
    first = plan.run(Y)
    assert 0 < first.categories.size < 40
    forms = [
        ps.PackedFeatures.from_dense(Y),
        np.packbits(Y, axis=1),
        Y.astype(np.uint8),
        Y.astype(np.float32),
        np.asfortranarray(Y, dtype=np.float64),
        Y.astype(np.int64)[:, ::-1][:, ::-1],
        sp.csr_array(Y),
        sp.csc_matrix(Y.astype(np.float64)),
        sp.coo_array(Y),
    ]
    for form in forms:
        again = plan.run(form)
        np.testing.assert_array_equal(again.categories, first.categories)
        np.testing.assert_allclose(again.scores, first.scores, rtol=1e-5, atol=1e-6)
        scores = plan.scores(form)
        assert scores.dtype == plan.scores(Y[:0]).dtype == dtype
        np.testing.assert_allclose(scores, first.scores, rtol=1e-5, atol=1e-6)


def test_plan_drops_inactive_inputs_and_says_what_it_did(backend: ps.Backend) -> None:
    network = ps.Network([ps.Layer(np.eye(8), -0.2) for _ in range(6)], y_max=32)
    Y = np.zeros((50, 8))
    Y[::5] = 8  # one in five stays active; the others do not after the first layer
    Y[1] = 0.3
    result = make_plan(backend, network).run(Y)
    expected = oracle.infer(network, Y)
    assert result.categories.tolist() == expected[0] == list(range(0, 50, 5))
    assert [record.alive_inputs for record in result.records] == expected[2]
    assert result.executed_edges < 50 * network.edges
    keep = ps.PlanOptions(keep_dead_inputs=True, path="spmm")
    everything = make_plan(backend, network, keep).run(Y)
    assert everything.executed_edges == 50 * network.edges
    np.testing.assert_array_equal(everything.categories, result.categories)
    assert make_plan(backend, network).describe()


def test_positive_bias_brings_inactive_inputs_back(backend: ps.Backend) -> None:
    # Nothing is active after layer 1, all is after layer 2; nothing may be dropped before that.
    network = ps.Network([ps.Layer(np.eye(4), -1.0), ps.Layer(np.eye(4), [0, 0.5, 0, 0])])
    result = make_plan(backend, network).run(np.zeros((3, 4)))
    assert result.categories.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(result.scores, [[0, 0.5, 0, 0]] * 3)


@pytest.mark.parametrize("passes", ["merge-inputs", "fixed-point", "all"])
def test_inactive_inputs_come_back_after_layers_that_exact_passes_cut_off(
    backend: ps.Backend, passes: str
) -> None:
    # Exact passes look at the inputs between blocks of layers, where all but three are inactive.
    dying = [ps.Layer(np.eye(5), -0.25)] * 12
    network = ps.Network([*dying, ps.Layer(np.eye(5), [0, 0.5, 0, 0, 0]), *dying[:9]])
    Y = np.zeros((40, 5))
    Y[[3, 5, 7], [0, 2, 4]] = 1, 9, 4
    Y[8] = 7
    categories, scores, active = oracle.infer(network, Y)
    result = ps.infer(network, Y, backend, exact_passes=passes)
    assert result.categories.tolist() == categories
    np.testing.assert_array_equal(result.scores, scores)
    for record, expected in zip(result.records, active, strict=True):
        assert record.alive_inputs in (None, expected)


def test_plan_reports_progress_to_the_end(backend: ps.Backend) -> None:
    network = small_network(9)
    seen: list[tuple[int, int]] = []
    options = ps.PlanOptions(batch_size=16)
    make_plan(backend, network, options).run(some_inputs(40), lambda *step: seen.append(step))
    assert seen[-1] == (40 * len(network), 40 * len(network))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_plan_refuses_what_it_cannot_do_right(backend: ps.Backend) -> None:
    network = small_network(10, bias=(-0.3, 0.2))
    with refused("path", "spgemm", "layer 1"):
        make_plan(backend, network, ps.PlanOptions(path="spgemm"))
    plan = make_plan(backend, network)
    with refused("features", 21, 20):
        plan.run(np.zeros((3, 21)))
    bad = np.zeros((3, 20))
    bad[2, 5] = np.nan
    for form in (bad, np.asfortranarray(bad), sp.csr_array(bad)):
        for run in (plan.run, plan.scores):
            with refused("input 2", "neuron 5"):
                run(form)


def test_overflow_to_nan_is_an_error_not_an_answer(backend: ps.Backend) -> None:
    grow = ps.Layer(np.full((2, 2), 1e30), 0.0)
    cancel = ps.Layer(np.array([[1.0, -1.0], [-1.0, 1.0]]), 0.0)
    network = ps.Network([grow, grow, cancel])
    plan = make_plan(backend, network)
    for run in (plan.run, plan.scores):
        with refused("float64", error=ps.NumericalError):
            run(np.ones((3, 2)))
    result = make_plan(backend, network, ps.PlanOptions(np.float64)).run(np.ones((3, 2)))
    assert result.categories.size == 0


def any_activation(dtype: Any) -> ps.Network:
    """Return a network with GELU, SiLU and ReLU6 in the middle and a linear end."""
    rng = np.random.default_rng(21)
    shapes = itertools.pairwise([20, 37, 24, 24, 18, 26, 11])
    kinds = [
        ("relu", None, None), ("gelu", None, None), ("relu", None, 6.0), ("silu", -0.1, None),
        ("hardswish", None, 0.75), ("none", None, None),
    ]  # fmt: skip
    layers = [
        ps.Layer(random_sparse(rng, shape, 0.4, dtype), rng.uniform(-0.5, 0.5, shape[1]), *kind)
        for shape, kind in zip(shapes, kinds, strict=True)
    ]
    return ps.Network(layers, y_max=1.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("passes", ["none", "all"])
def test_a_network_may_have_any_activation_anywhere(
    backend: ps.Backend, passes: str, dtype: Any
) -> None:
    network = any_activation(dtype)
    Y = some_inputs(70)
    categories, scores, active = oracle.infer(network, Y)
    assert len(categories) > 0
    assert (scores < 0).any()  # the last layer is linear
    for batch_size in (None, 9):
        result = ps.infer(
            network, Y, backend, dtype=dtype, batch_size=batch_size, exact_passes=passes
        )
        assert result.categories.tolist() == categories
        np.testing.assert_allclose(result.scores, scores, **tolerance(dtype))
        known = [record.alive_inputs for record in result.records]
        assert all(mine in (None, theirs) for mine, theirs in zip(known, active, strict=True))


@pytest.mark.parametrize("activation", ["tanh", "gelu", "silu", "none", "hardswish"])
@pytest.mark.parametrize("bias", [0.0, -0.5])
def test_inputs_leave_only_where_zeros_stay_zeros(
    backend: ps.Backend, activation: str, bias: float
) -> None:
    # Inputs without a feature: under these activations a negative bias gives them one.
    linear = ps.Layer(-np.eye(6), activation="none")
    network = ps.Network([ps.Layer(np.eye(6), bias, activation), linear])
    Y = np.zeros((40, 6))
    Y[::7, 2] = 1.25
    categories, scores, active = oracle.infer(network, Y)
    assert (len(categories) > 6) == (bias != 0)
    result = ps.infer(network, Y, backend, dtype=np.float64)
    assert result.categories.tolist() == categories
    np.testing.assert_allclose(result.scores, scores, atol=1e-12)
    assert [record.alive_inputs for record in result.records] == active
    if bias:
        with refused("spgemm", "layer 1"):
            ps.plan(network, backend, path="spgemm")
    else:
        sparse = ps.infer(network, Y, backend, dtype=np.float64, path="spgemm")
        np.testing.assert_allclose(sparse.scores, scores, atol=1e-12)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_plan_on_random_networks(backend: ps.Backend, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    widths = data.draw(st.lists(st.integers(1, 24), min_size=2, max_size=6))
    # Multiples of 1/4 and few layers: every sum is exact, so any order must agree to the bit.
    layers = [
        ps.Layer(
            rng.integers(-2, 4, shape) / 4 * (rng.random(shape) < rng.random()),
            rng.integers(-4, data.draw(st.integers(1, 3)), shape[1]) / 4,
        )
        for shape in itertools.pairwise(widths)
    ]
    network = ps.Network(layers, data.draw(st.sampled_from([None, 1.0, 32.0])))
    Y = rng.random((data.draw(st.integers(0, 70)), widths[0])) < rng.random()
    categories, scores, active = oracle.infer(network, Y)
    options = ps.PlanOptions(batch_size=data.draw(st.sampled_from([None, 1, 13])))
    plan = make_plan(backend, network, options)
    result = plan.run(Y)
    assert result.categories.tolist() == categories
    np.testing.assert_array_equal(result.scores, scores)
    np.testing.assert_array_equal(plan.scores(Y), scores)
    assert [record.alive_inputs for record in result.records] == active
