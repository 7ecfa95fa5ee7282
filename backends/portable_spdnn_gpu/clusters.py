"""Rows with columns in common.

Rows of A whose least hash of a column agrees, which two rows do with the probability of their
Jaccard similarity, are put side by side, those with equal sets next to each other; runs of
CLUSTER of them are taken as clusters where that saves enough loads.

Source: A. Z. Broder, "On the Resemblance and Containment of Documents", SEQUENCES 1997.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.hashing import mix64
from portable_spdnn_gpu.kernel_catalog import CLUSTER

Array = npt.NDArray[Any]

ROUNDS = 3  # of hashing; each finds most of what those before missed
SALT_SHIFT = 40  # beyond any index: each round hashes other words
# A cluster is taken where it saves at least this part of the loads.
LEAST_SAVING = 1 / 4


@dataclass(frozen=True)
class Clusters:
    """Rows of a CSR matrix in the order and form that `clustered_spmm` reads.

    Attributes
    ----------
    rows : ndarray of int32, shape (CLUSTER clusters,)
    bounds : ndarray of int32, shape ((CLUSTER + 1) clusters + 1,)
        Offsets into `indices`: for each cluster the common columns, then those of each row.
    indices : ndarray of int32
    starts : ndarray of int32, shape (clusters + 1,)
        Where the values of a cluster begin.
    values : ndarray
        Of a cluster: those of each common column, row after row; then those of each row alone.
    rest : ndarray of int32
        The other rows, rising.
    """

    rows: Array
    bounds: Array
    indices: Array
    starts: Array
    values: Array
    rest: Array

    @property
    def count(self) -> int:
        """How many clusters there are."""
        return self.starts.size - 1


def cluster_rows(A: Any) -> Clusters:
    """Find the clusters of a canonical csr_array and lay them out."""
    rest = np.flatnonzero(np.diff(A.indptr))
    found = []
    for attempt in range(ROUNDS):
        if rest.size < CLUSTER:
            break
        candidates = _candidates(A, rest, attempt)
        taken = candidates[_savings(A, candidates) >= LEAST_SAVING]
        found.append(taken)
        rest = np.setdiff1d(rest, taken)
    rows = np.concatenate([np.empty((0, CLUSTER), np.int64), *found])
    return _lay_out(A, rows)


def _candidates(A: Any, rows: Array, attempt: int) -> Array:
    """Return groups of CLUSTER rows that agree in a hash, shape (groups, CLUSTER)."""
    columns = np.arange(A.shape[1], dtype=np.uint64)
    hashes = mix64(columns + np.uint64((attempt + 1) << SALT_SHIFT))
    of_entries = hashes[A.indices]
    begins = A.indptr[rows]
    filled = np.flatnonzero(np.diff(A.indptr))
    place = np.searchsorted(filled, rows)
    least = np.minimum.reduceat(of_entries, A.indptr[filled])[place]
    whole = np.add.reduceat(of_entries, A.indptr[filled])[place]
    order = np.lexsort((begins, whole, least))
    rank = np.arange(order.size)
    new = np.concatenate(([True], least[order][1:] != least[order][:-1]))
    run = np.maximum.accumulate(np.where(new, rank, 0))
    length = np.diff(np.concatenate((np.flatnonzero(new), [order.size])))[np.cumsum(new) - 1]
    kept = rank - run < length // CLUSTER * CLUSTER
    return np.asarray(rows[order[kept]]).reshape(-1, CLUSTER)


def _entries(A: Any, rows: Array) -> tuple[Array, Array, Array]:
    """Return group, member and place in A of every entry of grouped rows."""
    flat = rows.ravel()
    lengths = np.diff(A.indptr)[flat]
    owner = np.repeat(np.arange(flat.size), lengths)
    within = np.arange(owner.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return owner // CLUSTER, owner % CLUSTER, A.indptr[flat[owner]] + within


def _is_common(A: Any, group: Array, place: Array) -> Array:
    """Whether the column of each entry is in all rows of its group."""
    key = group * np.int64(A.shape[1]) + A.indices[place]
    _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse] == CLUSTER)


def _savings(A: Any, rows: Array) -> Array:
    """Return the part of the loads that each group saves."""
    group, _, place = _entries(A, rows)
    common = np.bincount(group[_is_common(A, group, place)], minlength=len(rows)) / CLUSTER
    return np.asarray((CLUSTER - 1) * common / np.bincount(group, minlength=len(rows)))


def _lay_out(A: Any, rows: Array) -> Clusters:
    group, member, place = _entries(A, rows)
    common = _is_common(A, group, place)
    section = np.where(common, 0, member + 1)
    column = A.indices[place]
    order = np.lexsort((member, column, section, group))
    listed = order[~common[order] | (member[order] == 0)]
    bins = len(rows) * (CLUSTER + 1)
    counts = np.bincount(group[listed] * (CLUSTER + 1) + section[listed], minlength=bins)
    sizes = np.bincount(group, minlength=len(rows))
    return Clusters(
        rows.ravel().astype(np.int32),
        np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        column[listed].astype(np.int32),
        np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        A.data[place[order]],
        np.setdiff1d(np.arange(A.shape[0]), rows).astype(np.int32),
    )
