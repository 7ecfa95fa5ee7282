"""Which design a layer gets.

The estimate for C = A B, or the fused layer, with E entries of A and n columns of B:

    seconds = launches x LAUNCH + E n' / (rate x busy)

**rate**, edges per second, is what `roofline.KernelModel.bound` allows of the bytes that
`layer_costs` counts for the design, with three things that are known once A is looked at:

- *clustered*: `loads`, rows of B that clusters and rows alone load, added up.
- *staged*: `staged`, rows of B that blocks list, added up; `padding`, entries of the slices over E,
  each of which reads shared memory and a position; and `conflicts`, how often shared memory is
  passed for one read, as lanes whose rows of B lie in the same banks wait for each other.
- *misses*: blocks go over all rows of A for a strip of B before they go on to the next, so that
  what they load is in L2 if the strip of all k rows of B is, and as many strips as blocks that
  run at a time are spread over. Of a strip twice the size of L2 half of the loads come from
  memory. Strips are 512 (csr), 256 (clustered) or a minibatch (staged) of columns: the narrow
  ones of staged stay in L2 where the networks are wide.

**n'** is n up to whole strips: a block computes all columns of its strip. **busy** is the part
of the multiprocessors that get a block, items / multiprocessors where there are fewer items
(clusters or rows, times strips) than multiprocessors. **LAUNCH** is what a launch costs besides:
layers of small networks are bound by it, and clustered with rows left over has two launches.

What the terms of a bound have in common is that they overlap; the largest is taken, not the sum.
What they leave out: latency, and that of a choice only the order matters.

The counts come from samples (layer_facts.py). The estimates are deterministic; a measured rate
takes the place of an estimate where there is one (autotuner.py), and a design that is asked for
is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from portable_spdnn.errors import InputError
from portable_spdnn.kernel_model import KernelModel, Limits
from portable_spdnn_gpu.compile.catalog import CLUSTER, CLUSTER_STRIP, CSR_STRIP
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.interface import Device
from portable_spdnn_gpu.spmm.costs import LayerSize, clustered_cost, csr_cost, staged_cost
from portable_spdnn_gpu.spmm.packing import DESIGNS
from portable_spdnn_gpu.spmm.statistics import LayerFacts, layer_facts

LAUNCH = 3e-6  # seconds; in a graph of launches, with the pause between two kernels


@dataclass(frozen=True)
class DeviceFacts:
    """What estimates ask of a device.

    Attributes
    ----------
    limits : Limits
    l2_bytes : int
    multiprocessors : int
    """

    limits: Limits
    l2_bytes: int
    multiprocessors: int


def _of_tables(
    multiprocessors: int, gigahertz: float, cores: int, l2: float, memory: float, l2_mib: int
) -> DeviceFacts:
    cycles = multiprocessors * gigahertz * 1e9
    limits = Limits(
        flops=2 * cores * cycles, l1=128 * cycles, l2=l2 * 1e12, l3=memory * 1e12,
        memory=memory * 1e12,
    )  # fmt: skip
    return DeviceFacts(limits, l2_mib << 20, multiprocessors)


# Where nothing has been measured: a device of each class (V100, T4, A100, H100, B200) by its
# maker's tables, multiprocessors x clock x (float32 lanes, 128 bytes of the first level); of the
# second level, which makers do not give, estimates in between.
DEVICE_CLASSES = {
    70: _of_tables(80, 1.53, 64, 2.2, 0.9, 6),
    75: _of_tables(40, 1.59, 64, 1.3, 0.32, 4),
    80: _of_tables(108, 1.41, 64, 4.0, 1.55, 40),
    90: _of_tables(132, 1.75, 128, 5.5, 3.35, 50),
    100: _of_tables(148, 1.85, 128, 9.0, 8.0, 126),
}


def device_facts(device: Device, limits: Limits | None = None) -> DeviceFacts:
    """Return what estimates ask of a device.

    Parameters
    ----------
    device : Device
    limits : Limits, optional
        As measured. Default: those of the newest class that is not newer than the device,
        scaled to its multiprocessors but for memory.
    """
    known = [each for each in DEVICE_CLASSES if each <= device.architecture]
    usual = DEVICE_CLASSES[max(known, default=min(DEVICE_CLASSES))]
    if limits is None:
        part = device.multiprocessors / usual.multiprocessors
        found = usual.limits
        limits = replace(found, flops=part * found.flops, l1=part * found.l1, l2=part * found.l2)
    return DeviceFacts(limits, device.l2_bytes, device.multiprocessors)


@dataclass(frozen=True)
class Choice:
    """The design of a layer, and why.

    Attributes
    ----------
    design : str
    estimates : dict of str to float
        Seconds for the layer, by design.
    reason : str
        One line for people.
    """

    design: str
    estimates: dict[str, float] = field(hash=False)
    reason: str


def design_seconds(
    design: str, facts: LayerFacts, precision: Precision, device: DeviceFacts, inputs: int
) -> float:
    """Return the estimate for one design and a number of live inputs; see the module.

    Parameters
    ----------
    design : str
        "csr", "clustered" or "staged".
    facts : LayerFacts
    precision : Precision
    device : DeviceFacts
    inputs : int
    """
    strip, items, launches = _grid(design, facts)
    strips = -(-inputs // strip)
    columns = strips * strip
    size = LayerSize(
        facts.edges, facts.rows, facts.inner, inputs, precision.storage.itemsize,
        precision.sums.itemsize,
    )  # fmt: skip
    model = _model(design, facts, size, device.l2_bytes)
    share = {"clustered": facts.loads, "staged": facts.staged}.get(design, facts.edges)
    loaded = size.itemsize * share / max(facts.edges, 1)
    # As many strips as resident blocks are spread over pass through L2 at the same time.
    at_a_time = min(strips, max(1, 2 * device.multiprocessors // max(items, 1)))
    in_use = facts.inner * strip * at_a_time * size.itemsize
    missed = loaded * (1 - min(1.0, device.l2_bytes / in_use)) if in_use else 0.0
    # Of columns beyond the inputs nothing moves.
    memory = max(model.bytes_per_edge["memory"] * inputs / max(columns, 1), missed)
    model = replace(model, bytes_per_edge={**model.bytes_per_edge, "memory": memory})
    rate, _ = model.bound(device.limits)
    busy = min(1.0, items * strips / device.multiprocessors) if items and strips else 1.0
    return launches * LAUNCH + facts.edges * columns / (rate * busy)


def _grid(design: str, facts: LayerFacts) -> tuple[int, int, int]:
    """Return the strip of columns, what rows are divided into, and launches of a design."""
    if design == "staged":
        return facts.config.minibatch, -(-facts.rows // facts.config.rows), 1
    clusters = facts.clustered_rows // CLUSTER
    if design == "csr" or not clusters:
        return CSR_STRIP, facts.rows, 1
    alone = facts.rows - facts.clustered_rows
    return CLUSTER_STRIP, clusters + max(alone, 0), 1 + (alone > 0)


def _model(design: str, facts: LayerFacts, size: LayerSize, l2_bytes: int) -> KernelModel:
    if design == "csr" or (design == "clustered" and not facts.clustered_rows):
        return csr_cost(size, l2_bytes)
    if design == "clustered":
        return clustered_cost(size, l2_bytes, round(facts.loads))
    model = staged_cost(size, l2_bytes, round(facts.staged), facts.config.minibatch)
    # Conflicts and padding are of the reads of the stages, `itemsize` bytes of the first level.
    entry = (size.itemsize + 2) / facts.config.minibatch
    more = {
        **model.bytes_per_edge,
        "l1": model.bytes_per_edge["l1"]
        + size.itemsize * (facts.padding * facts.conflicts - 1)
        + entry * (facts.padding - 1),
        "l2": model.bytes_per_edge["l2"] + entry * (facts.padding - 1),
    }
    return KernelModel(more, model.flops_per_edge * facts.padding)


def choose_design(
    A: Any,
    precision: Precision,
    device: DeviceFacts,
    inputs: int,
    measured: Mapping[str, float] | None = None,
    override: str | None = None,
) -> Choice:
    """Choose the design of a layer.

    Parameters
    ----------
    A : csr_array, canonical, or LayerFacts
        Neurons out x neurons in.
    precision : Precision
    device : DeviceFacts
    inputs : int
        That are alive, as far as is known.
    measured : mapping of str to float, optional
        Edges per second, by design, of layers like this one; takes the place of the estimate,
        with LAUNCH added.
    override : str, optional
        The design that is wanted, whatever the estimates.

    Returns
    -------
    Choice
        Of equal estimates the first of DESIGNS.

    Raises
    ------
    InputError
        If there is no such design.
    """
    if override is not None and override not in DESIGNS:
        raise InputError(f"kernel {override!r} is none of {', '.join(DESIGNS)}")
    facts = A if isinstance(A, LayerFacts) else layer_facts(A, precision)
    estimates = {
        design: design_seconds(design, facts, precision, device, inputs) for design in DESIGNS
    }
    known = {design: each for design, each in (measured or {}).items() if design in DESIGNS}
    estimates |= {d: LAUNCH + facts.edges * inputs / rate for d, rate in known.items()}
    best = min(DESIGNS, key=estimates.__getitem__)
    said = ", ".join(
        f"{design} {1e6 * seconds:.3g} us" + (" (measured)" if design in known else "")
        for design, seconds in estimates.items()
    )
    said += f" for {inputs} inputs" + (", estimated" if len(known) < len(DESIGNS) else "")
    if override is not None:
        return Choice(override, estimates, f"asked for; {said}")
    return Choice(best, estimates, f"least of {said}")
