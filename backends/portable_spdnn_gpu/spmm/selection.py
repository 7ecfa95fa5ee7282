"""The variant of a layer, from statistics of its matrix.

The estimate for C = A B, or the fused layer, with E entries of A and n columns of B:

    seconds = launches x LAUNCH + E n' / (rate x busy)

**rate**, edges per second, is what `KernelModel.bound` allows for the bytes that costs.py counts
for the variant, with three things that only the matrix tells (`ReuseStatistics`):

- *clustered*: `loads`, the rows of B that clusters and single rows load, added up.
- *staged*: `staged`, the rows of B that blocks list, added up; `padding`, the slots of the slices
  over E, each of which reads shared memory and a local index; and `conflicts`, how many passes
  through shared memory a read takes, since lanes whose rows of B lie in the same banks wait.
- *misses*: blocks go over all rows of A for one column panel of B before they go on to the next.
  What they load is in L2 if the panel of all k rows of B is, and as many panels as the blocks
  that run at a time are spread over. Of a panel twice the size of L2 half of the loads come from
  memory. Panels have 512 (csr), 256 (clustered) or a minibatch (staged) of columns: the narrow
  ones of staged stay in L2 where the networks are wide.

**n'** is n up to whole panels: a block computes all columns of its panel. **busy** is the part of
the multiprocessors that get a block, items / multiprocessors where there are fewer items
(clusters or rows, times panels) than multiprocessors. **LAUNCH** is what a launch costs besides:
layers of small networks are bound by it, and clustered with rows left over has two launches.

The terms of a bound overlap in time, so that the largest counts and not their sum. Latency is
left out; for a choice only the order of the estimates matters.

The statistics come from samples of the rows, because a search for clusters over all of them costs
more than the choice may; of that search the first round alone is made, so that there may be more
clusters than are counted. Clusters of outputs that are all equal are known, and counted. The same
matrix gives the same statistics, and these the same estimates; a measured rate (tuning.py) takes
the place of an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import scipy.sparse as sp

from portable_spdnn_gpu.compile.catalog import (
    CLUSTER,
    CLUSTER_PANEL,
    CSR_PANEL,
    StagedConfig,
    staged_configs,
)
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.interface import Array
from portable_spdnn_gpu.device.properties import DeviceProperties
from portable_spdnn_gpu.spmm.clusters import MIN_SAVING, savings
from portable_spdnn_gpu.spmm.costs import LayerSize, variant_cost
from portable_spdnn_gpu.spmm.output_rows import OutputRows
from portable_spdnn_gpu.spmm.packing import VARIANTS
from portable_spdnn_gpu.spmm.staging import QUARTER, count_stages

LAUNCH = 3e-6  # seconds; in a graph of launches, with the pause between two kernels
SAMPLED_GROUPS = 64  # candidates for clusters whose savings are counted
SAMPLED_BLOCKS = 4  # blocks of rows that are laid out as staged_spmm reads them


@dataclass(frozen=True)
class ReuseStatistics:
    """How often variants reuse a row of B that they loaded: what estimates read of a matrix A.

    Attributes
    ----------
    rows, inner, edges : int
        The shape of A and the number of its entries.
    loads : float
        The rows of B that clusters and single rows load, added up.
    clustered_rows : int
        How many rows are in clusters.
    staged : float
        The rows of B that blocks stage, added up.
    padding : float
        The slots of the slices over the entries of A, at least 1.
    conflicts : float
        Passes through shared memory for one read by a quarter of a warp, at least 1.
    config : StagedConfig
        The tile sizes for which the last three hold.
    constant : bool
        Whether all entries of A are equal.
    """

    rows: int
    inner: int
    edges: int
    loads: float
    clustered_rows: int
    staged: float
    padding: float
    conflicts: float
    config: StagedConfig
    constant: bool = False


def reuse_statistics(
    A: sp.csr_array | OutputRows,
    precision: Precision,
    config: StagedConfig | None = None,
) -> ReuseStatistics:
    """Return the statistics of a matrix, counted on samples of its rows.

    Parameters
    ----------
    A : csr_array, canonical, or OutputRows, shape (neurons out, neurons in)
    precision : Precision
    config : StagedConfig, optional
        The tile sizes of the staged variant. By default the precision's usual ones.
    """
    config = staged_configs(precision)[0] if config is None else config
    given = OutputRows.of(A)
    clustered_rows, saved = _count_clusters(given)
    staged, padding, conflicts = _count_stages(given, config)
    return ReuseStatistics(
        given.shape[0], given.shape[1], given.nnz, given.nnz - saved, clustered_rows, staged,
        padding, conflicts, config, given.constant,
    )  # fmt: skip


def _count_clusters(given: OutputRows) -> tuple[int, float]:
    """Return how many rows are in clusters, and how many loads that saves.

    They are counted where all clusters are known, else estimated from a sample.
    """
    if given.equal is not None:
        return given.equal.rows.size, given.nnz - given.equal.indices.size
    A, candidates = given.csr, given.candidates
    if not len(candidates):
        return 0, 0.0
    sample = candidates[_spread(len(candidates), SAMPLED_GROUPS)]
    saving = savings(A, sample)
    taken = saving >= MIN_SAVING
    entries = np.diff(A.indptr)[sample].sum(axis=1)
    scale = len(candidates) / len(sample)
    saved = float((entries * saving)[taken].sum()) * scale
    return round(int(taken.sum()) * scale) * CLUSTER, saved


def _count_stages(given: OutputRows, config: StagedConfig) -> tuple[float, float, float]:
    """Estimate the rows of B staged, the padding, and the passes through shared memory."""
    height, width = given.shape
    blocks = -(-height // config.rows)
    staged = slots = passes = entries = 0
    for block in _spread(blocks, SAMPLED_BLOCKS):
        first = int(block) * config.rows
        offsets, columns = given.between(first, min(first + config.rows, height))
        found = count_stages(offsets, columns, width, config.stage)
        staged, slots, passes = staged + found[0], slots + found[1], passes + found[2]
        entries += columns.size
    if not entries:
        return 0.0, 1.0, 1.0
    return staged / entries * given.nnz, slots / entries, passes / (slots / QUARTER)


def _spread(count: int, most: int) -> Array:
    """Return `most` of the numbers below `count`, or all, at equal distances."""
    return np.arange(min(count, most)) * count // max(min(count, most), 1)


@dataclass(frozen=True)
class Choice:
    """The variant of a layer, and why it was taken.

    Attributes
    ----------
    variant : str
    estimates : dict of str to float
        The seconds for the layer in each variant.
    reason : str
        One line for people.
    """

    variant: str
    estimates: dict[str, float] = field(hash=False)
    reason: str


def choose_variant(
    statistics: ReuseStatistics,
    precision: Precision,
    device: DeviceProperties,
    inputs: int,
    measured: Mapping[str, float] | None = None,
) -> Choice:
    """Choose the variant with the least estimate; of equal ones the first of VARIANTS.

    Parameters
    ----------
    statistics : ReuseStatistics
    precision : Precision
    device : DeviceProperties
    inputs : int
        How many inputs are expected to be active.
    measured : mapping of str to float, optional
        Edges per second, by variant, of layers like this one. A measured rate takes the place
        of the estimate, with LAUNCH added.
    """
    estimates = {
        variant: variant_seconds(variant, statistics, precision, device, inputs)
        for variant in VARIANTS
    }
    known = measured or {}
    estimates |= {name: LAUNCH + statistics.edges * inputs / rate for name, rate in known.items()}
    said = ", ".join(
        f"{variant} {1e6 * seconds:.3g} us" + (" (measured)" if variant in known else "")
        for variant, seconds in estimates.items()
    )
    said += f" for {inputs} inputs" + (", estimated" if len(known) < len(VARIANTS) else "")
    best = min(VARIANTS, key=estimates.__getitem__)
    return Choice(best, estimates, f"least of {said}")


def variant_seconds(
    variant: str,
    statistics: ReuseStatistics,
    precision: Precision,
    device: DeviceProperties,
    inputs: int,
) -> float:
    """Return the estimate for one variant and a number of active inputs; see the module."""
    if not statistics.clustered_rows and variant == "clustered":
        variant = "csr"  # what a matrix without clusters is packed as
    panel, items, launches = _grid(variant, statistics)
    panels = -(-inputs // panel)
    columns = panels * panel
    size = LayerSize(
        statistics.edges, statistics.rows, statistics.inner, inputs, precision.storage.itemsize,
        precision.sums.itemsize, statistics.constant,
    )  # fmt: skip
    loads, waste = float(size.edges), (1.0, 1.0)
    if variant == "clustered":
        loads = statistics.loads
    elif variant == "staged":
        loads, waste = statistics.staged, (statistics.padding, statistics.conflicts)
    model = variant_cost(variant, size, device.l2_bytes, round(loads), panel, *waste)
    loaded = size.itemsize * loads / max(size.edges, 1)
    # As many panels as resident blocks are spread over pass through L2 at the same time.
    at_a_time = min(panels, max(1, 2 * device.multiprocessors // max(items, 1)))
    in_use = size.inner * panel * at_a_time * size.itemsize
    missed = loaded * (1 - min(1.0, device.l2_bytes / in_use)) if in_use else 0.0
    # Nothing moves for the columns of a panel that are no inputs.
    memory = max(model.bytes_per_edge["memory"] * inputs / max(columns, 1), missed)
    model = replace(model, bytes_per_edge={**model.bytes_per_edge, "memory": memory})
    rate, _ = model.bound(device.limits)
    busy = min(1.0, items * panels / device.multiprocessors) if items and panels else 1.0
    return launches * LAUNCH + size.edges * columns / (rate * busy)


def _grid(variant: str, statistics: ReuseStatistics) -> tuple[int, int, int]:
    """Return the columns of a panel, what the rows are divided into, and the launches."""
    if variant == "staged":
        return statistics.config.minibatch, -(-statistics.rows // statistics.config.rows), 1
    if variant == "csr":
        return CSR_PANEL, statistics.rows, 1
    alone = max(statistics.rows - statistics.clustered_rows, 0)
    return CLUSTER_PANEL, statistics.clustered_rows // CLUSTER + alone, 1 + (alone > 0)
