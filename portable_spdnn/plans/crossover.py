"""Sparse or dense features: the density at which a layer costs the same on either."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

SAMPLE_INPUTS = 256
MIN_SAMPLE_INPUTS, SAMPLE_ENTRIES = 8, 1 << 18
# A sparse product is the cheaper, for a multiply-add, the denser its operand is: its cost is
# measured at a first guess, and again at the density that this gives.
FIRST_DENSITY = 0.02
MIN_DENSITY, MAX_DENSITY = 0.002, 0.5
REPEATS = 3


def break_even_density(
    W: Any, dense_seconds: float, run_sparse: Callable[[Any], Any], dtype: npt.DTypeLike
) -> float:
    """Return the density of features below which sparse ones are the cheaper.

    Parameters
    ----------
    W : csr_array, shape (neurons_in, neurons_out)
        Weights of a layer.
    dense_seconds : float
        What an edge costs for an input with dense features.
    run_sparse : callable
        Runs the layer on a csr_array of shape (inputs, neurons_in).
    dtype : numpy dtype
        Of the features.

    Returns
    -------
    float
        0 where the layer has no edges; above 1 where sparse features are always the cheaper.
    """
    if not W.nnz:
        return 0.0
    density = FIRST_DENSITY
    even = 0.0
    for _ in range(2):
        Y = sample_features(W.shape[0], density, dtype)
        row_nnz = np.diff(W.indptr)
        products = max(int(row_nnz[Y.indices].sum(dtype=np.int64)), 1)
        seconds = least_seconds(lambda: run_sparse(Y)) / products  # noqa: B023 - called at once
        even = float(dense_seconds / seconds)
        density = min(max(even, MIN_DENSITY), MAX_DENSITY)
    return even


def dense_seconds_per_edge(W: Any, run_dense: Callable[[Any], Any], dtype: npt.DTypeLike) -> float:
    """Measure what an edge costs for an input with dense features.

    Parameters
    ----------
    W : csr_array, shape (neurons_in, neurons_out)
    run_dense : callable
        Runs the layer on an ndarray of shape (inputs, neurons_in).
    dtype : numpy dtype
    """
    rows = max(int(W.shape[0]), 1)
    inputs = min(SAMPLE_INPUTS, max(MIN_SAMPLE_INPUTS, SAMPLE_ENTRIES // rows))
    Y = np.ones((inputs, W.shape[0]), dtype)
    return least_seconds(lambda: run_dense(Y)) / max(inputs * int(W.nnz), 1)


def sample_features(neurons: int, density: float, dtype: npt.DTypeLike) -> Any:
    """Return features of ones at random places: csr_array, shape (some inputs, neurons)."""
    each = max(1, int(density * neurons))
    inputs = min(SAMPLE_INPUTS, max(MIN_SAMPLE_INPUTS, SAMPLE_ENTRIES // each))
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, neurons, (inputs, each)), axis=1).ravel()
    indptr = np.arange(0, columns.size + 1, each)
    ones = np.ones(columns.size, dtype)
    Y = sp.csr_array((ones, columns.astype(np.int32), indptr), shape=(inputs, neurons))
    Y.sum_duplicates()
    Y.data[:] = 1
    return Y


def least_seconds(work: Callable[[], Any]) -> float:
    """Return the least seconds of REPEATS calls, after one that does not count."""
    work()
    least = np.inf
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - start)
    return float(least)
