"""Orders of clusters and rows.

What they keep, and that reads stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cpu.layout.test_clusters import matrices
from hypothesis import given, settings
from hypothesis import strategies as st
from tile_settings import set_tile_costs

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.layout.clusters import cluster_outputs
from portable_spdnn_cpu.layout.orders import order_clusters, permute_rows
from portable_spdnn_cpu.layout.tile_shape import CLUSTER
from portable_spdnn_cpu.network import sparse_prefix

pytestmark = pytest.mark.usefixtures("depth_first_plans")


def ordered(W: Any) -> tuple[Any, Any, int]:
    """Return the order of W (outputs x inputs) before and after, and how many clusters it has."""
    offsets, indices = W.indptr.astype(np.int64), W.indices.astype(np.uint16)
    order, clusters = cluster_outputs(offsets, indices)
    return order, order_clusters(offsets, indices, order, clusters, W.shape[1]), clusters


@settings(max_examples=60, deadline=None)
@given(matrices())
def test_whole_clusters_change_places_and_nothing_else(W: Any) -> None:
    before, after, clusters = ordered(W)
    cut = CLUSTER * clusters
    np.testing.assert_array_equal(after[cut:], before[cut:])
    groups = [
        sorted(map(tuple, order[:cut].reshape(clusters, CLUSTER).tolist()))
        for order in (before, after)
    ]
    assert groups[0] == groups[1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 11), max_size=30))
def test_rows_are_permuted_as_they_are_first_read(read: list[int]) -> None:
    rows = permute_rows(np.array(read, np.uint16), 12)
    seen = list(dict.fromkeys(read))
    wanted = seen + [neuron for neuron in range(12) if neuron not in seen]
    assert np.argsort(rows).tolist() == wanted


@pytest.mark.parametrize("layer", [0, 3, 8, 11])
def test_reads_of_the_challenge_go_through_a_tile_once(layer: int) -> None:
    """In regular layers as in those whose neurons are shuffled."""
    W = ps.radixnet(4096, layers=12, seed=5).layers[layer].csr().T.tocsr()
    _, order, clusters = ordered(W)
    assert CLUSTER * clusters == order.size
    inputs = W.indices.reshape(4096, 32)[order]
    rows = permute_rows(inputs[::CLUSTER].ravel(), 4096)[inputs]
    far = np.maximum.accumulate(rows.max(axis=1))
    assert (rows.min(axis=1) > far - 4 * 32).all()


def test_clusters_without_common_inputs_come_one_after_the_other() -> None:
    blocks = np.kron(np.eye(5)[[3, 0, 4, 1, 2]], np.ones((CLUSTER, 2)))
    _, order, clusters = ordered(sp.csr_array(blocks))
    assert clusters == 5
    assert (order[::CLUSTER] // CLUSTER).tolist() == [1, 3, 4, 0, 2]  # by their least inputs


@pytest.mark.parametrize("break_even", [0.0, 0.4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", ["bits", "csr", "C", "F"])
def test_neurons_come_back_in_their_own_order(
    form: str, dtype: Any, break_even: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of unequal widths, clustered and not, from every kind of features."""
    set_tile_costs(monkeypatch, 64, 64 // np.dtype(dtype).itemsize)
    monkeypatch.setattr(sparse_prefix, "break_even_density", lambda *arguments: break_even)
    rng = np.random.default_rng(2)
    shuffled = ps.radixnet(64, layers=14, seed=1).layers[-3:]
    narrow = sp.random_array((64, 40), density=0.2, rng=rng, dtype=np.float32)
    groups = sp.csr_array(np.kron(rng.random((8, 10)) < 0.4, np.ones((5, 8))).astype(np.float32))
    network = ps.Network(
        [*shuffled, ps.Layer(narrow, -0.1), ps.Layer(groups / 8, -0.05)], y_max=4.0
    )
    dense = (rng.random((200, 64)) < 0.15).astype(dtype)
    Y: Any = np.asarray(dense, order="F" if form == "F" else "C")
    if form == "csr":
        Y = sp.csr_array(dense)
    elif form == "bits":
        Y = ps.PackedFeatures.from_dense(dense)
    found = ps.infer(network, Y, "numba", dtype=dtype, threads=2)
    categories, scores, _ = oracle.infer(network, dense)
    assert categories
    np.testing.assert_array_equal(found.categories, categories)
    np.testing.assert_allclose(found.scores, scores, rtol=1e-5, atol=1e-6)
