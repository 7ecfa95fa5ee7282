"""Which accumulator adds up each row of a product, and how rows are shared out among threads.

Work is balanced twice. Rows that take the same accumulator form a bin, and a bin is cut into
chunks of about equally many multiply-adds, not of rows: rows of a sparse product differ by orders
of magnitude. Threads then take chunks from a shared counter, so that one that starts late, or
shares its core, takes fewer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.machine.thread_pool import ThreadPool, worth_waking

# Accumulators; see `accumulators`.
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
# For each thread: many, so that all end at about the same time, if of some tens of microseconds.
CHUNKS, MIN_PRODUCTS = 128, 1 << 13
# Multiply-adds of dense kernels for each of a sparse product, as `worth_waking` counts: from 50,000
# on two threads of a Zen 3 took less time than one.
DENSE_FOR_PRODUCT = 192


class RowBin(NamedTuple):
    """Rows that take the same accumulator, in chunks of about equally many multiply-adds.

    Attributes
    ----------
    rows : ndarray of int64
        The numbers of the rows.
    chunk_offsets : ndarray of int64, shape (chunks + 1,)
        Chunk i is rows[chunk_offsets[i] : chunk_offsets[i + 1]].
    capacities : ndarray of int64, shape (chunks,)
        The most entries that the rows of each chunk may have together.
    longest : int
        The most products of a row where these are sorted; else the most entries it may have.
    """

    rows: Array
    chunk_offsets: Array
    capacities: Array
    longest: int


def symbolic_accumulators(products: Array, columns: int) -> Array:
    """Return for each row whether its columns are counted by bits (DENSE) or by HASH.

    Parameters
    ----------
    products : ndarray of int64
        The multiply-adds of each row.
    columns : int
        The number of columns of the result.
    """
    if columns <= COUNT_BITS_TO:
        return np.full(products.size, DENSE)
    return np.where(_is_dense(products, columns, DENSE_TO), DENSE, HASH)


def numeric_accumulators(products: Array, columns: int, entries: Array | None = None) -> Array:
    """Return for each row how it is added up: DENSE, HASH or SORTED.

    Parameters
    ----------
    products : ndarray of int64
        The multiply-adds of each row.
    columns : int
        The number of columns of the result.
    entries : ndarray of int64, optional
        The entries of each row of the result, where they are known.
    """
    if entries is None:
        accumulators = np.where(products <= SORTED_TO_IF_UNKNOWN, SORTED, HASH)
        accumulators[_is_dense(products, columns, DENSE_TO_IF_UNKNOWN)] = DENSE
        return accumulators
    few_meet = entries >= SORTED_FROM * products
    mixed = ~few_meet & (entries >= MIXED_FROM * products)
    accumulators = np.where(few_meet, SORTED, HASH)
    dense_to = np.where(mixed, DENSE_TO_IF_MIXED, DENSE_TO)
    accumulators[_is_dense(products, columns, dense_to)] = DENSE
    return accumulators


def _is_dense(products: Array, columns: int, columns_per_product: int | Array) -> Array:
    dense = products >= columns / columns_per_product
    # The keys of the other accumulators hold a column, and a slot of which there are up to four
    # for each product; they have 63 bits. See `radix_sort`.
    return dense | (products > (1 << 60) // max(columns, 1))


def worth_sharing(workers: ThreadPool, products: int) -> ThreadPool:
    """Return the threads for so many multiply-adds: the caller's where these are soon done."""
    return worth_waking(workers, DENSE_FOR_PRODUCT * products)


def bin_rows(
    products: Array, accumulators: Array, bounds: Array, threads: int
) -> dict[int, RowBin]:
    """Put rows into bins by accumulator, and cut these into chunks of about equal work.

    A row of more products than a chunk should have is a chunk alone, and comes before the others
    of its bin: started last, it would keep one thread busy when all others are done. Rows without
    products are in no bin.

    Parameters
    ----------
    products : ndarray of int64
        The multiply-adds of each row.
    accumulators : ndarray of int
        The accumulator of each row.
    bounds : ndarray of int64
        The most entries that each row may have.
    threads : int
        How many threads will take chunks.

    Returns
    -------
    dict from accumulator to RowBin
        Only of accumulators that have rows.
    """
    total = int(products.sum())
    chunk_products = max(total // (CHUNKS * threads), MIN_PRODUCTS)
    bins = {}
    accumulators = np.where(products > 0, accumulators, -1)
    for accumulator in (DENSE, HASH, SORTED):
        (rows,) = (accumulators == accumulator).nonzero()
        if not rows.size:
            continue
        if total < chunk_products:
            offsets = np.array([0, rows.size])
        else:
            rows, offsets = _chunks(rows, products, chunk_products)
        longest = products[rows] if accumulator == SORTED else bounds[rows]
        capacities = np.add.reduceat(bounds[rows], offsets[:-1])
        bins[accumulator] = RowBin(rows, offsets, capacities, int(longest.max()))
    return bins


def _chunks(rows: Array, products: Array, chunk_products: int) -> tuple[Array, Array]:
    """Return rows in the order in which they are computed, and where chunks of them begin."""
    heavy = products[rows] > chunk_products
    if heavy.any():
        rows = np.concatenate((rows[heavy], rows[~heavy]))
    alone = int(heavy.sum())
    ends = np.cumsum(products[rows[alone:]])
    # A chunk ends with the row that fills it.
    cuts = alone + np.flatnonzero(np.diff(ends // chunk_products)) + 1
    first = np.arange(min(alone + 1, rows.size))
    return rows, np.concatenate((first, cuts, [rows.size]))
