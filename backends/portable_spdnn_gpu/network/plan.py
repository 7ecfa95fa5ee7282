"""The plan of a whole network on a device, which never waits for the host between layers."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from portable_spdnn.errors import InputError, NumericalError
from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn.host import format_bytes
from portable_spdnn.kernel_model import KernelModel
from portable_spdnn.network import Network
from portable_spdnn.plans.base import Build, NetworkPlan
from portable_spdnn.plans.batch import OVERFLOW, BatchOutput, LazyRows
from portable_spdnn.plans.device_report import DeviceReport
from portable_spdnn.plans.machine_limits import known_limits
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn_gpu.compile.precision import Precision, check_half_range
from portable_spdnn_gpu.device.features import (
    DeviceFeatures,
    bytes_for_input,
    capacity_within,
    input_state,
)
from portable_spdnn_gpu.device.interface import Array, Device, DeviceArray, Recording
from portable_spdnn_gpu.device.properties import device_properties
from portable_spdnn_gpu.network.costs import step_cost
from portable_spdnn_gpu.network.launches import StepLaunches, seconds_by_layer
from portable_spdnn_gpu.network.steps import PERSISTENT, StepChooser
from portable_spdnn_gpu.network.weights import DeviceWeights, StreamTimes
from portable_spdnn_gpu.spmm.tuning import TunedStaged, layer_class, tune_staged

if TYPE_CHECKING:
    from portable_spdnn_gpu.cupy_backend import CupyBackend

MAX_INPUTS = 65536  # in a batch by default: the challenge's 60,000 go through together
MEMORY_SHARE = 0.6  # part of the free memory that a plan may allocate
WEIGHTS_SHARE = 1 / 2  # part of the memory limit that weights may take at least


class DevicePlan(NetworkPlan):
    """Dense features that stay on the device from the first layer to the last.

    After every step the device itself lists the active inputs, and the next step reads their
    features through the list: the host neither asks nor waits. The launches of all steps are
    recorded once, as a graph, and started together. Where the weights do not fit the memory that
    they may take, those that do not are copied while other layers run.

    All choices are made here, when the plan is made: a run launches what was chosen, and nothing
    is measured or compiled then.

    Parameters
    ----------
    backend : CupyBackend
    network : Network
    options : PlanOptions
    tuned : dict of str to TunedStaged, optional
        What another plan measured, by the class of layers; this one then measures nothing.

    Raises
    ------
    InputError
        If device memory is limited to less than two layers and an input take.

    Attributes
    ----------
    steps : list of Step
        The steps of the network, in order.
    profile : bool
        Whether the next runs time every step by itself.
    """

    backend: CupyBackend

    def __init__(
        self,
        backend: CupyBackend,
        network: Network,
        options: PlanOptions,
        tuned: dict[str, TunedStaged] | None = None,
    ) -> None:
        super().__init__(backend, network, options)
        self.device: Device = backend.cuda
        self.precision = Precision(np.dtype(options.dtype), options.storage == "float16")
        self._input_bytes = bytes_for_input(network.widest, self.precision)
        # How many inputs should go through the network together, if memory suffices.
        expected, most = options.expected_inputs, options.batch_size or MAX_INPUTS
        self._wanted = max(1, min(most, MAX_INPUTS if expected is None else expected))
        share = self._weights_share()
        self._measures = tuned is None and backend.tunes
        self._tuned: dict[str, TunedStaged] = {} if tuned is None else tuned
        self.steps = self._chooser(share).steps(network)
        self.weights = DeviceWeights(self.device, [step.packed for step in self.steps], share)
        self.features = self._shared_features()
        self._capacity = min(self._wanted, self.features.capacity)
        self._lazy_rows: weakref.WeakSet[LazyRows] = weakref.WeakSet()
        # Values, and no methods of this plan: a cycle of references would keep the device's memory
        # until the garbage collector runs.
        drops = [self.may_drop_after(number) for number in range(-1, len(network))]
        self.launches = StepLaunches(network, self.steps, self.weights, self.features, drops)
        self.profile = options.profile
        self._recording: Recording | None = None
        if self.weights.steps_on_device == len(self.steps) and not options.profile:
            self._recording = self.device.capture(self.launches.start_all)
        self.device.synchronize()  # it may run on another stream than it was made on

    def _chooser(self, share: int) -> StepChooser:
        options, network = self.options, self.network
        activating = set(network.layers_filling_zeros)
        sizes = (layer.nnz * (4 + self.precision.storage.itemsize) for layer in network)
        return StepChooser(
            options.kernel,
            self.precision,
            self.device,
            device_properties(self.device, known_limits(self.backend)),
            self._wanted,
            options.expected_survival,
            sum(sizes) <= share,
            self._tune,
            self.may_drop_after,
            lambda layer: not options.keep_dead_inputs and layer not in activating,
        )

    def _tune(self, A: sp.csr_array) -> TunedStaged | None:
        """Return the measured configuration of staged_spmm for layers like A, if there is one."""
        layers = layer_class(A, self.precision)
        if self._measures and A.nnz and layers not in self._tuned:
            versions = type(self.backend).availability().versions
            self._tuned[layers] = tune_staged(self.device, A, self.precision, versions)
        return self._tuned.get(layers)

    def for_layers(self, network: Network, keep_dead_inputs: bool, build: Build) -> NetworkPlan:
        """Return a plan for other layers that measures nothing; see `NetworkPlan.for_layers`."""
        options = replace(self.options, keep_dead_inputs=keep_dead_inputs)
        return DevicePlan(self.backend, network, options, self._tuned)

    def _weights_share(self) -> int:
        """Return the bytes of device memory that weights may take."""
        limit = self.options.device_memory
        most = int(MEMORY_SHARE * self.device.free_memory())
        limit = most if limit is None else min(limit, most)
        inputs = self._wanted * self._input_bytes
        return max(int(WEIGHTS_SHARE * limit), limit - inputs)

    def _shared_features(self) -> DeviceFeatures:
        """Return buffers for a batch: those of another plan of the backend, if they suffice."""
        limit = self.options.device_memory
        free = int(MEMORY_SHARE * self.device.free_memory())
        if limit is not None:
            free = min(free, limit - self.weights.device_bytes)
        held, widest = self.backend.features.get(self.precision), self.network.widest
        # They are taken where they are no smaller than new ones beside them would be.
        capacity = max(capacity_within(free, self._wanted, self._input_bytes), 1)
        if held is not None and held.widest >= widest and held.capacity >= capacity:
            taken = held.capacity * bytes_for_input(held.widest, self.precision)
            if limit is None or taken <= free:
                return held
        if free < self._input_bytes:
            raise InputError(
                f"device memory: {format_bytes(max(free, 0))} are left beside the weights, and an "
                f"input of this network takes {format_bytes(self._input_bytes)}; "
                "raise device_memory"
            )
        made = DeviceFeatures(self.device, widest, capacity, self.precision)
        self.backend.features[self.precision] = made
        return made

    @property
    def batch_size(self) -> int:
        """How many inputs go through the network together."""
        return self._capacity

    def describe(self) -> str:
        """Return what the plan chose and why, a line each."""
        layers = len(self.network)
        how = "step by step" if self._recording is None else "together, as a graph"
        pruned = sum(self.may_drop_after(number) for number in range(layers))
        lines = [
            f"features stay on the device, with the inputs innermost; {layers} layers are cut into "
            f"{len(self.steps)} steps, started {how}",
            *self._describe_steps(),
            self.weights.describe(),
            f"inactive inputs may be dropped after {pruned} of {layers} layers, between steps; the "
            "device lists the active ones",
            f"batches of {self.batch_size} inputs, {format_bytes(self._input_bytes)} each",
            *(tuned.describe() for tuned in self._tuned.values()),
        ]
        if self.precision.half:
            lines.append(
                "features and weights are kept in float16 and summed in float32: every kept number "
                "is within 2^-11 (0.05 %) of the one computed, and 65,504 is the largest"
            )
        return "\n".join(lines)

    def _describe_steps(self) -> Iterator[str]:
        """Yield a line for consecutive steps of one variant: what was chosen, and why the first."""
        for variant, group in itertools.groupby(self.steps, lambda step: step.variant):
            steps = list(group)
            first, end = steps[0].first + 1, steps[-1].end
            span = f"layers {first} to {end}" if end > first else f"layer {end}"
            edges = sum(int(np.sum(step.packed.nnz)) for step in steps)
            saved = 1 - sum(step.packed.loads for step in steps) / max(edges, 1)
            if variant == PERSISTENT:
                variant = f"persistent kernel, {len(steps)} fused segment{'s' * (len(steps) > 1)}"
                constant = sum(step.packed.constant for step in steps)
                some = f"{constant} of them of " if constant < len(steps) else ""
                variant += f", {some}one weight for each layer" if constant else ""
            yield f"{span}: {variant}, {100 * saved:.0f} % of the loads shared ({steps[0].reason})"

    def layer_models(self, inputs: Sequence[int]) -> list[KernelModel]:
        """Return what each layer needs for an edge; see costs.py."""
        return [
            step_cost(step.packed, inputs[layer], self.precision, self.device.l2_bytes)
            for step in self.steps
            for layer in range(step.first, step.end)
        ]

    def run_batch(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        """Run the whole network on one batch; see `NetworkPlan.run_batch`."""
        if self.precision.half and not isinstance(features, PackedFeatures):
            check_half_range("features have", features)
        # The device first: a forked child is refused there, where the lock may be held for ever.
        with self.device.bound(), self.features.one_at_a_time:
            output = self._run(features)
        report(features.shape[0] * len(self.network))
        return output

    def _run(self, features: Features) -> BatchOutput:
        device, steps, held = self.device, len(self.steps), self.features
        times: StreamTimes | None = None
        begin = device.mark()
        device.copy_in(input_state(features.shape[0]), self.launches.state[0])
        held.load(features)
        loaded = device.mark()
        if self._recording is not None and not self.profile:
            self._recording.replay()
        else:
            self.launches.list_first()
            times = self.weights.run_streamed(self.launches.start)
        done = device.mark()
        counts, count = self.launches.counts()
        self._check_range(counts.overflowed)
        ids = device.download(held.ids)[:count]
        neurons_out = self.network.neurons_out
        rows = self._keep_rows(held.collect(steps, self.launches.state[-1], count, neurons_out))
        edges = np.concatenate([np.atleast_1d(step.packed.nnz) for step in self.steps])
        kernels = device.seconds(loaded, done)
        copies = device.seconds(begin, loaded) + device.seconds(done, device.mark())
        seconds, gaps, copied, waited = None, None, 0.0, 0.0
        if times is not None:
            copied, waited = times.copying(), times.waiting()
            if self.profile:
                seconds = seconds_by_layer(self.steps, times.of_steps(), counts.computed * edges)
                gaps = max(0.0, kernels - float(seconds.sum()) - waited)
        return BatchOutput(
            ids.astype(np.int64),
            rows,
            counts.active,
            int(counts.computed @ edges),
            seconds,
            # After ReLU an active input has a positive score; else the rows are to be asked.
            positive=np.ones(count, bool) if self.network.layers[-1].is_plain_relu else None,
            device=DeviceReport(kernels, copies, copied, waited, gaps, device.peak_memory()),
            computed_per_layer=counts.computed,
        )

    def _check_range(self, overflowed: Array) -> None:
        if self.precision.half and overflowed.any():
            layer = int(np.flatnonzero(overflowed)[0]) + 1
            raise NumericalError(
                f"layer {layer}: features left the range of half precision (65,504), or became "
                "NaN; give the network a y_max, scale its weights, or take storage 'same'"
            )
        if overflowed[-1]:
            raise NumericalError(OVERFLOW)

    def _keep_rows(self, scores: DeviceArray) -> Array | LazyRows:
        """Return scores that stay on the device, or host memory where too many would wait there."""
        device = self.device

        def fetch() -> Array:
            with device.bound():  # the caller's thread may be bound to another device
                return device.download(scores)

        late = LazyRows((scores.shape[0], scores.shape[1]), scores.dtype, fetch)
        waiting = [late, *(rows for rows in self._lazy_rows if rows.on_device)]
        self._lazy_rows = weakref.WeakSet(waiting)
        size = sum(np.prod(rows.shape) * rows.dtype.itemsize for rows in waiting)
        # There is memory for the scores of one batch.
        most = self._capacity * self.network.widest * self.precision.sums.itemsize
        return late.fetched() if size > most else late
