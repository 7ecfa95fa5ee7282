"""Rows of features as exact passes compare them, wherever they lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn.passes.equal_rows import equal_rows
from portable_spdnn.passes.uniform_rows import uniform_rows


class ComparedRows(ABC):
    """The features of some inputs, a row for each.

    They may lie on a device: what is asked of them is answered there, and only numbers of rows,
    and a number for each row, come back.

    Attributes
    ----------
    shape : (int, int)
        Rows and neurons.
    """

    shape: tuple[int, int]

    @abstractmethod
    def equal(self) -> tuple[Array, Array]:
        """Group rows that are equal to the bit; see `portable_spdnn.passes.equal_rows`."""

    @abstractmethod
    def uniform(self) -> tuple[Array, Array]:
        """Return the rows with entries that are all equal, and that entry of each.

        Returns
        -------
        rows : ndarray of int64
            Rising. A NaN equals nothing, and rows without an entry are left out; so may be those of
            binary features.
        values : ndarray, shape of `rows`
        """

    @abstractmethod
    def take(self, rows: Array) -> ComparedRows:
        """Return the given rows."""

    @abstractmethod
    def fetched(self) -> Any:
        """Return the rows in host memory: `Features`."""


class HostRows(ComparedRows):
    """Rows in host memory.

    Parameters
    ----------
    features : PackedFeatures, ndarray or canonical csr_array

    Examples
    --------
    >>> import numpy as np
    >>> rows = HostRows(np.array([[1.0, 2.0], [3.0, 3.0], [1.0, 2.0]]))
    >>> [found.tolist() for found in rows.equal()], [found.tolist() for found in rows.uniform()]
    ([[0, 1], [0, 1, 0]], [[1], [3.0]])
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self.shape = features.shape

    def equal(self) -> tuple[Array, Array]:
        """Group rows that are equal to the bit."""
        return equal_rows(self.features)

    def uniform(self) -> tuple[Array, Array]:
        """Return the rows with entries that are all equal, and that entry of each."""
        if isinstance(self.features, PackedFeatures) or not self.shape[1]:
            return np.empty(0, np.int64), np.empty(0)
        rows = np.flatnonzero(uniform_rows(self.features))
        entries = self.features[rows][:, :1]
        return rows, (entries if isinstance(entries, np.ndarray) else entries.toarray())[:, 0]

    def take(self, rows: Array) -> HostRows:
        """Return the given rows."""
        return HostRows(self.features[rows])

    def fetched(self) -> Features:
        """Return the rows."""
        return self.features


def stacked(rows: Any, values: Array) -> Any:
    """Return rows, ndarray or csr_array, and below them one of equal features for each value."""
    if not values.size:
        return rows
    below = np.repeat(values[:, None], rows.shape[1], axis=1)
    if isinstance(rows, np.ndarray):
        return np.concatenate((rows, below.astype(rows.dtype)))
    return sp.vstack((rows, sp.csr_array(below)), format="csr")
