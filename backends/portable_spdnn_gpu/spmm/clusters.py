"""Clusters: rows of a matrix that have columns in common.

Rows of A whose least hash of a column agrees, which two rows do with the probability of their
Jaccard similarity, are put side by side, those with equal sets next to each other; runs of
CLUSTER of them are taken as clusters where that saves enough loads. Rows of equal sets, as all of
the challenge's are, are told first, by comparing; what else is common is found by sorting.

Source: A. Z. Broder, "On the Resemblance and Containment of Documents", SEQUENCES 1997.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from portable_spdnn.hashing import mix64
from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.layout.equal_outputs import EqualOutputs, whole_groups
from portable_spdnn_gpu.compile.catalog import CLUSTER
from portable_spdnn_gpu.device.interface import Array
from portable_spdnn_gpu.spmm.rows import (
    count_common,
    find_own_entries,
    hash_rows,
    have_equal_columns,
    interleave_rows,
)

ROUNDS = 3  # rounds of hashing; each finds most of what those before missed
SALT_SHIFT = 40  # bits, beyond any index: each round hashes other words
MIN_SAVING = 1 / 4  # part of the loads that a cluster has to save to be taken
MIN_ORDERED = 256  # clusters; fewer are computed at the same time, in whatever order
MAX_SHARERS = 16  # columns that more clusters share than this are left out of the ordering


@dataclass(frozen=True)
class Clusters:
    """Rows of a CSR matrix in the order and form that `clustered_spmm` reads.

    Attributes
    ----------
    rows : ndarray of int32, shape (CLUSTER clusters,)
        The rows of each cluster.
    bounds : ndarray of int32, shape ((CLUSTER + 1) clusters + 1,)
        The offsets into `indices`: for each cluster the common columns, then those of each row.
    indices : ndarray of int32
        The columns, rising in each part.
    starts : ndarray of int32, shape (clusters + 1,)
        Where the values of each cluster begin.
    values : ndarray
        The values of a cluster: for each common column those of all rows; then those of each
        row's own columns.
    rest : ndarray of int32
        The rows that are in no cluster, rising.
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

    @property
    def common_begins(self) -> Array:
        """Where the common columns of each cluster begin in `indices`."""
        return self.bounds[:-1].reshape(-1, CLUSTER + 1)[:, 0]

    @property
    def common_counts(self) -> Array:
        """How many common columns each cluster has."""
        return np.diff(self.bounds).reshape(-1, CLUSTER + 1)[:, 0]

    def common_columns(self) -> tuple[Array, Array, Array]:
        """Return the cluster, the column and the rank in the cluster of every common column."""
        counts = self.common_counts
        cluster = np.repeat(np.arange(self.count), counts)
        rank = np.arange(cluster.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return cluster, self.indices[self.common_begins[cluster] + rank].astype(np.int64), rank

    def cluster_of_rows(self, height: int) -> Array:
        """Return the cluster of each row of a matrix of so many, -1 for those in none."""
        cluster = np.full(height, -1)
        cluster[self.rows] = np.arange(self.rows.size) // CLUSTER
        return cluster


def cluster_rows(A: SparseOperand, first: Array | None = None) -> Clusters:
    """Find the clusters of a canonical csr_array and lay them out.

    `first` are the groups that `candidate_groups` found among its filled rows in round 0, if known.
    """
    left = np.diff(A.indptr) > 0
    equal, alike = [], []
    for attempt in range(ROUNDS):
        rest = np.flatnonzero(left)
        if rest.size < CLUSTER:
            break
        known, first = first, None  # of round 0
        candidates = candidate_groups(A, rest, attempt) if known is None else known
        same = np.empty(len(candidates), bool)
        have_equal_columns(A.indptr, A.indices, candidates, same)
        others = candidates[~same]
        equal.append(candidates[same])
        alike.append(others[savings(A, others) >= MIN_SAVING])
        left[np.concatenate([equal[-1], alike[-1]])] = False
    nothing = np.empty((0, CLUSTER), np.int64)
    groups = np.concatenate([nothing, *equal])
    return _joined(
        A.shape[0],
        _lay_out_equal(A, groups),
        _lay_out(A, np.concatenate([nothing, *alike])),
    )


def own_entries(A: SparseOperand, found: Clusters) -> tuple[Array, Array, Array]:
    """Return the row, the rank in it and the offset in A of entries outside common columns."""
    cluster, begins = found.cluster_of_rows(A.shape[0]), found.common_begins
    spans = np.stack([begins, begins + found.common_counts], axis=1)
    row, rank, entries = np.empty((3, A.nnz), np.int64)
    count = find_own_entries(A.indptr, A.indices, cluster, spans, found.indices, row, rank, entries)
    return row[:count], rank[:count], entries[:count]


def clusters_of_equal(found: EqualOutputs, value: Array, shape: tuple[int, int]) -> Clusters:
    """Lay out the clusters of a matrix that has no other entries, all of one value.

    Parameters
    ----------
    found : EqualOutputs
        Clusters of CLUSTER rows.
    value : ndarray, shape (1,)
        The value of all entries.
    shape : (int, int)
        Of the matrix.
    """
    found = found.reordered(neighbours_first(found.lengths, found.inputs, shape[1]))
    values = np.broadcast_to(value, CLUSTER * found.inputs.size)
    return _joined(shape[0], _all_common(found, values))


def neighbours_first(lengths: Array, columns: Array, width: int) -> Array:
    """Return an order of clusters in which those that share columns come soon after each other.

    Blocks take clusters in their order, so that a row of B that several clusters load is still in
    the second-level cache when the last of them loads it, even where B as a whole does not fit.

    Parameters
    ----------
    lengths : ndarray of int, shape (clusters,)
        How many columns each cluster has.
    columns : ndarray of int
        The columns of each, one cluster after the other.
    width : int
        How many columns the matrix has.

    References
    ----------
    E. Cuthill and J. McKee, "Reducing the Bandwidth of Sparse Symmetric Matrices", Proceedings
    of the 24th National Conference of the ACM, 1969.
    """
    if lengths.size < MIN_ORDERED:
        return np.arange(lengths.size)
    # A column that most clusters share tells nothing, and would make every two neighbours.
    rare = np.bincount(columns, minlength=width)[columns] <= MAX_SHARERS
    kept = columns[rare]
    ends = np.cumsum(rare)[np.cumsum(lengths) - 1]  # no cluster is without columns
    parts = np.ones(kept.size, np.int32), kept, np.concatenate(([0], ends))
    touches = sp.csr_array(parts, shape=(lengths.size, width))
    shared = sp.csr_matrix(touches @ touches.T)
    return np.asarray(reverse_cuthill_mckee(shared, symmetric_mode=True), np.int64)


def candidate_groups(A: SparseOperand, rows: Array, attempt: int) -> Array:
    """Return groups of CLUSTER rows that agree in a hash, shape (groups, CLUSTER).

    Parameters
    ----------
    A : csr_array, canonical
    rows : ndarray of int
        The rows to group, none of them empty.
    attempt : int
        The round of hashing, counted from 0.
    """
    columns = np.arange(A.shape[1], dtype=np.uint64)
    hashes = mix64(columns + np.uint64((attempt + 1) << SALT_SHIFT))
    least, whole = np.empty((2, rows.size), np.uint64)
    hash_rows(A.indptr, A.indices, rows, hashes, least, whole)
    order = np.lexsort((whole, least))
    return whole_groups(rows[order], least[order], CLUSTER)


def _entries(A: SparseOperand, rows: Array) -> tuple[Array, Array, Array]:
    """Return the group, the member and the offset in A of every entry of grouped rows."""
    flat = rows.ravel()
    lengths = np.diff(A.indptr)[flat]
    owner = np.repeat(np.arange(flat.size), lengths)
    return owner // CLUSTER, owner % CLUSTER, places_from(A.indptr[flat], lengths)


def places_from(begins: Array, lengths: Array) -> Array:
    """Return the numbers from each begin on, as many as its length, one after the other."""
    shifts = begins - (np.cumsum(lengths) - lengths)
    return np.asarray(np.arange(lengths.sum()) + np.repeat(shifts, lengths))


def _is_common(A: SparseOperand, group: Array, place: Array) -> Array:
    """Whether the column of each entry is in all rows of its group."""
    key = group * np.int64(A.shape[1]) + A.indices[place]
    _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse] == CLUSTER)


def savings(A: SparseOperand, rows: Array) -> Array:
    """Return the part of the loads that each group of CLUSTER rows, with entries, saves."""
    lengths = np.diff(A.indptr)
    common = np.empty(len(rows), np.int64)
    count_common(A.indptr, A.indices, rows, common)
    return np.asarray((CLUSTER - 1) * common / lengths[rows].sum(axis=1))


# Rows of clusters, columns in each section, the columns, entries of each cluster, and the values.
_LaidOut = tuple[Array, Array, Array, Array, Array]


def _lay_out_equal(A: SparseOperand, groups: Array) -> _LaidOut:
    first = groups[:, 0]
    lengths = A.indptr[first + 1] - A.indptr[first]
    found = EqualOutputs(groups, lengths, A.indices[places_from(A.indptr[first], lengths)])
    found = found.reordered(neighbours_first(lengths, found.inputs, A.shape[1]))
    values = np.empty(CLUSTER * found.inputs.size, A.data.dtype)
    interleave_rows(A.indptr, A.data, found.groups, values)
    return _all_common(found, values)


def _all_common(found: EqualOutputs, values: Array) -> _LaidOut:
    counts = np.zeros((found.lengths.size, CLUSTER + 1), np.int64)
    counts[:, 0] = found.lengths
    return found.groups.ravel(), counts.ravel(), found.inputs, found.lengths * CLUSTER, values


def _lay_out(A: SparseOperand, rows: Array) -> _LaidOut:
    group, member, place = _entries(A, rows)
    common = _is_common(A, group, place)
    section = np.where(common, 0, member + 1)
    column = A.indices[place]
    # Stable: members are in order already.
    order = np.argsort((group * (CLUSTER + 1) + section) * A.shape[1] + column, kind="stable")
    listed = order[~common[order] | (member[order] == 0)]
    bins = len(rows) * (CLUSTER + 1)
    counts = np.bincount(group[listed] * (CLUSTER + 1) + section[listed], minlength=bins)
    sizes = np.bincount(group, minlength=len(rows))
    return rows.ravel(), counts, column[listed], sizes, A.data[place[order]]


def _joined(height: int, *parts: _LaidOut) -> Clusters:
    """Put the parts of a matrix of so many rows together; one alone is not copied."""
    lists = zip(*parts, strict=True)
    rows, counts, columns, sizes, values = (
        arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for arrays in lists
    )
    rest = np.ones(height, bool)
    rest[rows] = False
    return Clusters(
        rows.astype(np.int32),
        np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        columns.astype(np.int32),
        np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        values,
        np.flatnonzero(rest).astype(np.int32),
    )
