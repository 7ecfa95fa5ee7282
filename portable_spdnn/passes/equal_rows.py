"""Which rows of a matrix are equal, to the bit, in time linear in their entries.

Rows are grouped by a 64-bit hash, and each is then compared in full with the first of its
group. A row that only shares the hash stays by itself, so that a collision costs speed, never
correctness.
"""

from __future__ import annotations

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn.hashing import mix64

SPREAD = mix64(np.zeros(1, np.uint64) + np.uint64(1))[0] | np.uint64(1)  # an odd number
WORDS_AT_ONCE = 1 << 15  # hashed together: 256 KiB of temporaries, which stay in a cache


def equal_rows(features: Features) -> tuple[Array, Array]:
    """Group equal rows.

    Parameters
    ----------
    features : PackedFeatures, ndarray, or canonical csr_array; shape (rows, columns)

    Returns
    -------
    first : ndarray of int64, shape (groups,)
        The first row of each group, rising.
    group : ndarray of int64, shape (rows,)
        The group of each row: row i equals row ``first[group[i]]``.
    """
    if isinstance(features, PackedFeatures):
        return _equal_dense(features.bits)
    if isinstance(features, np.ndarray):
        return _equal_dense(features)
    return equal_sparse_rows(features.indptr, features.indices, features.data)


def equal_sparse_rows(
    indptr: Array, indices: Array, data: Array, extra: Array | None = None
) -> tuple[Array, Array]:
    """Group equal rows of a CSR matrix, as `equal_rows`.

    Parameters
    ----------
    indptr, indices, data : ndarray
        Columns sorted within each row.
    extra : ndarray of shape (rows,), optional
        One more number of each row, which has to be equal too.
    """
    rows = indptr.size - 1
    words = mix64(indices.astype(np.uint64) + mix64(_bits(data)))
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(words, dtype=np.uint64)))
    lengths = np.diff(indptr)
    # Differences of wrapped sums wrap back to the sum of the row.
    hashes = sums[indptr[1:]] - sums[indptr[:-1]] + lengths.astype(np.uint64)
    if extra is not None:
        hashes = hashes + mix64(_bits(extra) + np.uint64(1))
    first, group = _by_hash(hashes)
    model = first[group]
    same = lengths == lengths[model]
    if extra is not None:
        same &= _bits(extra) == _bits(extra)[model]
    # Compare entry by entry where the lengths agree; others are different already.
    long = np.where(same, lengths, 0)
    within = np.arange(int(long.sum())) - np.repeat(np.cumsum(long) - long, long)
    mine = np.repeat(indptr[:-1], long) + within
    its = np.repeat(indptr[:-1][model], long) + within
    differs = (indices[mine] != indices[its]) | (_bits(data)[mine] != _bits(data)[its])
    same[np.repeat(np.arange(rows), long)[differs]] = False
    return _split(first, group, same)


def _equal_dense(rows: Array) -> tuple[Array, Array]:
    words = _words(rows)
    count, width = words.shape
    # A sum of products with a random odd factor for each place. High bits of a word, in which alone
    # round floats differ, would count for little in it: they are brought down before.
    factors = mix64(np.arange(1, width + 1, dtype=np.uint64)) | np.uint64(1)
    hashes = np.empty(count, np.uint64)
    step = max(1, WORDS_AT_ONCE // max(width, 1))
    for at in range(0, count, step):
        block = words[at : at + step].astype(np.uint64)
        block *= SPREAD
        block ^= block >> np.uint64(32)
        hashes[at : at + step] = block @ factors
    first, group = _by_hash(hashes)
    same = np.ones(count, np.bool_)
    repeated = np.flatnonzero(first[group] != np.arange(count))
    for at in range(0, repeated.size, step):
        some = repeated[at : at + step]
        same[some] = (words[some] == words[first[group[some]]]).all(axis=1)
    return _split(first, group, same)


def _words(rows: Array) -> Array:
    """View rows as unsigned words of the widest type that divides them."""
    rows = np.ascontiguousarray(rows)
    raw = rows.view(np.uint8).reshape(rows.shape[0], rows.shape[1] * rows.itemsize)
    for word in (np.uint64, np.uint32, np.uint16):
        if raw.shape[1] and raw.shape[1] % np.dtype(word).itemsize == 0:
            return raw.view(word)
    return raw


def _bits(values: Array) -> Array:
    """Return the bit patterns of floats as uint64."""
    wide = np.ascontiguousarray(values, dtype=np.float64)
    return wide.view(np.uint64)


def _by_hash(hashes: Array) -> tuple[Array, Array]:
    """Group equal hashes; groups in the order of their first rows."""
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    return _in_order(first.astype(np.int64), group.reshape(-1).astype(np.int64))


def _split(first: Array, group: Array, same: Array) -> tuple[Array, Array]:
    """Give rows that differ from the first of their group groups of their own."""
    alone = np.flatnonzero(~same)
    if not alone.size:
        return first, group
    group = group.copy()
    group[alone] = first.size + np.arange(alone.size)
    return _in_order(np.concatenate((first, alone)), group)


def _in_order(first: Array, group: Array) -> tuple[Array, Array]:
    """Number groups anew, in the order of their first rows."""
    order = np.argsort(first, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return first[order], place[group]
