"""A layer's weights by output: what variants are chosen by, and what is packed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.caching import cached_property
from portable_spdnn.layer import Layer
from portable_spdnn.sparse_arrays import common_value
from portable_spdnn_cpu.layout.equal_outputs import equal_outputs
from portable_spdnn_gpu.compile.catalog import CLUSTER
from portable_spdnn_gpu.device.interface import Array
from portable_spdnn_gpu.spmm.clusters import (
    Clusters,
    candidate_groups,
    cluster_rows,
    clusters_of_equal,
    own_entries,
    places_from,
)


class OutputRows:
    """A matrix with a row for each output, which is made where something reads it.

    Layers of one weight whose outputs are in clusters that have all inputs in common, as the
    challenge's are, are counted and packed without it: to transpose weights took most of planning.

    Parameters
    ----------
    source : Layer or csr_array
        The layer, or the canonical matrix.
    dtype : numpy dtype
        The type of the values.
    constant : bool
        Whether all values are equal.
    """

    def __init__(self, source: Layer | sp.csr_array, dtype: npt.DTypeLike, constant: bool) -> None:
        self._source, self._dtype, self.constant = source, dtype, constant
        self.nnz = source.nnz

    @classmethod
    def of_layer(cls, layer: Layer, dtype: npt.DTypeLike) -> OutputRows:
        """Return the weights of a layer, in a type."""
        return cls(layer, dtype, layer.constant is not None)

    @classmethod
    def of(cls, A: sp.csr_array | OutputRows, constant: bool | None = None) -> OutputRows:
        """Return a canonical csr_array as one; its values are compared if `constant` is None.

        What is one already stays.
        """
        if isinstance(A, OutputRows):
            return A
        return cls(A, A.dtype, common_value(A.data) is not None if constant is None else constant)

    @property
    def shape(self) -> tuple[int, int]:
        """The outputs and the inputs."""
        rows, columns = self._source.shape
        return (columns, rows) if isinstance(self._source, Layer) else (rows, columns)

    @cached_property
    def csr(self) -> sp.csr_array:
        """The matrix, canonical."""
        source = self._source
        return by_output(source.csr(self._dtype)) if isinstance(source, Layer) else source

    @cached_property
    def equal(self) -> Clusters | None:
        """The clusters of a layer, where each has all columns in common, and other rows have none.

        None also where that is not looked for: in a matrix, or a layer of several weights.
        """
        found = equal_outputs(self._source, CLUSTER) if isinstance(self._source, Layer) else None
        return None if found is None else clusters_of_equal(found, self.weight, self.shape)

    @property
    def weight(self) -> Array:
        """The value of all entries, if `constant`; shape (1,), or (0,) where there are none."""
        return self._source.data[:1].astype(self._dtype)

    @cached_property
    def candidates(self) -> Array:
        """The groups of CLUSTER rows that agree in the first hash."""
        return candidate_groups(self.csr, np.flatnonzero(np.diff(self.csr.indptr)), 0)

    @cached_property
    def clusters(self) -> Clusters:
        """The clusters of rows with columns in common."""
        return cluster_rows(self.csr, self.candidates) if self.equal is None else self.equal

    @cached_property
    def _cluster_of_rows(self) -> Array:
        return self.clusters.cluster_of_rows(self.shape[0])

    def between(self, first: int, last: int) -> tuple[Array, Array]:
        """Return offsets and columns of the rows of some consecutive outputs."""
        if self.equal is None:
            offsets = self.csr.indptr[first : last + 1]
            return offsets - offsets[0], self.csr.indices[offsets[0] : offsets[-1]]
        cluster = self._cluster_of_rows[first:last]
        lengths = np.where(cluster < 0, 0, self.equal.common_counts[cluster])
        columns = self.equal.indices[places_from(self.equal.common_begins[cluster], lengths)]
        return np.cumsum(np.append(0, lengths)), columns

    def outside_clusters(self) -> sp.csr_array:
        """Return the matrix with the entries alone of rows that are in no cluster."""
        if self.equal is not None:
            return sp.csr_array(self.shape, dtype=self.equal.values.dtype)
        rest = self.clusters.rest
        if rest.size == self.shape[0]:
            return self.csr
        kept = self.csr[rest]
        lengths = np.zeros(self.shape[0] + 1, kept.indptr.dtype)
        lengths[rest + 1] = np.diff(kept.indptr)
        return sp.csr_array((kept.data, kept.indices, np.cumsum(lengths)), shape=self.shape)

    def own_entries(self) -> tuple[Array, Array, Array, Array]:
        """Return row, rank in it, column and value of the entries outside common columns."""
        if self.equal is not None:
            nothing = np.empty((3, 0), np.int64)
            return *nothing, self.equal.values[:0]
        row, rank, entries = own_entries(self.csr, self.clusters)
        return row, rank, self.csr.indices[entries], self.csr.data[entries]


def by_output(W: sp.sparray) -> sp.csr_array:
    """Return W transposed, as a canonical csr_array."""
    transposed = sp.csr_array(W.T)
    transposed.sort_indices()
    return transposed
