"""Features on their way to a device: parts, waits, errors in the middle."""

from __future__ import annotations

import gc
import itertools
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cuda_emulation.device_at_hand import ON_GPU, needs_device
from cuda_emulation.emulated_backend import EmulatedCupyBackend, cache_folder
from cuda_emulation.emulated_device import EmulatedDevice
from hypothesis import given
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.testing import oracle
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.cupy_backend import CupyBackend
from portable_spdnn_gpu.device import upload
from portable_spdnn_gpu.device.cuda_device import CudaDevice
from portable_spdnn_gpu.device.features import DeviceFeatures
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.device.upload import ALIGNMENT, parts_of_csr, parts_of_rows, row_bytes

pytestmark = needs_device
NEURONS = 45
# Who is late on the emulated device: copies, launches, or both, so that the host is ahead.
ORDERS = [(True, False), (False, True), (True, True)]
SINGLE, DOUBLE, HALF = Precision(), Precision(np.dtype(np.float64)), Precision(half=True)


def device_of(order: tuple[bool, bool]) -> Device:
    if ON_GPU:
        return CudaDevice()
    return EmulatedDevice(cache_folder(), copies_late=order[0], launches_late=order[1])


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let parts be of a few inputs, so that uploads have more of them than there are chunks."""
    monkeypatch.setattr(upload, "CHUNK_BYTES", 700)
    monkeypatch.setattr(upload, "usable_cores", lambda: 2)


def numbers(inputs: int) -> np.ndarray:
    """Return features that half precision holds, some inputs without any."""
    rng = np.random.default_rng(inputs)
    kept = rng.random((inputs, NEURONS)) < 0.4 * rng.integers(0, 2, (inputs, 1))
    return np.where(kept, rng.integers(-500, 500, (inputs, NEURONS)) / 8, 0).astype(np.float32)


def forms(inputs: int) -> Iterator[tuple[str, Any]]:
    Y = numbers(inputs)
    yield "bits", ps.PackedFeatures.from_dense(Y)
    yield "csr", sp.csr_array(Y)
    wide = sp.csr_array(Y.astype(np.float64))
    wide.indptr, wide.indices = wide.indptr.astype(np.int64), wide.indices.astype(np.int64)
    yield "csr of float64 and int64", wide
    yield "rows", Y
    yield "rows of float64", Y.astype(np.float64)
    yield "columns", np.asfortranarray(Y)
    yield "every third", np.repeat(Y, 3, axis=0)[::3]
    yield "backwards", np.ascontiguousarray(Y[::-1, ::-1])[::-1, ::-1]
    Y = Y.copy()
    Y.flags.writeable = False
    yield "read-only", Y


def loaded(held: DeviceFeatures, features: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return features and marks, as they are on the device after an upload."""
    inputs, neurons = features.shape
    held.load(features)
    there = held.device.download(held.buffers[0]).reshape(-1, held.pitch)
    return there[:neurons, :inputs].T, held.device.download(held.active)[:inputs]


@pytest.mark.parametrize("order", ORDERS, ids=["copies late", "launches late", "both late"])
@pytest.mark.parametrize("precision", [SINGLE, DOUBLE, HALF], ids=["single", "double", "half"])
def test_features_arrive_in_any_form(order: tuple[bool, bool], precision: Precision) -> None:
    device = device_of(order)
    held = DeviceFeatures(device, NEURONS, 150, precision)
    for inputs in (0, 1, 2, 63, 150, 149):  # the last ones over what the others left
        for form, features in forms(inputs):
            expected = numbers(inputs)
            if form == "bits":
                expected = expected != 0
            values, marks = loaded(held, features)
            np.testing.assert_array_equal(values, expected, form)
            np.testing.assert_array_equal(marks, expected.any(axis=1), form)


@pytest.mark.parametrize("order", ORDERS, ids=["copies late", "launches late", "both late"])
@pytest.mark.parametrize("precision", [SINGLE, DOUBLE, HALF], ids=["single", "double", "half"])
def test_rows_that_stay_on_the_device_arrive_too(
    order: tuple[bool, bool], precision: Precision
) -> None:
    held = DeviceFeatures(device_of(order), NEURONS, 150, precision)
    backwards = np.arange(149, -1, -1)
    for form, features in forms(150):
        if form.startswith("csr"):
            continue
        expected = numbers(150)[::-1] if form != "bits" else numbers(150)[::-1] != 0
        rows = held.hold(features)
        others = held.hold(features[:3])  # through the chunks that were used before
        values, marks = loaded(held, rows.take(backwards))
        np.testing.assert_array_equal(values, expected, form)
        np.testing.assert_array_equal(marks, expected.any(axis=1), form)
        np.testing.assert_array_equal(loaded(held, others)[0], expected[:-4:-1], form)


@pytest.mark.skipif(ON_GPU, reason="a GPU does not wait for the worst moment")
@pytest.mark.parametrize(
    ("method", "order"),
    [("wait", ORDERS[0]), ("wait", ORDERS[1]), ("synchronize", ORDERS[2])],
    ids=["kernels wait for copies", "copies wait for kernels", "the host waits for copies"],
)
def test_a_missing_wait_shows(
    method: str, order: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, Y = device_of(order), numbers(150)
    held = DeviceFeatures(device, NEURONS, 150, SINGLE)
    np.testing.assert_array_equal(loaded(held, Y)[0], Y)
    monkeypatch.setattr(device, method, lambda event: None)
    assert (loaded(held, Y[::-1])[0] != Y[::-1]).any()


@given(st.integers(1, 90), st.integers(0, 70), st.integers(0, 9), st.integers(1, 1000))
def test_parts_hold_all_rows_in_order_and_fit(
    columns: int, rows: int, density: int, beyond: int
) -> None:
    dtype, rng = np.dtype(np.float64), np.random.default_rng(rows)
    limit = (row_bytes(columns, dtype) + beyond) // ALIGNMENT * ALIGNMENT
    Y = np.where(rng.random((rows, columns)) < density / 9, rng.random((rows, columns)), 0)
    dense, sparse = parts_of_rows(Y, dtype, limit), parts_of_csr(sp.csr_array(Y), dtype, limit)
    for parts in (dense, sparse):
        ends = list(itertools.accumulate((part.rows for part in parts), initial=0))
        assert [part.first for part in parts] == ends[:-1]
        assert ends[-1] == rows
        for part in parts:
            sizes = [array.size * kind.itemsize for array, kind in part.arrays]
            assert sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes) <= limit
    for part in sparse:
        (offsets, _), (indices, _), (data, _) = part.arrays
        block = sp.csr_array((data, indices, offsets), shape=(part.rows, columns))
        np.testing.assert_array_equal(block.toarray(), Y[part.first : part.first + part.rows])


def network() -> ps.Network:
    rng = np.random.default_rng(5)
    shape = (NEURONS, NEURONS)
    weights = [np.where(rng.random(shape) < 0.2, rng.random(shape), 0) for _ in range(3)]
    return ps.Network([ps.Layer(W, -0.3) for W in weights], y_max=4.0)


class Late(EmulatedCupyBackend):
    """On a device that does everything as late as it may."""

    def open_device(self, number: int | None) -> EmulatedDevice:
        late = {"copies_late": True, "launches_late": True}
        return EmulatedDevice(cache_folder(), number=number, **late)


@pytest.fixture
def backend() -> CupyBackend:
    return CupyBackend() if ON_GPU else Late()


def fail(monkeypatch: pytest.MonkeyPatch, plan: Any, where: str) -> None:
    """Let an upload fail in the middle: in a thread that fills, a copy, a launch, or by Ctrl-C."""
    device, calls = plan.backend.cuda, itertools.count()
    place, name = (upload, "_fill") if where in ("fill", "signal") else (device, where)
    method = getattr(place, name)

    def failing(*arguments: Any) -> Any:
        if next(calls) == 7:
            if where != "signal":
                raise KeyboardInterrupt if where == "copy_in" else ZeroDivisionError
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return method(*arguments)

    monkeypatch.setattr(place, name, failing)


@pytest.mark.parametrize("where", ["fill", "copy_in", "launch", "signal"])
def test_an_upload_that_fails_leaves_nothing_behind(
    backend: CupyBackend, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(backend, network(), ps.PlanOptions(batch_size=100))
    threads = threading.active_count()
    first, then = numbers(100), sp.csr_array(numbers(90))
    with monkeypatch.context() as patches:
        fail(patches, plan, where)
        error = ZeroDivisionError if where in ("fill", "launch") else KeyboardInterrupt
        with pytest.raises(error):
            plan.run(first)
    assert threading.active_count() == threads
    if not ON_GPU:
        streams: Any = backend.cuda._main, plan.features._upload._stream  # type: ignore[attr-defined]
        assert [len(stream.waiting) for stream in streams] == [0, 0]
    for features in (then, first):
        expected = oracle.infer(plan.network, features)
        result = plan.run(features)
        assert result.categories.tolist() == expected[0]
        np.testing.assert_allclose(result.scores, expected[1], rtol=1e-4, atol=1e-5)


def test_plans_of_several_threads_do_not_meet(backend: CupyBackend) -> None:
    """Two of them share their buffers, the third has its own."""
    plans = [
        make_plan(backend, network(), ps.PlanOptions(dtype, batch_size=70))
        for dtype in (np.float32, np.float32, np.float64)
    ]
    found: dict[int, list[Any]] = {}
    barrier = threading.Barrier(len(plans), timeout=60)

    def run(number: int) -> None:
        barrier.wait()
        found[number] = [plans[number].run(numbers(60 + number)).scores for _ in range(3)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(plans))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(len(plans)):
        expected = oracle.infer(network(), numbers(60 + number))[1]
        for scores in found[number]:
            np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_several_devices_upload_side_by_side() -> None:
    Y = numbers(200)
    several = Late() if not ON_GPU else CupyBackend()
    result = ps.infer(network(), Y, several, devices="all", batch_size=50)
    assert result.categories.tolist() == oracle.infer(network(), Y)[0]


@pytest.mark.skipif(ON_GPU, reason="the memory of the emulated device is counted")
def test_memory_is_that_of_a_few_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    backend = Late()
    device: Any = backend.cuda
    plan = make_plan(backend, network(), ps.PlanOptions(batch_size=150))
    planned = device.peak_memory()
    for form, features in forms(150):
        result = plan.run(features)
        locked = [memory.nbytes for memory in device.pinned_memory.values()]
        assert len(locked) == 4, form  # for two threads that fill
        assert sum(locked) <= 4 * 700
        assert device.peak_memory() <= planned + result.scores.nbytes
        del result
    del plan
    gc.collect()
    assert not device.pinned_memory


def test_a_row_may_take_more_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "CHUNK_BYTES", 32)
    held = DeviceFeatures(device_of(ORDERS[2]), 300, 3, HALF)
    Y = np.arange(900, dtype=np.float32).reshape(3, 300)
    for features in (Y, sp.csr_array(Y), ps.PackedFeatures.from_dense(Y)):
        expected = Y != 0 if isinstance(features, ps.PackedFeatures) else Y
        np.testing.assert_array_equal(loaded(held, features)[0], expected)
