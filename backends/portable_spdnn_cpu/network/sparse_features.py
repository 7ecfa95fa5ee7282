"""The first layer of a plan on sparse features: rows of its weights are added up.

Weights stay as the network has them, with a row for each input neuron, and a feature that is not
zero adds its row of them to the sums of its input. That takes one to two nanoseconds for each
weight that is met, twenty to forty times as long as a weight in a product of prepared ones with
many inputs: it pays where that few features are nonzero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.features import Features
from portable_spdnn.layer import Layer
from portable_spdnn_cpu.activations import activate_span, activation_of
from portable_spdnn_cpu.jit.compilation import Array, kernel, read_only
from portable_spdnn_cpu.spmm.transposes import store_columns

# Features in CSR are multiplied as they are if at most MOST_NONZERO of all are nonzero or, of fewer
# than seven inputs, as many as MOST_OF_ONE of one input's: measured on a Zen 3, with 2 and 10 %
# nonzero weights. Where threads share the product that this replaces, so many times fewer.
MOST_NONZERO, MOST_OF_ONE = 0.015, 0.1


class SparseFirstLayer:
    """Y'^T = activation(W^T Y^T + b), for features Y in CSR.

    Parameters
    ----------
    layer : Layer
    epilogue : Epilogue
        Prepared for the layer's outputs and the type of the plan.
    dtype : numpy dtype

    Notes
    -----
    It keeps the layer, as the plan's network does.
    """

    def __init__(self, layer: Layer, epilogue: Epilogue, dtype: np.dtype[Any]) -> None:
        self._weights = read_only(layer.indptr), read_only(layer.indices), read_only(layer.data)
        outputs = layer.shape[1]
        bias = np.zeros(outputs, dtype) if epilogue.bias is None else epilogue.bias
        self._bias, self._activation = read_only(np.asarray(bias)), activation_of(epilogue, dtype)
        nothing = sp.csr_array((0, layer.shape[0]), dtype=dtype)
        self.apply(nothing, np.empty((0, outputs), dtype), np.empty((outputs, 0), dtype))

    def describe(self) -> str:
        """Return which features the layer takes as they are."""
        return (
            "Sparse features are multiplied as they are where at most "
            f"{100 * MOST_NONZERO:g} % are nonzero, or {100 * MOST_OF_ONE:g} % of one input's; "
            "where threads share a product, as many times fewer as there are threads."
        )

    def suits(self, features: Features, threads: int) -> bool:
        """Whether features are so sparse that this takes less time than a product of threads."""
        if not isinstance(features, sp.csr_array):
            return False
        inputs, neurons = features.shape
        most = max(MOST_NONZERO * inputs, MOST_OF_ONE) * neurons
        return bool(threads * features.nnz <= most)

    def apply(self, features: sp.csr_array, sums: Array, out: Array | None) -> int:
        """Compute the layer, and return the multiply-adds.

        Parameters
        ----------
        features : csr_array, shape (inputs, neurons)
        sums : ndarray in C order, shape (inputs, outputs)
            Takes the result.
        out : ndarray in C order, shape (outputs, inputs), or None
            Takes its transpose.
        """
        # Of few types, for each of which there is machine code.
        indptr, indices = (
            read_only(each.astype(np.int64, copy=False))
            for each in (features.indptr, features.indices)
        )
        data = read_only(features.data.astype(sums.dtype, copy=False))
        parts = indptr, indices, data
        done = add_weights(parts, self._weights, sums, self._bias, *self._activation)
        if out is not None:
            transpose_into(sums, out)
        return done


@kernel
def add_weights(
    features: tuple[Array, Array, Array],
    weights: tuple[Array, Array, Array],
    sums: Array,
    bias: Array,
    code: int,
    lower: float,
    upper: float,
) -> int:
    """Set each row of `sums` to the outputs of an input, and return the multiply-adds.

    Features and weights, with a row for each input neuron, are offsets, indices and values of CSR.
    """
    indptr, indices, data = features
    row_starts, columns, factors = weights
    done = 0
    for row in range(sums.shape[0]):
        total = sums[row]
        total[:] = 0
        for entry in range(indptr[row], indptr[row + 1]):
            neuron, feature = indices[entry], data[entry]
            begin, end = row_starts[neuron], row_starts[neuron + 1]
            for place in range(begin, end):
                total[np.uint64(columns[place])] += feature * total.dtype.type(factors[place])
            done += end - begin
        for output in range(total.size):
            total[output] += bias[output]
        activate_span(total, 0, total.size, code, lower, upper)
    return done


@kernel
def transpose_into(sums: Array, out: Array) -> None:
    """out = sums^T, both in C order."""
    rows, columns = sums.shape
    source, target, dtype = sums.ctypes.data, out.ctypes.data, sums.dtype.type
    store_columns(target, rows, source, columns, 0, rows, columns, 0, dtype)
