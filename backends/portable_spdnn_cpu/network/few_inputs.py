"""Few inputs through all layers in one call of compiled code.

A layer of a small network takes a fraction of a microsecond; Python takes as long between two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numba.core import types

from portable_spdnn_cpu.jit.compilation import (
    Array,
    array_types,
    entry_point,
    kernel,
    kernel_part,
)
from portable_spdnn_cpu.jit.jobs import address_of, array_at
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import aligned_empty
from portable_spdnn_cpu.spmm.dense_layout import Layout
from portable_spdnn_cpu.spmm.few_columns.kernel import (
    B_AT,
    FIRST_PART,
    OUT_AT,
    run_whole,
    write_place,
)
from portable_spdnn_cpu.spmm.few_columns.product import MAX_ROW_BYTES, FewColumnsProduct
from portable_spdnn_cpu.spmm.handle import WeightsProduct
from portable_spdnn_cpu.spmm.plain_arrays import NOT_PLAIN, plain_layout

MOST_INPUTS = MAX_ROW_BYTES // 4  # of float32


def chain_of(products: Sequence[WeightsProduct], inputs: int, threads: int) -> LayerChain | None:
    """Return a chain of the kernels that products have chosen for so many inputs in C order.

    None where one of them is of another kind, or shared by several of so many threads, or a layer
    has no neurons.
    """
    if any(0 in product.A.shape for product in products):
        return None
    kernels = []
    layout = Layout.FORTRAN if inputs > 1 else Layout.UNALIGNED
    for product in products:
        kernel = product.chosen(inputs, layout)
        if not isinstance(kernel, FewColumnsProduct) or kernel.threads_used(threads) > 1:
            return None
        kernels.append(kernel)
        # Features after it start on a cache line.
        aligned = inputs * product.A.dtype.itemsize % BLOCK_BYTES == 0
        layout = Layout.ALIGNED if aligned else Layout.UNALIGNED
    outputs = [product.A.shape[0] for product in products]
    return LayerChain(kernels, outputs, inputs, products[0].A.dtype)


class LayerChain:
    """A network for so many inputs, each layer a product of few columns on the calling thread.

    Parameters
    ----------
    products : sequence of FewColumnsProduct
        Of W^T, for `inputs` columns.
    outputs : sequence of int
        Of each layer.
    inputs : int
    dtype : numpy dtype
    """

    def __init__(
        self,
        products: Sequence[FewColumnsProduct],
        outputs: Sequence[int],
        inputs: int,
        dtype: np.dtype[Any],
    ) -> None:
        self._products, self._outputs, self._inputs = products, outputs, inputs
        self._dtype, self._shape = dtype, (inputs, outputs[-1])
        self._start = _entry_point(dtype)
        self._unused = [self._new_memory()]

    def scores(self, features: Array) -> Array | None:
        """Return the scores of features; None where checks are to tell what is wrong with them.

        Parameters
        ----------
        features : ndarray of the dtype, shape (inputs, neurons)

        Returns
        -------
        ndarray, shape (inputs, neurons_out), or None
            None if features are not in C order without gaps, or not finite, or a score is NaN.
        """
        try:
            memory = self._unused.pop()  # concurrent calls each have their own
        except IndexError:
            memory = self._new_memory()
        out = np.empty(self._shape, self._dtype)
        done = self._start(memory.address, len(self._products), features, out)
        self._unused.append(memory)
        return out if done else None

    def _new_memory(self) -> _Memory:
        return _Memory(self._products, self._outputs, self._inputs, self._dtype)


class _Memory:
    """What a call needs besides weights.

    Attributes
    ----------
    address : int
        Of the addresses of each product's words.
    """

    def __init__(
        self,
        products: Sequence[FewColumnsProduct],
        outputs: Sequence[int],
        inputs: int,
        dtype: np.dtype[Any],
    ) -> None:
        self._scratch = [product.new_scratch() for product in products]
        self._addresses = np.array([each.address for each in self._scratch], np.int64)
        self.address = address_of(self._addresses)
        # Features before and after a layer take turns.
        self._features = aligned_empty((2, max(outputs) * inputs), dtype)
        between = [address_of(each) for each in self._features]
        item, row = dtype.itemsize, inputs * dtype.itemsize
        for number, (before, after) in enumerate(pairwise(self._scratch)):
            place = between[number % 2], row, item
            before.words[OUT_AT : OUT_AT + 3] = after.words[B_AT : B_AT + 3] = place


@kernel_part
def is_finite(array: Array) -> bool:
    """Whether all items of a plain array are finite: a sum of booleans is vector code."""
    items, infinite = array_at(array.ctypes.data, array.size, array.dtype), 0
    for number in range(items.size):
        infinite += not np.isfinite(items[number])
    return infinite == 0


@kernel_part
def has_nan(array: Array) -> bool:
    """Whether an item of a plain array is NaN."""
    items, found = array_at(array.ctypes.data, array.size, array.dtype), 0
    for number in range(items.size):
        found += np.isnan(items[number])
    return found > 0


@kernel
def run_chain(chain: int, layers: int, features: Array, out: Array) -> bool:
    """Run features through products, each of which reads what the one before it has written.

    Parameters
    ----------
    chain : int
        The address of the addresses of each product's words.
    layers : int
        How many products there are.
    features : ndarray, shape (inputs, neurons)
    out : ndarray, shape (inputs, neurons_out)
        Both have items.

    Returns
    -------
    bool
        False if features are not plain or not finite, or a score is NaN.
    """
    if plain_layout(features, out, True) == NOT_PLAIN or not is_finite(features):
        return False
    words = array_at(chain, layers, np.int64)
    first = array_at(words[0], FIRST_PART, np.int64)
    last = array_at(words[layers - 1], FIRST_PART, np.int64)
    write_place(first, B_AT, features, True)
    write_place(last, OUT_AT, out, True)
    for layer in range(layers):
        run_whole(words[layer])
    return not has_nan(out)


@functools.cache
def _entry_point(dtype: np.dtype[Any]) -> Callable[..., bool]:
    """Return `run_chain` for Python, for arrays that have been found to be of this type."""
    return entry_point(run_chain, types.intp, types.intp, *array_types(dtype, 2))
