"""How rows of a product are added up, and which chunks workers take."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu.spgemm.gustavson import Share

Array = npt.NDArray[Any]

DENSE, HASH, SORTED = range(3)

# Measured on one core with 512 KiB of second-level cache, float32, random rows of B from cache;
# n columns, f products and C entries to a row, nanoseconds a product.
#
# Counting by bits: 2 to 7 up to 2^24 columns (2 MiB), 6 to 8 at 2^26; by hashing 7 to 9 always.
COUNT_BITS_TO = 1 << 24
# Adding up where hardly two products fall into one column: dense 12 at n = 128 f, 9 at 64 f, 5 to 7
# at 32 f, 3 to 5 at 16 f, less below; sorted 7 to 9, 10 to 14 up to 64 products; hash 12 to 18.
DENSE_TO = 32
# Where C is a third of f, the branches of hash (10 to 15) and sorted (14 to 20) are mispredicted:
# dense is 8 at 512 f, 5 at 256 f, 3 at 64 f.
DENSE_TO_IF_MIXED = 256
# Where C is a sixteenth of f (two layers of the challenge, n = 64 f): hash 3, dense 4, sorted 11.
MIXED_FROM, SORTED_FROM = 0.1, 0.7
# Where C is not known: dense up to 128 f is before hash in all cases, and sorted up to 64 products
# 13 where none share a column, against 19 by hash, and 17, against 14, where many do.
DENSE_TO_IF_UNKNOWN = 128
SORTED_TO_IF_UNKNOWN = 64
# For each worker: many, so that all end at about the same time, if of some tens of microseconds.
CHUNKS, LEAST_PRODUCTS = 128, 1 << 13


def counting_kinds(products: Array, columns: int) -> Array:
    """Return for each row whether its columns are counted by bits (DENSE) or by HASH.

    Parameters
    ----------
    products : ndarray of int64
        Of each row, its multiply-adds.
    columns : int
        Of the result.
    """
    if columns <= COUNT_BITS_TO:
        return np.full(products.size, DENSE)
    return np.where(_is_dense(products, columns, DENSE_TO), DENSE, HASH)


def adding_kinds(products: Array, columns: int, entries: Array | None = None) -> Array:
    """Return for each row how it is added up: DENSE, HASH or SORTED.

    Parameters
    ----------
    products, columns
        As in `counting_kinds`.
    entries : ndarray of int64, optional
        Of each row of the result, where that is known.
    """
    if entries is None:
        kinds = np.where(products <= SORTED_TO_IF_UNKNOWN, SORTED, HASH)
        kinds[_is_dense(products, columns, DENSE_TO_IF_UNKNOWN)] = DENSE
        return kinds
    few_meet = entries >= SORTED_FROM * products
    mixed = ~few_meet & (entries >= MIXED_FROM * products)
    kinds = np.where(few_meet, SORTED, HASH)
    kinds[_is_dense(products, columns, np.where(mixed, DENSE_TO_IF_MIXED, DENSE_TO))] = DENSE
    return kinds


def _is_dense(products: Array, columns: int, columns_per_product: int | Array) -> Array:
    dense = products >= columns / columns_per_product
    # A column and one of up to four slots for each product must fit into 63 bits together.
    return dense | (products > (1 << 60) // max(columns, 1))


def share_out(products: Array, kinds: Array, bounds: Array, threads: int) -> dict[int, Share]:
    """Cut rows into chunks of about equally many products.

    A row of more products than a chunk should have is a chunk alone, and handed out before
    others of its kind; rows without products are in none.

    Parameters
    ----------
    products, kinds : ndarray
        Of all rows.
    bounds : ndarray of int64
        The most entries that each row may have.
    threads : int

    Returns
    -------
    dict from kind to Share
        Of those kinds that have rows.
    """
    target = max(int(products.sum()) // (CHUNKS * threads), LEAST_PRODUCTS)
    shares = {}
    with_products = products > 0
    for kind in (DENSE, HASH, SORTED):
        rows = np.flatnonzero((kinds == kind) & with_products)
        if not rows.size:
            continue
        heavy = products[rows] > target
        if heavy.any():
            rows = np.concatenate((rows[heavy], rows[~heavy]))
        alone = int(heavy.sum())
        ends = np.cumsum(products[rows[alone:]])
        # A chunk ends with the row that fills it.
        cuts = alone + np.flatnonzero(np.diff(ends // target)) + 1
        edges = np.unique(np.concatenate((np.arange(alone + 1), cuts, [rows.size])))
        longest = products[rows] if kind == SORTED else bounds[rows]
        shares[kind] = Share(
            rows, edges, np.add.reduceat(bounds[rows], edges[:-1]), int(longest.max())
        )
    return shares
