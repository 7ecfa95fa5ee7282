"""The plan of a whole network on a device, which never waits for the host between layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from portable_spdnn.errors import NumericalError
from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn.host import format_bytes
from portable_spdnn.kernel_model import KernelModel
from portable_spdnn.network import Network
from portable_spdnn.passes.compared_rows import ComparedRows, HostRows
from portable_spdnn.plans.base import Build, NetworkPlan
from portable_spdnn.plans.batch import OVERFLOW, BatchOutput
from portable_spdnn.plans.device_report import DeviceReport
from portable_spdnn.plans.machine_limits import known_limits
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn_gpu.compile.precision import Precision, check_half_range
from portable_spdnn_gpu.device.compared_rows import DeviceRows, uploaded_bytes
from portable_spdnn_gpu.device.features import DeviceFeatures, bytes_for_input, input_state
from portable_spdnn_gpu.device.interface import Array, Device, LaunchError, Recording
from portable_spdnn_gpu.device.properties import device_properties
from portable_spdnn_gpu.network.costs import step_cost
from portable_spdnn_gpu.network.launches import StepLaunches, seconds_by_layer
from portable_spdnn_gpu.network.memory import MemoryShares
from portable_spdnn_gpu.network.steps import PERSISTENT, StepChooser
from portable_spdnn_gpu.network.weights import StreamTimes
from portable_spdnn_gpu.spmm.tuning import TunedStaged, layer_class, tune_staged

if TYPE_CHECKING:
    from portable_spdnn_gpu.cupy_backend import CupyBackend

Given = Features | DeviceRows
MAX_INPUTS = 65536  # in a batch by default: the challenge's 60,000 go through together


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
    first : DevicePlan, optional
        The plan of layers before these, whose memory it shares, and what it measured: this one
        then measures nothing. The two do not run at the same time.

    Raises
    ------
    InputError
        If device memory is limited to less than two layers and the fewest inputs take.

    Attributes
    ----------
    steps : list of Step
        The steps of the network, in order.
    profile : bool
        Whether the next runs time every step by itself.
    """

    backend: CupyBackend
    features: DeviceFeatures
    _shares: MemoryShares

    def __init__(
        self, backend: CupyBackend, network: Network, options: PlanOptions,
        first: DevicePlan | None = None,
    ) -> None:  # fmt: skip
        super().__init__(backend, network, options)
        self.device: Device = backend.cuda
        self.precision = Precision(np.dtype(options.dtype), options.storage == "float16")
        self._input_bytes = bytes_for_input(network.widest, self.precision)
        # How many inputs should go through the network together, if memory suffices.
        expected, most = options.expected_inputs, options.batch_size or MAX_INPUTS
        self._wanted = max(1, min(most, MAX_INPUTS if expected is None else expected))
        self._measures = first is None and backend.tunes
        self._tuned: dict[str, TunedStaged] = {} if first is None else first._tuned
        free, limit = self.device.free_memory(), options.device_memory
        beside = first if first is not None and first.features.widest >= network.widest else None
        if beside is not None:
            self._shares = beside._shares.beside(network, beside.features, free)
        else:
            self._shares = MemoryShares.of(network, self.precision, self._wanted, free, limit)
        limit = self._shares.for_layers(network, options.edges_after)
        self.steps = self._chooser(limit).steps(network)
        packed = [step.packed for step in self.steps]
        self.weights = self._shares.device_weights(self.device, packed, limit)
        self.features = beside.features if beside is not None else self._shares.features(
            self.device, backend.features, network, self._wanted, self.weights, options.edges_after
        )  # fmt: skip
        self._capacity = min(self._wanted, self.features.capacity)
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

    def for_layers(self, network: Network, options: PlanOptions, build: Build) -> NetworkPlan:
        """Return a plan for later layers that measures nothing; see `NetworkPlan.for_layers`."""
        given = options.expected_survival
        survival = given[len(self.network) :] or given[-1:]
        return DevicePlan(
            self.backend, network, replace(options, expected_survival=survival), first=self
        )

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

    def run_batch(self, features: Given, report: Callable[[int], None]) -> BatchOutput:
        """Run the whole network on one batch; see `NetworkPlan.run_batch`."""
        self._check_given(features)
        # The device first: a forked child is refused there, where the lock may be held for ever.
        with self.device.bound(), self.features.one_at_a_time:
            try:
                output = self._run(features)
            except BaseException:
                with suppress(LaunchError):  # what was started uses the buffers until it is done
                    self.device.synchronize()
                raise
        report(features.shape[0] * len(self.network))
        return output

    def compared_rows(self, features: Features) -> ComparedRows:
        """Return features on the device, but in CSR; see `NetworkPlan.compared_rows`.

        More than may wait there stay in host memory, too.
        """
        if sp.issparse(features):
            return HostRows(features)
        self._check_given(features)
        with self.device.bound(), self.features.one_at_a_time:
            if not self._may_wait(uploaded_bytes(features, self.precision)):
                return HostRows(features)
            begin = self.device.mark()
            rows = self.features.hold(features)
            rows.seconds = self.device.seconds(begin, self.device.mark())
        return rows

    def run_rows(self, rows: ComparedRows, report: Callable[[int], None]) -> BatchOutput:
        """Run rows, which leave the device if they are there; see `NetworkPlan.run_rows`."""
        return self.run_batch(rows if isinstance(rows, DeviceRows) else rows.fetched(), report)

    def _check_given(self, features: Given) -> None:
        if self.precision.half and not isinstance(features, PackedFeatures | DeviceRows):
            check_half_range("features have", features)

    def _run(self, features: Given) -> BatchOutput:
        device, held = self.device, self.features
        times: StreamTimes | None = None
        device.watch_memory()
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
        active = held.listed(count)
        rows = self._scores(count)
        edges = np.concatenate([np.atleast_1d(step.packed.nnz) for step in self.steps])
        kernels = device.seconds(loaded, done)
        copies = device.seconds(begin, loaded) + device.seconds(done, device.mark())
        copies += features.seconds if isinstance(features, DeviceRows) else 0.0
        seconds, gaps, copied, waited = None, None, 0.0, 0.0
        if times is not None:
            copied, waited = times.copying(), times.waiting()
            if self.profile:
                seconds = seconds_by_layer(self.steps, times.of_steps(), counts.computed * edges)
                gaps = max(0.0, kernels - float(seconds.sum()) - waited)
        return BatchOutput(
            active,
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

    def _scores(self, count: int) -> Array | DeviceRows:
        """Return the scores of so many inputs: on the device while few wait there, else here."""
        neurons = self.network.neurons_out
        what = len(self.steps), self.launches.state[-1], count, neurons
        if self._may_wait(count * neurons * self.precision.sums.itemsize):
            return self.features.collect(*what)
        return self.features.fetch(*what)

    def _may_wait(self, nbytes: int) -> bool:
        """Whether so many bytes of rows may wait on the device beside those that do."""
        return self.features.waiting_bytes() + nbytes <= self._shares.rows
