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
    """Clusters of outputs that read the same inputs; all other outputs of the layer have no edge.

    Attributes
    ----------
    groups : ndarray of int64, shape (clusters, size)
        The outputs of each, rising; clusters of equal inputs follow each other.
    lengths : ndarray of int64, shape (clusters,)
        How many inputs each has, at least one.
    inputs : ndarray of int32
        The inputs of each, rising, one cluster after the other.
    """

    groups: Array
    lengths: Array
    inputs: Array

    def in_order(self, order: Array) -> EqualOutputs:
        """Return the clusters in another order, all of them."""
        lengths, inputs = self.lengths[order], np.empty_like(self.inputs)
        begins = (np.cumsum(self.lengths) - self.lengths)[order]
        copy_lists(begins, lengths, self.inputs, inputs)
        return EqualOutputs(self.groups[order], lengths, inputs)


def equal_outputs(layer: Layer, size: int) -> EqualOutputs | None:
    """Return clusters of `size` outputs of a layer; None where one with edges is in none.

    None also where weights differ.

    >>> import portable_spdnn as ps
    >>> equal_outputs(ps.radixnet(1024, 1).layers[0], 4).groups.shape
    (256, 4)
    """
    inputs, outputs = layer.shape
    if layer.constant is None or inputs >> COUNT_BITS:
        return None
    marks = mix64(np.arange(inputs, dtype=np.uint64)) << np.uint64(COUNT_BITS) | np.uint64(1)
    hashes = np.zeros(outputs, np.uint64)
    add_marks(layer.indptr, layer.indices, marks, hashes)
    order = filled = np.flatnonzero(hashes)
    for shift in (16, 32, 48):  # NumPy sorts 16 bits by their digits, many times as fast as 64
        digits = (hashes[order] >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    groups = whole_groups(order, hashes[order], size)
    if groups.size < filled.size:
        return None
    cluster = np.empty(outputs, np.int32)
    cluster[groups] = np.arange(len(groups), dtype=np.int32)[:, None]
    lengths = (hashes[groups[:, 0]] & np.uint64((1 << COUNT_BITS) - 1)).astype(np.int64)
    found = np.empty(lengths.sum(), np.int32)
    if size * found.size != layer.nnz:
        return None
    seen, places = np.zeros(len(groups), np.int32), np.cumsum(lengths) - lengths
    if not list_inputs(layer.indptr, layer.indices, cluster, size, seen, places, found):
        return None
    return EqualOutputs(groups, lengths, found)


def whole_groups(rows: Array, hashes: Array, size: int) -> Array:
    """Return the first size, 2 size, ... rows of each run of one hash, shape (groups, size)."""
    rank = np.arange(rows.size)
    begins = np.flatnonzero(np.diff(hashes, prepend=~hashes[:1]) != 0)
    lengths = np.diff(begins, append=rows.size)
    kept = rank - np.repeat(begins, lengths) < np.repeat(lengths // size * size, lengths)
    return np.asarray(rows[kept]).reshape(-1, size)


@kernel
def add_marks(indptr: Array, indices: Array, marks: Array, hashes: Array) -> None:
    """Add the mark of each row to the hashes of its columns."""
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
    one = np.uint64(1)
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
