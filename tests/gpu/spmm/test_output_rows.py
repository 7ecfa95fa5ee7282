"""Weights by output, told from layers as they are stored, against matrices that are transposed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn_gpu.compile.catalog import CLUSTER, StagedConfig, staged_configs
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.persistent.packing import SegmentLayer, pack_segment
from portable_spdnn_gpu.spmm.output_rows import OutputRows, by_output
from portable_spdnn_gpu.spmm.packing import pack
from portable_spdnn_gpu.spmm.selection import reuse_statistics
from portable_spdnn_gpu.spmm.staging import QUARTER, count_stages, stage_rows

SINGLE = Precision()


def layer_of(pattern: Any, weight: float = 0.5) -> ps.Layer:
    """Return a layer of one weight, (inputs, outputs)."""
    W = sp.csr_array(np.asarray(pattern, np.float32))
    return ps.Layer.from_csr(W.indptr, W.indices, np.broadcast_to(weight, W.nnz), W.shape, -0.25)


def sets(inputs: int, counts: list[int], density: float, seed: int) -> Any:
    """Return a pattern, (inputs, outputs), of which so many outputs each have equal inputs."""
    rng = np.random.default_rng(seed)
    kinds = rng.random((inputs, len(counts))) < density
    outputs = np.repeat(np.arange(len(counts)), counts)
    return kinds[:, rng.permutation(outputs)]


def columns_of_rows(rows: OutputRows) -> dict[int, list[int]]:
    """Return the columns of each row that is in a cluster."""
    found = rows.clusters
    columns = {}
    for number in range(found.count):
        begin = found.common_begins[number]
        common = found.indices[begin : begin + found.common_counts[number]].tolist()
        members = found.rows[CLUSTER * number : CLUSTER * (number + 1)].tolist()
        columns |= dict.fromkeys(members, common)
    return columns


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.sampled_from([16, 32, 48, 1, 15, 17]), min_size=1, max_size=6),
    st.floats(0.02, 1),
    st.integers(0, 99),
)
def test_clusters_of_layers_are_those_of_equal_outputs(
    inputs: int, counts: list[int], density: float, seed: int
) -> None:
    pattern = sets(inputs, counts, density, seed)
    rows = OutputRows.of_layer(layer_of(pattern), np.float32)
    alike: dict[tuple[int, ...], int] = {}
    for output in range(pattern.shape[1]):
        key = tuple(np.flatnonzero(pattern[:, output]).tolist())
        alike[key] = alike.get(key, 0) + 1
    alike.pop((), None)
    whole = bool(alike) and all(count % CLUSTER == 0 for count in alike.values())
    assert (rows.equal is not None) == whole
    expected = {o: np.flatnonzero(pattern[:, o]).tolist() for o in range(pattern.shape[1])}
    found = columns_of_rows(rows)
    for output, columns in found.items():
        assert set(columns) <= set(expected[output])
        assert columns == sorted(columns)
        assert not whole or columns == expected[output]
    rest = rows.clusters.rest.tolist()
    assert sorted([*found, *rest]) == list(range(pattern.shape[1]))
    alone = rows.outside_clusters().toarray()
    for output in rest:
        assert np.flatnonzero(alone[output]).tolist() == expected[output]


@pytest.mark.parametrize("neurons", [1024, 4096])
@pytest.mark.parametrize("layer", [0, 5, 7])
def test_layers_are_counted_and_packed_as_their_transposes(neurons: int, layer: int) -> None:
    weights = ps.radixnet(neurons, layer + 1).layers[layer]
    rows, A = OutputRows.of_layer(weights, np.float32), by_output(weights.csr("float32"))
    assert rows.equal is not None
    for config in staged_configs(SINGLE)[:2]:
        assert reuse_statistics(rows, SINGLE, config) == reuse_statistics(A, SINGLE, config)
    packed, expected = pack(rows, "clustered", SINGLE), pack(A, "clustered", SINGLE)
    assert (packed.loads, packed.nnz, packed.shape, packed.constant) == (
        expected.loads, expected.nnz, expected.shape, True
    )  # fmt: skip
    assert packed.describe() == expected.describe()
    assert packed.memory.nbytes == expected.memory.nbytes


def test_segments_of_layers_have_the_size_of_those_of_transposes() -> None:
    layers = ps.radixnet(1024, 3).layers
    bias, shared = np.full(1024, -0.3, np.float32), 227 << 10
    rows = [OutputRows.of_layer(layer, np.float32) for layer in layers]
    fused = pack_segment([SegmentLayer(A, bias, True) for A in rows], SINGLE, shared)
    matrices = [OutputRows.of(by_output(layer.csr("float32"))) for layer in layers]
    expected = pack_segment([SegmentLayer(A, bias, True) for A in matrices], SINGLE, shared)
    assert fused.constant
    assert (fused.loads, fused.rows, fused.data) == (expected.loads, expected.rows, expected.data)
    assert fused.nnz.tolist() == expected.nnz.tolist()
    assert fused.memory.size == expected.memory.size


def test_layers_of_several_weights_and_of_very_many_inputs_are_transposed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pattern = sets(20, [16, 32], 0.5, 1)
    W = pattern * np.linspace(1, 2, pattern.size).reshape(pattern.shape)
    several = OutputRows.of_layer(ps.Layer(W, -1.0), np.float32)
    assert several.equal is None
    assert several.clusters.count == 3
    assert not several.constant
    monkeypatch.setattr("portable_spdnn_cpu.layout.equal_outputs.COUNT_BITS", 4)
    assert OutputRows.of_layer(layer_of(pattern[:16]), np.float32).equal is None
    monkeypatch.setattr("portable_spdnn_cpu.layout.equal_outputs.COUNT_BITS", 5)
    assert OutputRows.of_layer(layer_of(pattern[:16]), np.float32).equal is not None


@pytest.mark.parametrize("config", [StagedConfig(32, 16, 64), StagedConfig(64, 16, 64)])
@pytest.mark.parametrize(("rows", "columns", "density"), [
    (64, 200, 0.1), (32, 40, 0.9), (21, 500, 0.05), (1, 64, 1.0), (40, 3, 0.4), (50, 70, 0.0),
])  # fmt: skip
def test_what_is_counted_of_stages_is_what_is_laid_out(
    config: StagedConfig, rows: int, columns: int, density: float
) -> None:
    rng = np.random.default_rng(rows)
    rows = min(rows, config.rows)
    A = sp.csr_array((rng.random((rows, columns)) < density).astype(np.float32))
    stages = stage_rows(A, config)
    passes = 0
    for quarter in stages.local_indices.reshape(-1, QUARTER):
        rows_read = set(quarter.tolist())
        passes += max(sum(row % QUARTER == bank for row in rows_read) for bank in range(QUARTER))
    found = count_stages(A.indptr, A.indices, columns, config.stage)
    assert found == (stages.columns.size, stages.local_indices.size, passes)
