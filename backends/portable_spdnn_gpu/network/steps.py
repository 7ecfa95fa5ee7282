"""A network cut into steps, each of them one variant on one layer or one fused segment.

A step is a layer by itself, in the variant that its estimate favours (spmm/selection.py), or a
fused segment: consecutive layers of a narrow network in one launch of the persistent kernel
(persistent_layers.cu). Inactive inputs leave between steps alone, so that layers after which many
become inactive are steps of their own, and segments grow from SEGMENT_LENGTHS[0] layers on, as
fewer and fewer inputs become inactive.

Segments are taken where the estimates (costs.py) say that their layers cost less than one by one.
A layer by itself costs its estimate and the list of the active inputs behind it.

How many inputs are active at a layer is not known when a network is planned. The estimates take
what the user expects (`PlanOptions.expected_survival`); no answer depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from portable_spdnn.errors import InputError
from portable_spdnn.host import map_in_threads
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network
from portable_spdnn_gpu.compile.catalog import StagedConfig, persistent_layers, persistent_rows
from portable_spdnn_gpu.compile.precision import SINGLE, Precision
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.device.properties import DeviceProperties
from portable_spdnn_gpu.network.costs import segment_layer_seconds
from portable_spdnn_gpu.persistent.layout import Layout
from portable_spdnn_gpu.persistent.packing import PackedSegment, SegmentLayer, pack_segment
from portable_spdnn_gpu.spmm.output_rows import OutputRows
from portable_spdnn_gpu.spmm.packing import VARIANTS, PackedSpmm, pack, packing_threads
from portable_spdnn_gpu.spmm.selection import Choice, choose_variant, reuse_statistics
from portable_spdnn_gpu.spmm.tuning import TunedStaged

PERSISTENT = "resident"  # the persistent kernel, as users name it: `--kernel resident`
KERNELS = ("auto", *VARIANTS, PERSISTENT)
# Layers of the segments, one after the other; the last one takes as many as are left.
SEGMENT_LENGTHS = (8, 16, 32, 64, 128, 256, 512)
SAMPLED = 3  # layers whose statistics decide about segments
LISTING = 1e-6  # seconds of one block behind a step: some reads of L2, one after the other


@dataclass(frozen=True)
class Step:
    """Layers that are launched together.

    Attributes
    ----------
    first, end : int
        The first layer, counted from 0, and the one behind the last.
    packed : PackedSpmm or PackedSegment
        Their weights.
    reason : str
        Why they are launched so, in words.
    """

    first: int
    end: int
    packed: PackedSpmm | PackedSegment
    reason: str

    @property
    def variant(self) -> str:
        """The name of the variant, one of KERNELS."""
        return self.packed.variant if isinstance(self.packed, PackedSpmm) else PERSISTENT


class _ChosenLayer(NamedTuple):
    """A layer by itself, before it is packed.

    `bounded`: it is linear or ReLU.
    """

    number: int
    A: OutputRows
    bounded: bool
    choice: Choice
    config: StagedConfig | None = None


@dataclass(frozen=True)
class StepChooser:
    """What the choice of steps depends on beside the network.

    Attributes
    ----------
    kernel : str
        The variant that is asked for, one of KERNELS.
    precision : Precision
    device : Device
    properties : DeviceProperties
        What the estimates read of the device.
    inputs : int
        The most inputs of a batch.
    survival : sequence of float
        The parts of them that are expected to be active before each layer, where inactive ones may
        leave; the last holds for all layers after.
    segments : bool
        Whether fused segments may be taken: not where weights are copied while others are used.
    tuned : callable
        A -> TunedStaged or None: the measured tile sizes of staged_spmm for layers like A.
    may_drop_after : callable
        Layer -> whether inactive inputs may leave after it.
    keeps_inactive : callable
        Layer -> whether an input that is inactive before it is inactive after it.
    """

    kernel: str
    precision: Precision
    device: Device
    properties: DeviceProperties
    inputs: int
    survival: Sequence[float]
    segments: bool
    tuned: Callable[[sp.csr_array], TunedStaged | None]
    may_drop_after: Callable[[int], bool]
    keeps_inactive: Callable[[int], bool]

    def steps(self, network: Network) -> list[Step]:
        """Cut a network into steps, and pack their weights.

        Raises
        ------
        InputError
            If fused segments are asked for and do not fit, or a weight is beyond half precision.
        """
        begin, why = self._begin_of_segments(network)
        found = list(self._single_layers(network, begin))
        lengths = iter(SEGMENT_LENGTHS)
        while begin < len(network):
            end = min(begin + next(lengths, len(network)), len(network))
            layers = [
                SegmentLayer(
                    OutputRows.of_layer(network.layers[number], self.precision.sums),
                    np.asarray(network.layers[number].bias, self.precision.sums),
                    self.keeps_inactive(number),
                )
                for number in range(begin, end)
            ]
            packed = pack_segment(layers, self.precision, self.device.shared_limit)
            found.append(Step(begin, end, packed, why))
            begin = end
        return found

    def active_inputs(self, layer: int) -> int:
        """Return how many inputs are expected to be active before a layer, counted from 0."""
        if not self.may_drop_after(layer - 1):
            return self.inputs
        return max(1, int(self.survival[min(layer, len(self.survival) - 1)] * self.inputs))

    def _single_layers(self, network: Network, count: int) -> Iterator[Step]:
        """Make the first layers steps of their own: chosen and packed side by side, in order.

        What is measured is so in the calling thread, which alone reads layers and the device.
        """
        layers = ((number, network.layers[number]) for number in range(count))
        threads = packing_threads(network.edges // max(len(network), 1))
        chosen = map_in_threads(self._choose, layers, threads)
        return map_in_threads(self._packed, map(self._tuned, chosen), threads)

    def _choose(self, numbered: tuple[int, Layer]) -> _ChosenLayer:
        number, layer = numbered
        A = OutputRows.of_layer(layer, self.precision.sums)
        asked = self.kernel in VARIANTS
        choice = Choice(self.kernel, {}, "asked for") if asked else self._least(A, number)
        return _ChosenLayer(number, A, layer.epilogue().interval is not None, choice)

    def _tuned(self, chosen: _ChosenLayer) -> _ChosenLayer:
        """Return what is chosen once tile sizes are measured, where the staged variant was."""
        # Configurations are measured, and compiled, for linear and ReLU layers.
        if chosen.choice.variant != "staged" or not chosen.bounded:
            return chosen
        tuned, choice = self.tuned(chosen.A.csr), chosen.choice
        if tuned is None:
            return chosen
        if self.kernel not in VARIANTS:
            choice = self._least(chosen.A, chosen.number, tuned)
        return chosen._replace(choice=choice, config=tuned.config)

    def _packed(self, chosen: _ChosenLayer) -> Step:
        variant = chosen.choice.variant
        config = chosen.config if variant == "staged" else None
        packed = pack(chosen.A, variant, self.precision, config)
        return Step(chosen.number, chosen.number + 1, packed, chosen.choice.reason)

    def _least(self, A: OutputRows, number: int, tuned: TunedStaged | None = None) -> Choice:
        """Return the variant of a layer with the least estimate, or measured time."""
        config = tuned.config if tuned else None
        statistics = reuse_statistics(A, self.precision, config)
        inputs, measured = self.active_inputs(number), tuned.measured if tuned else None
        return choose_variant(statistics, self.precision, self.properties, inputs, measured)

    def _begin_of_segments(self, network: Network) -> tuple[int, str]:
        """Return the first layer of the fused segments, or the number of layers, and why."""
        end = len(network)
        others = [number for number, layer in enumerate(network) if not layer.is_plain_relu]
        begin_of_relu = max(others, default=-1) + 1  # from there on ReLU without bounds of its own
        widths = [network.neurons, *(layer.shape[1] for layer in network)]
        limit = self.device.shared_limit
        if self.kernel == PERSISTENT:
            if begin_of_relu:
                raise InputError(
                    f"kernel 'resident': layer {begin_of_relu} is not ReLU without bounds of its "
                    "own, as fused segments need; take kernel 'auto'"
                )
            if self.precision.sums != SINGLE:
                raise InputError(
                    f"kernel 'resident' computes in {SINGLE}, not in {self.precision.sums}; take "
                    "kernel 'auto'"
                )
            if persistent_layers(self.precision, max(widths), limit) is None:
                raise InputError(
                    f"kernel 'resident': {max(widths)} neurons in {self.precision.storage} do not "
                    f"fit {limit >> 10} KiB of shared memory; take kernel 'auto'"
                )
            if not self.segments:
                raise InputError(
                    "kernel 'resident': the weights do not fit the device memory that they may "
                    "take; give more device_memory, or take kernel 'auto'"
                )
            return 0, "asked for"
        if self.kernel != "auto" or not self.segments:
            return end, ""
        dying = len(self.survival) - 1  # layers after which many inputs become inactive
        begin = dying if self.may_drop_after(dying - 1) else 0
        begin = max(begin, begin_of_relu)
        widest, layers = max(widths[begin:], default=0), network.layers[begin:]
        constant = all(layer.constant is not None or not layer.nnz for layer in layers)
        kernel = persistent_layers(self.precision, widest, limit, constant)
        if begin >= end or kernel is None:
            return end, ""
        layout = Layout.of(kernel, self.precision, persistent_rows(widest))
        alone = together = 0.0
        sample = sorted(set(np.linspace(begin, end - 1, SAMPLED).astype(int).tolist()))
        for number in sample:
            A = OutputRows.of_layer(network.layers[number], self.precision.sums)
            statistics = reuse_statistics(A, self.precision)
            inputs, device = self.active_inputs(number), self.properties
            choice = choose_variant(statistics, self.precision, device, inputs)
            alone += min(choice.estimates.values()) + LISTING
            together += segment_layer_seconds(statistics, layout, device, inputs)
        why = (
            f"{1e6 * together / len(sample):.3g} us a layer, one by one "
            f"{1e6 * alone / len(sample):.3g} us, for {self.active_inputs(begin)} inputs, estimated"
        )
        return (begin, why) if together < alone else (end, "")
