"""Where packed layers lie, as the lanes of a warp see them."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_catalog import SHARED_LIMITS

from portable_spdnn.graphchallenge.radixnet import radixnet
from portable_spdnn_gpu.compile.catalog import persistent_layers, persistent_rows
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.persistent.layout import (
    BEGIN,
    COMMON,
    HALVES,
    ROWS,
    STEPS,
    UNIT,
    Layout,
    feature_rows,
)
from portable_spdnn_gpu.persistent.packing import SegmentLayer, pack_layer
from portable_spdnn_gpu.spmm.output_rows import OutputRows, by_output

SINGLE = Precision()


@pytest.mark.parametrize(("neurons", "most"), [(1024, 1.0), (4096, 1.15)])
def test_lanes_that_work_together_use_different_banks(neurons: int, most: float) -> None:
    kernel = persistent_layers(SINGLE, neurons, SHARED_LIMITS[90], constant=True)
    assert kernel is not None
    layout = Layout.of(kernel, SINGLE, persistent_rows(neurons))
    lanes = layout.tile // 2  # of a cluster, four inputs and half of its rows each
    together = max(1, 8 // lanes)  # clusters of the eight lanes whose vectors are moved at a time
    for layer in radixnet(neurons, 12):
        A = by_output(layer.csr())
        bias = np.asarray(layer.bias, np.float32)
        headers, data, _ = pack_layer(SegmentLayer(OutputRows.of(A, True), bias, True), layout)
        reads, stores = [], []
        for header in headers:
            rows = data[header[BEGIN] * UNIT :].view(np.uint16)[: layout.parts * ROWS]
            rows = rows.reshape(-1, together * HALVES, ROWS).swapaxes(1, 2)
            stores += accesses(rows.reshape(-1, together * HALVES), layout.apart)
            first = (
                header[BEGIN] * UNIT + layout.parts * ROWS * 6
            )  # a number of two bytes and a bias of four
            columns = data[first:].view(np.uint32)[: header[COMMON] * layout.clusters * STEPS]
            columns = columns.reshape(-1, together, STEPS).swapaxes(1, 2) // layout.row_bytes
            reads += accesses(columns.reshape(-1, together), layout.apart)
        assert max(stores) == 1
        assert np.mean(reads) <= most


def accesses(rows: np.ndarray, banks: int) -> list[int]:
    """Return how often each of the sets of different rows uses the bank that it uses most."""
    return [int(np.bincount(np.unique(each) % banks).max()) for each in rows]


def test_features_change_places_among_eight_neighbours() -> None:
    neurons = np.arange(1 << 16)
    found = feature_rows(neurons)
    assert (found // 8 == neurons // 8).all()
    assert np.unique(found).size == neurons.size
    assert feature_rows(np.array([0, 1, 8, 9, 64, 4096])).tolist() == [0, 1, 9, 8, 65, 4097]
