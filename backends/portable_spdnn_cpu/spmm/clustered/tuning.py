"""Which variant runs a product: chosen by a model, or by a trial when the product is prepared.

A user's call never measures, so that its time is predictable. Variants give the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.machine.thread_pool import WAKING
from portable_spdnn_cpu.machine.timing import least_seconds

# Inputs of a panel: fewer make too little of each row that is copied, more leave the caches.
WIDTHS = (32, 64, 128)
PANELS_EACH = 8  # at least: other threads start late, and one of them ends last
L2_SHARE = 0.5  # of the second-level cache for a panel and its sums: indices take the rest
# Inputs up to which rows are near enough to each other to be read where they are.
MAX_IN_PLACE = 96
# Constants of the model in `predict`: seconds for four bytes, on one thread, as measured on a
# server core of 2023 with AVX-512. They are the same on every machine: a factor of two more or less
# hardly changes which variant is predicted to be the fastest.
ADDITION = 1e-11
LOAD = 3e-11  # from the second-level cache
SPLIT_LOAD = 2e-11  # what a load takes longer that crosses a cache line
COPY = 2e-10  # of a feature into a panel; out of it, or transposed, twice as much


@dataclass(frozen=True)
class ProductSize:
    """What a choice depends on, besides the number of inputs.

    Attributes
    ----------
    neurons_in, neurons_out, edges : int
    loads : int
        Of features, for an input: less than `edges` where clusters share them.
    itemsize : int
        Bytes of a feature.
    threads : int
        That may be used.
    """

    neurons_in: int
    neurons_out: int
    edges: int
    loads: int
    itemsize: int
    threads: int


@dataclass(frozen=True)
class Variant:
    """One way to run a product on a number of inputs.

    Attributes
    ----------
    threads : int
        All or one.
    in_place : bool
        Whether features are read where they are; else they are copied into panels.
    width : int
        Inputs of a panel, which a thread takes at a time.
    """

    threads: int
    in_place: bool
    width: int


def variants(product: ProductSize, inputs: int, fortran: bool) -> list[Variant]:
    """Return all variants for so many inputs; `fortran`: whether features lie as in a tile."""
    return [
        Variant(threads, in_place, width)
        for threads in dict.fromkeys((product.threads, 1))
        for in_place in ((False, True) if _may_stay(product, inputs, fortran) else (False,))
        for width in dict.fromkeys(_shared(width, product, inputs, threads) for width in WIDTHS)
    ]


def predict(product: ProductSize, inputs: int, fortran: bool, aligned: bool) -> Variant:
    """Choose a variant by a model of its costs; `aligned`: features start on a cache line."""
    sums = product.edges * ADDITION + product.loads * LOAD
    copies = product.neurons_in * COPY
    if not fortran:
        copies = 2 * (product.neurons_in + product.neurons_out) * COPY
    splits = 0.0 if aligned else product.loads * SPLIT_LOAD
    may_stay = _may_stay(product, inputs, fortran)
    in_place = may_stay and inputs <= MAX_IN_PLACE and splits < copies
    seconds = inputs * (sums + (splits if in_place else copies)) * product.itemsize / 4
    threads = product.threads if seconds * (1 - 1 / product.threads) > WAKING else 1
    narrow, usual, wide = WIDTHS
    row = (product.neurons_in + product.neurons_out) * product.itemsize
    if fortran and 2 * product.loads <= product.edges:
        width = wide  # clusters go through a panel once, and longer pieces of rows copy faster
    elif (threads > 1 and inputs < PANELS_EACH * threads * usual) or (
        not fortran and usual * row > L2_SHARE * cache_bytes(2)
    ):
        width = narrow
    else:
        width = usual
    return Variant(threads, in_place, _shared(width, product, inputs, threads))


def fastest(choices: list[Variant], run: Callable[[Variant], None]) -> Variant:
    """Return the fastest of some variants in a short trial."""
    measured = least_seconds([functools.partial(run, choice) for choice in choices])
    return choices[measured.index(min(measured))]


def _may_stay(product: ProductSize, inputs: int, fortran: bool) -> bool:
    """Whether features may be read where they are: they lie as in a tile, in whole blocks."""
    return fortran and inputs * product.itemsize % BLOCK_BYTES == 0


def _shared(width: int, product: ProductSize, inputs: int, threads: int) -> int:
    """Return the widest panel, at most `width`, of which every thread can have one.

    A whole number of vector blocks, and of pairs of them where there are two.
    """
    lanes = BLOCK_BYTES // product.itemsize
    each = -(-inputs // threads)
    wanted = min(width, -(-each // lanes) * lanes)
    return max(lanes, wanted // (2 * lanes) * 2 * lanes)
