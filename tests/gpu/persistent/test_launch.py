"""Fused segments, many layers in one launch, against loops in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from cuda_emulation.device_at_hand import ON_GPU, needs_device
from cuda_emulation.emulated_device import compiler
from cuda_emulation.sanitized_run import sanitized
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_catalog import SHARED_LIMITS

from portable_spdnn.errors import InputError
from portable_spdnn.testing import oracle
from portable_spdnn_gpu.compile.catalog import persistent_layers, persistent_rows
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.features import StepOperands, input_state
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.persistent.launch import DeviceSegment, LayerCounts
from portable_spdnn_gpu.persistent.packing import SegmentLayer, pack_segment
from portable_spdnn_gpu.spmm.output_rows import OutputRows, by_output

pytestmark = needs_device
SINGLE, HALF, DOUBLE = Precision(), Precision(half=True), Precision(np.dtype(np.float64))
Array = npt.NDArray[Any]


def weights(inputs: int, outputs: int, density: float, seed: int) -> Any:
    """Return W with values that half precision holds, as csr_array."""
    rng = np.random.default_rng(seed)
    dense = np.where(
        rng.random((inputs, outputs)) < density, rng.integers(-3, 6, (inputs, outputs)), 0
    )
    return sp.csr_array(dense.astype(np.float32) / 8)


def sharing(neurons: int, seed: int, own: int = 0) -> Any:
    """Return W in which sixteens of outputs share inputs, shuffled, with `own` more each."""
    rng = np.random.default_rng(seed)
    dense = np.zeros((neurons, neurons), np.float32)
    period = neurons // 16
    for j in range(neurons):
        for shift in (0, 3):
            dense[(j + shift) % period :: period, j] = rng.integers(1, 5, 16) / 32
        dense[rng.integers(0, neurons, own), j] = -0.25
    return sp.csr_array(dense[rng.permutation(neurons)])


def equal(W: Any, weight: float) -> Any:
    """Return W with one weight in the place of all."""
    return sp.csr_array((np.full(W.nnz, weight, np.float32), W.indices, W.indptr), shape=W.shape)


def macros(layers: Sequence[SegmentLayer], precision: Precision, limit: int) -> dict[str, str]:
    """Return what the kernel of a segment is compiled for."""
    return dict(pack_segment(layers, precision, limit).kernel.defines)


def segment_layers(Ws: Sequence[Any], biases: Sequence[Array]) -> list[SegmentLayer]:
    layers = []
    for W, bias in zip(Ws, biases, strict=True):
        A = OutputRows.of(by_output(W))
        layers.append(SegmentLayer(A, bias, bool((bias <= 0).all())))
    return layers


def as_if(layer: SegmentLayer, constant: bool) -> SegmentLayer:
    """Return a layer that says of its weights whether all are equal."""
    return replace(layer, A=OutputRows.of(layer.A.csr, constant))


def launch(
    device: Device,
    layers: Sequence[SegmentLayer],
    Y: Array,
    y_max: float | None,
    precision: Precision = SINGLE,
    gathers: bool = False,
    spare: int = 3,
    captured: bool = False,
    shared_limit: int = 0,
) -> tuple[Array, Array, LayerCounts, Array]:
    """Return features, marks and counts of a segment, and the state after it."""  # fmt: skip
    packed = pack_segment(layers, precision, shared_limit or device.shared_limit)
    segment = DeviceSegment(device, packed, device.upload(packed.memory))
    inputs = Y.shape[0]
    pitch = 2 * inputs + spare
    places = np.random.default_rng(5).permutation(pitch)[:inputs] if gathers else np.arange(inputs)
    from_ = np.full((packed.neurons_in, pitch), np.nan, precision.storage)
    from_[:, places] = Y.T
    to = device.upload(np.full((packed.neurons_out, pitch), -7, precision.storage))
    state = device.upload(input_state(inputs, gathers))
    source = device.upload(places.astype(np.int32) if inputs else np.zeros(1, np.int32))
    active = device.upload(np.zeros(pitch, np.uint8))
    operands = StepOperands(device.upload(from_), to, pitch, state, source, active)
    if captured:
        device.resident_blocks(packed.kernel)
        recording = device.capture(lambda: segment.launch(operands, y_max))
        recording.replay()
        recording.replay()
    else:
        segment.launch(operands, y_max)
    out, marks = device.download(to), device.download(active)
    assert (out[:, inputs:] == -7).all()
    assert not marks[inputs:].any()
    return out[:, :inputs].T, marks[:inputs], segment.counts(), device.download(state)


def expected(
    Ws: Sequence[Any], biases: Sequence[Array], Y: Array, y_max: float | None, precision: Precision
) -> tuple[Array, list[int]]:
    """Return features after all layers, and inputs active after each."""
    active = []
    for W, bias in zip(Ws, biases, strict=True):
        Y = oracle.layer(W, Y, bias, y_max)
        if precision.half:
            Y = Y.astype(np.float32).astype(np.float16).astype(np.float64)
        active.append(int((Y != 0).any(axis=1).sum()))
    return Y, active


def check(
    device: Device,
    Ws: Sequence[Any],
    biases: Sequence[Array],
    Y: Array,
    y_max: float | None = 32.0,
    precision: Precision = SINGLE,
    **options: Any,
) -> LayerCounts:
    """Compare a segment with the oracle; return its counts."""  # fmt: skip
    layers = segment_layers(Ws, biases)
    out, marks, counts, state = launch(device, layers, Y, y_max, precision, **options)
    wanted, active = expected(Ws, biases, Y, y_max, precision)
    # A sum that lies between two numbers of half precision may round to either.
    tolerance = 2e-5 if not precision.half else 2e-3
    np.testing.assert_allclose(out, wanted, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(marks.astype(bool), (wanted != 0).any(axis=1))
    assert counts.active.tolist() == active
    assert (counts.computed <= len(Y)).all()
    assert state.tolist()[3] == counts.overflowed.any() == np.isnan(wanted).any()
    return counts


def inputs_of(count: int, neurons: int, seed: int = 0) -> Array:
    """Return features 0 and 1, of which some inputs have few."""
    rng = np.random.default_rng(seed)
    return (rng.random((count, neurons)) < rng.random((count, 1))).astype(np.float32)


SHAPES = {
    "one neuron": [1, 1, 1],
    "one layer": [20, 30],
    "not sixteens": [33, 47, 19, 70],
    "two groups": [64, 130, 1, 64],
    "wide to narrow": [300, 17, 5],
}


@pytest.mark.parametrize("gathers", [False, True], ids=["side by side", "apart"])
@pytest.mark.parametrize("count", [0, 1, 17])
@pytest.mark.parametrize("shape", SHAPES)
def test_segment_of_random_layers(device: Device, shape: str, count: int, gathers: bool) -> None:
    widths = SHAPES[shape]
    Ws = [weights(a, b, 0.3, a + b) for a, b in pairwise(widths)]
    biases = [np.random.default_rng(W.shape[1]).uniform(-0.6, 0, W.shape[1]) for W in Ws]
    biases = [bias.astype(np.float32) for bias in biases]
    check(device, Ws, biases, inputs_of(count, widths[0]), gathers=gathers)


@pytest.mark.parametrize("precision", [SINGLE, HALF], ids=["float", "half"])
@pytest.mark.parametrize("own", [0, 3])
def test_clusters_with_and_without_own_columns(
    device: Device, precision: Precision, own: int
) -> None:
    Ws = [sharing(128, seed, own) for seed in range(3)]
    biases = [np.full(128, -0.25, np.float32)] * 3
    packed = pack_segment(segment_layers(Ws, biases), precision, device.shared_limit)
    assert packed.loads < sum(W.nnz for W in Ws) / (1 if own else 15)
    check(device, Ws, biases, inputs_of(40, 128), 4.0, precision)


@pytest.mark.parametrize(
    ("widest", "limit", "tile", "groups"),
    [(1030, 227, 16, 2), (2060, 227, 8, 2), (1030, 64, 8, 1)],
)
@pytest.mark.parametrize("weight", [0.25, None], ids=["equal weights", "others"])
def test_wide_layers(
    device: Device, weight: float | None, widest: int, limit: int, tile: int, groups: int
) -> None:
    rng = np.random.default_rng(widest)
    W = sp.csr_array(
        (np.full(3 * widest, 0.25, np.float32), rng.integers(0, 40, 3 * widest),
         np.arange(0, 3 * widest + 1, 3)), shape=(widest, 40),
    )  # fmt: skip
    W.sum_duplicates()
    W = W if weight is None else equal(W, weight)
    Ws = [sp.csr_array(W.T), W]
    biases = [np.full(widest, -0.3, np.float32), np.full(40, -0.2, np.float32)]
    layers = segment_layers(Ws, biases)
    chosen = macros(layers, SINGLE, limit << 10)
    assert (chosen["TILE"], chosen["GROUPS"]) == (str(tile), str(groups))
    assert ("CONSTANT" in chosen) == (weight is not None)
    check(device, Ws, biases, inputs_of(9, 40), shared_limit=limit << 10)


@pytest.mark.parametrize("precision", [SINGLE, HALF], ids=["float", "half"])
@pytest.mark.parametrize("count", [0, 1, 17])
@pytest.mark.parametrize("shape", SHAPES)
def test_layers_of_one_weight_each(
    device: Device, shape: str, count: int, precision: Precision
) -> None:
    widths, weight = SHAPES[shape], [0.5, -0.125, 0.0, 0.75, 0.1]
    Ws = [equal(weights(a, b, 0.3, a + b), weight[n]) for n, (a, b) in enumerate(pairwise(widths))]
    biases = [np.linspace(-0.6, 0.1, W.shape[1], dtype=np.float32) for W in Ws]
    assert macros(segment_layers(Ws, biases), precision, device.shared_limit)["CONSTANT"] == "1"
    if precision.half:  # 0.1 is none of its numbers
        Ws = [equal(W, float(np.float16(weight[n]))) for n, W in enumerate(Ws)]
    check(device, Ws, biases, inputs_of(count, widths[0]), precision=precision, gathers=True)


@pytest.mark.parametrize("precision", [SINGLE, HALF], ids=["float", "half"])
@pytest.mark.parametrize("own", [0, 3])
def test_one_weight_gives_what_weights_that_are_read_give(
    device: Device, precision: Precision, own: int
) -> None:
    Ws = [equal(sharing(128, seed, own), (3 + seed) / 97) for seed in range(3)]
    biases = [np.linspace(-0.2, 0.01, W.shape[1], dtype=np.float32) for W in Ws]
    layers = segment_layers(Ws, biases)
    read = [as_if(layer, False) for layer in layers]
    Y = inputs_of(40, Ws[0].shape[0])
    # In half precision: widened in shared memory, and where that has no room.
    for limit in (device.shared_limit, 137 * 16 * precision.storage.itemsize + 32):
        assert "CONSTANT" in macros(layers, precision, limit)
        assert "CONSTANT" not in macros(read, precision, limit)
        assert ("WIDE" in macros(read, precision, limit)) == (
            precision.half and limit == device.shared_limit
        )
        found, wanted = (
            launch(device, each, Y, 4.0, precision, shared_limit=limit) for each in (layers, read)
        )
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    assert pack_segment(layers, precision, limit).memory.size < (
        pack_segment(read, precision, limit).memory.size
    )


def test_a_layer_of_other_weights_among_equal_ones(device: Device) -> None:
    Ws = [equal(sharing(64, 1), 0.25), sharing(64, 2), equal(sharing(64, 3), 0.5)]
    biases = [np.full(64, -0.25, np.float32)] * 3
    layers = segment_layers(Ws, biases)
    assert [layer.A.constant for layer in layers] == [True, False, True]
    assert "CONSTANT" not in macros(layers, SINGLE, device.shared_limit)
    check(device, Ws, biases, inputs_of(33, 64))
    check(device, Ws[:1], biases[:1], inputs_of(33, 64))


@pytest.mark.parametrize("weight", [np.inf, -np.inf, np.nan])
def test_a_weight_that_is_not_finite_by_features_of_zero(device: Device, weight: float) -> None:
    W = equal(sharing(64, 0), weight)
    bias = np.full(64, -0.25, np.float32)
    layers = segment_layers([W], [bias])
    # Padding multiplies features of 0: the entries that are there alone may give NaN.
    assert "CONSTANT" not in macros([as_if(layers[0], True)], SINGLE, 1 << 16)
    out = launch(device, layers, np.ones((3, 64), np.float32), None)[0]
    np.testing.assert_array_equal(out, oracle.layer(W, np.ones((3, 64)), bias, None))
    none = launch(device, layers, np.zeros((3, 64), np.float32), None)[0]
    assert np.isnan(none).all()


def test_empty_layers_and_rows(device: Device) -> None:
    nothing = sp.csr_array((20, 24), dtype=np.float32)
    one = sp.csr_array((np.array([1.0], np.float32), ([23], [7])), shape=(24, 20))
    below, above = np.full(24, -0.5, np.float32), np.full(20, 0.25, np.float32)
    check(device, [nothing, one], [below, np.zeros(20, np.float32)], inputs_of(5, 20))
    counts = check(device, [nothing, one], [below, above], inputs_of(5, 20))
    assert counts.active.tolist() == [0, 5]
    varied = weights(20, 20, 0.3, 1)
    check(device, [nothing, one, varied], [above[:1].repeat(24), above, above], inputs_of(5, 20))


def test_tiles_stop_where_no_layer_activates(device: Device) -> None:
    # Tile t holds inputs 16 t to 16 t + 15, which become inactive in layer t.
    layers, neurons = 5, 6
    steps = sp.csr_array(np.eye(neurons, k=-1, dtype=np.float32))
    Y = np.zeros((70, neurons), np.float32)
    Y[np.arange(70), np.arange(70) // 16] = 1
    none = [np.zeros(neurons, np.float32)] * layers
    counts = check(device, [steps] * layers, none, Y)
    assert counts.active.tolist() == [54, 38, 22, 6, 0]
    # Tile 0 is computed once and becomes inactive; of the last six inputs every layer is.
    assert counts.computed.tolist() == [70, 54, 38, 22, 6]
    # Where the fourth layer activates, the third is the last that inactive tiles pass.
    activated = [*none[:3], np.full(neurons, 0.5, np.float32), none[4]]
    counts = check(device, [steps] * layers, activated, Y)
    assert counts.computed.tolist() == [70] * 5
    assert counts.active.tolist() == [54, 38, 22, 70, 70]
    # A positive bias that all layers after are without: inactive tiles may stop behind it.
    first = [np.full(neurons, 0.5, np.float32), *(np.full(neurons, -2.0, np.float32),) * 4]
    counts = check(device, [steps] * layers, first, Y)
    assert counts.computed.tolist() == [70, 70, 0, 0, 0]


def test_nan_and_infinity_meet_stored_entries_alone(device: Device) -> None:
    W = sp.csr_array(np.vstack([np.tile([2.0, 0, 1, 0], (16, 1)), np.eye(4)]).T.astype(np.float32))
    Y = np.array([[np.nan, np.nan, 1, -np.inf], [1, np.inf, np.inf, 3], [0, 0, 0, 0]], np.float32)
    bias = np.full(20, -1, np.float32)
    counts = check(device, [W], [bias], Y, 8.0)
    assert counts.overflowed.tolist() == [1]
    counts = check(device, [W, sp.csr_array(W.T)], [bias, bias[:4]], Y[1:], None)
    assert counts.overflowed.tolist() == [0, 0]


def test_half_precision_notes_where_it_ends(device: Device) -> None:
    W = sp.csr_array(np.eye(8, dtype=np.float32) * 300)
    layers = segment_layers([W] * 3, [np.zeros(8, np.float32)] * 3)
    _, _, counts, state = launch(device, layers, np.ones((3, 8), np.float32), None, HALF)
    assert counts.overflowed.tolist() == [0, 1, 1]
    assert state.tolist() == [3, 0, 3, 1, 0]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 150), min_size=2, max_size=5),
    st.integers(0, 40),
    st.sampled_from([0.0, 0.02, 0.2, 1.0]),
    st.floats(-0.6, 0.1),
    st.booleans(),
    st.booleans(),
)
def test_any_segment(
    device: Device,
    widths: list[int],
    count: int,
    density: float,
    bias: float,
    gathers: bool,
    same: bool,
) -> None:
    Ws = [weights(a, b, density, a * b) for a, b in pairwise(widths)]
    Ws = [equal(W, 0.125) for W in Ws] if same else Ws
    biases = [np.linspace(bias, bias - 0.2, W.shape[1], dtype=np.float32) for W in Ws]
    # No more shared memory than the widest layer takes at eight inputs: the smaller tile.
    tight = (persistent_rows(max(widths)) + 1) * 32 + 32 if count % 2 else 0
    check(device, Ws, biases, inputs_of(count, widths[0]), gathers=gathers, shared_limit=tight)


def test_replays_of_a_recording_begin_anew(device: Device) -> None:
    Ws = [sharing(64, seed) for seed in range(4)]
    biases = [np.full(64, -0.25, np.float32)] * 4
    counts = check(device, Ws, biases, inputs_of(100, 64), captured=True)
    assert counts.computed[0] == 100


def test_what_fits() -> None:
    turing, hopper = SHARED_LIMITS[75], SHARED_LIMITS[90]
    assert persistent_layers(SINGLE, 1024, turing)
    assert not persistent_layers(SINGLE, 2048, turing)
    assert persistent_layers(HALF, 2000, turing)
    assert persistent_layers(SINGLE, 4096, hopper)
    assert not persistent_layers(HALF, 4097, hopper)
    assert not persistent_layers(DOUBLE, 1, hopper)


def test_a_weight_beyond_half_precision_is_refused() -> None:
    weights = sp.csr_array(np.full((1, 1), 1e5, np.float32))
    large = SegmentLayer(OutputRows.of(weights, False), np.zeros(1), True)
    for constant in (False, True):
        with pytest.raises(InputError, match="65504 is the largest"):
            pack_segment([as_if(large, constant)], HALF, 1 << 16)


# Shapes that fill no tile, cluster or group, in every configuration that takes other paths.
SANITIZED = """
import numpy as np
import gpu.persistent.test_launch as tests
from cuda_emulation.emulated_backend import cache_folder
from cuda_emulation.emulated_device import EmulatedDevice

device = EmulatedDevice(cache_folder(), sanitize=True)
for precision in (tests.SINGLE, tests.HALF):
    Ws = [tests.sharing(80, 1, 2), tests.weights(80, 37, 0.2, 2), tests.weights(37, 80, 0.2, 3)]
    biases = [np.full(W.shape[1], -0.25, np.float32) for W in Ws]
    tests.check(device, Ws, biases, tests.inputs_of(21, 80), 4.0, precision, gathers=True)
    Ws = [tests.equal(W, 0.25) for W in Ws]
    tests.check(device, Ws, biases, tests.inputs_of(21, 80), 4.0, precision, gathers=True)
tests.test_wide_layers(device, 0.25, 2060, 227, 8, 2)
print(set(device.launches))
"""


@pytest.mark.skipif(ON_GPU or compiler() is None, reason="the emulated device is what is checked")
def test_the_kernel_does_not_leave_its_arrays() -> None:
    done = sanitized(SANITIZED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "{'persistent_layers'}\n"
