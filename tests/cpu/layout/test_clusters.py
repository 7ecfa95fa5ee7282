"""Clusters of outputs: what is found, how it is laid out, and that answers stay right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from tile_settings import set_tile_costs

import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.activations import Activation
from portable_spdnn_cpu.layout import clusters as clustering
from portable_spdnn_cpu.layout.clusters import Clusters, cluster_outputs, lay_out
from portable_spdnn_cpu.layout.packing import pack_product
from portable_spdnn_cpu.layout.tile_shape import CLUSTER, MAX_COUNTED

pytestmark = pytest.mark.usefixtures("depth_first_plans")


def unlaid(W: Any, valued: bool) -> tuple[Any, int]:
    """Cluster and lay out W (outputs x inputs, CSR); read that back entry by entry."""
    offsets, indices = W.indptr.astype(np.int64), W.indices.astype(np.uint16)
    order, clusters = cluster_outputs(offsets, indices)
    assert sorted(order.tolist()) == list(range(W.shape[0]))
    assert (np.diff(order[CLUSTER * clusters :]) > 0).all()
    bounds = np.empty((CLUSTER + 1) * clusters + W.shape[0] - CLUSTER * clusters + 1, np.int64)
    laid = np.full_like(indices, 9999)
    values = np.full(W.nnz, np.nan, np.float32) if valued else None
    data = W.data if valued else None
    lay_out(offsets, indices, data, order, clusters, bounds, laid, values)
    found = np.zeros(W.shape)
    value = bound = 0

    def take(output: int, position: int, value: int) -> None:
        assert found[output, laid[position]] == 0
        found[output, laid[position]] = 1 if values is None else values[value]

    for cluster in range(clusters):
        members = order[CLUSTER * cluster : CLUSTER * (cluster + 1)]
        for position in range(bounds[bound], bounds[bound + 1]):
            for member in members:
                take(member, position, value)
                value += 1
        for member in members:
            bound += 1
            for position in range(bounds[bound], bounds[bound + 1]):
                take(member, position, value)
                value += 1
        bound += 1
    for output in order[CLUSTER * clusters :]:
        for position in range(bounds[bound], bounds[bound + 1]):
            take(output, position, value)
            value += 1
        bound += 1
    assert bound == bounds.size - 1
    assert value == W.nnz
    return found, clusters


@st.composite
def matrices(draw: st.DrawFn) -> Any:
    """Outputs x inputs, some rows alike in part: one of a few sets, and entries of their own."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    outputs, inputs = draw(st.integers(1, 24)), draw(st.integers(1, 40))
    sets = rng.random((draw(st.integers(1, 4)), inputs)) < draw(st.floats(0, 0.6))
    own = rng.random((outputs, inputs)) < draw(st.floats(0, 0.4))
    pattern = sets[rng.integers(0, len(sets), outputs)] | own
    W = sp.csr_array(pattern * (rng.random((outputs, inputs)).astype(np.float32) + 1))
    W.sum_duplicates()
    return W


@settings(max_examples=60, deadline=None)
@given(matrices(), st.booleans())
def test_every_entry_is_laid_out_once(W: Any, valued: bool) -> None:
    found, _ = unlaid(W, valued)
    np.testing.assert_array_equal(found, W.toarray() if valued else W.toarray() != 0)


@settings(max_examples=40, deadline=None)
@given(matrices(), st.booleans(), st.sampled_from([1, 16, 33, 100]))
def test_clustered_layers_agree_with_plain_loops(W: Any, constant: bool, inputs: int) -> None:
    if constant:
        W = (W != 0).astype(np.float32)
    bias = np.linspace(-1, 0.5, W.shape[0])
    network = ps.Network([ps.Layer(W.T, bias)], y_max=6)
    Y = np.random.default_rng(inputs).random((inputs, W.shape[1])).astype(np.float32)
    np.testing.assert_allclose(
        ps.infer(network, Y, "numba").scores, oracle.infer(network, Y)[1], rtol=1e-5, atol=1e-5
    )


def test_the_structure_of_the_challenge_is_found_in_full() -> None:
    layer = ps.radixnet(1024, layers=7, seed=3).layers[6]
    by_output = layer.csr().T.tocsr()
    order, clusters = cluster_outputs(by_output.indptr.astype(np.int64), by_output.indices)
    assert CLUSTER * clusters == order.size == 1024
    said = make_plan(ps.get_backend("numba"), ps.Network([layer])).describe()
    assert "100 % of the outputs are in clusters that share inputs, which saves 75 %" in said


def test_outputs_that_share_much_but_not_all_are_found() -> None:
    rng = np.random.default_rng(0)
    common = rng.random((16, 512)) < 0.08
    pattern = np.repeat(common, CLUSTER, axis=0) | (rng.random((64, 512)) < 0.01)
    shuffled = pattern[rng.permutation(64)]
    W = sp.csr_array(shuffled.astype(np.float32))
    _, clusters = unlaid(W, valued=False)
    assert clusters >= 12  # of 16: the search is by hashing, and may miss some


@settings(max_examples=60, deadline=None)
@given(matrices())
def test_no_load_serves_more_weights_than_shared_at_most_says(W: Any) -> None:
    offsets = W.indptr.astype(np.int64)
    found = cluster_outputs(offsets, W.indices)
    members = found.order[: CLUSTER * found.number].reshape(-1, CLUSTER)
    pattern = W.toarray() != 0
    saved = sum((CLUSTER - 1) * pattern[each].all(axis=0).sum() for each in members)
    assert found.shared_at_most(offsets) >= W.nnz / max(1, W.nnz - saved)


@settings(max_examples=30, deadline=None)
@given(matrices())
def test_clusters_that_are_given_are_those_that_are_found(W: Any) -> None:
    bias = np.zeros(W.shape[0], W.dtype)
    found = cluster_outputs(W.indptr.astype(np.int64), W.indices)
    both = zip(
        pack_product(W, bias, Activation()), pack_product(W, bias, Activation(), found), strict=True
    )
    for packed, known in both:
        for one, other in zip(packed, known, strict=True):
            np.testing.assert_array_equal(one, other)


def test_shared_at_most_by_hand() -> None:
    # A cluster of four outputs of 5 weights, and two other outputs of 10: 5 + 20 loads for 40.
    found = Clusters(np.array([1, 2, 4, 5, 0, 3]), 1)
    assert found.shared_at_most(np.cumsum([0, 10, 5, 5, 10, 5, 5])) == 1.6
    assert Clusters(np.arange(4), 1).shared_at_most(np.arange(0, 25, 6)) == 4
    assert Clusters(np.arange(4), 0).shared_at_most(np.arange(0, 25, 6)) == 1
    assert Clusters(np.arange(0), 0).shared_at_most(np.zeros(1, np.int64)) == 0


def test_unrelated_outputs_are_left_alone() -> None:
    W = sp.random_array((400, 4096), density=0.01, rng=np.random.default_rng(0), format="csr")
    assert unlaid(W, valued=True)[1] == 0


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1), (4, 4), (5, 7)])
def test_layers_without_entries(shape: tuple[int, int]) -> None:
    found, clusters = unlaid(sp.csr_array(shape, dtype=np.float32), valued=True)
    assert found.sum() == clusters == 0


def test_a_cluster_must_save_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = np.hstack([np.ones((4, 2)), np.kron(np.eye(4), np.ones((1, 3)))])
    W = sp.csr_array(pattern.astype(np.float32))  # 2 common inputs of 5: 6 loads of 20 are saved
    indptr, indices = W.indptr.astype(np.int64), W.indices
    outputs = np.arange(4)
    assert clustering.saves_enough(indptr, indices, outputs)
    sparser = sp.csr_array(pattern[:, 1:].astype(np.float32))  # 1 of 4: 3 loads of 16
    assert not clustering.saves_enough(sparser.indptr.astype(np.int64), sparser.indices, outputs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", [1, 32, MAX_COUNTED, MAX_COUNTED + 1])
@pytest.mark.parametrize("inputs", [1, 63, 200, 257])
def test_bits_are_summed_exactly_at_every_row_length(
    length: int, inputs: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of bits are kept in bytes up to 255; longer rows go as features."""
    set_tile_costs(monkeypatch, 64, 64 // np.dtype(dtype).itemsize)
    rng = np.random.default_rng(length)
    neurons, outputs = 301, 18
    W = np.zeros((neurons, outputs))
    for output in range(outputs):
        # Twelve that share all inputs, six that share none in particular.
        chosen = np.arange(length) if output < 12 else rng.choice(neurons, length, replace=False)
        W[chosen, output] = 0.5
    network = ps.Network([ps.Layer(W, -0.25)], y_max=100)
    Y = rng.random((inputs, neurons)) < 0.9
    Y[0] = True
    plan = make_plan(ps.get_backend("numba", threads=1), network, ps.PlanOptions(dtype))
    scores = plan.run(Y).scores
    in_bytes = plan.workspace.tile(0, plan.width(inputs)).counted.size > 0
    assert in_bytes == (length <= MAX_COUNTED and inputs >= 63)
    np.testing.assert_array_equal(scores, oracle.infer(network, Y.astype(float))[1])
    assert scores[0, 0] == min(length / 2 - 0.25, 100)
    as_features = ps.infer(network, Y.astype(dtype), "numba", dtype=dtype).scores
    np.testing.assert_array_equal(scores, as_features)
