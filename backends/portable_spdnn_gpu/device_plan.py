"""A whole network on a device, with no word from the host between its layers."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.device_report import DeviceReport
from portable_spdnn.errors import InputError, NumericalError
from portable_spdnn.features import Features
from portable_spdnn.memory import format_bytes
from portable_spdnn.network import Layer, Network
from portable_spdnn.plan import OVERFLOW, NetworkPlan, PlanOptions
from portable_spdnn.result import BatchOutput, LateRows
from portable_spdnn.roofline import KernelModel
from portable_spdnn_gpu.device import Device, Recording
from portable_spdnn_gpu.device_features import (
    ALIVE,
    ALWAYS,
    COUNT,
    DROP,
    KEEP,
    NANS,
    PITCH,
    STATE,
    DeviceFeatures,
    bytes_for_input,
    pitch_of,
)
from portable_spdnn_gpu.device_weights import DeviceWeights, StreamTimes
from portable_spdnn_gpu.kernel_catalog import Kernel, Precision
from portable_spdnn_gpu.layer_costs import design_cost
from portable_spdnn_gpu.packed_products import PackedProduct, by_output, pack

Array = npt.NDArray[Any]

MOST_INPUTS = 65536  # of a batch, by default: the challenge's 60,000 go through together
MEMORY_SHARE = 0.6  # of what is free, for what a plan allocates
WEIGHTS_SHARE = 1 / 2  # of a limit on the device's memory, at least, where weights exceed it


class DevicePlan(NetworkPlan):
    """Dense features that stay on the device from the first layer to the last.

    After every layer the device itself lists the inputs that live, and the next layer reads
    their features through the list: the host neither asks nor waits. The launches of all layers
    are recorded once, as a graph, and started together. Where the weights do not fit the memory
    that they may take, those that do not are copied while other layers run.

    Parameters
    ----------
    backend : CupyBackend
    network : Network
    options : PlanOptions

    Raises
    ------
    InputError
        If device memory is limited to less than two layers and an input take.
    """

    def __init__(self, backend: Any, network: Network, options: PlanOptions) -> None:
        super().__init__(backend, network, options)
        self.device: Device = backend.cuda
        self.precision = Precision(np.dtype(options.dtype), options.storage == "float16")
        self.packed = [self._pack(layer) for layer in network]
        self._input_bytes = bytes_for_input(network.widest, self.precision)
        share = self._weights_share()
        self.weights = DeviceWeights(self.device, self.packed, self.precision, share)
        self.biases = [
            self.device.upload(np.ascontiguousarray(layer.bias, options.dtype)) for layer in network
        ]
        self.features = self._shared_features()
        self._capacity = min(options.batch_size or MOST_INPUTS, self.features.capacity)
        self._make_states(len(network) + 2)
        self._late_rows: list[weakref.ref[LateRows]] = []
        for kernel in {kernel for packed in self.packed for kernel in self._kernels(packed)}:
            self.device.resident_blocks(kernel)
        for kernel in self.features.kernels():
            self.device.resident_blocks(kernel)
        self._recording: Recording | None = None
        if self.weights.resident == len(network) and not options.profile:
            self._recording = self.device.capture(self._launch_all)

    def _pack(self, layer: Layer) -> PackedProduct:
        design = self.options.kernel
        A = by_output(layer.csr(self.options.dtype))
        return pack(A, "clustered" if design == "auto" else design, self.precision)

    def _kernels(self, packed: PackedProduct) -> Iterator[Kernel]:
        return (launch.kernel(self.precision, True) for launch in packed.launches)

    def _weights_share(self) -> int | None:
        """Return the bytes that weights may take; None where they may all stay."""
        limit = self.options.device_memory
        most = int(MEMORY_SHARE * self.device.free_memory())
        limit = most if limit is None else min(limit, most)
        inputs = (self.options.batch_size or MOST_INPUTS) * self._input_bytes
        return max(int(WEIGHTS_SHARE * limit), limit - inputs)

    def _shared_features(self) -> DeviceFeatures:
        """Return buffers that hold a batch: those of another plan of the backend, if they do."""
        wanted = self.options.batch_size or 1
        neurons, limit = self.network.widest, self.options.device_memory
        free = int(MEMORY_SHARE * self.device.free_memory())
        if limit is not None:
            free = min(free, limit - self.weights.device_bytes)
        held: DeviceFeatures | None = self.backend.features.get(self.precision)
        if held is not None and held.widest >= neurons and held.capacity >= wanted:
            taken = held.capacity * bytes_for_input(held.widest, self.precision)
            if limit is None or taken <= free:
                return held
        fitting = free // self._input_bytes
        capacity = min(self.options.batch_size or MOST_INPUTS, fitting)
        if pitch_of(capacity) > fitting:
            capacity = capacity // PITCH * PITCH
        if capacity < 1:
            raise InputError(
                f"device memory: beside {format_bytes(self.weights.device_bytes)} of weights "
                f"{format_bytes(max(free, 0))} are left, and an input of this network takes "
                f"{format_bytes(self._input_bytes)}; give more, or fewer neurons"
            )
        made = DeviceFeatures(self.device, neurons, capacity, self.precision)
        self.backend.features[self.precision] = made
        return made

    def _make_states(self, rows: int) -> None:
        """Make the InputState before all layers, before each, and after the last."""
        memory = self.device.empty((rows * STATE * 4,), np.uint8)
        self._states = self.device.view(memory, 0, (rows, STATE), np.int32)
        self._state = [
            self.device.view(memory, row * STATE * 4, (STATE,), np.int32) for row in range(rows)
        ]

    @property
    def batch_size(self) -> int:
        """Inputs that go through the network together."""
        return self._capacity

    def describe(self) -> str:
        """Return what the plan chose and why, a line each."""
        layers = len(self.network)
        designs = Counter(packed.design for packed in self.packed)
        chosen = ", ".join(f"{design} in {count}" for design, count in designs.items())
        asked = "" if self.options.kernel == "auto" else " (asked for)"
        edges = sum(packed.nnz for packed in self.packed)
        saved = 1 - sum(packed.loads for packed in self.packed) / max(edges, 1)
        pruned = sum(self.may_drop_after(number) for number in range(layers))
        how = "started layer by layer"
        if self._recording is not None:
            how = "started together, as a graph"
        lines = [
            f"features stay on the device, inputs innermost; {layers} layers {how}",
            f"kernels: {chosen} of {layers} layers{asked}; {100 * saved:.0f} % of the loads saved "
            "by sharing them",
            self.weights.describe(),
            f"dead inputs leave after {pruned} of {layers} layers, listed on the device",
            f"batches of {self.batch_size} inputs, {format_bytes(self._input_bytes)} each",
        ]
        if self.precision.half:
            lines.append(
                "features and weights kept in float16, sums in float32: every kept number is "
                "within 2^-11 (0.05 %) of the one computed, and 65,504 is the largest"
            )
        return "\n".join(lines)

    def layer_models(self, inputs: Sequence[int]) -> list[KernelModel]:
        """Return what each layer needs for an edge; see `layer_costs`."""
        return [
            design_cost(packed, columns, self.precision, self.device.l2_bytes)
            for packed, columns in zip(self.packed, inputs, strict=True)
        ]

    def run_batch(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        """Run the whole network on one batch; see `NetworkPlan.run_batch`."""
        with self.features.one_at_a_time:
            return self._run(features, report)

    def _launch_all(self) -> None:
        self._list_first()
        for number in range(len(self.network)):
            self._launch_layer(number)

    def _list_first(self) -> None:
        policy = DROP if self.may_drop_after(-1) else KEEP
        self.features.list_alive(0, self._state[0], self._state[1], policy)

    def _launch_layer(self, number: int) -> None:
        features, state = self.features, self._state[number + 1]
        self.weights.products[number].launch(
            features.buffers[number % 2], features.buffers[(number + 1) % 2], features.pitch,
            state, features.source, features.alive, self.biases[number], self.network.y_max, True,
        )  # fmt: skip
        policy = DROP if self.may_drop_after(number) else KEEP
        if number == len(self.network) - 1:
            policy = ALWAYS
        features.list_alive(number + 1, state, self._state[number + 2], policy)

    def _run(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        device, layers, held = self.device, len(self.network), self.features
        times: StreamTimes | None = None
        begin = device.mark()
        first = np.array([features.shape[0], 0, 0, 0], np.int32)
        device.copy_in(first, self._state[0])
        held.load(features)
        loaded = device.mark()
        if self._recording is not None:
            self._recording.replay()
        else:
            self._list_first()
            times = self.weights.run_streamed(self._launch_layer)
        done = device.mark()
        states = device.download(self._states)
        device.synchronize()
        self._check_range(states)
        count = int(states[-1, COUNT])
        # A list goes from one array of ids to the other; there were layers + 1.
        ids = device.download(held.ids[(layers + 1) % 2])[:count]
        rows = self._keep_rows(held.collect(layers, self._state[-1], count, self._neurons_out))
        computed = states[1:-1, COUNT].astype(np.int64)
        executed = computed @ [packed.nnz for packed in self.packed]
        kernels = device.seconds(loaded, done)
        copies = device.seconds(begin, loaded) + device.seconds(done, device.mark())
        seconds, gaps, copied, waited = None, None, 0.0, 0.0
        if times is not None:
            copied = times.copying()
            waited = times.waiting() if copied else 0.0
            if self.options.profile:
                seconds = np.array(times.of_layers())
                gaps = max(0.0, kernels - float(seconds.sum()) - waited)
        report(features.shape[0] * layers)
        return BatchOutput(
            ids.astype(np.int64),
            rows,
            states[2:, ALIVE].astype(np.int64),
            int(executed),
            seconds,
            positive=np.ones(count, bool),
            device=DeviceReport(kernels, copies, copied, waited, gaps, device.peak_memory()),
            computed_per_layer=computed,
        )

    @property
    def _neurons_out(self) -> int:
        return self.network.neurons_out

    def _check_range(self, states: Array) -> None:
        if self.precision.half and states[1:-1, NANS].any():
            layer = int(np.flatnonzero(states[1:-1, NANS])[0]) + 1
            raise NumericalError(
                f"layer {layer}: features left the range of half precision (65,504), or became "
                "NaN; give the network a y_max, scale its weights, or leave out storage float16"
            )
        if states[-2, NANS]:
            raise NumericalError(OVERFLOW)

    def _keep_rows(self, rows: Any) -> Any:
        """Leave rows on the device, where those that wait there are few, or fetch them."""
        late = LateRows(rows.shape, rows.dtype, lambda: self.device.download(rows))
        waiting = [row for row in (ref() for ref in self._late_rows) if row is not None]
        waiting = [row for row in waiting if row.on_device]
        self._late_rows = [weakref.ref(row) for row in [*waiting, late]]
        size = sum(np.prod(row.shape) * row.dtype.itemsize for row in [*waiting, late])
        # Memory was left for the scores of one batch.
        if size > self._capacity * self.network.widest * self.precision.sums.itemsize:
            return late.fetched()
        return late
