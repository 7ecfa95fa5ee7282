"""Lists of active inputs, by themselves and by the last block of a step, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cuda_emulation.device_at_hand import ON_GPU, needs_device
from cuda_emulation.emulated_device import compiler
from cuda_emulation.sanitized_run import sanitized

from portable_spdnn.epilogue import Epilogue
from portable_spdnn_gpu.compile.catalog import list_active
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.epilogue import DeviceEpilogue
from portable_spdnn_gpu.device.features import (
    ALWAYS,
    ENDED,
    KEEP,
    MARKS,
    InputList,
    StepOperands,
    drop_before,
    input_state,
)
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.persistent.launch import DeviceSegment
from portable_spdnn_gpu.persistent.packing import SegmentLayer, pack_segment
from portable_spdnn_gpu.spmm.launch import DeviceSpmm, launch_blocks
from portable_spdnn_gpu.spmm.output_rows import OutputRows
from portable_spdnn_gpu.spmm.packing import pack

pytestmark = needs_device
SINGLE = Precision()
POLICIES = {"keep": KEEP, "drop": drop_before(1), "always": ALWAYS, "drop early": drop_before(20)}


def padded(count: int) -> int:
    return -(-max(count, 1) // MARKS) * MARKS


class Lists:
    """What a list reads and writes, on the device: ids that tell inputs from their places."""

    def __init__(self, device: Device, count: int, policy: np.int32) -> None:
        self.device, self.count, self.policy = device, count, policy
        self.before = 3 * np.arange(max(count, 1), dtype=np.int32) + 5
        self.ids = device.upload(self.before)
        self.source = device.upload(np.full(max(count, 1), -7, np.int32))
        self.after = device.upload(np.full(5, -7, np.int32))
        self.state = device.upload(input_state(count))

    @property
    def listing(self) -> InputList:
        return InputList(self.ids, self.source, self.after, self.policy)

    def check(self, marks: np.ndarray, active: Any) -> None:
        """Compare with a loop over the inputs, some of which were marked as active."""
        device, inactive = self.device, int(self.count - marks.sum())
        if self.policy in (KEEP, ALWAYS):
            leave = bool(self.policy == ALWAYS)
        else:  # one of so many is inactive
            leave = inactive > 0 and inactive >= self.count // int(self.policy)
        places = [place for place in range(self.count) if marks[place] or not leave]
        state = device.download(self.after).tolist()
        assert state == [len(places), leave, int(marks.sum()), 0, 0]
        assert device.download(self.ids)[: len(places)].tolist() == self.before[places].tolist()
        source = device.download(self.source)
        assert source[: len(places)].tolist() == (places if leave else [-7] * len(places))
        assert not device.download(active).any()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("part", [0.0, 0.03, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1023, 8192, 8193, 20_001])
def test_a_list_by_itself(device: Device, count: int, part: float, policy: str) -> None:
    marks = np.random.default_rng(count).random(padded(count)) < part
    marks[count:] = False
    lists = Lists(device, count, POLICIES[policy])
    active = device.upload(marks.astype(np.uint8))
    device.launch(list_active(), (1, 1), [lists.state, active, *lists.listing.arguments()])
    lists.check(marks[:count], active)


@pytest.mark.parametrize("inactive", [0, 1, 3, 4, 5])
def test_inputs_leave_when_a_sixteenth_is_inactive(device: Device, inactive: int) -> None:
    marks = np.arange(padded(64)) >= inactive
    lists, active = Lists(device, 64, drop_before(1)), device.upload(marks.astype(np.uint8))
    device.launch(list_active(), (1, 1), [lists.state, active, *lists.listing.arguments()])
    assert device.download(lists.after)[:2].tolist() == ([64, 0], [64 - inactive, 1])[inactive >= 4]
    lists.check(marks, active)


@pytest.mark.parametrize(("layers", "share"), [(0, 16), (8, 16), (9, 18), (1900, 3800)])
def test_before_many_layers_fewer_inactive_inputs_leave(
    device: Device, layers: int, share: int
) -> None:
    assert drop_before(layers) == share
    count = 100
    for inactive in (0, 1, max(0, count // share - 1), -(-count // share)):
        marks = np.arange(padded(count)) >= inactive
        lists, active = Lists(device, count, drop_before(layers)), device.upload(marks.astype("u1"))
        device.launch(list_active(), (1, 1), [lists.state, active, *lists.listing.arguments()])
        leave = inactive > 0 and inactive >= count // share
        assert device.download(lists.after)[:2].tolist() == [count - leave * inactive, leave]


def sixteens(rows: int) -> sp.csr_array:
    """Return a matrix of clusters, and of five rows that share nothing."""
    dense = np.zeros((rows, 48), np.float32)
    for row in range(rows):
        dense[row, row // 16 % 8 :: 8] = 0.5 + row % 3
    dense[-5:] = np.eye(5, 48, 7)
    return sp.csr_array(dense)


def features(count: int, part: float) -> np.ndarray:
    """Return features in the device's layout, (neurons, inputs), with some inputs of zeros."""
    rng = np.random.default_rng(count)
    return (rng.random((48, count)) * (rng.random(count) < part)).astype(np.float32)


def operands(device: Device, Y: np.ndarray, rows: int, lists: Lists) -> StepOperands:
    count = Y.shape[1]
    pitch = max(count, 1)
    before = np.zeros((Y.shape[0], pitch), np.float32)
    before[:, :count] = Y
    after = device.upload(np.zeros((rows, pitch), np.float32))
    active = device.upload(np.zeros(padded(count), np.uint8))
    source = device.upload(np.zeros(pitch, np.int32))
    return StepOperands(
        device.upload(before), after, pitch, lists.state, source, active, lists.listing
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("count", [0, 1, 129, 1100])
@pytest.mark.parametrize("variant", ["csr", "clustered", "staged"])
def test_the_last_block_of_a_layer_lists(
    device: Device, variant: str, count: int, part: float, policy: str
) -> None:
    A, Y = sixteens(133), features(count, part)
    packed = pack(A, variant, SINGLE)
    assert len(packed.launches) == 1 + (variant == "clustered")
    product = DeviceSpmm(device, packed, device.upload(packed.memory), SINGLE)
    relu = Epilogue(np.full(133, -0.75, np.float32), "relu")
    finish = DeviceEpilogue(device, relu, 133, np.float32)
    lists = Lists(device, count, POLICIES[policy])
    given = operands(device, Y, 133, lists)
    product.launch(given, finish)
    expected = np.maximum(A.toarray().astype(float) @ Y - 0.75, 0)
    np.testing.assert_allclose(device.download(given.to)[:, :count], expected, rtol=1e-5, atol=1e-6)
    lists.check((expected != 0).any(axis=0), given.active)
    # All blocks of the last launch were counted, and those of no other.
    last = packed.launches[-1]
    resident = device.resident_blocks(last.kernel(SINGLE, finish.kind(marks=True)))
    blocks = launch_blocks(last, given.pitch, resident)
    assert device.download(lists.state)[ENDED] == blocks


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("count", "part"), [(0, 1), (1, 0), (70, 0), (70, 0.5), (70, 0.99)])
def test_the_last_block_of_a_segment_lists(
    device: Device, count: int, part: float, policy: str, constant: bool
) -> None:
    A, Y = sixteens(48), features(count, part)
    if constant:
        A.data[:] = 0.5
    layers = [SegmentLayer(OutputRows.of(A, constant), np.full(48, -0.75, np.float32), True)] * 2
    packed = pack_segment(layers, SINGLE, device.shared_limit)
    lists = Lists(device, count, POLICIES[policy])
    given = operands(device, Y, 48, lists)
    DeviceSegment(device, packed, device.upload(packed.memory)).launch(given, 8.0)
    expected = Y.astype(float)
    for _ in layers:
        expected = np.clip(A.toarray().astype(float) @ expected - 0.75, 0, 8)
    np.testing.assert_allclose(device.download(given.to)[:, :count], expected, rtol=1e-5, atol=1e-5)
    lists.check((expected != 0).any(axis=0), given.active)


SANITIZED = """
import gpu.device.test_input_lists as tests
from cuda_emulation.emulated_backend import cache_folder
from cuda_emulation.emulated_device import EmulatedDevice

device = EmulatedDevice(cache_folder(), sanitize=True)
for policy in tests.POLICIES:
    tests.test_a_list_by_itself(device, 8193, 0.5, policy)
    for variant in ("csr", "clustered", "staged"):
        tests.test_the_last_block_of_a_layer_lists(device, variant, 129, 0.5, policy)
    tests.test_the_last_block_of_a_segment_lists(device, 70, 0.5, policy, True)
print("done")
"""


@pytest.mark.skipif(ON_GPU or compiler() is None, reason="the emulated device is what is checked")
def test_lists_do_not_leave_their_arrays() -> None:
    done = sanitized(SANITIZED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
