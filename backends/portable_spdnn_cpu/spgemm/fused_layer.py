"""The fused layer on sparse features: product, bias, activation and bounds in one pass."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import ACTIVATIONS, Epilogue, cast_bounds
from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.activations import RELU
from portable_spdnn_cpu.jit.compilation import read_only
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spgemm import row_bins
from portable_spdnn_cpu.spgemm.accumulators import make_workspace
from portable_spdnn_cpu.spgemm.epilogue import RowEpilogue, RowSink, gather_rows
from portable_spdnn_cpu.spgemm.gustavson import add_rows, count_products, count_products_of_rows
from portable_spdnn_cpu.spgemm.operands import Product, as_csr, as_operand, result_index_type
from portable_spdnn_cpu.spgemm.row_bins import DENSE, RowBin

FIRST_CAPACITY = 1 << 12  # entries that a thread's buffers begin with


def sparse_layer(
    pool: ThreadPool, W: SparseOperand, Y: sp.csr_array, epilogue: Epilogue
) -> sp.csr_array:
    """Y' = Y W for sparse Y, finished by an epilogue, in one pass over Y.

    Only entries of Y W are computed: the result is right where zeros stay zeros.

    Parameters
    ----------
    pool : ThreadPool
        The threads to run on.
    W : csr_array, shape (neurons_in, neurons_out)
        The weights.
    Y : csr_array, shape (inputs, neurons_in)
        The features, of the type of W.
    epilogue : Epilogue
        Its bias is None, or an array of that type with an entry for each output neuron.

    Returns
    -------
    csr_array, shape (inputs, neurons_out)
        Canonical, without stored zeros. A NaN is an entry.
    """
    left, right = as_operand(Y), as_operand(W)
    dtype, inputs, columns = Y.dtype, Y.shape[0], right.columns
    _compile_layer(dtype, left.indices.dtype, right.indices.dtype)
    products = count_products(pool, left, right)
    workers = row_bins.worth_sharing(pool, int(products.sum()))
    accumulators = row_bins.numeric_accumulators(products, columns)
    product = Product(left, right, np.minimum(products, columns))
    bins = row_bins.bin_rows(products, accumulators, product.bounds, workers.threads)
    counters = {accumulator: np.zeros(1, np.int64) for accumulator in bins}
    bias = np.zeros(columns, dtype) if epilogue.bias is None else epilogue.bias
    code, bounds = ACTIVATIONS.index(epilogue.activation), epilogue.interval or epilogue.bounds
    row_epilogue = RowEpilogue(read_only(bias), code, *cast_bounds(bounds, dtype))
    starts, owners = np.zeros(inputs, np.int64), np.full(inputs, -1)
    offsets = np.zeros(inputs + 1, np.int64)
    sinks: list[RowSink] = []

    def work(thread: int) -> None:
        buffers = np.empty(FIRST_CAPACITY, right.indices.dtype), np.empty(FIRST_CAPACITY, dtype)
        sink = RowSink(True, row_epilogue, thread, starts, offsets[1:], owners, *buffers)
        used = 0
        for accumulator, row_bin in bins.items():
            memory = make_workspace(accumulator, row_bin, right)
            chunk = -1
            while chunk < row_bin.capacities.size:
                used, chunk = add_rows(
                    accumulator, counters[accumulator], row_bin, product, memory, sink, used, chunk
                )
                if chunk < row_bin.capacities.size:
                    sink = _grown(sink, used, used + int(row_bin.capacities[chunk]))
        sinks.append(sink)

    workers.run(work)
    indptr = np.cumsum(offsets)
    nnz = int(indptr[-1])
    indices, data = np.empty(nnz, result_index_type(nnz, right)), np.empty(nnz, dtype)
    workers.run(lambda thread: gather_rows(sinks[thread], indptr, indices, data))
    return as_csr(data, indices, indptr, (inputs, columns))


def _grown(sink: RowSink, used: int, needed: int) -> RowSink:
    """Return the sink with space for `needed` entries and more, the first `used` kept."""
    larger = [np.empty(2 * needed, old.dtype) for old in (sink.columns, sink.values)]
    for new, old in zip(larger, (sink.columns, sink.values), strict=True):
        new[:used] = old[:used]
    return sink._replace(columns=larger[0], values=larger[1])


@cache
def _compile_layer(dtype: np.dtype[Any], *index_dtypes: np.dtype[Any]) -> None:
    """Compile, or load, all that `sparse_layer` may call, though its first input be empty."""
    zero, none = np.zeros(1, np.int64), np.empty(0, np.int64)
    values = np.empty(0, dtype)
    widths = [1 if index == np.uint32 else 1 << 32 for index in index_dtypes]
    empty = [as_operand(sp.csr_array((1, width), dtype=dtype)) for width in widths]
    left, right = (operand._replace(columns=1) for operand in empty)  # few sums to allocate
    row_bin = RowBin(none, zero, none, 1)
    epilogue = RowEpilogue(read_only(values), RELU, dtype.type(0), dtype.type(0))
    sink = RowSink(True, epilogue, 0, none, none, none, np.empty(0, right.indices.dtype), values)
    memory = make_workspace(DENSE, row_bin, right)
    count_products_of_rows(zero.copy(), left, right.indptr, none)
    product = Product(left, right, none)
    add_rows(DENSE, zero.copy(), row_bin, product, memory, sink, 0, -1)
