"""Clusters of equal outputs, and layers packed by them, against plain loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.sparse_arrays import index_dtype
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.layout import packing
from portable_spdnn_cpu.layout.equal_outputs import equal_outputs, whole_groups
from portable_spdnn_cpu.layout.tile_shape import CLUSTER

pytestmark = pytest.mark.usefixtures("depth_first_plans", "small_layers")


@pytest.fixture(scope="module")
def small_layers() -> Iterator[None]:
    """Let small layers be packed by clusters of equal outputs too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "LEAST_WEIGHTS", 0)
        yield


def layer_of(pattern: Any, weight: float = 0.5, bias: Any = -0.25) -> ps.Layer:
    """Return a layer of one weight, (inputs, outputs)."""
    W = sp.csr_array(np.asarray(pattern, np.float32))
    weights = np.broadcast_to(np.float32(weight), W.nnz)
    return ps.Layer.from_csr(W.indptr, W.indices, weights, W.shape, bias)


@st.composite
def patterns(draw: st.DrawFn, counts: tuple[int, ...]) -> Any:
    """Inputs x outputs: of some sets of inputs so many outputs each, some of no inputs; mixed."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    inputs, sets = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    kinds = rng.random((inputs, sets + 1)) < draw(st.floats(0.02, 1))
    kinds[:, -1] = False
    each = [draw(st.sampled_from(counts)) for _ in range(sets)]
    outputs = np.repeat(np.arange(sets + 1), [*each, draw(st.integers(0, 5))])
    return kinds[:, rng.permutation(outputs)]


def unpacked(part: Any, indices: Any, inputs: int) -> Any:
    """Return the pattern, (inputs, outputs), that a packed layer's part says."""
    found = np.zeros((inputs, part.order.size), np.int64)
    bounds = part.offsets
    for cluster in range(part.clusters):
        members = part.order[CLUSTER * cluster : CLUSTER * (cluster + 1)]
        first = (CLUSTER + 1) * cluster
        found[np.ix_(indices[bounds[first] : bounds[first + 1]], members)] += 1
        for place, member in enumerate(members, start=first + 1):
            found[indices[bounds[place] : bounds[place + 1]], member] += 1
    first = (CLUSTER + 1) * part.clusters
    for place, output in enumerate(part.order[CLUSTER * part.clusters :], start=first):
        found[indices[bounds[place] : bounds[place + 1]], output] += 1
    return found


@settings(max_examples=60, deadline=None)
@given(patterns((1, 3, 4, 8, 12)))
def test_clusters_are_found_where_all_outputs_with_edges_are_in_some(pattern: Any) -> None:
    found = equal_outputs(layer_of(pattern), CLUSTER)
    alike: dict[tuple[int, ...], int] = {}
    for column in pattern.T:
        inputs = tuple(np.flatnonzero(column).tolist())
        alike[inputs] = alike.get(inputs, 0) + 1
    alike.pop((), None)
    assert (found is not None) == bool(alike and all(n % CLUSTER == 0 for n in alike.values()))
    if found is None:
        return
    begins = np.cumsum(found.lengths) - found.lengths
    for group, begin, length in zip(found.groups, begins, found.lengths, strict=True):
        assert (np.diff(group) > 0).all()
        for output in group:
            expected = np.flatnonzero(pattern[:, output])
            np.testing.assert_array_equal(found.inputs[begin : begin + length], expected)
    turned = found.reordered(np.arange(len(found.groups))[::-1])
    again = turned.reordered(np.arange(len(found.groups))[::-1])
    assert (turned.groups == found.groups[::-1]).all()
    assert (again.inputs == found.inputs).all()


@settings(max_examples=60, deadline=None)
@given(patterns((4, 8, 12)), st.sampled_from([1, 17, 64]))
def test_packed_layers_have_the_pattern_of_the_layer(pattern: Any, count: int) -> None:
    inputs, outputs = pattern.shape
    layer = layer_of(pattern, 0.5, np.linspace(-1, 0.5, outputs))
    wanted = index_dtype(inputs)
    part, indices = packing._pack_layer(layer, np.dtype(np.float32), wanted)
    assert indices.dtype == wanted
    np.testing.assert_array_equal(unpacked(part, indices, inputs), pattern)
    assert sorted(part.order.tolist()) == list(range(outputs))
    assert sorted(part.input_rows.tolist()) == list(range(inputs))
    np.testing.assert_array_equal(part.bias, layer.bias.astype(np.float32)[part.order])
    if pattern.any():
        assert equal_outputs(layer, CLUSTER) is not None
        assert (part.edges, part.weight, part.values) == (layer.nnz, 0.5, None)
    Y = np.random.default_rng(count).random((count, inputs)).astype(np.float32)
    network = ps.Network([layer], y_max=6)
    np.testing.assert_allclose(
        ps.infer(network, Y, "numba").scores, oracle.infer(network, Y)[1], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("neurons", [1024, 4096])
@pytest.mark.parametrize("number", [0, 4, 6])
def test_layers_of_the_challenge_are_packed_as_well(
    monkeypatch: pytest.MonkeyPatch, neurons: int, number: int
) -> None:
    layer = ps.radixnet(neurons, number + 1, seed=3).layers[number]
    types = np.dtype(np.float32), np.dtype(np.uint16)
    part, indices = packing._pack_layer(layer, *types)
    monkeypatch.setattr(packing, "equal_outputs", lambda layer, size: None)
    other, expected = packing._pack_layer(layer, *types)
    np.testing.assert_array_equal(part.offsets, other.offsets)
    assert (part.clusters, part.edges, part.weight) == (other.clusters, other.edges, other.weight)
    assert indices.size == expected.size
    rows = part.input_rows[indices].astype(np.int64), other.input_rows[expected].astype(np.int64)
    # As close to each other: neighbours in the order of the rows of a tile.
    assert np.abs(np.diff(rows[0])).mean() <= 1.1 * np.abs(np.diff(rows[1])).mean()


def test_a_hash_that_agrees_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of as many inputs have one hash then; only equal ones may be one cluster."""
    module = "portable_spdnn_cpu.layout.equal_outputs"
    monkeypatch.setattr(f"{module}.mix64", np.zeros_like)
    halves = (np.arange(6)[:, None] < 3) == (np.arange(8) < 4)  # as many inputs, but others
    assert equal_outputs(layer_of(halves[:, :4]), CLUSTER) is not None
    assert equal_outputs(layer_of(halves[:, [0, 4, 1, 5, 2, 6, 3, 7]]), CLUSTER) is None
    monkeypatch.undo()
    mixed = equal_outputs(layer_of(halves[:, [0, 4, 1, 5, 2, 6, 3, 7]]), CLUSTER)
    assert mixed is not None
    assert sorted(mixed.groups.tolist()) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_sets_that_differ_in_one_input_are_told_apart() -> None:
    for number in range(3):
        pattern = np.ones((3, 8), bool)
        pattern[number, ::2] = False
        found = equal_outputs(layer_of(pattern), CLUSTER)
        assert found is not None
        assert sorted(found.lengths.tolist()) == [2, 3]


def test_groups_are_of_one_run() -> None:
    hashes = np.array([2, 2, 2, 5, 5, 5, 5, 5, 9, 9], np.uint64)
    assert whole_groups(np.arange(10), hashes, 2).tolist() == [[0, 1], [3, 4], [5, 6], [8, 9]]
    assert whole_groups(np.arange(10), hashes, 4).tolist() == [[3, 4, 5, 6]]
    assert whole_groups(np.arange(0), hashes[:0], 4).shape == (0, 4)
