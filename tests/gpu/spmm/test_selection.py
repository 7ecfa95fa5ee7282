"""The choice among variants: what is counted, and that the least estimate is taken."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cuda_emulation.emulated_device import EmulatedDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_catalog import ARCHITECTURES, PRECISIONS

import portable_spdnn as ps
from portable_spdnn.kernel_model import Limits
from portable_spdnn_gpu.compile.catalog import StagedConfig, staged_configs
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.properties import (
    DATA_SHEETS,
    DeviceProperties,
    device_properties,
)
from portable_spdnn_gpu.spmm.clusters import cluster_rows
from portable_spdnn_gpu.spmm.packing import VARIANTS
from portable_spdnn_gpu.spmm.selection import (
    LAUNCH,
    Choice,
    ReuseStatistics,
    choose_variant,
    reuse_statistics,
    variant_seconds,
)
from portable_spdnn_gpu.spmm.staging import stage_rows

SINGLE = Precision()
LARGE = DATA_SHEETS[90]


@functools.cache
def challenge(neurons: int, layers: int = 2) -> Any:
    by_output = sp.csr_array(ps.radixnet(neurons, layers).layers[layers - 1].csr().T)
    by_output.sort_indices()
    return by_output


@functools.cache
def challenge_statistics(neurons: int) -> ReuseStatistics:
    return reuse_statistics(challenge(neurons), SINGLE)


def choose(A: Any, inputs: int, measured: dict[str, float] | None = None) -> Choice:
    """Return the choice for a matrix on a large device."""
    return choose_variant(reuse_statistics(A, SINGLE), SINGLE, LARGE, inputs, measured)


def unrelated(rows: int, columns: int, each: int) -> Any:
    rng = np.random.default_rng(rows)
    indices = np.sort(rng.random((rows, columns)).argpartition(each, axis=1)[:, :each], axis=1)
    offsets = np.arange(rows + 1) * each
    ones = np.ones(indices.size, np.float32)
    return sp.csr_array((ones, indices.ravel(), offsets), (rows, columns))


@pytest.mark.parametrize("neurons", [1024, 4096])
def test_counts_of_a_challenge_layer(neurons: int) -> None:
    found = reuse_statistics(challenge(neurons), SINGLE)
    assert (found.rows, found.inner, found.edges) == (neurons, neurons, 32 * neurons)
    assert found.clustered_rows == neurons
    assert found.loads == 2 * neurons  # 32 entries, a sixteenth of the loads
    assert found.padding == 1


def test_counts_are_those_of_what_is_packed() -> None:
    # Eight blocks and 64 groups at most: the samples are the whole.
    rng = np.random.default_rng(0)
    shared = np.repeat(unrelated(20, 400, 12).toarray(), 16, axis=0)
    own = unrelated(500, 900, 5).toarray()
    stacked = sp.block_diag([shared, own], format="csr")[rng.permutation(820)]
    A = sp.csr_array(stacked.astype(np.float32))
    A.sort_indices()
    found = reuse_statistics(A, SINGLE)
    clusters, stages = cluster_rows(A), stage_rows(A, staged_configs(SINGLE)[0])
    assert found.clustered_rows == clusters.rows.size
    assert found.loads == clusters.indices.size + np.diff(A.indptr)[clusters.rest].sum()
    assert found.staged == pytest.approx(stages.columns.size)
    assert found.padding == pytest.approx(stages.local_indices.size / A.nnz)


def test_conflicts_by_hand() -> None:
    config = StagedConfig(32, 16, 64)

    def conflicts(columns: list[int]) -> float:
        """Of 32 rows with one entry each, in an identity of columns staged in order."""
        A = sp.csr_array((np.ones(32, np.float32), columns, np.arange(33)), (32, 64))
        return reuse_statistics(A, SINGLE, config).conflicts

    assert conflicts(list(range(32))) == 1  # neighbours
    assert conflicts([5] * 32) == 1  # all read the same
    # Each quarter of the warp reads eight rows, eight apart, of 64 that are staged.
    apart = [8 * (lane % 4) + lane // 4 for lane in range(32)]
    assert conflicts(apart) == 4
    assert conflicts([lane // 2 for lane in range(32)]) == 1


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("neurons", [1024, 4096, 16384, 65536])
def test_challenge_layers_are_clustered(neurons: int, architecture: int) -> None:
    found = challenge_statistics(neurons)
    for precision in PRECISIONS:
        for inputs in (1800, 60_000):
            choice = choose_variant(found, precision, DATA_SHEETS[architecture], inputs)
            assert choice.variant == "clustered"


def test_clusters_are_no_slower_where_memory_binds_both() -> None:
    found = reuse_statistics(challenge(1024), SINGLE)
    assert choose_variant(found, SINGLE, DATA_SHEETS[75], 60_000).variant == "clustered"


def test_rows_that_share_a_few_columns_are_staged() -> None:
    choice = choose(unrelated(1024, 1024, 32), 60_000)
    assert choice.variant == "staged"
    assert choice.estimates["clustered"] == choice.estimates["csr"]


def test_rows_that_share_nothing_go_alone() -> None:
    # Each row has columns of its own: staging loads as much, and local indices more often.
    A = sp.csr_array((np.ones(16384, np.float32), np.arange(16384), np.arange(0, 16385, 8)))
    assert choose(A, 512).variant == "csr"


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (5, 4), (40, 3)])
def test_layers_without_entries_get_a_variant(shape: tuple[int, int]) -> None:
    for inputs in (0, 7):
        choice = choose(sp.csr_array(shape, dtype=np.float32), inputs)
        assert choice.variant == "csr"
        assert all(np.isfinite(list(choice.estimates.values())))


@st.composite
def statistics(draw: st.DrawFn) -> ReuseStatistics:
    rows, inner = draw(st.integers(1, 1 << 17)), draw(st.integers(1, 1 << 17))
    edges = draw(st.integers(1, 64)) * rows
    clustered = draw(st.integers(0, rows // 16)) * 16
    return ReuseStatistics(
        rows, inner, edges, edges * draw(st.floats(1 / 16, 1)), clustered,
        edges * draw(st.floats(1 / 256, 1)), draw(st.floats(1, 4)), draw(st.floats(1, 8)),
        draw(st.sampled_from(staged_configs(SINGLE))),
    )  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    statistics(), st.sampled_from(PRECISIONS), st.sampled_from(ARCHITECTURES),
    st.integers(0, 1 << 20),
)  # fmt: skip
def test_the_least_estimate_is_taken(
    found: ReuseStatistics, precision: Precision, architecture: int, inputs: int
) -> None:
    device = DATA_SHEETS[architecture]
    choice = choose_variant(found, precision, device, inputs)
    assert choice.estimates == {
        variant: variant_seconds(variant, found, precision, device, inputs) for variant in VARIANTS
    }
    assert all(seconds >= LAUNCH for seconds in choice.estimates.values())
    assert choice.estimates[choice.variant] == min(choice.estimates.values())
    assert choice == choose_variant(found, precision, device, inputs)


@settings(max_examples=50, deadline=None)
@given(statistics(), st.sampled_from(VARIANTS), st.integers(0, 100_000))
def test_more_inputs_never_take_less(found: ReuseStatistics, variant: str, inputs: int) -> None:
    few, more = (
        variant_seconds(variant, found, SINGLE, LARGE, each) for each in (inputs, inputs + 40_000)
    )
    assert more > few * (1 - 1e-9)


def test_by_hand_in_the_middle() -> None:
    # One panel of 512 inputs, 1,024 rows on 4 multiprocessors: 4 bytes and 8 / 512 an edge of L2.
    limits = Limits(flops=1e15, l1=1e15, l2=1e9, l3=1e15, memory=1e15)
    found = ReuseStatistics(1024, 100, 4096, 4096, 0, 4096, 1, 1, staged_configs(SINGLE)[0])
    device = DeviceProperties(limits, 1 << 30, 4)
    seconds = variant_seconds("csr", found, SINGLE, device, 300)
    assert seconds == pytest.approx(LAUNCH + 4096 * 512 * (4 + 8 / 512) / 1e9)
    # Of twice the second level half of the loads come from memory, which now is slow.
    slow = DeviceProperties(Limits(1e15, 1e15, 1e15, 1e9, 1e9), 100 * 512 * 4 // 2, 1 << 20)
    items = 1024
    busy = items / (1 << 20)
    at_a_time = min(1, 2 * (1 << 20) // items)
    assert at_a_time == 1
    seconds = variant_seconds("csr", found, SINGLE, slow, 512)
    operands = (1124 * 512 * 4 + 4096 * 8) / (4096 * 512)
    assert seconds == pytest.approx(LAUNCH + 4096 * 512 * max(2.0, operands) / 1e9 / busy)


def test_measured_rates_take_the_place_of_estimates() -> None:
    A = challenge(1024)
    fast = choose(A, 1000, {"staged": 1e18})
    assert fast.variant == "staged"
    assert fast.estimates["staged"] == pytest.approx(LAUNCH, rel=1e-4)
    assert "staged 3 us (measured)" in fast.reason
    slow = choose(A, 1000, {"staged": 1e9, "csr": 1e9})
    assert slow.variant == "clustered"
    assert slow.reason.endswith(" for 1000 inputs, estimated")
    every = choose(A, 1000, dict.fromkeys(VARIANTS, 1e9))
    assert every.reason.endswith("(measured) for 1000 inputs")
    assert slow.estimates["csr"] == LAUNCH + A.nnz * 1000 / 1e9


def test_devices_without_measured_limits_are_of_a_class(tmp_path: Any) -> None:
    device = EmulatedDevice(tmp_path)
    found = device_properties(device)
    assert found.limits.flops == pytest.approx(LARGE.limits.flops * 3 / 132)
    assert found.limits.memory == LARGE.limits.memory
    assert (found.l2_bytes, found.multiprocessors) == (device.l2_bytes, 3)
    device.architecture = 86
    assert device_properties(device).limits.memory == DATA_SHEETS[80].limits.memory
    device.architecture = 60
    assert device_properties(device).limits.memory == DATA_SHEETS[70].limits.memory
    measured = Limits(1, 2, 3, 4, 5)
    assert device_properties(device, measured).limits == measured
    # A network like the challenge's is clustered there too.
    emulated = device_properties(EmulatedDevice(tmp_path))
    choice = choose_variant(challenge_statistics(1024), SINGLE, emulated, 60_000)
    assert choice.variant == "clustered"
