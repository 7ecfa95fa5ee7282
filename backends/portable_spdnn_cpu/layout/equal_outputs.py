"""Outputs that read the same inputs, told from weights as they are stored, by input.

Layers of one weight whose outputs are all in clusters of equal ones, as the challenge's are, need
not be transposed to be packed, which takes most of the time: kernels read the inputs of each
cluster. The outputs that agree in a hash of their inputs are put together; then every input has to
meet all outputs of a cluster or none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from portable_spdnn.hashing import mix64
from portable_spdnn.layer import Layer
from portable_spdnn_cpu.jit.compilation import Array, kernel

# The low bits of an output's hash count its inputs; the others are the sum of the inputs' hashes.
COUNT_BITS = 24


class EqualOutputs(NamedTuple):
    """Clusters of outputs, each of which reads the same inputs as the others of its cluster.

    Attributes
    ----------
    groups : ndarray of int64, shape (clusters, size)
        The outputs of each cluster, rising.
    lengths : ndarray of int, shape (clusters,)
        How many inputs each cluster has, at least one.
    inputs : ndarray of int
        The inputs of each cluster, rising, one cluster after the other.
    """

    groups: Array
    lengths: Array
    inputs: Array

    def reordered(self, order: Array) -> EqualOutputs:
        """Return all clusters in another order."""
        lengths, inputs = self.lengths[order], np.empty_like(self.inputs)
        begins = (np.cumsum(self.lengths) - self.lengths)[order]
        copy_lists(begins, lengths, self.inputs, inputs)
        return EqualOutputs(self.groups[order], lengths, inputs)


def equal_outputs(layer: Layer, size: int) -> EqualOutputs | None:
    """Return the clusters of a layer of one weight, where all outputs with edges are in one.

    Parameters
    ----------
    layer : Layer
    size : int
        The outputs of a cluster.

    Returns
    -------
    EqualOutputs or None
        None where an output with edges is in no cluster of `size` equal ones, where weights differ
        or there are none, and for layers of 2^24 inputs and more.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> equal_outputs(ps.radixnet(1024, 1).layers[0], 4).groups.shape
    (256, 4)
    """
    inputs, outputs = layer.shape
    if layer.constant is None or layer.nnz % size or inputs >> COUNT_BITS:
        return None
    numbers = np.arange(1, inputs + 1, dtype=np.uint64)  # of 0 the hash is 0, which tells nothing
    marks = mix64(numbers) << np.uint64(COUNT_BITS) | np.uint64(1)
    hashes = np.zeros(outputs, np.uint64)
    add_marks(layer.indptr, layer.indices, marks, hashes)
    order = np.flatnonzero(hashes)
    filled = order.size
    # NumPy sorts 16 bits by their digits, many times as fast as 64. The lowest, of the count, are
    # left out: what they would put in order is told apart by the whole hash.
    for shift in (16, 32, 48):
        digits = (hashes[order] >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    groups = whole_groups(order, hashes[order], size)
    if groups.size < filled:
        return None
    cluster = np.empty(outputs, np.int32)
    cluster[groups] = np.arange(len(groups), dtype=np.int32)[:, None]
    lengths = (hashes[groups[:, 0]] & np.uint64((1 << COUNT_BITS) - 1)).astype(np.int64)
    found = np.empty(lengths.sum(), np.int32)
    seen, places = np.zeros(len(groups), np.int32), np.cumsum(lengths) - lengths
    if not list_inputs(layer.indptr, layer.indices, cluster, size, seen, places, found):
        return None
    return EqualOutputs(groups, lengths, found)


def whole_groups(rows: Array, hashes: Array, size: int) -> Array:
    """Return the first size, 2 size, ... rows of each run of one hash, shape (groups, size)."""
    rank = np.arange(rows.size)
    begins = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1])[: rows.size])
    lengths = np.diff(begins, append=rows.size)
    kept = rank - np.repeat(begins, lengths) < np.repeat(lengths // size * size, lengths)
    return np.asarray(rows[kept]).reshape(-1, size)


@kernel
def add_marks(indptr: Array, indices: Array, marks: Array, hashes: Array) -> None:
    """Add the mark of each row to the hashes of its columns."""
    # Indices are unsigned: see `jit.compilation`.
    for row in range(indptr.size - 1):
        for entry in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            hashes[np.uint64(indices[entry])] += marks[row]


@kernel
def list_inputs(
    indptr: Array, indices: Array, cluster: Array, size: int, seen: Array, places: Array,
    inputs: Array,
) -> bool:  # fmt: skip
    """List the rows that have the columns of each cluster, rising; false where one has only some.

    `cluster` has the cluster of each column, `seen` a zero for each cluster of `size` columns.
    `places` come as where the list of each begins in `inputs`, and leave as where it ends: each of
    its columns has to be in as many rows as there is space.
    """
    one = np.uint64(1)  # unsigned, as above
    for row in range(indptr.size - 1):
        begin, end = np.uint64(indptr[row]), np.uint64(indptr[row + 1])
        for entry in range(begin, end):
            seen[np.uint64(cluster[np.uint64(indices[entry])])] += 1
        for entry in range(begin, end):
            number = np.uint64(cluster[np.uint64(indices[entry])])
            if seen[number] == 0:
                continue
            if seen[number] != size:
                return False
            seen[number] = 0
            place = np.uint64(places[number])
            inputs[place] = row
            places[number] = place + one
    return True


@kernel
def copy_lists(begins: Array, lengths: Array, source: Array, target: Array) -> None:
    """Copy lists of these lengths, which begin there in the source, one after the other."""
    place = 0
    for number in range(begins.size):
        for item in range(begins[number], begins[number] + lengths[number]):
            target[place] = source[item]
            place += 1
