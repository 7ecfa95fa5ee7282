"""How a product of pruned weights runs: the variants that a model proposes, and their trial."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace

from portable_spdnn_cpu.jit.target import VECTOR_BYTES, is_zen
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.cost_model import (
    L2,
    L2_SHARE,
    ProductSize,
    direct_seconds,
    packing_seconds,
    stream_seconds,
)
from portable_spdnn_cpu.spmm.dense_layout import MAPPED_BYTES, copied_bytes
from portable_spdnn_cpu.spmm.stream.microkernels import MAX_VECTORS
from portable_spdnn_cpu.spmm.stream.product import StreamVariant

K_BLOCKS = (64, 96, 128, 192, 256, 512, 1024, 2048, 4096)
TRIED = 8  # variants of the stream that a trial times, the fastest by the model
K_BLOCKS_TRIED = 3  # among them, that differ in k_block alone
# A trial calls each variant some ten times, for each layout of B. Where a call takes longer than
# this by the model, it multiplies fewer columns, in whole panels of 1, 2, 3, 4, 6 and 8 vectors.
TRIED_SECONDS = 2e-3
TRIED_VECTORS = 24
# Of products that still take long fewer variants are tried: as many as take so many seconds
# together, if each is called once, but at least so many.
TRIAL_SECONDS, LEAST_TRIED = 0.05, 3
# BLAS is tried where the model gives it at most this many times the best time.
DENSE_MARGIN = 3.0
# A single product packs A where that takes less than so many times what A as it is takes, by the
# model. Of 833 random products those that it packs then take 1.10 times as long at most, with 0.9
# up to 1.63; all take 0.89 and 0.88 of the time of A as it is in the geometric mean.
PACKED_MARGIN = 0.85
LEAST_ROW_IN_PLACE = 4  # entries of a row on average: see `_widths_in_place`
ENTRY_BITS = 4  # leading ones of a number of entries, by which a choice is remembered
REMEMBERED = 256  # choices for products of different sizes
# What a single product by the stream takes besides, as measured on a Zen 5: seconds in which A is
# checked and a product made, seconds for each entry that is to be sorted, and times as long as
# where C is at hand and A was read before.
SINGLE_CALL, SORTED_ENTRY, SINGLE_FACTOR = 4e-5, 3e-8, 1.15
# The model of A and B as they are was compared with products of rows of B of up to FITTED_BYTES, in
# C order. Others take up to twice as long as it says: A as it is has to take less than so many
# times the stream's seconds by the model.
FITTED_BYTES, UNFITTED_FACTOR = 8192, 0.5
# For B in Fortran order whose copy is below MAPPED_BYTES: of rows of up to NARROW_BYTES, as fitted
# to 330 products on an Intel Xeon, and of any where C is in Fortran order too. Of 34 such layers on
# a Zen 3 what is taken by it takes 1.16 times as long as the faster way in the geometric mean and
# 1.9 times at most, and by UNFITTED_FACTOR 1.26 and 2.5 times.
NARROW_BYTES, FORTRAN_FACTOR = 256, 0.8
# For B in Fortran order of at most so many bytes, and C in C order: more than 1, as the model has A
# as it is take longer there than it does. Of 197 such products on a Zen 3 what is taken by it takes
# 1.06 times as long as the faster way in the geometric mean, and 1.32 times by the factors above;
# it was not measured on other processors, and is not used there.
NEAR_FACTOR, NEAR_BYTES = 1.2, L2 // 2 if is_zen() and VECTOR_BYTES < 64 else 0


def stream_variants(size: ProductSize) -> tuple[StreamVariant, ...]:
    """Return the variants of the stream, the fastest by the model first.

    Numbers of columns between two multiples of half a vector share an order, as the model gives
    them the same times where a row has more than one vector. To find an order takes about a
    millisecond, for each length where sequences of many lengths are multiplied.
    """
    # A multiple itself is not among them: its rows may be whole cache lines.
    half = BLOCK_BYTES // 2 // size.itemsize
    if size.vectors > 1 and size.columns % half:
        size = replace(size, columns=-(-size.columns // half) * half - 1)
    return _ordered_variants(size)


@functools.lru_cache(maxsize=REMEMBERED)
def _ordered_variants(size: ProductSize) -> tuple[StreamVariant, ...]:
    found: list[StreamVariant] = []
    seen: Counter[tuple[object, ...]] = Counter()
    for variant in all_variants(size):
        kind = variant.vectors, *variant[2:]  # all but k_block
        seen[kind] += 1
        if seen[kind] <= K_BLOCKS_TRIED:
            found.append(variant)
    return tuple(found)


def tried_columns(size: ProductSize) -> int:
    """Return how many columns a trial multiplies: fewer than there are where that takes long."""
    seconds = stream_seconds(size, stream_variants(size)[0])
    unit = TRIED_VECTORS * BLOCK_BYTES // size.itemsize
    fewer = max(1, int(size.columns * TRIED_SECONDS / seconds) // unit) * unit
    return size.columns if seconds <= TRIED_SECONDS else min(size.columns, fewer)


def tried_variants(size: ProductSize) -> tuple[StreamVariant, ...]:
    """Return the variants of the stream that a trial times.

    They are the fastest by the model, and one with all of K as a block, which it knows least about.
    Times 256 columns 2,048 x 512 weights with 95 % zeros take 357 microseconds so on an Intel core,
    406 in the fastest other variant, and 438 in that of the model.
    """
    variants = stream_variants(size)
    seconds = stream_seconds(size, variants[0]) * tried_columns(size) / size.columns
    tried = variants[: min(TRIED, max(LEAST_TRIED, int(TRIAL_SECONDS / seconds)))]
    if any(is_whole(size, each) for each in tried):
        return tried
    return (*tried[:-1], next(each for each in all_variants(size) if is_whole(size, each)))


def is_whole(size: ProductSize, variant: StreamVariant) -> bool:
    """Whether all of K is a block that is copied."""
    return variant.k_block >= size.inner and not variant.in_place


def all_variants(size: ProductSize) -> list[StreamVariant]:
    """Return the variants of the stream with every block of K, the fastest by the model first."""
    inner = max(1, size.inner)
    return _variants(size, [block for block in K_BLOCKS if block < inner] + [inner])


def single_variant(size: ProductSize) -> tuple[StreamVariant, bool]:
    """Return the variant for a single product, and whether it packs A before.

    Otherwise it takes A as it is, in one block. Matrices of about as many entries share a choice:
    one takes longer than a small product.
    """
    unit = 1 << max(0, size.entries.bit_length() - ENTRY_BITS)
    return _single_variant(replace(size, entries=size.entries // unit * unit))


@functools.lru_cache(maxsize=REMEMBERED)
def _single_variant(size: ProductSize) -> tuple[StreamVariant, bool]:
    # A that is not packed is streamed against copies of panels: where B can stay in place, the
    # kernels of A as it is read it so too, and some rows meet all panels before the next ones do.
    in_one_block = _variants(size, [max(1, size.inner)])
    whole = min(
        (each for each in in_one_block if not each.in_place),
        key=lambda variant: stream_seconds(size, variant, prepared=False),
    )
    seconds = stream_seconds(size, whole, prepared=False)
    if seconds > 2 * packing_seconds(size, whole):  # else it hardly pays
        packed = min(
            (each for each in stream_variants(size) if each.packs(size.inner)),
            key=lambda variant: _packed_seconds(size, variant),
            default=None,
        )
        if packed is not None and _packed_seconds(size, packed) < PACKED_MARGIN * seconds:
            return packed, True
    return whole, False


@functools.lru_cache(maxsize=REMEMBERED)
def direct_is_faster(size: ProductSize, is_sorted: bool = True) -> bool:
    """Whether a single product takes less time with A and B as they are than by the stream.

    For the stream A is to be sorted.
    """
    variant, packs = single_variant(size)
    streamed = (
        _packed_seconds(size, variant) if packs else stream_seconds(size, variant, prepared=False)
    )
    streamed = SINGLE_FACTOR * streamed + SINGLE_CALL
    if not is_sorted:
        streamed += SORTED_ENTRY * size.entries
    return direct_seconds(size) < streamed * _required_ratio(size)


def _required_ratio(size: ProductSize) -> float:
    """Return below how many times the stream's predicted seconds A as it is is taken."""
    if is_fitted(size):
        return 1.0
    copied = copied_bytes(size.inner, size.columns, size.itemsize)
    if not size.fortran or copied >= MAPPED_BYTES:
        return UNFITTED_FACTOR
    if size.out_fortran:
        return FORTRAN_FACTOR
    if size.b_bytes <= NEAR_BYTES:
        return NEAR_FACTOR
    return FORTRAN_FACTOR if size.columns * size.itemsize <= NARROW_BYTES else UNFITTED_FACTOR


def is_fitted(size: ProductSize) -> bool:
    """Whether what `direct_seconds` says of such a product is to be believed."""
    return not size.fortran and size.columns * size.itemsize <= FITTED_BYTES


def _packed_seconds(size: ProductSize, variant: StreamVariant) -> float:
    """Return what it takes to pack A and stream it once."""
    return packing_seconds(size, variant) + stream_seconds(size, variant)


def _variants(size: ProductSize, k_blocks: list[int]) -> list[StreamVariant]:
    """Return the variants with some blocks of K, and in place, the fastest by the model first."""
    part_counts = tuple(dict.fromkeys((1, size.threads)))
    found = [
        StreamVariant(vectors, k_block, parts)
        for vectors in _panel_widths(size.vectors, size.threads)
        for k_block in k_blocks
        for parts in part_counts
        if k_block >= size.inner or StreamVariant(vectors, k_block).packs(size.inner)
    ]
    if size.is_read_in_place:
        found += [
            StreamVariant(vectors, k_blocks[-1], parts, panels, in_place=True)
            for vectors in _widths_in_place(size)
            for panels in dict.fromkeys((1, _panels_together(size, vectors)))
            for parts in part_counts
        ]
    return sorted(dict.fromkeys(found), key=lambda variant: stream_seconds(size, variant))


def _panels_together(size: ProductSize, vectors: int) -> int:
    """Return how many panels of B the second-level cache holds, at most those that there are."""
    fitting = int(L2_SHARE * L2) // (max(1, size.inner) * vectors * BLOCK_BYTES)
    return max(1, min(fitting, -(-size.panel_vectors(in_place=True) // vectors)))


def _widths_in_place(size: ProductSize) -> list[int]:
    """Return widths of panels that are read in B: of 4 and 8 vectors, or so many as there are.

    None with few entries in a row: A as it is reads B so too, and takes less time. Where rows begin
    within a line, a width near these that divides their vectors, of which there is one more, about
    evenly, unless the second level does not hold such a panel.
    """
    if size.entries < LEAST_ROW_IN_PLACE * size.rows:
        return []
    vectors = size.panel_vectors(in_place=True)
    widths = {min(width, vectors, MAX_VECTORS) for width in (4, 8)}
    if size.aligned:
        return sorted(widths)
    even = {-(-vectors // -(-vectors // width)) for width in widths}
    return sorted(width for width in even if size.inner * width * BLOCK_BYTES <= L2)


def _panel_widths(vectors: int, threads: int) -> list[int]:
    """Return widths of panels that divide so many vectors about evenly, one for each thread too."""
    least = -(-vectors // MAX_VECTORS)
    numbers = {max(least, -(-vectors // width)) for width in range(1, MAX_VECTORS + 1)}
    numbers.add(max(least, min(threads, vectors)))
    return sorted({-(-vectors // panels) for panels in numbers})
