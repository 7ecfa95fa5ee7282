"""Clusters of outputs that read the same inputs, told from weights as they are stored, by input.

Layers whose outputs are all in such clusters, with one weight for all edges, as the challenge's
are, need not be transposed: what kernels read of them are the inputs of each cluster. The outputs
that agree in a hash of their inputs are put together; then every input has to meet all outputs
of a cluster or none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from portable_spdnn.hashing import mix64
from portable_spdnn.layer import Layer
from portable_spdnn_gpu.compile.catalog import CLUSTER
from portable_spdnn_gpu.spmm.clusters import Clusters, clusters_of_equal_rows, whole_groups
from portable_spdnn_gpu.spmm.rows import hash_outputs, list_inputs

# The low bits of an output's hash count its inputs; the others are the sum of the inputs' hashes.
COUNT_BITS = 24


def equal_outputs(layer: Layer, dtype: npt.DTypeLike) -> Clusters | None:
    """Return the clusters of a layer of one weight; None where an output with edges is in none.

    Values are of `dtype`.

    >>> import portable_spdnn as ps
    >>> equal_outputs(ps.radixnet(1024, 1).layers[0], "float32").count
    64
    """
    inputs, outputs = layer.shape
    if layer.constant is None or inputs >> COUNT_BITS:
        return None
    marks = mix64(np.arange(inputs, dtype=np.uint64)) << np.uint64(COUNT_BITS) | np.uint64(1)
    hashes = np.zeros(outputs, np.uint64)
    hash_outputs(layer.indptr, layer.indices, marks, hashes)
    order = filled = np.flatnonzero(hashes)
    for shift in (16, 32, 48):  # NumPy sorts 16 bits by their digits, many times as fast as 64
        digits = (hashes[order] >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    groups = whole_groups(order, hashes[order])
    if groups.size < filled.size:
        return None
    cluster = np.empty(outputs, np.int32)
    cluster[groups] = np.arange(len(groups), dtype=np.int32)[:, None]
    lengths = (hashes[groups[:, 0]] & np.uint64((1 << COUNT_BITS) - 1)).astype(np.int64)
    columns = np.empty(lengths.sum(), np.int32)
    if CLUSTER * columns.size != layer.nnz:
        return None
    seen, places = np.zeros(len(groups), np.int32), np.cumsum(lengths) - lengths
    if not list_inputs(layer.indptr, layer.indices, cluster, seen, places, columns):
        return None
    return clusters_of_equal_rows(
        groups, lengths, columns, layer.data[:1].astype(dtype), layer.shape
    )
