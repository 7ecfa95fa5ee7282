"""Rows compared on the device are grouped as rows in host memory are."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cuda_emulation.device_at_hand import ON_GPU, needs_device
from cuda_emulation.emulated_device import compiler
from cuda_emulation.sanitized_run import sanitized

import portable_spdnn as ps
from portable_spdnn.passes.compared_rows import HostRows
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device import compared_rows
from portable_spdnn_gpu.device.compared_rows import DeviceRows
from portable_spdnn_gpu.device.features import DeviceFeatures
from portable_spdnn_gpu.device.interface import Device

pytestmark = needs_device

# Two NaN that differ in a bit are no equal rows, nor are the two zeros.
NAN, OTHER_NAN = (
    np.array([word], np.uint32).view(np.float32)[0] for word in (0x7FC00000, 0x7FC00001)
)
AWKWARD = [0.0, -0.0, 1.0, np.inf, -np.inf, NAN, OTHER_NAN, 1e-40]


def on_device(device: Device, features: Any) -> DeviceRows:
    dtype = np.float32 if isinstance(features, ps.PackedFeatures) else features.dtype
    return DeviceFeatures(device, features.shape[1], 1, Precision(np.dtype(dtype))).hold(features)


def assert_compared_as_on_the_host(rows: DeviceRows, features: Any) -> None:
    expected = HostRows(features)
    for found, wanted in zip(rows.equal(), expected.equal(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    for found, wanted in zip(rows.uniform(), expected.uniform(), strict=True):
        np.testing.assert_array_equal(found, wanted)


def drawn(rows: int, neurons: int, kinds: int, seed: int = 0) -> np.ndarray:
    """Return rows that are copies of a few, which differ in one place each."""
    rng = np.random.default_rng(seed)
    base = np.repeat(rng.choice(AWKWARD, (1, neurons)).astype(np.float32), kinds, axis=0)
    base[np.arange(kinds), rng.integers(0, neurons, kinds)] = rng.random(kinds)
    base[:: max(kinds // 3, 1)] = rng.choice(AWKWARD, (kinds, 1))[:: max(kinds // 3, 1)]
    return base[rng.integers(0, kinds, rows)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("rows", "neurons"), [(0, 5), (1, 1), (1, 70), (2, 1), (33, 7), (90, 64), (70, 257), (9, 2100)]
)
def test_rows_are_compared_as_on_the_host(
    device: Device,
    rows: int,
    neurons: int,
    dtype: Any,
) -> None:
    for kinds in (1, 5, max(rows, 1)):  # all equal, some, hardly any
        features = drawn(rows, neurons, kinds).astype(dtype)
        assert_compared_as_on_the_host(on_device(device, features), features)
        packed = ps.PackedFeatures.from_dense(features > 0)
        assert_compared_as_on_the_host(on_device(device, packed), packed)


def test_rows_without_neurons_are_equal_and_have_no_value(device: Device) -> None:
    features = np.empty((3, 0), np.float32)
    assert_compared_as_on_the_host(on_device(device, features), features)


def test_every_difference_of_one_bit_is_seen(device: Device) -> None:
    base = np.full(40, 2.0, np.float32).view(np.uint32)
    bits = np.concatenate([np.tile(base, (1281, 1)), base[None]])
    for number, (word, bit) in enumerate(itertools.product(range(40), range(32))):
        bits[number + 1, word] ^= np.uint32(1) << np.uint32(bit)
    first, group = on_device(device, bits.view(np.float32)).equal()
    np.testing.assert_array_equal(first, np.arange(1281))
    assert group[-1] == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_item_that_differs_is_seen_wherever_it_is(device: Device, dtype: Any) -> None:
    features = np.full((601, 600), 0.5, dtype)
    features[np.arange(600), np.arange(600)] = 0.25
    rows, values = on_device(device, features).uniform()
    assert (rows.tolist(), values.tolist()) == ([600], [0.5])


def test_rows_that_share_a_hash_are_compared_whole(
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = compared_rows.compared_rows
    for mask in ("0ull", "6ull"):  # one hash for all rows; four

        def colliding(name: str, dtype: Any, mask: str = mask) -> Any:
            kernel = made(name, dtype)
            return replace(kernel, defines=(*kernel.defines, ("HASH_MASK", mask)))

        monkeypatch.setattr(compared_rows, "compared_rows", colliding)
        merges = 0
        for kinds in (1, 2, 60):
            features = drawn(60, 533, kinds, seed=kinds)
            first, group = on_device(device, features).equal()
            np.testing.assert_array_equal(first, np.unique(first))
            # Groups hold equal rows alone; those that met another row first stay by themselves.
            words = features.view(np.uint32)
            np.testing.assert_array_equal(words[first[group]], words)
            exact = HostRows(features).equal()[0]
            assert set(exact) <= set(first.tolist())
            merges += 60 - first.size
        assert merges >= 59  # where all are equal


def test_some_rows_of_others_are_compared_where_they_lie(device: Device) -> None:
    features = drawn(80, 21, 6)
    for form in (features, ps.PackedFeatures.from_dense(features > 0)):
        rows, expected = on_device(device, form), form
        for chosen in (np.arange(79, 10, -1), np.array([5, 0, 31]), np.array([2, 2, 1, 2]), []):
            numbers = np.asarray(chosen, np.int64)
            rows, expected = rows.take(numbers), expected[numbers]
            assert rows.shape == expected.shape
            assert_compared_as_on_the_host(rows, expected)
        assert rows.fetched().shape == expected.shape
    taken = on_device(device, features).take(np.array([7, 3]))
    np.testing.assert_array_equal(taken.fetched(), features[[7, 3]])
    assert not taken.on_device


# Rows that fill no warp's turn: what reads or writes beyond an array ends the process.
SANITIZED = """
import numpy as np
from cuda_emulation.emulated_backend import cache_folder
from cuda_emulation.emulated_device import EmulatedDevice
import portable_spdnn as ps
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.features import DeviceFeatures

device = EmulatedDevice(cache_folder(), sanitize=True)
rng = np.random.default_rng(0)
for dtype in (np.float32, np.float64):
    Y = np.repeat(rng.random((9, 71)).astype(dtype), 3, axis=0)
    Y[4:7] = 2
    for form in (Y, ps.PackedFeatures.from_dense(Y > 0.5)):
        held = DeviceFeatures(device, 71, 1, Precision(np.dtype(dtype)))
        rows = held.hold(form).take(np.arange(26, -1, -1))
        assert rows.equal()[0].size == 10
        print(rows.uniform()[0].tolist())
print(sorted(set(device.launches)))
"""


@pytest.mark.skipif(ON_GPU or compiler() is None, reason="the emulated device is what is checked")
def test_no_kernel_leaves_its_arrays() -> None:
    done = sanitized(SANITIZED)
    assert done.returncode == 0, done.stderr
    assert "['hash_rows', 'match_rows', 'uniform_rows']" in done.stdout
    assert done.stdout.count("[20, 21, 22]") == 2
