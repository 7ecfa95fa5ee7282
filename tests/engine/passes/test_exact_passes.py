"""Exact passes: the same answers from less work, on every backend."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.passes import EXACT_PASSES, equal_rows, parse_passes
from portable_spdnn.passes.equal_rows import equal_rows as group_rows
from portable_spdnn.passes.merge_neurons import merge_neurons
from portable_spdnn.passes.uniform_rows import Signature, advance, signature, uniform_rows
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.plans.rewritten import segment_ends
from portable_spdnn.testing import oracle

BACKENDS = [info.name for info in ps.backends() if info.availability.available]


def test_names() -> None:
    assert parse_passes("none") == parse_passes("") == parse_passes(()) == ()
    assert parse_passes("all") == EXACT_PASSES
    assert parse_passes("fixed-point, merge-neurons") == ("merge-neurons", "fixed-point")
    assert parse_passes(["merge-inputs"]) == ("merge-inputs",)
    with pytest.raises(ps.InputError, match="exact pass 'merge' is unknown; choose none, all"):
        parse_passes("merge")
    assert ps.PlanOptions(exact_passes="all").exact_passes == EXACT_PASSES  # type: ignore[arg-type]


# -- equal rows -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.data())
def test_equal_rows_are_found_in_every_form(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows, columns = data.draw(st.integers(0, 30)), data.draw(st.integers(0, 20))
    few = rng.integers(0, 2, (max(rows // 3, 1), columns))
    dense = few[rng.integers(0, few.shape[0], rows)].reshape(rows, columns)
    expected = {}
    for number, row in enumerate(map(tuple, dense)):
        expected.setdefault(row, number)
    forms: list[Any] = [dense.astype(np.float32), dense.astype(np.float64), sp.csr_array(dense)]
    forms.append(ps.PackedFeatures.from_dense(dense))
    for form in forms:
        first, group = group_rows(form)
        assert first.tolist() == list(expected.values())
        assert [first[g] for g in group] == [expected[row] for row in map(tuple, dense)]


@pytest.mark.parametrize(("values", "dtype"), [
    ([0.0, 32.0], np.float32), ([0.0, 0.5, 1.0, 32.0], np.float64), ([0, 1], np.uint8),
])  # fmt: skip
@pytest.mark.parametrize("width", [16, 17, 64])
def test_rows_of_round_numbers_have_hashes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, values: list[float], dtype: Any, width: int
) -> None:
    rng = np.random.default_rng(width)
    rows = np.zeros((20_000, width), dtype)
    rows[:, 1::2] = rng.choice(np.array(values, dtype), (20_000, width // 2))
    hashes: list[Any] = []
    by_hash = equal_rows._by_hash
    monkeypatch.setattr(
        equal_rows, "_by_hash", lambda found: hashes.append(found) or by_hash(found)
    )
    first, group = group_rows(rows)
    different = np.unique(rows, axis=0).shape[0]
    assert first.size == different
    assert np.unique(hashes[0]).size == different
    np.testing.assert_array_equal(rows[first[group]], rows)


def test_a_hash_that_collides_costs_merges_not_correctness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(equal_rows, "mix64", lambda words: np.zeros_like(words))
    dense = np.random.default_rng(0).integers(0, 2, (60, 4)).astype(np.float64)
    for form in (dense, sp.csr_array(dense), ps.PackedFeatures.from_dense(dense)):
        first, group = group_rows(form)
        assert first.size > 1
        np.testing.assert_array_equal(dense[first[group]], dense)


# -- merged neurons -------------------------------------------------------------------------------


def planted(rng: np.random.Generator, widths: list[int], positive: bool) -> ps.Network:
    """Layers whose columns are copies of a few; dyadic weights, so that sums are exact."""
    layers = []
    for rows, columns in itertools.pairwise(widths):
        kinds = max(columns // 3, 1)
        few = rng.integers(-2, 4, (rows, kinds)) / 4 * (rng.random((rows, kinds)) < 0.5)
        biases = rng.integers(-4, 2 if positive else 1, kinds) / 4
        chosen = rng.integers(0, kinds, columns)
        layers.append(ps.Layer(few[:, chosen], biases[chosen]))
    return ps.Network(layers, y_max=4.0)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize("name", BACKENDS)
def test_every_pass_gives_the_same_answers(name: str, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    depth = data.draw(st.integers(1, 20))
    widths = rng.integers(1, 15, depth + 1).tolist()
    network = planted(rng, widths, data.draw(st.booleans()))
    kinds = rng.random((6, widths[0])) < 0.6
    Y = kinds[rng.integers(0, 6, data.draw(st.integers(0, 40)))]
    categories, scores, alive = oracle.infer(network, Y)
    form = data.draw(st.sampled_from([np.asarray, sp.csr_array, np.float64]))
    passes = data.draw(st.sampled_from([*EXACT_PASSES, "all", "merge-inputs,fixed-point"]))
    options = {
        "exact_passes": passes,
        "batch_size": data.draw(st.sampled_from([None, 7])),
        "keep_dead_inputs": data.draw(st.booleans()),
        "dtype": data.draw(st.sampled_from(["float32", "float64"])),
        "path": data.draw(st.sampled_from(["auto", "spmm"])),
    }
    if network.sparse_features_exact:
        options["path"] = data.draw(st.sampled_from(["auto", "spmm", "spgemm"]))
    result = ps.infer(network, form(Y), name, **options)
    assert result.categories.tolist() == categories
    np.testing.assert_array_equal(result.scores, scores)
    assert result.exact_passes == parse_passes(passes)
    assert result.edges == network.edges
    for record, expected in zip(result.records, alive, strict=True):
        assert record.alive_inputs in (None, expected)
        if passes in ("merge-neurons", "fixed-point"):
            assert record.alive_inputs == expected


def test_copies_are_merged_layer_after_layer() -> None:
    # 4 copies of a neuron in each of 3 layers: one is left, its weights 4 times as large.
    network = ps.Network(
        [ps.Layer(np.ones((2, 4)) / 4, -0.5)] + [ps.Layer(np.ones((4, 4)) / 4, -0.5)] * 2
    )
    merged = merge_neurons(network)
    assert [layer.shape for layer in merged.network] == [(2, 1), (1, 1), (1, 1)]
    assert merged.network.layers[1].csr().toarray().tolist() == [[1.0]]
    assert merged.outputs.tolist() == [0, 0, 0, 0]


def test_neurons_that_differ_in_anything_stay() -> None:
    W = np.array([[1.0, 1, 1, 2, 0], [0, 0, 1, 0, 0]])
    merged = merge_neurons(ps.Network([ps.Layer(W, [0, -1, 0, 0, 0])]))
    np.testing.assert_array_equal(merged.network.layers[0].csr().toarray(), W)
    both = np.concatenate([W, W], axis=1)
    merged = merge_neurons(ps.Network([ps.Layer(both, [0, -1, 0, 0, 0] * 2)]))
    assert merged.outputs.tolist() == [0, 1, 2, 3, 4] * 2


def test_the_official_network_shrinks_and_keeps_its_categories(shared: Path) -> None:
    data = shared / "graphchallenge"
    network = ps.load_network(data, neurons=1024, layers=120)
    features = ps.load_inputs(data, neurons=1024)
    merged = merge_neurons(network)
    assert network.edges > 23 * merged.network.edges
    truth = np.loadtxt(data / "neuron1024-l120-categories.tsv", dtype=int) - 1
    for name in BACKENDS:
        result = ps.infer(network, features, name, exact_passes="all")
        np.testing.assert_array_equal(result.categories, truth[truth < 1200])


# -- uniform inputs -------------------------------------------------------------------------------


def test_uniform_rows() -> None:
    rows = np.array([[2.0, 2, 2], [0, 0, 0], [1, 1, 0], [0, 1, 1], [3, 3, 3]])
    assert uniform_rows(rows).tolist() == [True, True, False, False, True]
    # Of sparse rows a full one alone counts: an empty one has died already.
    assert uniform_rows(sp.csr_array(rows)).tolist() == [True, False, False, False, True]
    assert uniform_rows(np.zeros((0, 3))).tolist() == []
    assert uniform_rows(sp.csr_array((2, 3))).tolist() == [False, False]


def test_signature() -> None:
    ring = (np.eye(4) + np.roll(np.eye(4), 1, axis=0)) / 4
    assert signature(ps.Layer(ring, -0.25), 32.0) == Signature(0.5, -0.25, "relu", None, 32.0)
    linear = ps.Layer(ring, activation="none", lower=-1)
    assert signature(linear, 32.0) == Signature(0.5, 0.0, "none", -1.0, None)
    assert signature(ps.Layer(ring, [0, 0, 0, -1]), None) is None
    assert signature(ps.Layer(np.triu(np.ones((3, 3)))), None) is None


def test_layers_are_skipped_at_a_fixed_point_only() -> None:
    five = [Signature(2.0, -1.0, "relu", None, 32.0)] * 5
    values, nonzero, skipped = advance(np.array([1.0, 30.0]), five)
    # 1 stays 1 and 30 saturates in the first layer; the second shows that nothing changes.
    assert values.tolist() == [1.0, 32.0]
    assert skipped == 3
    assert nonzero.all()
    several = [Signature(*sums, "relu", None, None) for sums in ((1, 0.0), (0.5, 0.0), (1, -2.0))]
    values, nonzero, skipped = advance(np.array([4.0]), several)
    assert values.tolist() == [0.0]
    assert nonzero[:, 0].tolist() == [True, True, False]
    assert skipped == 0


def test_a_deep_network_of_saturated_inputs_is_hardly_computed() -> None:
    shallow, deep = (ps.radixnet(32, layers, seed=0, bias=-0.1) for layers in (16, 400))
    Y = np.ones((20, 32))
    done = {}
    for network in (shallow, deep):
        plan = make_plan(ps.get_backend("scipy"), network, ps.PlanOptions(exact_passes="all"))
        result = plan.run(Y)
        assert result.categories.size == 20
        assert result.scores.min() == 32
        done[len(network)] = result.executed_edges
    assert done[400] == done[16]
    assert "fixed-point" in plan.describe()
    assert "rows were copies" in plan.describe()


def test_segments_cover_all_layers() -> None:
    assert segment_ends(1) == [1]
    assert segment_ends(8) == [8]
    assert segment_ends(33) == [8, 16, 24, 32, 33]
    assert segment_ends(120) == [8, 16, 24, 32, 48, 64, 80, 96, 120]
    assert len(segment_ends(1920)) < 30


def test_a_network_without_neurons_passes() -> None:
    network = ps.Network([ps.Layer(np.zeros((0, 4)), 0.5)])
    result = ps.infer(network, np.zeros((2, 0)), "scipy", exact_passes="all")
    assert result.scores.tolist() == [[0.5] * 4] * 2


@pytest.mark.parametrize("weight", [0.0625, -1 / 3, 0.0])
def test_layers_of_one_weight_merge_as_others_do(
    weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(7)
    layers = []
    for inputs, outputs in ((6, 24), (24, 40), (40, 30)):
        pattern = np.zeros((inputs, outputs), bool)
        for output in range(outputs):
            chosen = rng.permutation(inputs)[:3] if output % 3 == 0 else np.array([0, 2, 5])
            pattern[chosen, output] = True
        bias = np.where(np.arange(outputs) % 2, 0.0, -0.0) - (np.arange(outputs) % 5 == 4)
        csr = sp.csr_array(pattern)
        layers.append(ps.Layer.from_csr(csr.indptr, csr.indices, weight, csr.shape, bias))
        assert layers[-1].constant == np.float32(weight)
    network = ps.Network(layers)
    found = merge_neurons(network)
    monkeypatch.setattr(
        "portable_spdnn.passes.merge_neurons._with_inputs", lambda layer: (layer, None)
    )
    expected = merge_neurons(network)
    assert found.outputs.tolist() == expected.outputs.tolist()
    assert found.network.edges < network.edges / 2
    for one, other in zip(found.network, expected.network, strict=True):
        assert one.bias.tolist() == other.bias.tolist()
        np.testing.assert_array_equal(one.csr().toarray(), other.csr().toarray())
        assert one.data.dtype == other.data.dtype
