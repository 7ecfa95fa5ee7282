"""Sparse products against loops in float64."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cuda_emulation.device_at_hand import ON_GPU, needs_device
from cuda_emulation.emulated_device import compiler
from cuda_emulation.sanitized_run import sanitized
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_catalog import PRECISIONS

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.radixnet import radixnet
from portable_spdnn.testing import oracle
from portable_spdnn_gpu.compile.catalog import StagedConfig, csr_spmm, staged_configs
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device import features
from portable_spdnn_gpu.device.epilogue import DeviceEpilogue
from portable_spdnn_gpu.device.features import StepOperands, input_state
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.device.matrices import download_csr, upload_csr
from portable_spdnn_gpu.spgemm.launch import DeviceSpgemmHandle
from portable_spdnn_gpu.spmm import launch
from portable_spdnn_gpu.spmm.clusters import cluster_rows
from portable_spdnn_gpu.spmm.launch import DeviceSpmm, PreparedSpmm, launch_blocks
from portable_spdnn_gpu.spmm.output_rows import by_output
from portable_spdnn_gpu.spmm.packing import VARIANTS, PackedLaunch, pack
from portable_spdnn_gpu.spmm.staging import stage_rows

pytestmark = needs_device


def nothing(device: Device, dtype: Any = np.float32) -> DeviceEpilogue:
    return DeviceEpilogue(device, Epilogue(), 1, dtype)


def relu(device: Device, bias: Any, upper: float) -> DeviceEpilogue:
    return DeviceEpilogue(device, Epilogue(bias, "relu", upper=upper), bias.size, bias.dtype)


def matrix(rows: int, columns: int, density: float, dtype: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((rows, columns)) < density, rng.uniform(-1, 1, (rows, columns)), 0)
    return sp.csr_array(dense.astype(dtype))


def sharing(groups: int, dtype: Any, own: int = 0) -> Any:
    """Return rows in sixteens of equal columns, shuffled, with `own` more of each row's own."""
    rng = np.random.default_rng(groups)
    dense = np.zeros((16 * groups + 3, 60), dtype)
    for row in range(16 * groups):
        dense[row, row % groups :: groups + 1] = rng.uniform(
            0.5, 1, dense[row, row % groups :: groups + 1].size
        )
        dense[row, rng.integers(0, 60, own)] = -0.25
    return sp.csr_array(dense[rng.permutation(len(dense))])


def constant(A: Any) -> Any:
    """Return a matrix with the pattern of A whose entries are all equal."""
    return sp.csr_array((np.full_like(A.data, -0.375), A.indices, A.indptr), shape=A.shape)


MATRICES = {
    "random": lambda dtype: matrix(70, 50, 0.3, dtype),
    "one row": lambda dtype: matrix(1, 40, 0.5, dtype),
    "empty": lambda dtype: sp.csr_array((5, 4), dtype=dtype),
    "no columns": lambda dtype: sp.csr_array((5, 0), dtype=dtype),
    "no rows": lambda dtype: sp.csr_array((0, 5), dtype=dtype),
    "equal columns": lambda dtype: sharing(4, dtype),
    "alike columns": lambda dtype: sharing(3, dtype, own=2),
    "two blocks": lambda dtype: matrix(300, 20, 0.1, dtype),
    "one value, equal columns": lambda dtype: constant(sharing(4, dtype)),
    "one value, alike columns": lambda dtype: constant(sharing(3, dtype, own=2)),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("columns", [0, 1, 17, 130, 257])
def test_product_and_layer(
    device: Device, variant: str, dtype: Any, kind: str, columns: int
) -> None:
    A, B, bias, residual, *expected = product_and_layers(kind, dtype, columns)
    product = PreparedSpmm(device, A, variant)
    silu = DeviceEpilogue(device, Epilogue(bias, "silu", -0.2, 1), bias.size, dtype)
    found = [
        product.run(device.upload(B), nothing(device, dtype)),
        product.run(device.upload(B), relu(device, bias, 0.5)),
        product.run(device.upload(B), silu, device.upload(residual)),
    ]
    rtol = 2e-5 if dtype == np.float32 else 1e-12
    for one, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(device.download(one), right, rtol=rtol, atol=rtol)


@functools.cache
def product_and_layers(kind: str, dtype: Any, columns: int) -> tuple[Any, ...]:
    """Return A, B, bias and residual, then A B, and its layers with ReLU and with SiLU."""
    A = MATRICES[kind](dtype)
    rng = np.random.default_rng(columns)
    B = rng.uniform(-1, 1, (A.shape[1], columns)).astype(dtype)
    bias = rng.uniform(-0.5, 0.5, A.shape[0]).astype(dtype)
    residual = rng.uniform(-1, 1, (A.shape[0], columns)).astype(dtype)
    C = oracle.spmm(A, B)
    rectified = oracle.finish(C, bias[:, None], "relu", None, 0.5)
    smooth = oracle.finish(C, bias[:, None], "silu", -0.2, 1, residual)
    for shared in (B, bias, residual, C, rectified, smooth):
        shared.flags.writeable = False
    return A, B, bias, residual, C, rectified, smooth


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_operands_that_begin_anywhere(device: Device, variant: str, dtype: Any) -> None:
    A = constant(sharing(4, dtype))
    B = np.random.default_rng(0).uniform(-1, 1, (60, 34)).astype(dtype)
    memory: Any = device.upload(np.append(np.zeros(1, dtype), B))
    room: Any = device.empty((A.shape[0] * 34 + 1,), dtype)
    for shift in (0, 1):
        out = room[shift:][: A.shape[0] * 34].reshape(A.shape[0], 34)
        shifted = memory[1:].reshape(B.shape)
        C = PreparedSpmm(device, A, variant).run(shifted, nothing(device, dtype), out=out)
        rtol = 2e-5 if dtype == np.float32 else 1e-12
        np.testing.assert_allclose(device.download(C), oracle.spmm(A, B), rtol=rtol, atol=rtol)


def test_states_of_neighbouring_widths_are_uploaded_together(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "WIDTHS_TOGETHER", 2)  # 2 and 3, 4 and 5, ...
    A = matrix(20, 10, 0.4, np.float32)
    product = PreparedSpmm(device, A, "csr")
    for columns in (3, 1, 2, 5, 4, 3, 0):
        B = np.random.default_rng(columns).random((10, columns), np.float32)
        C = device.download(product.run(device.upload(B), nothing(device)))
        np.testing.assert_allclose(C, oracle.spmm(A, B), rtol=2e-5, atol=2e-5)
    assert list(product._states) == [2, 0, 4]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_more_columns_than_a_stage_and_a_chunk_hold(device: Device, dtype: Any) -> None:
    A = sp.csr_array(np.repeat(matrix(2, 700, 0.9, dtype).toarray(), 16, axis=0))
    B = np.random.default_rng(3).uniform(-1, 1, (700, 5)).astype(dtype)
    expected = A.astype(np.float64) @ B.astype(np.float64)
    rtol = 1e-4 if dtype == np.float32 else 1e-12
    for variant in VARIANTS:
        C = device.download(
            PreparedSpmm(device, A, variant).run(device.upload(B), nothing(device, dtype))
        )
        np.testing.assert_allclose(C, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("variant", VARIANTS)
def test_nan_and_infinity_meet_stored_entries_alone(device: Device, variant: str) -> None:
    A = sp.csr_array(np.vstack([np.tile([2.0, 0, 1, 0], (16, 1)), np.eye(4)]).astype(np.float32))
    B = np.array([[np.nan, 1], [np.nan, np.inf], [1, np.inf], [-np.inf, 3]], np.float32)
    product = PreparedSpmm(device, A, variant)
    C = device.download(product.run(device.upload(B), nothing(device)))
    np.testing.assert_array_equal(C, oracle.spmm(A, B))
    bias = np.full(20, -1, np.float32)
    Y = device.download(product.run(device.upload(B), relu(device, bias, 8.0)))
    np.testing.assert_array_equal(Y[[0, 16, 17, 18, 19]], [
        [np.nan, 8], [np.nan, 0], [np.nan, 8], [0, 8], [0, 2]
    ])  # fmt: skip


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("value", [
    0, -0.0, 2.0**-25, -(2.0**-25), np.nextafter(np.float32(2.0**-25), np.float32(1)), 1e-45, -1,
    65519.996, 65520, -65520, 1e38, np.inf, -np.inf, np.nan,
])  # fmt: skip
def test_marks_of_clusters_are_those_of_rounded_results(
    device: Device, half: bool, value: float
) -> None:
    precision = Precision(half=half)
    A = sp.csr_array(np.tile(np.float32([2, 0, 2]), (16, 1)))
    packed = pack(A, "clustered", precision)
    assert packed.launches[0].units == 1
    product = DeviceSpmm(device, packed, device.upload(packed.memory), precision)
    bias = np.zeros(16, np.float32)
    bias[11] = value
    epilogue = DeviceEpilogue(device, Epilogue(bias), 16, np.float32)
    before = np.zeros(features.STATE, np.int32)
    before[features.COUNT] = 5
    state = device.upload(before)
    active = device.upload(np.zeros(6, np.uint8))
    to = device.empty((16, 6), precision.storage)
    B = device.upload(np.zeros((3, 6), precision.storage))
    product.launch(StepOperands(B, to, 6, state, state, active), epilogue)
    with np.errstate(over="ignore"):
        rounded = np.float32(value).astype(precision.storage)
    np.testing.assert_array_equal(device.download(to)[11, :5], np.full(5, rounded))
    np.testing.assert_array_equal(device.download(active), [*[rounded != 0] * 5, 0])
    overflowed = not np.isfinite(rounded) if half else np.isnan(rounded)
    assert device.download(state)[features.OVERFLOWED] == overflowed


def test_clusters_hold_every_row_once_and_find_what_is_shared() -> None:
    A = sharing(4, np.float32)
    found = cluster_rows(A)
    assert found.count == 4
    assert sorted([*found.rows, *found.rest]) == list(range(A.shape[0]))
    assert found.bounds[-1] == found.indices.size < A.nnz / 10
    assert found.values.size == A.nnz
    apart = cluster_rows(matrix(64, 400, 0.02, np.float32))
    assert apart.count == 0
    assert apart.rest.size == 64
    assert cluster_rows(sp.csr_array((40, 3), dtype=np.float32)).count == 0


TILES = [(precision, config) for precision in PRECISIONS for config in staged_configs(precision)]


@pytest.mark.parametrize(
    ("precision", "config"), TILES, ids=[f"{p.storage.name} {config}" for p, config in TILES]
)
@pytest.mark.parametrize("apart", [False, True], ids=["side by side", "apart"])
def test_every_configuration_of_staged_rows(
    device: Device, precision: Precision, config: StagedConfig, apart: bool
) -> None:
    """Rows beyond a block, columns beyond a stage, a minibatch not full, inputs that gather."""
    if config.shared_bytes(precision) + 4 * config.minibatch > device.shared_limit:
        pytest.skip("the device has less shared memory")
    rng = np.random.default_rng(config.stage)
    A = matrix(config.rows + 37, 3 * config.stage - 5, 0.02, precision.sums, config.rows)
    A.data = A.data.astype(precision.storage).astype(precision.sums)
    inputs, pitch = config.minibatch + 3, config.minibatch + 16
    B = rng.uniform(-1, 1, (A.shape[1], pitch)).astype(precision.storage)
    B[:, inputs - 1] = 0  # inactive where the bias is not positive
    source = rng.permutation(pitch)[:inputs].astype(np.int32)
    if apart:
        B = np.ascontiguousarray(
            B[:, np.argsort(np.r_[source, np.setdiff1d(range(pitch), source)])]
        )
    packed = pack(A, "staged", precision, config)
    product = DeviceSpmm(device, packed, device.upload(packed.memory), precision)
    to = device.upload(np.full((A.shape[0], pitch), 7, precision.storage))
    state = device.upload(input_state(inputs, apart))
    active = device.upload(np.zeros(pitch, np.uint8))
    bias = rng.uniform(-1, 0, A.shape[0]).astype(precision.sums)
    operands = StepOperands(device.upload(B), to, pitch, state, device.upload(source), active)
    product.launch(operands, relu(device, bias, 1.5))
    columns = source if apart else np.arange(inputs)
    expected = np.clip(A.astype(float) @ B[:, columns].astype(float) + bias[:, None], 0, 1.5)
    tolerance = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-3}[precision.storage.name]
    found = device.download(to)
    np.testing.assert_allclose(found[:, :inputs], expected, rtol=tolerance, atol=tolerance)
    assert (found[:, inputs:] == 7).all()
    np.testing.assert_array_equal(device.download(active), np.arange(pitch) < inputs - 1)
    assert device.download(state)[3] == 0


def test_local_indices_reach_columns_beyond_sixteen_bits(device: Device) -> None:
    columns = np.array([0, 65535, 65536, 70000, 99999])
    dense = np.zeros((3, 5), np.float32)
    dense[[0, 0, 0, 2, 2], [0, 2, 4, 1, 3]] = [1, 2, 3, 4, 5]
    entries = sp.coo_array(dense)
    A = sp.csr_array((entries.data, (entries.row, columns[entries.col])), (3, 100_000))
    B = np.random.default_rng(0).random((100_000, 2), np.float32)
    C = device.download(PreparedSpmm(device, A, "staged").run(device.upload(B), nothing(device)))
    np.testing.assert_allclose(C, dense @ B[columns], rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 90), st.integers(0, 150), st.floats(0, 0.5),
    st.sampled_from([StagedConfig(32, 8, 4), StagedConfig(64, 8, 16), StagedConfig(32, 8, 500)]),
)  # fmt: skip
def test_sliced_ell_holds_every_entry_once(
    rows: int, columns: int, density: float, config: StagedConfig
) -> None:
    """Read back as the kernel reads it, lane by lane."""
    A = matrix(rows, columns, density, np.float32, rows + columns)
    stages = stage_rows(A, config)
    warps = config.rows // 32
    found = np.zeros(A.shape, np.float32)
    assert stages.block_stages.size == -(-rows // config.rows) + 1
    for block in range(stages.block_stages.size - 1):
        first, end = stages.block_stages[block], stages.block_stages[block + 1]
        for stage in range(first, end):
            listed = stages.columns[stages.stage_bounds[stage] : stages.stage_bounds[stage + 1]]
            assert listed.size <= config.stage
            buffer = (stage - first) % 2 * config.stage
            for warp in range(warps):
                begin, last = stages.slices[stage * warps + warp : stage * warps + warp + 2]
                for k in range(32 * begin, 32 * last):
                    index, value = int(stages.local_indices[k]), stages.values[k]
                    if index == 2 * config.stage:
                        assert value == 0
                        continue
                    row = block * config.rows + 32 * warp + k % 32
                    column = listed[index - buffer]
                    assert found[row, column] == 0
                    found[row, column] = value
    np.testing.assert_array_equal(found, A.toarray())


def test_stages_list_each_column_once_in_a_block() -> None:
    A = matrix(300, 600, 0.05, np.float32)
    stages = stage_rows(A, StagedConfig(256, 16, 256))
    for block, rows in enumerate((A[:256], A[256:])):
        bounds = stages.stage_bounds[
            stages.block_stages[block] : stages.block_stages[block + 1] + 1
        ]
        listed = stages.columns[bounds[0] : bounds[-1]]
        np.testing.assert_array_equal(listed, np.unique(rows.indices))
        assert np.diff(bounds).max() <= 256
    assert np.count_nonzero(stages.values) == A.nnz
    assert (stages.local_indices[stages.values == 0] == 512).all()  # beyond both buffers


def test_a_variant_that_there_is_not(device: Device) -> None:
    with pytest.raises(InputError, match="variant is 'fast'; choose one of csr, clustered, staged"):
        PreparedSpmm(device, sp.csr_array((1, 1), dtype=np.float32), "fast")


def test_sparse_product_over_several_windows(device: Device) -> None:
    A, B = matrix(9, 30, 0.3, np.float64, 1), matrix(30, 2500, 0.05, np.float64, 2)
    handle = DeviceSpgemmHandle(upload_csr(device, A), upload_csr(device, B))
    C = download_csr(handle.numeric())
    expected, pattern = oracle.spgemm(A, B)
    assert C.has_canonical_format
    assert C.nnz == len(pattern)
    np.testing.assert_allclose(C.toarray(), expected, rtol=1e-12, atol=1e-12)


# Sizes that fill no tile: whatever reads or writes beyond an array or beyond shared memory ends
# the process.
SANITIZED = """
import numpy as np, scipy.sparse as sp
from cuda_emulation.emulated_backend import EmulatedCupyBackend, cache_folder
from cuda_emulation.emulated_device import EmulatedDevice
from portable_spdnn.epilogue import Epilogue
from portable_spdnn_gpu.device import features
from portable_spdnn_gpu.device.epilogue import DeviceEpilogue
from portable_spdnn_gpu.spmm.launch import PreparedSpmm
from portable_spdnn_gpu.spmm.packing import VARIANTS

class Sanitized(EmulatedCupyBackend):
    def open_device(self, number):
        return EmulatedDevice(cache_folder(), sanitize=True, number=number)

backend = Sanitized()
rng = np.random.default_rng(0)
A = sp.csr_array(np.repeat(rng.random((3, 570)) < 0.95, 17, axis=0).astype(np.float32))
B = rng.random((570, 21), dtype=np.float32)
for variant in VARIANTS:
    epilogue = DeviceEpilogue(backend.cuda, Epilogue(), 1, A.dtype)
    C = PreparedSpmm(backend.cuda, A, variant).run(backend.upload(B), epilogue)
    np.testing.assert_allclose(backend.download(C), A @ B, rtol=1e-4)
Y = sp.csr_array(np.where(rng.random((9, 51)) < 0.3, 1, 0).astype(np.float32))
W = sp.csr_array((rng.random((51, 1050)) < 0.1).astype(np.float32))
for features in (Y, Y.toarray()):
    out = backend.layer(W, features, -1.0, 2.0)
    active = backend.active_inputs(out)
    taken = backend.download(backend.take_inputs(out, active))
    expected = np.clip(Y @ W.toarray() - 1, 0, 2)[active]
    np.testing.assert_array_equal(taken.toarray() if sp.issparse(taken) else taken, expected)
    assert backend.nonzeros(out) == np.count_nonzero(expected) > 0
print(sorted(set(backend.cuda.launches)))
"""


@pytest.mark.skipif(ON_GPU or compiler() is None, reason="the emulated device is what is checked")
def test_no_kernel_leaves_its_arrays() -> None:
    done = sanitized(SANITIZED)
    assert done.returncode == 0, done.stderr
    for name in ("csr_spmm", "clustered_spmm", "staged_spmm", "spgemm_count", "spgemm_fill"):
        assert name in done.stdout
    for name in ("mark_active", "count_nonzeros", "take_dense", "take_sparse", "transpose"):
        assert name in done.stdout


def reuse_distance(found: Any) -> int:
    """Return the most clusters between two that load the same column, of those in turn."""
    last: dict[int, int] = {}
    most = 0
    for cluster in range(found.count):
        begin, end = found.bounds[17 * cluster], found.bounds[17 * cluster + 1]
        for column in found.indices[begin:end].tolist():
            most = max(most, cluster - last.get(column, cluster))
            last[column] = cluster
    return most


@pytest.mark.parametrize("layer", [0, 5, 7])
def test_clusters_that_share_columns_are_neighbours(layer: int) -> None:
    A = by_output(radixnet(4096, layer + 1).layers[layer].csr())
    found = cluster_rows(A)
    assert found.count == 256
    assert sorted(found.rows.tolist()) == list(range(4096))
    # Of an offset of 2^t clusters, up to 128, without the order.
    assert reuse_distance(found) <= 3
    few = radixnet(1024, 8).layers[7].csr()
    assert reuse_distance(cluster_rows(by_output(few))) > 3


@pytest.mark.parametrize(
    ("units", "panel", "columns", "blocks"),
    [
        (4096, 256, 1830, 4 * 660),  # clusters for six turns in every panel
        (1024, 256, 1830, 660),  # for fewer than two
        (1400, 256, 300, 4 * 660),
        (1400, 256, 20, 1400),  # no more than there are items
        (65536, 512, 1830, 660),  # rows alone
        (3, 256, 0, 0),
    ],
)
def test_many_clusters_are_launched_in_turns(
    units: int, panel: int, columns: int, blocks: int
) -> None:
    launch = PackedLaunch(csr_spmm, (), 16 * units, units, panel, by_turns=panel == 256)
    assert launch_blocks(launch, columns, 660) == blocks
