"""Plans of pruned networks: layer after layer, by products of prepared weights."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from concurrent_calls import check_calls_at_a_time
from random_networks import Case, scores_and_bound

import portable_spdnn as ps
from portable_spdnn.epilogue import ACTIVATIONS
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.network import choice, layer_products
from portable_spdnn_cpu.network.choice import suits_products
from portable_spdnn_cpu.network.layer_products import LayerProductsPlan
from portable_spdnn_cpu.network.plan import DepthFirstPlan
from portable_spdnn_cpu.network.sparse_features import SparseFirstLayer


def pruned_network(
    widths: tuple[int, ...], density: float = 0.2, bias: float = 0.1, activation: str = "relu"
) -> ps.Network:
    rng = np.random.default_rng(sum(widths))
    layers = []
    for rows, columns in pairwise(widths):
        W = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < density)
        biases = bias * rng.normal(size=columns)
        biases[0] = bias  # above zero: inputs do not die out
        layers.append(ps.Layer(W, biases, activation))
    return ps.Network(layers)


def network_in_which_inputs_die(bias: float = 1e-3) -> ps.Network:
    """Inputs die in most layers, but the first is linear: with a bias they are alive after it."""
    rng = np.random.default_rng(5)
    layers = [ps.Layer(np.eye(24), bias, "none")]
    for _ in range(6):
        W = rng.random((24, 24)) * (rng.random((24, 24)) < 0.2)
        layers.append(ps.Layer(W, -0.45))
    return ps.Network(layers, y_max=4)


def with_groups_of(inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans made from here on cut inputs into small groups, however little work they are."""
    monkeypatch.setattr(layer_products, "LEAST_GROUP", 16)
    monkeypatch.setattr(layer_products, "MOST_GROUP", inputs)
    monkeypatch.setattr(layer_products, "worth_waking", lambda workers, multiply_adds: workers)


def made(network: ps.Network, threads: int = 2, **options: Any) -> LayerProductsPlan:
    plan = make_plan(ps.get_backend("numba", threads), network, ps.PlanOptions(**options))
    assert isinstance(plan, LayerProductsPlan)
    return plan


def check(plan: LayerProductsPlan, Y: Any, rtol: float = 1e-4) -> ps.Result:
    result = plan.run(Y)
    categories, scores, active = oracle.infer(plan.network, np.asarray(Y))
    assert result.categories.tolist() == categories
    # Sums that cancel are off by units in the last place of what they add up.
    atol = 0.01 * rtol * np.abs(scores).max(initial=1)
    for found in (result.scores, plan.scores(Y)):
        np.testing.assert_allclose(found, scores, rtol=rtol, atol=atol)
        assert found.flags.c_contiguous
    assert [record.alive_inputs for record in result.records] == active
    return result


@pytest.mark.parametrize("widths", [(1, 9), (5, 1, 7), (30, 64, 3), (17, 130, 40, 40, 9)])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_pruned_network(
    widths: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On three threads, up to 48 inputs share each product; more go in groups, one on each thread.
    with_groups_of(32, monkeypatch)
    rng = np.random.default_rng(0)
    plan = made(pruned_network(widths, density=0.4), threads)
    for inputs in (0, 1, 2, 15, 48, 64, 65, 130):
        result = check(plan, rng.normal(size=(inputs, widths[0])).astype(np.float32))
        assert result.executed_edges == inputs * plan.network.edges


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation: str, dtype: Any) -> None:
    network = pruned_network((20, 33, 18), activation=activation)
    plan, Y = made(network, dtype=dtype), np.random.default_rng(1).normal(size=(40, 20))
    for part in (Y, Y[:7]):
        check(plan, part.astype(dtype), 1e-4 if dtype == np.float32 else 1e-10)


def test_bounds_and_layers_without_weights() -> None:
    layers = [
        ps.Layer(np.diag([3, 3, 2, 3, -3, 3]), [1, -1, 0, 0, 2, 0], "none", lower=-0.5, upper=2),
        ps.Layer(sp.csr_array((6, 4)), 0.25, "sigmoid"),
        ps.Layer(np.arange(20).reshape(4, 5) / 9, -0.1, "hardswish"),
    ]
    Y = np.random.default_rng(2).normal(size=(9, 6))
    check(made(ps.Network(layers)), Y)


@pytest.mark.parametrize("threads", [1, 2])
def test_groups_from_which_inputs_leave(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with_groups_of(64, monkeypatch)
    network = network_in_which_inputs_die()
    rng = np.random.default_rng(3)
    Y = rng.random((300, 24)) * rng.random((300, 1)) ** 2
    plan = made(network, threads)
    # Weights are packed when the plan is made: for whole groups, and what is left of them.
    packed = [set(product._choices) for product in plan._own_products]
    assert {64, 32, 16} == {columns for columns, _ in packed[-1]}
    seen: list[tuple[int, int]] = []
    result = plan.run(Y[:256], progress=lambda *step: seen.append(step))
    assert [set(product._choices) for product in plan._own_products] == packed
    result = plan.run(Y, progress=lambda *step: seen.append(step))
    left = [record.alive_inputs for record in check(plan, Y).records]
    assert 300 == left[0] > left[2] > left[-1] > 0
    assert result.executed_edges < 0.8 * 300 * network.edges
    computed = [record.computed_inputs for record in result.records]
    assert computed[0] == 300 > computed[-1] >= left[-2]
    ended = seen.index((256 * 7, 256 * 7))
    assert seen[-1] == (300 * 7, 300 * 7)
    for steps in (seen[: ended + 1], seen[ended + 2 :]):
        assert steps == sorted(steps)
    if threads == 1:
        assert ended > 2  # after each group
    kept = made(network, threads, keep_dead_inputs=True)
    assert check(kept, Y).executed_edges == 300 * network.edges
    # Of some groups nobody is left, or of all; and of one that all threads share.
    Y[40:200] = 0
    check(plan, Y)
    check(plan, Y[:32])
    nobody = network_in_which_inputs_die(bias=0.0)
    result = check(made(nobody, threads), 0 * Y)
    assert result.categories.size == 0
    assert result.executed_edges == 300 * nobody.layers[0].nnz


def test_features_in_every_form() -> None:
    plan = made(pruned_network((20, 40, 5)))
    Y = np.random.default_rng(4).random((70, 20)) < 0.4
    expected = plan.run(Y).scores
    for form in (
        ps.PackedFeatures.from_dense(Y),
        Y.astype(np.float64),
        np.asfortranarray(Y, np.float32),
        sp.csr_array(Y),
        np.repeat(Y.astype(np.float32), 2, axis=1)[:, ::2],
        Y[::-1].astype(np.float32)[::-1],
    ):
        np.testing.assert_allclose(plan.run(form).scores, expected, rtol=1e-6)


def sparse_features(inputs: int, neurons: int, seed: int = 0) -> sp.csr_array:
    """One nonzero feature in a hundred, and inputs without any."""
    Y = sp.random_array((inputs, neurons), density=0.01, rng=np.random.default_rng(seed))
    return sp.csr_array(Y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("widths", [(300, 7), (300, 40, 21)])
@pytest.mark.parametrize("threads", [1, 3])
def test_sparse_features_meet_rows_of_the_first_weights(
    widths: tuple[int, ...], dtype: Any, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_groups_of(32, monkeypatch)
    network = pruned_network(widths, activation="silu")
    plan, dense = made(network, threads, dtype=dtype), made(network, path="spmm", dtype=dtype)
    lengths, later = np.diff(network.layers[0].indptr), network.edges - network.layers[0].nnz
    for inputs in (1, 15, 16, 33, 200):
        Y = sparse_features(inputs, 300)
        expected = oracle.infer(network, Y.toarray())
        for form in (Y, Y.astype(np.float32), sp.coo_array(Y), wide(Y)):
            result = plan.run(form)
            for scores in (result.scores, plan.scores(form)):
                np.testing.assert_allclose(scores, expected[1], rtol=1e-4, atol=1e-5)
            assert [record.alive_inputs for record in result.records] == expected[2]
            # Up to 48 inputs three threads share a product: of more than one, too much is nonzero.
            taken = threads == 1 or inputs > 48 or inputs == 1
            first = lengths[Y.indices].sum() if taken else inputs * lengths.sum()
            assert result.executed_edges == first + inputs * later
        assert dense.run(Y).executed_edges == inputs * network.edges
    assert "at most 1.5 % are nonzero, or 10 % of one input's" in plan.describe()
    assert "Sparse features" not in dense.describe()


def test_which_features_are_multiplied_as_they_are() -> None:
    layer, dtype = pruned_network((300, 7)).layers[0], np.dtype(np.float32)
    first = SparseFirstLayer(layer, layer.epilogue().prepared("layer", 7, dtype), dtype)

    def suits(nonzeros: int, inputs: int, threads: int = 1) -> bool:
        places = np.arange(nonzeros)
        Y = sp.csr_array((np.ones(nonzeros), (places % inputs, places // inputs)), (inputs, 300))
        return first.suits(Y, threads)

    assert suits(30, 1)
    assert not suits(31, 1)
    assert suits(450, 100)
    assert not suits(451, 100)
    assert suits(150, 100, threads=3)
    assert not suits(151, 100, threads=3)
    assert not first.suits(np.zeros((1, 300)), 1)


def wide(Y: sp.csr_array) -> sp.csr_array:
    """Return a matrix with indices of 64 bits."""
    parts = Y.data, Y.indices.astype(np.int64), Y.indptr.astype(np.int64)
    return sp.csr_array(parts, shape=Y.shape)


def test_inputs_leave_after_a_first_layer_on_sparse_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_groups_of(64, monkeypatch)
    rng = np.random.default_rng(9)
    first = ps.Layer(rng.random((300, 24)) * (rng.random((300, 24)) < 0.3), -0.2)
    equal = ps.Layer(4.0 * (rng.random((300, 24)) < 0.02), -0.2)  # one number for all weights
    later = network_in_which_inputs_die(-1e-3).layers[1:]
    Y = sparse_features(150, 300)
    for beginning in (first, equal):
        plan = made(ps.Network([beginning, *later], y_max=4), 1)
        categories, _, active = oracle.infer(plan.network, Y.toarray())
        case = Case(plan.network, Y.toarray(), "csr", {"dtype": "float32"}, 1)
        scores, bound = scores_and_bound(case)
        result = plan.run(Y)
        assert result.categories.tolist() == categories
        assert (np.abs(result.scores - scores) <= bound).all()
        assert [record.alive_inputs for record in result.records] == active
        assert active[-1] < active[0]


def test_layers_that_are_read_anew_each_time() -> None:
    """Those of a file that is open are other objects in each loop."""
    given = pruned_network((12, 30, 30, 30, 8))

    class Rereading(ps.Network):
        def __iter__(self) -> Any:
            return (ps.Layer(layer.csr(), layer.bias, layer.activation) for layer in given)

    check(made(Rereading(given.layers)), np.random.default_rng(10).random((20, 12)))


def test_sums_that_overflow_are_named() -> None:
    weights = np.array([[3e38, -3e38], [3e38, 3e38]])
    network = ps.Network([ps.Layer(weights, 1.0, "none"), ps.Layer(np.ones((2, 2)), 0.5, "none")])
    plan = made(network)
    for run in (plan.run, plan.scores):
        with pytest.raises(ps.NumericalError, match="overflowed"):
            run([[-3.0, 3.0], [3.0, -3.0]])
    check(made(network, dtype=np.float64), np.array([[2.0, 2.0]]), 1e-12)


def test_nan_that_no_later_layer_reads_is_no_error() -> None:
    # The first block of exact passes, of eight layers, ends with it.
    grow = ps.Layer([[3e38, 3e38, 0], [3e38, 3e38, 0], [0, 0, 1.5]], activation="none")
    cancel = ps.Layer([[1.0, 0, 0], [-1.0, 2, 0], [0, 0, 0.5]], activation="none")
    beginning = [*[ps.Layer(np.diag([1.5, 1.25, 2]))] * 6, grow, cancel]
    away = ps.Layer([[0.0, 0, 0], [0, 0, 0], [1, 2, 3]], 0.5, "none")
    Y = np.array([[1.0, 2, 1], [3, 0.5, 0]])
    with pytest.raises(ps.NumericalError):
        ps.infer(ps.Network(beginning), Y, "numba")
    network = ps.Network([*beginning, away, away])
    wanted = ps.infer(network, Y, "scipy").scores
    for passes in ("none", "all"):
        assert isinstance(ps.plan(network, "numba"), LayerProductsPlan)
        found = ps.infer(network, Y, "numba", exact_passes=passes).scores
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_exact_passes_go_on_with_such_plans() -> None:
    network = pruned_network((16, *[16] * 14), density=0.3)
    Y = np.repeat(np.random.default_rng(6).random((5, 16)), 4, axis=0)
    result = ps.infer(network, Y, "numba", exact_passes="all")
    categories, scores, _ = oracle.infer(network, Y)
    assert result.categories.tolist() == categories
    np.testing.assert_allclose(result.scores, scores, rtol=1e-4, atol=1e-5)
    plan = ps.plan(network, "numba", exact_passes=["merge-inputs"])
    assert {type(segment.plan) for segment in plan.segments} == {LayerProductsPlan}


def test_a_callback_that_raises_and_concurrent_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = made(pruned_network((30, 80, 12)), 1)
    monkeypatch.setattr(plan, "group", 16)
    Y = np.random.default_rng(7).random((100, 30)).astype(np.float32)

    def fail(done: int, total: int) -> None:
        raise KeyError(done)

    with pytest.raises(KeyError):
        plan.run(Y, progress=fail)
    check_calls_at_a_time(lambda part: plan.run(part).scores, [Y, Y[:50], Y[::2], Y[3:4]])
    check_calls_at_a_time(plan.scores, [Y[:8], Y[8:24], Y[::9], Y[3:4]])
    with_groups_of(16, monkeypatch)
    plan = made(network_in_which_inputs_die(), 2)
    Y = np.random.default_rng(7).random((100, 24)) * np.linspace(0, 1, 100)[:, None]
    check_calls_at_a_time(lambda part: plan.run(part).scores, [Y, Y[:50], Y[::2], Y[3:4]])


def test_what_suits_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    pattern = rng.random((200, 200)) < 0.1
    values = rng.normal(size=(200, 200))
    alike = np.repeat(pattern[:, :50], 4, axis=1)  # four outputs each have the same inputs
    thin = pattern & (rng.random((200, 200)) < 0.2)

    def suits(weights: Any, bias: float = 0.1, inputs: int | None = None) -> bool:
        return suits_products(ps.Network([ps.Layer(weights, bias)] * 2), inputs)

    assert not suits(pattern / 16)
    # Small networks of real values are for products whatever they are.
    assert suits(alike * values)
    assert suits(thin * values, -0.1)
    monkeypatch.setattr(choice, "FEW_WEIGHTS", 0)
    assert not suits(alike * values)
    few = choice.FEW_MULTIPLY_ADDS // (2 * np.count_nonzero(alike * values))
    assert suits(alike * values, inputs=few)
    assert not suits(alike * values, inputs=few + 1)
    monkeypatch.setattr(choice, "FEW_MULTIPLY_ADDS", 0)
    assert suits(pattern * values)
    assert not suits(pattern / 16)
    assert not suits(alike * values)
    assert suits(values)  # dense: all outputs share all inputs
    assert not suits(np.ones((200, 200)))
    # Where inputs may die out, thin layers are for tiles, if there are many inputs.
    assert suits(thin * values)
    assert suits(pattern * values, -0.1)
    assert not suits(thin * values, -0.1)
    assert not suits(thin * values, -0.1, 100)
    assert suits(thin * values, -0.1, 1)
    assert suits(thin * values, 0.0)
    assert not suits_products(ps.radixnet(1024, layers=4), 1)
    # The layers that hold most weights tell.
    mixed = [ps.Layer(pattern / 16), ps.Layer(values)]
    assert suits_products(ps.Network(mixed))
    assert not suits_products(ps.Network([mixed[0], ps.Layer(values[:, :1]), mixed[0]][::2]))


def test_where_memory_is_limited_weights_are_packed_once() -> None:
    network = pruned_network((30, 80, 12))
    plan = ps.plan(network, "numba", memory="4GiB")
    assert isinstance(plan._first, DepthFirstPlan)
    Y = np.random.default_rng(9).random((10, 30))
    assert plan.run(Y).categories.tolist() == oracle.infer(network, Y)[0]
    with pytest.raises(ps.InputError, match="scores are not kept under a memory limit"):
        plan.scores(Y)


def test_weights_are_packed_when_the_plan_is_made() -> None:
    network = pruned_network((40, *[90] * 9, 10))
    plan = made(network, expected_inputs=5)
    said = plan.describe()
    assert said.startswith("Layers run one after the other, each a product")
    assert "Layer 2, 90 x 90 with 8" in said
    assert said.count("Features of 5 inputs") == 8
    assert said.count("Each layer is the product of A = W^T and B = Y^T.") == 1
    assert said.endswith("\nAnd 2 more layers.")
    assert "No kernel is chosen yet" not in said
    chosen = [set(product._choices) for product in plan._shared_products]
    plan.scores(np.random.default_rng(0).random((5, 40)))
    assert [set(product._choices) for product in plan._shared_products] == chosen
    plan.run(np.ones((7, 40)))
    assert plan.describe().count("Features of 7 inputs") == 8
    assert "Features of 3 inputs" in made(network, batch_size=3).describe()
    assert "predicted" not in made(network, expected_inputs=0).describe()
    group = made(network).group
    assert f"Features of {group} inputs" in made(network).describe()
