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

# Sparse features meet the weights as they are if at most so many of all are nonzero, or so many of
# those of one input where there are few: measured on a Zen 3, with 2 and 10 % nonzero weights.
MOST_NONZERO, MOST_OF_ONE = 0.015, 0.1
TOGETHER = 16  # sums of inputs that are written to C together


class SparseFirstLayer:
    """Y'^T = activation(W^T Y^T + b), for features Y in CSR.

    Parameters
    ----------
    layer : Layer
    epilogue : Epilogue
        Prepared for the layer's outputs and the type of the plan.
    dtype : numpy dtype
    """

    def __init__(self, layer: Layer, epilogue: Epilogue, dtype: np.dtype[Any]) -> None:
        self._weights = read_only(layer.indptr), read_only(layer.indices), read_only(layer.data)
        outputs = layer.shape[1]
        bias = np.zeros(outputs, dtype) if epilogue.bias is None else epilogue.bias
        self._bias, self._activation = read_only(np.asarray(bias)), activation_of(epilogue)
        nothing = sp.csr_array((0, layer.shape[0]), dtype=dtype)
        self.apply(nothing, np.empty((0, outputs), dtype), np.empty((outputs, 0), dtype))

    def describe(self) -> str:
        """Return which features the layer takes as they are."""
        return (
            f"Sparse features add up rows of the first layer's weights where at most "
            f"{100 * MOST_NONZERO:g} % are nonzero, {100 * MOST_OF_ONE:g} % of one input."
        )

    def suits(self, features: Features, threads: int) -> bool:
        """Whether features are so sparse that this takes less time than a product of threads."""
        if not isinstance(features, sp.csr_array):
            return False
        inputs, neurons = features.shape
        most = max(MOST_NONZERO * inputs, MOST_OF_ONE) * neurons
        return bool(threads * features.nnz <= most)

    def apply(self, features: sp.csr_array, sums: Array, out: Array) -> int:
        """Compute the layer, and return the multiply-adds.

        Parameters
        ----------
        features : csr_array, shape (inputs, neurons)
        sums : ndarray in C order, shape (inputs, outputs)
            Takes the result.
        out : ndarray, shape (outputs, inputs)
            Takes it as well; or `sums.T`.
        """
        indptr, indices, data = map(read_only, (features.indptr, features.indices, features.data))
        code, lower, upper = self._activation
        row_starts, columns, weights = self._weights
        done = add_weights(
            indptr,
            indices,
            data,
            row_starts,
            columns,
            weights,
            sums,
            self._bias,
            code,
            lower,
            upper,
        )
        if not np.may_share_memory(sums, out):
            turn(sums, out)
        return done


@kernel
def add_weights(
    indptr: Array,
    indices: Array,
    data: Array,
    row_starts: Array,
    columns: Array,
    weights: Array,
    sums: Array,
    bias: Array,
    code: int,
    lower: float,
    upper: float,
) -> int:
    """Set each row of `sums` to the outputs of an input, and return the multiply-adds.

    Features are indptr, indices and data; the layer's weights row_starts, columns and weights.
    """
    done = 0
    for row in range(sums.shape[0]):
        total = sums[row]
        total[:] = 0
        for entry in range(indptr[row], indptr[row + 1]):
            neuron, feature = indices[entry], total.dtype.type(data[entry])
            begin, end = row_starts[neuron], row_starts[neuron + 1]
            for place in range(begin, end):
                total[np.uint64(columns[place])] += feature * total.dtype.type(weights[place])
            done += end - begin
        for output in range(total.size):
            total[output] += bias[output]
        activate_span(total, 0, total.size, code, lower, upper)
    return done


@kernel
def turn(sums: Array, out: Array) -> None:
    """Copy the transpose of `sums` to `out`."""
    rows, columns = sums.shape
    for first in range(0, rows, TOGETHER):
        stop = min(first + TOGETHER, rows)
        for column in range(columns):
            for row in range(first, stop):
                out[column, row] = sums[row, column]
