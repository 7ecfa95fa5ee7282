"""Networks cut into launches.

A step is a layer by itself, in the design that its estimate favours (design_costs.py), or a run:
consecutive layers of a narrow network in one launch (resident_layers.py). Dead inputs leave
between steps alone, so that layers after which many die are steps of their own, and runs grow
from RUNS[0] layers on, as fewer and fewer inputs are left to die.

Runs are taken where the estimates say that they cost less than their layers one by one:

    seconds of a layer in a run = waves x (max(flops, l1, l2) + BARRIERS)

A wave is as many tiles of T inputs as multiprocessors take at a time. Of a layer with E edges, of
which a part s is loaded (each feature once for the rows of a cluster), a multiprocessor does
2 E T operations, moves (0.6 + 4 s) E T bytes in its first level (weights that lanes share, and
features), and gets its m-th part of what L2 gives, for E weights. A layer by itself costs its
estimate and a second launch, which lists the inputs that live.

How many inputs live at a layer is not known when a network is planned. The estimates take what
is known of the challenge's own images, which no answer depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from portable_spdnn.errors import InputError
from portable_spdnn.host import usable_cores
from portable_spdnn.network import Network
from portable_spdnn_gpu.compile.catalog import resident_layers
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.persistent.launch import PackedRun, RunLayer, fits, pack_run
from portable_spdnn_gpu.spmm.packing import DESIGNS, PackedProduct, by_output, pack
from portable_spdnn_gpu.spmm.selection import (
    LAUNCH,
    Choice,
    DeviceFacts,
    choose_design,
)
from portable_spdnn_gpu.spmm.statistics import LayerFacts, layer_facts
from portable_spdnn_gpu.spmm.tuning import TunedStaged

RESIDENT = "resident"
KERNELS = ("auto", *DESIGNS, RESIDENT)
# Layers of the runs, one after the other; then as many as are left.
RUNS = (8, 16, 32, 64, 128, 256, 512)
BARRIERS = 0.4e-6  # seconds between the layers of a run, in which nothing else happens
# Parts of the challenge's images that live after each layer; and after all later ones.
LIVING = (1.0, 0.92, 0.66, 0.35, 0.16, 0.08, 0.05)
LIVING_LATER = 0.03
BEFORE_RUNS = len(LIVING)  # layers after which many inputs may die
SAMPLED = 3  # layers that a decision about runs looks at


@dataclass(frozen=True)
class Step:
    """Layers that are launched together.

    Attributes
    ----------
    first, end : int
        Layers, counted from 0.
    packed : PackedProduct or PackedRun
    reason : str
        Why in this design.
    """

    first: int
    end: int
    packed: PackedProduct | PackedRun
    reason: str

    @property
    def design(self) -> str:
        """Name of the design."""
        return RESIDENT if isinstance(self.packed, PackedRun) else self.packed.design


@dataclass(frozen=True)
class StepChooser:
    """What choices of steps depend on beside the network.

    Attributes
    ----------
    kernel : str
        One of KERNELS.
    precision : Precision
    device : Device
    facts : DeviceFacts
    inputs : int
        Of a batch, at most.
    runs : bool
        Whether runs may be taken: not where weights are copied while others are used.
    tuned : callable
        A -> TunedStaged or None: of staged_spmm for layers like A.
    may_drop_after : callable
        Layer -> whether dead inputs may leave after it.
    keeps_dead : callable
        Layer -> whether an input that is dead before it is dead after it.
    """

    kernel: str
    precision: Precision
    device: Device
    facts: DeviceFacts
    inputs: int
    runs: bool
    tuned: Callable[[Any], TunedStaged | None]
    may_drop_after: Callable[[int], bool]
    keeps_dead: Callable[[int], bool]

    def steps(self, network: Network) -> list[Step]:
        """Cut a network into steps, packed.

        Raises
        ------
        InputError
            If runs are asked for and do not fit, or a weight is beyond half precision.
        """
        begin, why = self._begin_of_runs(network)
        found = self._layers(network, begin)
        lengths = iter(RUNS)
        while begin < len(network):
            end = min(begin + next(lengths, len(network)), len(network))
            layers = [
                RunLayer(
                    self._by_output(network, number),
                    np.asarray(network.layers[number].bias, self.precision.sums),
                    self.keeps_dead(number),
                )
                for number in range(begin, end)
            ]
            packed = pack_run(layers, self.precision, self.device.shared_limit)
            found.append(Step(begin, end, packed, why))
            begin = end
        return found

    def living(self, layer: int) -> int:
        """Return how many inputs are taken to live before a layer, counted from 0."""
        if not self.may_drop_after(layer - 1):
            return self.inputs
        share = LIVING[layer] if layer < len(LIVING) else LIVING_LATER
        return max(1, int(share * self.inputs))

    def _by_output(self, network: Network, number: int) -> Any:
        return by_output(network.layers[number].csr(self.precision.sums))

    def _layers(self, network: Network, count: int) -> list[Step]:
        """Make the first layers steps of their own: chosen one by one, packed side by side."""
        with ThreadPoolExecutor(usable_cores(), thread_name_prefix="spdnn-pack") as packers:
            waiting = []
            for number in range(count):
                A = self._by_output(network, number)
                choice, tuned = self._choose(A, number)
                config = tuned.config if tuned is not None and choice.design == "staged" else None
                packed = packers.submit(pack, A, choice.design, self.precision, config)
                waiting.append((number, packed, choice.reason))
            return [
                Step(number, number + 1, packed.result(), why) for number, packed, why in waiting
            ]

    def _choose(self, A: Any, number: int) -> tuple[Choice, TunedStaged | None]:
        inputs = self.living(number)
        if self.kernel in DESIGNS:
            tuned = self.tuned(A) if self.kernel == "staged" else None
            return Choice(self.kernel, {}, "asked for"), tuned
        facts = layer_facts(A, self.precision)
        choice = choose_design(facts, self.precision, self.facts, inputs)
        if choice.design != "staged":
            return choice, None
        tuned = self.tuned(A)
        if tuned is None:
            return choice, None
        facts = layer_facts(A, self.precision, tuned.config)
        return choose_design(facts, self.precision, self.facts, inputs, tuned.measured), tuned

    def _begin_of_runs(self, network: Network) -> tuple[int, str]:
        """Return the first layer from which runs are taken (the number of layers: none)."""
        none = len(network)
        widths = [network.neurons, *(layer.shape[1] for layer in network)]
        if self.kernel == RESIDENT:
            if not fits(widths, self.precision, self.device.shared_limit):
                raise InputError(
                    f"kernel resident: {max(widths)} neurons in {self.precision.storage} do not "
                    f"fit {self.device.shared_limit >> 10} KiB of shared memory; leave the option, "
                    "and layers are launched one by one"
                )
            if not self.runs:
                raise InputError(
                    "kernel resident: the weights do not fit the device memory that they may "
                    "take; give more, or leave the option"
                )
            return 0, "asked for"
        if self.kernel != "auto" or not self.runs:
            return none, ""
        begin = BEFORE_RUNS if self.may_drop_after(BEFORE_RUNS - 1) else 0
        if begin >= none or not fits(widths[begin:], self.precision, self.device.shared_limit):
            return none, ""
        alone = together = 0.0
        sample = sorted(set(np.linspace(begin, none - 1, SAMPLED).astype(int).tolist()))
        for number in sample:
            facts = layer_facts(self._by_output(network, number), self.precision)
            inputs = self.living(number)
            choice = choose_design(facts, self.precision, self.facts, inputs)
            alone += choice.estimates[choice.design] + LAUNCH
            tile = self._tile(widths[begin:])
            together += run_layer_seconds(facts, self.precision, self.facts, inputs, tile)
        why = (
            f"{1e6 * together / len(sample):.3g} us a layer, one by one "
            f"{1e6 * alone / len(sample):.3g} us, for {self.living(begin)} inputs, estimated"
        )
        return (begin, why) if together < alone else (none, "")

    def _tile(self, widths: Sequence[int]) -> int:
        kernel = resident_layers(self.precision, max(widths), self.device.shared_limit)
        assert kernel is not None
        return int(dict(kernel.defines)["TILE"])


def run_layer_seconds(
    facts: LayerFacts, precision: Precision, device: DeviceFacts, inputs: int, tile: int
) -> float:
    """Return the estimate for a layer within a run; see the module.

    Parameters
    ----------
    facts : LayerFacts
    precision : Precision
    device : DeviceFacts
    inputs : int
    tile : int
        Inputs of a block.
    """
    share = facts.loads / max(facts.edges, 1)
    work = facts.edges * tile
    of_each = 1 / device.multiprocessors
    limits = device.limits
    busiest = max(
        2 * work / (limits.flops * of_each),
        (0.6 + 4 * share) * work / (limits.l1 * of_each),
        facts.edges * precision.storage.itemsize / (limits.l2 * of_each),
    )
    waves = -(-inputs // (tile * device.multiprocessors))
    return float(waves * (busiest + BARRIERS))
