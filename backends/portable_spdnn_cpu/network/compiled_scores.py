"""Scores of one group of inputs in one call of compiled code, which goes through all layers.

A layer of a small network takes a fraction of a microsecond. What Python does takes longer: two
microseconds for each layer, and six around them all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numba.core import types

from portable_spdnn.features import Features
from portable_spdnn_cpu.jit import array_objects
from portable_spdnn_cpu.jit.array_objects import (
    ARRAY_OBJECT,
    EXPECTED_WORDS,
    OF_SHAPE,
    expected_words,
    is_expected,
    locked_kernel,
    release_lock,
    take_lock,
)
from portable_spdnn_cpu.jit.compilation import Array, entry_point, kernel_part
from portable_spdnn_cpu.jit.jobs import address_of, array_at
from portable_spdnn_cpu.machine.cpu_info import aligned_empty
from portable_spdnn_cpu.spmm.few_columns.kernel import (
    B_AT,
    B_COLUMN,
    B_ROW,
    EXPECTED_B,
    FINAL_AT,
    FIRST_PART,
    ITEMSIZE,
    OUT_AT,
    RESIDUAL_AT,
    run_whole,
    write_out,
)
from portable_spdnn_cpu.spmm.few_columns.product import MAX_ROW_BYTES, FewColumnsProduct
from portable_spdnn_cpu.spmm.handle import WeightsProduct
from portable_spdnn_cpu.spmm.plain_arrays import BY_ROWS, Place, place_of

# Seconds, measured on a Zen 5, of what is spared here: what Python does around all layers, and for
# each of them. And of a piece besides the entries: of a product, and of an item of features and of
# scores, which are transposed.
AROUND_LAYERS, AROUND_LAYER, PRODUCT, TRANSPOSED_ITEM = 6e-6, 2e-6, 1e-7, 8.5e-11
# Pieces may take this share of the usual products' time by the model, which may be wrong by a tenth
# on either side, and what is spared.
MODEL_MARGIN = 0.8
LEAST_GAIN = 0.01  # of a network's time
DESCRIBED = 16  # numbers of inputs


class ScoresInOneCall:
    """The scores of a network, for those numbers of inputs for which one call pays."""

    def __init__(self) -> None:
        # By the shape of features; None where one call does not pay. Numbers of inputs that go in
        # pieces of one size have one object.
        self._by_shape: dict[tuple[int, ...], CompiledScores | None] = {}
        self._by_piece: dict[int, CompiledScores] = {}

    def scores(self, features: object) -> Array | None:
        """Return the scores of whatever a user gave; None as `CompiledScores.scores` does."""
        if type(features) is np.memmap:
            features = np.asarray(features)
        if type(features) is not np.ndarray:
            return None
        shape = features.shape  # once: another thread may change it
        compiled = self._by_shape.get(shape)
        return None if compiled is None else compiled.scores(features, shape[0])

    def scores_of_valid(self, features: Features) -> Array | None:
        """Return the scores of valid features, of which arrays are in any order and of any type."""
        shape = features.shape
        compiled = self._by_shape.get(shape)
        if compiled is None or not isinstance(features, np.ndarray):
            return None
        return compiled.scores(np.ascontiguousarray(features, compiled.dtype), shape[0])

    def prepare(self, products: Sequence[WeightsProduct], inputs: int) -> None:
        """See whether one call pays for so many inputs, unless that is known.

        Parameters
        ----------
        products : sequence of WeightsProduct
            Of the layers. They have run as many inputs before, and have chosen kernels for them.
        inputs : int
        """
        shape = inputs, products[0].A.shape[1]
        if shape in self._by_shape:
            return
        piece = min(inputs, MAX_ROW_BYTES // products[0].A.dtype.itemsize)
        found = None
        if pays(products, inputs, piece):
            found = self._by_piece.get(piece) or self._made(products, piece)
        threads = products[0].workers.threads
        if found is not None and found.is_shared_by(threads):
            found = None
        self._by_shape[shape] = found

    def _made(self, products: Sequence[WeightsProduct], piece: int) -> CompiledScores:
        kernels = [product.few_columns_product(piece) for product in products]
        neurons = [products[0].A.shape[1], *(product.A.shape[0] for product in products)]
        made = self._by_piece[piece] = CompiledScores(kernels, neurons, piece)
        return made

    def describe(self) -> list[str]:
        """Return, in up to two lines, for which numbers of inputs one call pays."""
        known = sorted(self._by_shape.copy().items())
        made = [(inputs, each.piece) for (inputs, _), each in known if each is not None]
        lines = []
        for how, numbers in (
            ("", [inputs for inputs, piece in made if piece == inputs]),
            (", in pieces", [inputs for inputs, piece in made if piece < inputs]),
        ):
            listed = ", ".join(map(str, numbers[:DESCRIBED]))
            if len(numbers) > DESCRIBED:
                listed += f" and {len(numbers) - DESCRIBED} others"
            if numbers:
                lines.append(f"Scores take one call of compiled code for inputs{how}: {listed}.")
        return lines


def pays(products: Sequence[WeightsProduct], inputs: int, piece: int) -> bool:
    """Whether scores of so many inputs take less time in one call, in pieces of so many inputs.

    If they are one piece, and products have chosen kernels of few columns for it, they do; else if
    the model says so. They do not where what is spared is too little of the network's time, nor if
    a layer has no neurons.
    """
    if not array_objects.FIELDS_ARE_KNOWN or any(0 in product.A.shape for product in products):
        return False
    choices = [product.chosen(inputs) for product in products]
    chosen = [choice for choice in choices if choice is not None]
    usual = sum(choice.predicted for choice in chosen)
    spared = AROUND_LAYERS + len(products) * AROUND_LAYER
    if len(chosen) < len(products) or LEAST_GAIN * usual > spared:
        return False
    if piece == inputs and all(isinstance(each.kernel, FewColumnsProduct) for each in chosen):
        return True
    seconds = TRANSPOSED_ITEM * piece * (products[0].A.shape[1] + products[-1].A.shape[0])
    seconds += sum(PRODUCT + product.few_columns_seconds(piece) for product in products)
    return -(-inputs // piece) * seconds <= MODEL_MARGIN * usual + spared


class CompiledScores:
    """The scores of any number of inputs, in pieces of one size, on the calling thread.

    Parameters
    ----------
    products : sequence of FewColumnsProduct
        Of W^T, for `piece` columns.
    neurons : sequence of int
        That the network takes, and after each layer.
    piece : int
        Inputs that go through all layers together. The last piece begins where as many are left:
        some of its inputs may be those of the piece before it.

    Attributes
    ----------
    piece : int
    dtype : numpy dtype
        Of features and scores.
    """

    def __init__(
        self, products: Sequence[FewColumnsProduct], neurons: Sequence[int], piece: int
    ) -> None:
        self.piece, self.dtype = piece, products[0].dtype
        self._products, self._neurons, self._layers = products, neurons, len(products)
        self._start = _entry_point()
        self._unused = [self._new_memory()]

    def scores(self, features: object, inputs: int) -> Array | None:
        """Return the scores of features; None where checks are to tell what is wrong with them.

        Parameters
        ----------
        features : ndarray of the products' dtype, shape (inputs, neurons)
        inputs : int
            At least as many as a piece has.

        Returns
        -------
        ndarray, shape (inputs, neurons_out), or None
            None if features are anything else, if items of an input are not adjacent, or if
            features are not finite or a score is NaN.
        """
        try:
            memory = self._unused.pop()  # concurrent calls each have their own
        except IndexError:
            memory = self._new_memory()
        out = np.empty((inputs, self._neurons[-1]), self.dtype)
        done = self._start(memory.address, self._layers, self.piece, inputs, features, out)
        self._unused.append(memory)
        return out if done else None

    def is_shared_by(self, threads: int) -> bool:
        """Whether a product is so long that several of so many threads would share it."""
        return any(product.threads_used(threads) > 1 for product in self._products)

    def _new_memory(self) -> _Memory:
        return _Memory(self._products, self._neurons, self.piece)


class _Memory:
    """What a call needs besides weights; for the parameters see `CompiledScores`.

    Attributes
    ----------
    address : int
        Of the addresses of each job's words.
    """

    def __init__(
        self, products: Sequence[FewColumnsProduct], neurons: Sequence[int], piece: int
    ) -> None:
        dtype = products[0].dtype
        self._scratch = [product.take_scratch() for product in products]
        for each in self._scratch:
            each.words[[RESIDUAL_AT, FINAL_AT]] = 0  # an earlier call may have left others
        self._jobs = np.array([each.address for each in self._scratch], np.int64)
        self.address = address_of(self._jobs)
        # Features before and after a layer take turns.
        self._features = aligned_empty((2, max(neurons[1:]) * piece), dtype)
        between = [address_of(each) for each in self._features]
        item, row = dtype.itemsize, piece * dtype.itemsize
        for number, (before, after) in enumerate(pairwise(self._scratch)):
            place = between[number % 2], row, item
            before.words[OUT_AT : OUT_AT + 3] = after.words[B_AT : B_AT + 3] = place
        expected = expected_words((piece, neurons[0]), dtype)  # a call has its own number of inputs
        self._scratch[0].words[EXPECTED_B : EXPECTED_B + EXPECTED_WORDS] = expected


@kernel_part
def count_flawed(numbers: Array, only_nan: bool) -> int:
    """Return how many numbers are NaN or, unless only these count, infinite.

    A sum of booleans is vector code.
    """
    found = 0
    for place in range(numbers.size):
        number = numbers[place]
        found += np.isnan(number) if only_nan else not np.isfinite(number)
    return found


@kernel_part
def any_flawed(address: int, count: int, itemsize: int, only_nan: bool) -> bool:
    """Whether there are such among so many numbers of float32 or float64 at an address."""
    if itemsize == 4:
        return count_flawed(array_at(address, count, np.float32), only_nan) > 0
    return count_flawed(array_at(address, count, np.float64), only_nan) > 0


@locked_kernel
def run_layers(jobs_at: int, layers: int, piece: int, inputs: int, features: Any, out: Any) -> bool:
    """Run features through products, each of which reads what the one before it has written.

    Parameters
    ----------
    jobs_at : int
        The address of the addresses of each job's words; those of the first tell what features are
        expected, but for their number.
    layers : int
        How many products there are.
    piece : int
        Inputs that these take.
    inputs : int
        How many there are, at least `piece`.
    features : object, as `ARRAY_OBJECT`
        Whatever a user gave; expected are features of shape (inputs, neurons).
    out : ndarray, as `ARRAY_OBJECT`, shape (inputs, neurons_out)
        In C order, of the features' type.

    Returns
    -------
    bool
        False if features are not as expected, if items of an input are not adjacent, or if
        features are not finite or a score is NaN.
    """
    jobs = array_at(jobs_at, layers, np.int64)
    first = array_at(jobs[0], FIRST_PART, np.int64)
    first[EXPECTED_B + OF_SHAPE] = inputs
    if inputs < piece or not is_expected(features, jobs[0] + 8 * EXPECTED_B):
        return False
    given, scores = place_of(features, first[ITEMSIZE]), place_of(out, first[ITEMSIZE])
    if given.order != BY_ROWS:
        return False
    state = release_lock()
    valid = run_pieces(jobs, piece, inputs, given, scores)
    take_lock(state)
    return valid


@kernel_part
def run_pieces(jobs: Array, piece: int, inputs: int, features: Place, scores: Place) -> bool:
    """Do what `run_layers` does, for features and scores whose rows are contiguous.

    There may be gaps between rows of features.

    Returns whether features are finite, and no score is NaN.
    """
    first = array_at(jobs[0], FIRST_PART, np.int64)
    last = array_at(jobs[jobs.size - 1], FIRST_PART, np.int64)
    itemsize = first[ITEMSIZE]
    # Rows of features without gaps between them are searched in one pass.
    together = inputs if features.row_step == features.columns * itemsize else 1
    for input_ in range(0, inputs, together):
        at = features.address + input_ * features.row_step
        if any_flawed(at, together * features.columns, itemsize, False):
            return False
    for begin in range(0, inputs, piece):
        input_ = min(begin, inputs - piece)
        # Features are the transpose of B, and scores of C.
        first[B_AT] = features.address + input_ * features.row_step
        first[B_ROW], first[B_COLUMN] = itemsize, features.row_step
        write_out(last, scores.address + input_ * scores.row_step, itemsize, scores.row_step)
        for job_at in jobs:
            run_whole(job_at)
    return not any_flawed(scores.address, inputs * scores.columns, itemsize, True)


@functools.cache
def _entry_point() -> Callable[[int, int, int, int, object, object], bool]:
    """Return `run_layers` for Python."""
    return entry_point(run_layers, *[types.intp] * 4, ARRAY_OBJECT, ARRAY_OBJECT)
