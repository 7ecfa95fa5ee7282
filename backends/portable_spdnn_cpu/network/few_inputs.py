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

from portable_spdnn_cpu.jit import array_objects
from portable_spdnn_cpu.jit.array_objects import ARRAY_OBJECT, is_expected
from portable_spdnn_cpu.jit.compilation import Array, entry_point, kernel, kernel_part
from portable_spdnn_cpu.jit.jobs import address_of, array_at
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import aligned_empty
from portable_spdnn_cpu.spmm.dense_layout import Layout
from portable_spdnn_cpu.spmm.few_columns.kernel import (
    B_AT,
    EXPECTED_B,
    FIRST_PART,
    ITEMSIZE,
    OUT_AT,
    RESIDUAL_AT,
    run_whole,
    write_plain_place,
)
from portable_spdnn_cpu.spmm.few_columns.product import MAX_ROW_BYTES, FewColumnsProduct
from portable_spdnn_cpu.spmm.handle import WeightsProduct
from portable_spdnn_cpu.spmm.plain_arrays import place_of

# Seconds, measured on a Zen 5: of a product besides its entries, and of what surrounds products in
# Python, which a chain spares.
BEGUN, SPARED = 1e-7, 1e-5
CERTAIN = 0.85  # what a chain of pieces must take by the model, of what it spares


def chain_of(products: Sequence[WeightsProduct], inputs: int, threads: int) -> LayerChain | None:
    """Return a chain of few-column kernels for so many inputs, after products have run them.

    Inputs that are too many for such a kernel go in pieces, if that takes less time by the model.
    None where it does not, where a kernel does not suit a layer or would be shared by several of so
    many threads, or where a layer has no neurons.
    """
    if not array_objects.KNOWN or any(0 in product.A.shape for product in products):
        return None
    itemsize = products[0].A.dtype.itemsize
    piece = min(inputs, MAX_ROW_BYTES // itemsize)
    kernels: list[Any] = []
    layout = Layout.FORTRAN if inputs > 1 else Layout.UNALIGNED
    seconds, usual = 0.0, SPARED
    for product in products:
        choice = product.chosen(inputs, layout)
        # Features after it start on a cache line.
        layout = Layout.UNALIGNED if inputs * itemsize % BLOCK_BYTES else Layout.ALIGNED
        if choice is None:
            return None
        if piece == inputs:
            kernels.append(choice.kernel)
            continue
        usual += choice.predicted
        seconds += -(-inputs // piece) * (BEGUN + product.few_columns_seconds(piece))
    if seconds > CERTAIN * usual:
        return None
    if piece < inputs:
        kernels = [product.few_columns_product(piece) for product in products]
    for each in kernels:
        if not isinstance(each, FewColumnsProduct) or each.threads_used(threads) > 1:
            return None
    neurons = [products[0].A.shape[1], *(product.A.shape[0] for product in products)]
    return LayerChain(kernels, neurons, inputs, piece)


class LayerChain:
    """A network for so many inputs, each layer a product of few columns on the calling thread.

    Parameters
    ----------
    products : sequence of FewColumnsProduct
        Of W^T, for `piece` columns.
    neurons : sequence of int
        That the network takes, and after each layer.
    inputs : int
    piece : int
        Inputs that go through all layers together. The last piece begins where as many are left:
        some of its inputs may be those of the piece before it.
    """

    def __init__(
        self,
        products: Sequence[FewColumnsProduct],
        neurons: Sequence[int],
        inputs: int,
        piece: int,
    ) -> None:
        self._products, self._neurons, self._inputs = products, neurons, inputs
        self._piece, self._layers = piece, len(products)
        self._dtype, self._shape = products[0].dtype, (inputs, neurons[-1])
        self._start = _entry_point()
        self._unused = [self._new_memory()]

    def scores(self, features: object) -> Array | None:
        """Return the scores of features; None where checks are to tell what is wrong with them.

        Parameters
        ----------
        features : ndarray of the products' dtype, shape (inputs, neurons)

        Returns
        -------
        ndarray, shape (inputs, neurons_out), or None
            None if features are anything else, not in C order without gaps, or not finite, or if a
            score is NaN.
        """
        try:
            memory = self._unused.pop()  # concurrent calls each have their own
        except IndexError:
            memory = self._new_memory()
        out = np.empty(self._shape, self._dtype)
        done = self._start(memory.address, self._layers, self._piece, features, out)
        self._unused.append(memory)
        return out if done else None

    def _new_memory(self) -> _Memory:
        return _Memory(self._products, self._neurons, self._inputs, self._piece)


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
        neurons: Sequence[int],
        inputs: int,
        piece: int,
    ) -> None:
        dtype = products[0].dtype
        self._scratch = [product.take_scratch() for product in products]
        for each in self._scratch:
            each.words[RESIDUAL_AT] = 0  # an earlier call may have had one
        self._addresses = np.array([each.address for each in self._scratch], np.int64)
        self.address = address_of(self._addresses)
        # Features before and after a layer take turns.
        self._features = aligned_empty((2, max(neurons[1:]) * piece), dtype)
        between = [address_of(each) for each in self._features]
        item, row = dtype.itemsize, piece * dtype.itemsize
        for number, (before, after) in enumerate(pairwise(self._scratch)):
            place = between[number % 2], row, item
            before.words[OUT_AT : OUT_AT + 3] = after.words[B_AT : B_AT + 3] = place
        of_features, of_scores = (inputs, neurons[0]), (inputs, neurons[-1])
        self._scratch[0].expect(of_features, of_scores, transposed=True)


@kernel_part
def has_infinite(items: Array) -> bool:
    """Whether an item is infinite or NaN. A sum of booleans is vector code."""
    found = 0
    for number in range(items.size):
        found += not np.isfinite(items[number])
    return found > 0


@kernel_part
def has_nan(items: Array) -> bool:
    """Whether an item is NaN."""
    found = 0
    for number in range(items.size):
        found += np.isnan(items[number])
    return found > 0


@kernel
def run_chain(chain: int, layers: int, piece: int, features: Any, out: Any) -> bool:
    """Run features through products, each of which reads what the one before it has written.

    Parameters
    ----------
    chain : int
        The address of the addresses of each product's words; those of the first tell what features
        are expected.
    layers : int
        How many products there are.
    piece : int
        Inputs that these take, at most as many as there are.
    features : object, as `ARRAY_OBJECT`
        Whatever a user gave; expected are features of shape (inputs, neurons).
    out : ndarray, as `ARRAY_OBJECT`, of that type, shape (inputs, neurons_out)
        In C order.

    Returns
    -------
    bool
        False if features are not as expected, not in C order without gaps, or not finite, or if a
        score is NaN.
    """
    words = array_at(chain, layers, np.int64)
    if not is_expected(features, words[0] + 8 * EXPECTED_B):
        return False
    read, inputs, neurons, contiguous = place_of(features)
    if not contiguous:
        return False
    written, _, outputs, _ = place_of(out)
    first = array_at(words[0], FIRST_PART, np.int64)
    last = array_at(words[layers - 1], FIRST_PART, np.int64)
    itemsize = first[ITEMSIZE]
    if itemsize == 4:
        infinite = has_infinite(array_at(read, inputs * neurons, np.float32))
    else:
        infinite = has_infinite(array_at(read, inputs * neurons, np.float64))
    if infinite:
        return False
    for begin in range(0, inputs, piece):
        row = min(begin, inputs - piece)
        write_plain_place(first, B_AT, features, itemsize, True, row)
        write_plain_place(last, OUT_AT, out, itemsize, True, row)
        for layer in range(layers):
            run_whole(words[layer])
    if itemsize == 4:
        return not has_nan(array_at(written, inputs * outputs, np.float32))
    return not has_nan(array_at(written, inputs * outputs, np.float64))


@functools.cache
def _entry_point() -> Callable[[int, int, int, object, object], bool]:
    """Return `run_chain` for Python."""
    return entry_point(run_chain, *[types.intp] * 3, ARRAY_OBJECT, ARRAY_OBJECT)
