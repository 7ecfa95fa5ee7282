"""Sampled products and the sparse softmax, called once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from portable_spdnn.sparse_arrays import unchecked_csr
from portable_spdnn_cpu.jit.compilation import Array, read_only
from portable_spdnn_cpu.jit.jobs import in_order
from portable_spdnn_cpu.machine.cpu_info import aligned_empty, cache_bytes
from portable_spdnn_cpu.machine.thread_pool import ThreadPool, worth_waking
from portable_spdnn_cpu.sddmm.kernel import sample, softmax_rows
from portable_spdnn_cpu.sddmm.operands import (
    ROW_STEP,
    heads_of,
    in_place,
    pack_rows,
    read_in_place,
    with_contiguous_rows,
)
from portable_spdnn_cpu.sddmm.register_tile import padded, register_tile

L2_SHARE = 2  # a block of keys takes this part of the second-level cache
EXPONENTIAL = 30  # multiply-adds that one takes as long as


def sampled_products(
    workers: ThreadPool, masks: list[Any], Q: Array, K: Array, scale: float
) -> list[Any]:
    """Return scale Q K^T at the entries of masks, one for all heads or one each, as csr_array."""
    heads, length = K.shape[:2]
    packs = not read_in_place(max((mask.nnz for mask in masks), default=0), K)
    tile = register_tile(Q.itemsize, Q.shape[2], 1, in_place=not packs)
    d = padded(Q.shape[2], tile.key_part)
    Q, K = with_contiguous_rows(Q), with_contiguous_rows(K)
    keys = heads_of(K)
    if packs:
        packed = aligned_empty((heads, length * d), Q.dtype)
        _run(worth_waking(workers, 8 * K.size), pack_rows, np.zeros(1, np.int64), keys, packed, d)
        rows, step = read_only(packed), d
    else:
        rows, step = in_place(K), keys[ROW_STEP]
    block = max(1, cache_bytes(2) // L2_SHARE // (d * Q.itemsize))
    factor, found = Q.dtype.type(scale), []
    for number, mask in enumerate(masks):
        part = slice(0, heads) if len(masks) == 1 else slice(number, number + 1)
        pattern = in_order(mask.indptr), in_order(mask.indices)
        scores = np.empty((Q[part].shape[0], mask.nnz), Q.dtype)
        if scores.size:
            where = heads_of(Q[part]), rows[part], length, step, block, d
            operands = tile, *map(read_only, pattern), *where, factor, scores
            counter = np.zeros(1, np.int64)
            _run(worth_waking(workers, scores.size * Q.shape[2]), sample, counter, *operands)
        for values in scores:  # SciPy's methods may change the pattern of one in place
            indptr, indices = (array.copy() for array in pattern)
            found.append(unchecked_csr(values, indices, indptr, mask.shape))
    return found


def sparse_softmax(workers: ThreadPool, matrix: Any) -> Any:
    """Return the softmax of each row of a csr_array over its entries."""
    pattern = matrix.indptr.copy(), matrix.indices.copy()
    out = np.empty(matrix.nnz, matrix.dtype)
    indptr, values = read_only(pattern[0]), read_only(np.ascontiguousarray(matrix.data))
    if out.size:
        pool = worth_waking(workers, EXPONENTIAL * out.size)
        _run(pool, softmax_rows, np.zeros(1, np.int64), indptr, values, out)
    return unchecked_csr(out, *pattern[::-1], matrix.shape)


def _run(workers: ThreadPool, kernel: Callable[..., None], *operands: Any) -> None:
    """Run a kernel on all threads, which share its operands, among them a counter of tasks."""
    workers.run(lambda worker: kernel(*operands))
