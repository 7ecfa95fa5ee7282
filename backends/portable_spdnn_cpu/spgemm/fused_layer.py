"""What products by rows share, and the fused layer on sparse features."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.layer import common_value
from portable_spdnn_cpu.jit.compilation import read_only
from portable_spdnn_cpu.jit.thread_pool import Workers
from portable_spdnn_cpu.spgemm import accumulators
from portable_spdnn_cpu.spgemm import gustavson as kernels
from portable_spdnn_cpu.spgemm import row_bins as row_shares
from portable_spdnn_cpu.spgemm.epilogue import Target, join_rows
from portable_spdnn_cpu.spgemm.gustavson import Rows, Share
from portable_spdnn_cpu.spgemm.radix_sort import BUCKETS, PADDING
from portable_spdnn_cpu.spgemm.row_bins import DENSE, HASH, SORTED

Array = npt.NDArray[Any]
Shares = dict[int, Share]  # by kind
Counters = dict[int, Array]
COUNTED_ROWS = 1 << 10  # whose products a worker counts at a time
FIRST_ROOM = 1 << 12  # entries that a worker's buffers begin with


def sparse_layer(workers: Workers, W: Any, Y: Any, bias: Array, y_max: float | None) -> Any:
    """Y' = min(max(Y W + bias, 0), y_max) for sparse Y and bias <= 0, in one pass over Y.

    Parameters
    ----------
    workers : Workers
    W : csr_array, shape (neurons_in, neurons_out)
    Y : csr_array, shape (inputs, neurons_in)
    bias : ndarray, shape (neurons_out,)
    y_max : float or None

    Returns
    -------
    csr_array, shape (inputs, neurons_out)
        Canonical, without stored zeros.
    """
    left, right = as_rows(Y), as_rows(W)
    _compile_layer(Y.dtype, left.indices.dtype, right.indices.dtype)
    inputs, columns = Y.shape[0], right.columns
    products = count_products(workers, left, right)
    kinds, bounds = row_shares.adding_kinds(products, columns), np.minimum(products, columns)
    shares = row_shares.share_out(products, kinds, bounds, workers.threads)
    counters = chunk_counters(shares)
    owner, places = np.full(inputs, -1), np.zeros(inputs, np.int64)
    offsets = np.zeros(inputs + 1, np.int64)
    highest = Y.dtype.type(np.inf if y_max is None else y_max)
    targets: list[Target] = []

    def work(worker: int) -> None:
        target = Target(
            True, read_only(bias), highest, worker, owner, places, offsets[1:],
            np.empty(FIRST_ROOM, right.indices.dtype), np.empty(FIRST_ROOM, Y.dtype),
        )  # fmt: skip
        used = 0
        for kind, share in shares.items():
            chunk = -1
            while chunk < share.rooms.size:
                used, chunk = add_rows(
                    kind, counters[kind], share, left, right, bounds, target, used, chunk
                )
                if chunk < share.rooms.size:
                    target = _grown(target, used, used + int(share.rooms[chunk]))
        targets.append(target)

    workers.run(work)
    indptr = np.cumsum(offsets)
    nnz = int(indptr[-1])
    indices, data = np.empty(nnz, index_type(nnz, right)), np.empty(nnz, Y.dtype)
    workers.run(lambda worker: join_rows(targets[worker], indptr, indices, data))
    return as_csr(data, indices, indptr, (inputs, W.shape[1]))


@cache
def _compile_layer(dtype: Any, *index_dtypes: Any) -> None:
    """Compile, or load, all that `sparse_layer` may need, though its first rows be of one kind."""
    empty, none = np.zeros(1, np.int64), np.empty(0, np.int64)
    left, right = (
        Rows(read_only(empty), read_only(np.empty(0, index)), read_only(np.empty(0, dtype)), 1)
        for index in index_dtypes
    )
    share = Share(none, empty, none, 1)
    target = Target(
        True, read_only(np.empty(0, dtype)), dtype.type(0), 0, none, none, none,
        np.empty(0, right.indices.dtype), np.empty(0, dtype),
    )  # fmt: skip
    kernels.count_products(empty.copy(), 1, left, right.indptr, none)
    for kind in (DENSE, HASH, SORTED):
        add_rows(kind, empty.copy(), share, left, right, none, target, 0, -1)


def _grown(target: Target, used: int, needed: int) -> Target:
    """Return the target with room for `needed` entries and more, the first `used` kept."""
    larger = [np.empty(2 * needed, old.dtype) for old in (target.columns, target.values)]
    for new, old in zip(larger, (target.columns, target.values), strict=True):
        new[:used] = old[:used]
    return target._replace(columns=larger[0], values=larger[1])


def add_rows(
    kind: int,
    counter: Array,
    share: Share,
    A: Rows,
    B: Rows,
    bounds: Array,
    target: Target,
    used: int,
    chunk: int,
) -> tuple[int, int]:
    """Add up rows of one kind, in memory made for them; see `row_accumulators`."""
    common, where = (counter, share, A, B), (target, used, chunk)
    if kind == DENSE:
        sums = np.zeros(B.columns, B.data.dtype)
        return accumulators.add_dense_rows(*common, column_bits(B), sums, *where)
    sort = (
        np.empty(share.longest + PADDING, np.int64),
        np.empty(share.longest + PADDING, np.int64),
        np.empty(BUCKETS, np.int64),
    )
    if kind == HASH:
        keys = hash_keys(B, share)
        sums = np.empty(keys.size, B.data.dtype)
        return accumulators.add_hash_rows(*common, bounds, keys, sums, *sort, *where)
    terms = np.empty(share.longest, B.data.dtype)
    return accumulators.add_sorted_rows(*common, terms, *sort, *where)


def column_bits(B: Rows) -> Array:
    """Return a zero bit for each column."""
    return np.zeros(-(-B.columns // 64), np.uint64)


def hash_keys(B: Rows, share: Share) -> Array:
    """Return the free slots of a hash table: at least two for each entry of the longest row.

    The system gives zeroed memory when it is first touched: that one row is long costs others
    nothing.
    """
    return np.zeros(1 << (2 * share.longest - 1).bit_length(), B.indices.dtype)


def chunk_counters(shares: Shares) -> Counters:
    """Return for each share how many chunks have been handed out: none."""
    return {kind: np.zeros(1, np.int64) for kind in shares}


def count_products(workers: Workers, A: Rows, B: Rows) -> Array:
    """Return the multiply-adds of each row of A B."""
    length = common_value(np.diff(B.indptr))
    if length is not None:
        return np.asarray(np.diff(A.indptr) * length)
    products = np.empty(A.indptr.size - 1, np.int64)
    counter = np.zeros(1, np.int64)
    workers.run(lambda worker: kernels.count_products(counter, COUNTED_ROWS, A, B.indptr, products))
    return products


def as_rows(matrix: Any) -> Rows:
    """Bring a csr_array to the one type that kernels are compiled for; copies what differs."""
    narrow = np.int32 if matrix.shape[1] <= 1 << 31 else np.int64
    unsigned = np.uint32 if narrow == np.int32 else np.uint64
    return Rows(
        read_only(matrix.indptr.astype(np.int64, copy=False)),
        read_only(matrix.indices.astype(narrow, copy=False).view(unsigned)),
        read_only(matrix.data),
        int(matrix.shape[1]),
    )


def index_type(nnz: int, B: Rows) -> np.dtype[Any]:
    """Return the type of C's columns: in scipy.sparse columns are as wide as offsets."""
    return B.indices.dtype if nnz < 1 << 31 else np.dtype(np.uint64)


def as_csr(data: Array, indices: Array, indptr: Array, shape: tuple[int, int]) -> Any:
    """Return the result as a csr_array, with offsets of 32 bits where those suffice."""
    signed = np.int32 if indices.dtype == np.uint32 else np.int64
    indices = indices.view(signed)
    if indptr[-1] < 1 << 31:
        indptr = indptr.astype(np.int32)
    C = sp.csr_array((data, indices, indptr), shape=shape)
    C.has_canonical_format = True
    return C
