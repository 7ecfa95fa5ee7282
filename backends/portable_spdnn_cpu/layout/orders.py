"""The breadth-first order of clusters, and the row permutation of tiles.

They let a layer stream through the caches. Clusters are computed along the inputs that they have
in common, breadth first: one that reads what the one before read follows it. In a tile the
features of a layer lie in the order in which they are first read, wherever the network has them:
the row permutation of the layer. So reads go through a tile from its begin to its end, in
neighbouring rows, which do not compete for the same sets of a cache as the strides of structured
networks do; where an output goes may lie anywhere, but is written once. Tiles may then be larger
than a cache without much loss.

No sum depends on either order: the entries of a sum keep theirs.

Source of the breadth-first order: E. Cuthill and J. McKee, "Reducing the Bandwidth of Sparse
Symmetric Matrices", ACM National Conference 1969; here over the graph of clusters and inputs.
"""

from __future__ import annotations

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel
from portable_spdnn_cpu.layout.clusters import same_inputs
from portable_spdnn_cpu.layout.tile_shape import CLUSTER

NO_ROW = -1


def order_clusters(
    offsets: Array, indices: Array, order: Array, clusters: int, inputs: int
) -> Array:
    """Let clusters that share inputs follow each other.

    Parameters
    ----------
    offsets, indices : ndarray
        CSR by output; the inputs of each rise.
    order : ndarray of int64, shape (outputs,)
        Clusters of CLUSTER outputs, then the others, which keep their order.
    clusters : int
    inputs : int
        Of the layer.

    Returns
    -------
    ndarray of int64, shape (outputs,)
    """
    members = order[: CLUSTER * clusters].reshape(clusters, CLUSTER)
    ranked = members[rank_clusters(offsets, indices, members[:, 0], inputs)]
    return np.concatenate([ranked.ravel(), order[CLUSTER * clusters :]])


def rank_clusters(offsets: Array, indices: Array, outputs: Array, inputs: int) -> Array:
    """Return the order of clusters, breadth first over common inputs.

    Parameters
    ----------
    offsets, indices : ndarray
        CSR; the inputs of each row rise.
    outputs : ndarray of int64, shape (clusters,)
        One row for each cluster, which has at least one input; the other rows are not read.
    inputs : int
        How many inputs the layer has.

    Returns
    -------
    ndarray of int64, shape (clusters,)
        The numbers of the clusters, as places in `outputs`.
    """
    # Stable: clusters with equal inputs, neighbours, stay so.
    rising = np.argsort(indices[offsets[outputs]], kind="stable")
    outputs = outputs[rising]
    repeated = np.zeros(outputs.size, np.bool_)
    find_repeated(offsets, indices, outputs, repeated)
    begins = np.flatnonzero(~repeated)
    ranks = np.empty_like(begins)
    breadth_first(offsets, indices, outputs[begins], ranks, np.zeros(inputs + 1, np.int64))
    lengths = np.diff(np.append(begins, outputs.size))[ranks]
    shifts = begins[ranks] - np.cumsum(lengths) + lengths
    return np.asarray(rising[np.arange(outputs.size) + np.repeat(shifts, lengths)])


def permute_rows(laid_indices: Array, inputs: int) -> Array:
    """Give inputs rows of a tile in the order in which clusters read them.

    Parameters
    ----------
    laid_indices : ndarray
        Of all clusters, as `clusters.lay_out` writes them.
    inputs : int
        Of the layer.

    Returns
    -------
    ndarray of int32, shape (inputs,)
        Tile row of each input. Those that no cluster reads come last, rising.
    """
    rows = np.full(inputs, NO_ROW, np.int32)
    number_rows(laid_indices, rows)
    return rows


@kernel
def find_repeated(offsets: Array, indices: Array, outputs: Array, repeated: Array) -> None:
    """Mark outputs that have the inputs of the one before."""
    for number in range(1, outputs.size):
        repeated[number] = same_inputs(offsets, indices, outputs[number - 1 : number + 1])


@kernel
def breadth_first(
    offsets: Array, indices: Array, outputs: Array, order: Array, begins: Array
) -> None:
    """Fill `order` with the positions of `outputs`, breadth first over common inputs.

    Each search begins with the least position that none before reached. `begins`, of as many as
    inputs and one, comes as zeros.
    """
    # The readers of each input, by a counting sort: readers[begins[n] : ends[n]] for input n.
    for output in outputs:
        for k in range(offsets[output], offsets[output + 1]):
            begins[indices[k] + 1] += 1
    for neuron in range(begins.size - 1):
        begins[neuron + 1] += begins[neuron]
    readers = np.empty(begins[-1], np.int32)
    ends = begins[:-1].copy()
    for position in range(outputs.size):
        for k in range(offsets[outputs[position]], offsets[outputs[position] + 1]):
            readers[ends[indices[k]]] = position
            ends[indices[k]] += 1
    # `order` is its own queue. Every input is gone through once, so that the time is linear.
    reached = np.zeros(outputs.size, np.bool_)
    head = tail = 0
    for start in range(outputs.size):
        if not reached[start]:
            reached[start] = True
            order[tail] = start
            tail += 1
        while head < tail:
            output = outputs[order[head]]
            head += 1
            for k in range(offsets[output], offsets[output + 1]):
                neuron = indices[k]
                for reader in readers[begins[neuron] : ends[neuron]]:
                    if not reached[reader]:
                        reached[reader] = True
                        order[tail] = reader
                        tail += 1
                ends[neuron] = begins[neuron]  # all its readers are reached


@kernel
def number_rows(laid_indices: Array, rows: Array) -> None:
    """Number inputs as they come in `laid_indices`, then all others, in `rows`."""
    row = 0
    for neuron in laid_indices:
        if rows[neuron] == NO_ROW:
            rows[neuron] = row
            row += 1
    for neuron in range(rows.size):
        if rows[neuron] == NO_ROW:
            rows[neuron] = row
            row += 1
