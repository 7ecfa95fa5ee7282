"""What sparse matrices let designs share.

Counted on samples of the rows: a search for clusters over all of them costs more than a choice
among designs may. Of the search the first round alone is made, so that there may be more clusters
than are counted. The same matrix gives the same counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn_gpu.compile.catalog import CLUSTER, StagedConfig, staged_configs
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.spmm.clusters import LEAST_SAVING, candidate_groups, savings
from portable_spdnn_gpu.spmm.staging import stage_rows

Array = npt.NDArray[Any]

SAMPLED_GROUPS = 64  # candidates for clusters whose savings are counted
SAMPLED_BLOCKS = 4  # of rows that are staged
QUARTER = 8  # lanes that shared memory serves at a time, 16 bytes each


@dataclass(frozen=True)
class LayerFacts:
    """What estimates of designs ask of a matrix A; see design_costs.py.

    Attributes
    ----------
    rows, inner, edges : int
        Shape and entries of A.
    loads : float
        Rows of B that clusters and rows alone load, added up.
    clustered_rows : int
        Rows in clusters.
    staged : float
        Rows of B that blocks stage, added up.
    padding : float
        Entries of slices over entries of A.
    conflicts : float
        Passes through shared memory for one read by a quarter of a warp, at least 1.
    config : StagedConfig
        For which the last three hold.
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


def layer_facts(A: Any, precision: Precision, config: StagedConfig | None = None) -> LayerFacts:
    """Look at a matrix.

    Parameters
    ----------
    A : csr_array, canonical, shape (neurons out, neurons in)
    precision : Precision
    config : StagedConfig, optional
        Of the staged design. Default: the usual one of the precision.

    Returns
    -------
    LayerFacts
        From samples of the rows, the same for the same matrix.
    """
    config = staged_configs(precision)[0] if config is None else config
    clustered_rows, saved = _clusters(A)
    staged, padding, conflicts = _stages(A, config)
    return LayerFacts(
        A.shape[0], A.shape[1], A.nnz, A.nnz - saved, clustered_rows, staged, padding, conflicts,
        config,
    )  # fmt: skip


def _clusters(A: Any) -> tuple[int, float]:
    """Estimate how many rows are clustered, and how many loads that saves."""
    filled = np.flatnonzero(np.diff(A.indptr))
    if filled.size < CLUSTER:
        return 0, 0.0
    candidates = candidate_groups(A, filled, 0)
    if not len(candidates):
        return 0, 0.0
    sample = candidates[_spread(len(candidates), SAMPLED_GROUPS)]
    saving = savings(A, sample)
    taken = saving >= LEAST_SAVING
    entries = np.diff(A.indptr)[sample].sum(axis=1)
    scale = len(candidates) / len(sample)
    saved = float((entries * saving)[taken].sum()) * scale
    return round(int(taken.sum()) * scale) * CLUSTER, saved


def _stages(A: Any, config: StagedConfig) -> tuple[float, float, float]:
    """Estimate rows of B staged, padding of slices, and passes through shared memory."""
    blocks = -(-A.shape[0] // config.rows)
    chosen = _spread(blocks, SAMPLED_BLOCKS)
    staged = sampled = slots = entries = passes = reads = 0
    for block in chosen:
        rows = A[block * config.rows : (block + 1) * config.rows]
        stages = stage_rows(rows, config)
        staged += stages.columns.size
        sampled += rows.nnz
        slots += stages.positions.size
        entries += rows.nnz
        quarters = np.sort(stages.positions.reshape(-1, QUARTER), axis=1)
        reads += len(quarters)
        passes += int(_passes(quarters).sum())
    if not sampled:
        return 0.0, 1.0, 1.0
    return staged / sampled * A.nnz, slots / entries, passes / reads


def _passes(quarters: Array) -> Array:
    """Return the passes for eight lanes' reads of a piece, given their rows of B, rising.

    Rows that agree modulo 8 have their pieces in the same banks (staged_spmm.cu), whatever the
    minibatch; a row that several lanes read is read once.
    """
    new = np.ones(quarters.shape, bool)
    new[:, 1:] = quarters[:, 1:] != quarters[:, :-1]
    banks = np.arange(len(quarters))[:, None] * QUARTER + quarters % QUARTER
    reads = np.bincount(banks[new], minlength=QUARTER * len(quarters))
    return np.asarray(reads.reshape(-1, QUARTER).max(axis=1))


def _spread(count: int, most: int) -> Array:
    """Return `most` of the numbers below `count`, or all, at equal distances."""
    return np.arange(min(count, most)) * count // max(min(count, most), 1)
