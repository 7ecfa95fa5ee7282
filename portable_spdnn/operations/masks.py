"""Masks of sparse attention: which keys (columns) each query (row) looks at.

Each function returns a boolean csr_array in canonical form; its work grows with the entries of
the mask, not with its area. `union` and `intersection` combine masks: a band and random entries
off it is the mask of Sputnik's Transformer, a causal band is an intersection.

>>> import portable_spdnn as ps
>>> mask = ps.masks.union(ps.masks.band(4096, 256), ps.masks.random(4096, sparsity=0.95))
>>> round(mask.nnz / 4096**2, 3)
0.108

Sources: R. Child, S. Gray, A. Radford, I. Sutskever, "Generating Long Sequences with Sparse
Transformers", arXiv:1904.10509 (2019), for strided masks; T. Gale, M. Zaharia, C. Young, E. Elsen,
"Sparse GPU Kernels for Deep Learning", SC 2020, section VII, for a band with random entries.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arguments import checked_count, shown
from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.host import require_memory
from portable_spdnn.sparse_arrays import canonical_csr, wide_csr

MOST = 1 << 31  # queries or keys


def band(length: int, width: int, keys: int | None = None) -> sp.csr_array:
    """Return a dense band: each query sees the `width` keys around its own position.

    Query i sees the keys i - width // 2 to i - width // 2 + width - 1, those that there are.

    Parameters
    ----------
    length : int
        Queries.
    width : int
        Keys for each query away from the ends, at least 1.
    keys : int, optional
        Default: as many as queries.

    Raises
    ------
    InputError
        If an argument is no whole number of its range.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> ps.masks.band(4, 2).toarray().astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """
    rows, columns = _shape("band", length, keys)
    width = checked_count("band: width", width)
    first = np.arange(rows, dtype=np.int64) - width // 2
    return _ranges(first, np.minimum(first + width, columns), columns)


def causal(length: int, keys: int | None = None) -> sp.csr_array:
    """Return the lower triangle: each query sees its own position and those before.

    Parameters
    ----------
    length : int
        Queries.
    keys : int, optional
        Default: as many as queries.

    Raises
    ------
    InputError
        If an argument is no whole number of its range.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> ps.masks.causal(3).toarray().astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    rows, columns = _shape("causal", length, keys)
    ends = np.minimum(np.arange(1, rows + 1, dtype=np.int64), columns)
    return _ranges(np.zeros(rows, np.int64), ends, columns)


def block(length: int, size: int, keys: int | None = None) -> sp.csr_array:
    """Return dense blocks along the diagonal: i // size = j // size.

    Parameters
    ----------
    length : int
        Queries.
    size : int
        Queries and keys of a block, at least 1; the last may be smaller.
    keys : int, optional
        Default: as many as queries.

    Raises
    ------
    InputError
        If an argument is no whole number of its range.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> ps.masks.block(3, 2).toarray().astype(int).tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    rows, columns = _shape("block", length, keys)
    size = checked_count("block: size", size, most=MOST)
    first = np.arange(rows, dtype=np.int64) // size * size
    return _ranges(first, np.minimum(first + size, columns), columns)


def strided(length: int, stride: int, keys: int | None = None) -> sp.csr_array:
    """Return every stride-th key from each query's own position, in both directions.

    Parameters
    ----------
    length : int
        Queries.
    stride : int
        At least 1.
    keys : int, optional
        Default: as many as queries.

    Raises
    ------
    InputError
        If an argument is no whole number of its range.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> ps.masks.strided(4, 2).toarray().astype(int).tolist()
    [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
    """
    rows, columns = _shape("strided", length, keys)
    stride = checked_count("strided: stride", stride, most=MOST)
    first = np.arange(rows, dtype=np.int64) % stride
    return _ranges(first, np.full(rows, columns), columns, stride)


def random(length: int, sparsity: float, seed: int = 0, keys: int | None = None) -> sp.csr_array:
    """Return entries anywhere, each with the probability 1 - sparsity, independently.

    Parameters
    ----------
    length : int
        Queries.
    sparsity : float
        Expected part of the entries that are not stored, 0 to 1.
    seed : int
        The same seed gives the same mask.
    keys : int, optional
        Default: as many as queries.

    Raises
    ------
    InputError
        If an argument is no number of its range.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> mask = ps.masks.random(1000, sparsity=0.95, seed=1)
    >>> round(mask.nnz / 1000**2, 3)
    0.05
    """
    rows, columns = _shape("random", length, keys)
    density = 1 - _checked_fraction("random: sparsity", sparsity)
    rng = np.random.default_rng(checked_count("random: seed", seed, least=0))
    size = rows * columns
    require_memory(40 * int(density * size), f"mask of {rows} x {columns}")
    places = np.empty(0, np.int64)
    if density > 0 and size:
        # Distances from one entry to the next, rows one after the other, are geometric.
        pieces, last = [], -1
        while last < size:
            piece = rng.geometric(density, int((size - last) * density * 1.01) + 100)
            pieces.append(last + np.cumsum(np.minimum(piece, size + 1)))
            last = int(pieces[-1][-1])
        places = np.concatenate(pieces)
        places = places[: np.searchsorted(places, size)]
    counts = np.bincount(places // max(columns, 1), minlength=rows)
    return _csr(counts, places % max(columns, 1), columns)


def union(*masks: Any) -> sp.csr_array:
    """Return the entries that any of some masks stores.

    Parameters
    ----------
    *masks : sparse, all of one shape
        Their patterns alone count.

    Raises
    ------
    InputError
        If there are none, or one is not sparse or of another shape.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> mask = ps.masks.union(ps.masks.band(4, 1), ps.masks.strided(4, 3))
    >>> mask.toarray().astype(int).tolist()
    [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]]
    """
    total = sum(_patterns("union", masks))
    return _of_sum(total)


def intersection(*masks: Any) -> sp.csr_array:
    """Return the entries that all of some masks store.

    Parameters
    ----------
    *masks : sparse, all of one shape
        Their patterns alone count.

    Raises
    ------
    InputError
        If there are none, or one is not sparse or of another shape.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> both = ps.masks.intersection(ps.masks.band(3, 3), ps.masks.causal(3))
    >>> both.toarray().astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    first, *others = _patterns("intersection", masks)
    for other in others:
        first = first.multiply(other)
    return _of_sum(sp.csr_array(first))


def _shape(name: str, length: Any, keys: Any) -> tuple[int, int]:
    rows = checked_count(f"{name}: length", length, least=0, most=MOST)
    columns = rows if keys is None else checked_count(f"{name}: keys", keys, least=0, most=MOST)
    require_memory(40 * rows, f"mask of {rows} x {columns}")
    return rows, columns


def _checked_fraction(name: str, value: Any) -> float:
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not 0 <= value <= 1:
        raise InputError(f"{name} is {shown(value)}; a number from 0 to 1 is expected")
    return float(value)


def _ranges(first: Array, end: Array, columns: int, step: int = 1) -> sp.csr_array:
    """Return the mask whose row i has the keys first[i], first[i] + step, ... below end[i]."""
    first = np.maximum(first, 0)
    counts = np.maximum(-(-(end - first) // step), 0)
    require_memory(40 * int(counts.sum()), f"mask of {counts.size} x {columns}")
    starts = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(starts, counts)
    return _csr(counts, np.repeat(first, counts) + step * within, columns)


def _csr(counts: Array, indices: Array, columns: int) -> sp.csr_array:
    indptr = np.concatenate(([0], np.cumsum(counts)))
    mask = wide_csr(np.ones(indices.size, bool), indices, indptr, (counts.size, columns))
    mask.has_canonical_format = True
    return mask


def _patterns(name: str, masks: tuple[Any, ...]) -> list[Any]:
    """Return masks as csr_array of ones in int16, checked."""
    if not masks:
        raise InputError(f"{name}: at least one mask is expected")
    found: list[Any] = []
    for mask in masks:
        if not sp.issparse(mask):
            raise InputError(f"{name}: a mask is {type(mask).__name__}; scipy.sparse is expected")
        csr = canonical_csr(f"{name}: mask", mask)
        if found and csr.shape != found[0].shape:
            raise InputError(
                f"{name}: masks have the shapes {found[0].shape} and {csr.shape}; all must have one"
            )
        ones = np.ones(csr.nnz, np.int16)
        found.append(sp.csr_array((ones, csr.indices, csr.indptr), shape=csr.shape))
    return found


def _of_sum(total: Any) -> sp.csr_array:
    total.sort_indices()
    return _csr(np.diff(total.indptr), total.indices, total.shape[1])
