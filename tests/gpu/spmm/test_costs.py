"""Models of device kernels, by hand."""

from __future__ import annotations

import pytest

from portable_spdnn.kernel_model import Limits, speed, speed_text
from portable_spdnn_gpu.compile.nvrtc import kernel_folder
from portable_spdnn_gpu.spmm.costs import (
    CLUSTER_COLUMNS,
    CSR_COLUMNS,
    LayerSize,
    variant_cost,
)
from portable_spdnn_gpu.spmm.packing import VARIANTS

L2 = 50 << 20
# Round numbers near those of a large device.
LIMITS = Limits(flops=60e12, l1=32e12, l2=6e12, l3=4e12, memory=4e12)


def challenge(neurons: int, columns: int, itemsize: int = 4) -> LayerSize:
    return LayerSize(32 * neurons, neurons, neurons, columns, itemsize)


def test_rows_alone_are_bound_by_the_second_level() -> None:
    model = variant_cost("csr", challenge(1024, 1000), L2, 32 * 1024)
    assert model.bytes_per_edge["memory"] == 0  # 8 MB of features and 0.25 MB of weights
    assert model.bytes_per_edge["l2"] == 4 + 8 / 512
    assert model.bytes_per_edge["l1"] == 4 + 2
    assert model.flops_per_edge == 2
    rate, binding = model.bound(LIMITS)
    assert (rate, binding) == (pytest.approx(1.494e12, rel=1e-3), "l2")


def test_clusters_share_what_they_load() -> None:
    size = challenge(1024, 1000)
    alone = variant_cost("clustered", size, L2, size.edges)
    shared = variant_cost("clustered", size, L2, size.edges // 16)
    assert alone.bytes_per_edge["l2"] == 4 + 8 / 256
    assert shared.bytes_per_edge["l2"] == 0.25 + 4.25 / 256
    # Four values in a broadcast, for two columns of 32 lanes: 128 bytes of 256 multiply-adds.
    assert shared.bytes_per_edge["l1"] == 0.25 + 0.5
    assert shared.bound(LIMITS)[0] > 10 * alone.bound(LIMITS)[0]


def test_what_does_not_fit_the_second_level_comes_from_memory() -> None:
    size = challenge(65536, 10_000)
    model = variant_cost("clustered", size, L2, size.edges // 16)
    # 2 features of 4 bytes for 32 edges, and 4.25 bytes of weights for 10,000 columns.
    assert model.bytes_per_edge["memory"] == pytest.approx(0.25 + 4.25 / 10_000)
    assert model.bound(LIMITS)[1] == "memory"
    half = variant_cost("clustered", challenge(65536, 10_000, 2), L2, size.edges // 16)
    assert half.bytes_per_edge["memory"] == pytest.approx(0.125 + 2.25 / 10_000)
    assert half.flops_per_edge == 2
    few = variant_cost("clustered", challenge(65536, 1), L2, size.edges // 16)
    assert few.bytes_per_edge["memory"] == 0  # 9.4 MB


def test_stages_are_bound_by_shared_memory() -> None:
    size = challenge(1024, 60_000)
    # Four blocks of 256 rows that need 1,024 rows of B each.
    model = variant_cost("staged", size, L2, 4 * 1024)
    share = 4 * 1024 / (32 * 1024)
    assert model.bytes_per_edge["l1"] == 4 + 4 * share + 6 / 16
    assert model.bytes_per_edge["l2"] == 4 * share + 6 / 16
    assert model.bound(LIMITS)[1] == "l1"
    # Half precision is staged as it is: shared memory moves half for a multiply-add.
    half = variant_cost("staged", challenge(1024, 60_000, 2), L2, 4 * 1024)
    assert half.bytes_per_edge["l1"] == 2 + 2 * share + 4 / 16
    wide = variant_cost("staged", size, L2, 4 * 1024, minibatch=32)
    assert wide.bytes_per_edge["l2"] == 4 * share + 6 / 32


def test_double_counts_twice() -> None:
    size = LayerSize(320, 10, 10, 5, itemsize=8, sum_itemsize=8)
    model = variant_cost("clustered", size, L2, 20)
    assert model.flops_per_edge == 4
    assert model.bytes_per_edge["l1"] == 8 / 16 + 1  # two values in a broadcast


@pytest.mark.parametrize("size", [LayerSize(0, 0, 0, 0), LayerSize(0, 5, 4, 3)])
def test_a_layer_without_edges_has_a_model(size: LayerSize) -> None:
    for variant in VARIANTS:
        assert variant_cost(variant, size, 0, 0).bound(LIMITS)[0] > 0


def test_speed_is_a_part_of_what_binds() -> None:
    size = challenge(1024, 1000)
    model = variant_cost("csr", size, L2, size.edges)
    bound, _ = model.bound(LIMITS)
    done = size.edges * size.columns
    found = speed(model, LIMITS, done, 2 * done / bound)
    assert found.fraction == pytest.approx(0.5)
    assert found.binding == "l2"
    assert found.bandwidth["l2"] == pytest.approx(3e12)
    assert set(found.bandwidth) == {"l1", "l2"}
    assert found.flops == 2 * found.edge_rate
    assert speed_text(found, LIMITS) == (
        "0.747 T edges/s, 1.49 of 60.00 TFLOP/s, l1 4.48 of 32.00 TB/s, l2 3.00 of 6.00 TB/s: "
        "50 % of what l2 allows"
    )


def test_columns_of_a_thread_are_those_of_the_kernels() -> None:
    for file, name, value in (
        ("spmm/csr_spmm.cu", "COLUMNS", CSR_COLUMNS),
        ("spmm/clustered_spmm.cu", "COLUMNS", CLUSTER_COLUMNS),
    ):
        assert f"#define {name} {value}\n" in (kernel_folder() / file).read_text()
