"""What plans ask about features in a backend's memory space."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.operations.operands import AnyArray, SparseOperand


class FeatureQueries:
    """Answers for NumPy and SciPy; a backend overrides them for its own array types."""

    # What a backend gives; `portable_spdnn.backend` says what each does.
    upload: Callable[[Array | SparseOperand], AnyArray]
    download: Callable[[AnyArray], AnyArray]

    def is_sparse(self, array: object) -> bool:
        """Whether `array` is one of the sparse types that this backend takes."""
        return bool(sp.issparse(array))

    def active_inputs(self, features: AnyArray) -> Array:
        """Return the rows with a nonzero feature (NaN is one): int64, rising, host memory."""
        host = self.download(features)
        if sp.issparse(host):
            return np.flatnonzero(np.diff(host.indptr)).astype(np.int64)
        return np.flatnonzero((host != 0).any(axis=1)).astype(np.int64)

    def take_inputs(self, features: AnyArray, rows: Array) -> AnyArray:
        """Return the given rows of features, in the backend's memory space."""
        return features[rows]

    def nonzeros(self, features: AnyArray) -> int:
        """Return how many features are nonzero, or stored where they are sparse."""
        if self.is_sparse(features):
            return int(features.nnz)
        return int(np.count_nonzero(self.download(features)))

    def convert_features(self, features: AnyArray, sparse: bool) -> AnyArray:
        """Return features as sparse or as dense ones, in the backend's memory space."""
        host = self.download(features)
        return self.upload(sp.csr_array(host) if sparse else host.toarray())

    def multiply_adds(self, weights: AnyArray, features: AnyArray) -> int:
        """Return the multiply-adds of Y W: for sparse Y those of its stored entries alone."""
        if not self.is_sparse(features):
            return int(features.shape[0]) * int(weights.nnz)
        row_nnz = np.diff(self.download(weights.indptr))
        if row_nnz.size and (row_nnz == row_nnz[0]).all():
            return int(features.nnz) * int(row_nnz[0])
        return int(row_nnz[self.download(features.indices)].sum(dtype=np.int64))
