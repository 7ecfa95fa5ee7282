"""Models of fused segments, by hand."""

from __future__ import annotations

import pytest
from kernel_catalog import SHARED_LIMITS

import portable_spdnn as ps
from portable_spdnn_gpu.compile.catalog import persistent_layers
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.properties import DATA_SHEETS
from portable_spdnn_gpu.network.costs import (
    BARRIERS,
    segment_layer_cost,
    segment_layer_seconds,
    step_cost,
)
from portable_spdnn_gpu.persistent.layout import Layout
from portable_spdnn_gpu.persistent.packing import SegmentLayer, pack_segment
from portable_spdnn_gpu.spmm.output_rows import OutputRows, by_output
from portable_spdnn_gpu.spmm.selection import reuse_statistics

SINGLE, HALF = Precision(), Precision(half=True)
LIMIT, H100 = SHARED_LIMITS[90], DATA_SHEETS[90]


def layout(precision: Precision, neurons: int, constant: bool, limit: int = LIMIT) -> Layout:
    kernel = persistent_layers(precision, neurons, limit, constant)
    assert kernel is not None
    return Layout.of(kernel, precision, neurons)


# Of a layer of the challenge 32 edges lead to a row, and a sixteenth of them is loaded.
OUTPUTS, COLUMNS = (2 + 4) / 32, 4 / 16


@pytest.mark.parametrize(
    ("precision", "constant", "limit", "l1", "l2"),
    [
        (SINGLE, False, LIMIT, 4 * 0.15 + 4 / 16, 4 + COLUMNS + OUTPUTS),
        (SINGLE, True, LIMIT, 4 / 16, COLUMNS + OUTPUTS),
        (HALF, False, LIMIT, 2 * 0.15 + 4 / 16, 2 + COLUMNS + OUTPUTS),
        (HALF, True, LIMIT, 4 / 16, COLUMNS + OUTPUTS),
        # 64 KiB hold sixteen inputs of 1,024 neurons in half precision alone.
        (HALF, True, SHARED_LIMITS[75], 2 / 16, COLUMNS + OUTPUTS),
    ],
)
def test_what_a_multiply_add_moves(
    precision: Precision, constant: bool, limit: int, l1: float, l2: float
) -> None:
    form = layout(precision, 1024, constant, limit)
    model = segment_layer_cost(32 * 1024, 1024, 2 * 1024, form)
    assert model.bytes_per_edge == pytest.approx({"l1": l1, "l2": l2 / 16})
    assert model.flops_per_edge == 2
    layers = [
        SegmentLayer(OutputRows.of(by_output(layer.csr("float32")), constant), layer.bias, True)
        for layer in ps.radixnet(1024, 2)
    ]
    assert step_cost(pack_segment(layers, precision, limit), 9, precision, 0) == model


def test_equal_weights_leave_arithmetic_alone() -> None:
    A = by_output(ps.radixnet(4096, 1).layers[0].csr("float32"))
    statistics = reuse_statistics(A, SINGLE)
    # 225 tiles of eight inputs are two waves of 132 multiprocessors, 128 multiply-adds a cycle.
    wave = 32 * 4096 * 8 / (128 * 1.75e9) + BARRIERS
    equal = segment_layer_seconds(statistics, layout(SINGLE, 4096, True), H100, 1800)
    assert equal == pytest.approx(2 * wave)
    others = segment_layer_seconds(statistics, layout(SINGLE, 4096, False), H100, 1800)
    assert others > 2.5 * equal  # the weights come from L2 for eight inputs each
