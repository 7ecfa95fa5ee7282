"""How a product of pruned weights runs: candidates, what a model says of them, and their trial.

The model counts cycles of a thread for a vector of C. Its constants were measured on a core of 2023
with AVX-512 (two multiply-adds and 1.6 loads of 64 bytes in a cycle, 48 KiB and 2 MiB of cache);
they are the same on every machine: what chooses is mostly their ratios.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.machine.timing import seconds_of
from portable_spdnn_cpu.spmm.dense_layout import Layout
from portable_spdnn_cpu.spmm.direct.choice import is_reused
from portable_spdnn_cpu.spmm.stream.microkernels import MAX_VECTORS
from portable_spdnn_cpu.spmm.stream.product import StreamVariant, is_shared

CYCLE = 2.7e-10  # seconds
L1, L2 = cache_bytes(1), cache_bytes(2)
L1_SHARE = 0.8  # what a panel may take of the first level: weights stream through it too
L2_SHARE = 0.62  # and of the second: sums and C are there as well
L2_WAYS = 16  # lines in a set of the second level, of that core; others have 8
# Cycles for a vector of 64 bytes. To load one of B:
L1_LOAD, L2_LOAD, MEMORY_LOAD = 0.62, 1.3, 8.0
ACROSS_LINES = 2.0  # factor for one that lies across two cache lines
# To copy one of B to a panel from the second level, and to transpose it on the way.
COPY, TRANSPOSE = 4.5, 8.0
# To copy one from beyond the second level: to a panel that fits the first, and to a larger one.
MEMORY_TO_L1, MEMORY_TO_L2 = 6.0, 12.0
PIECE = 16.0  # besides, for each row of the panel: pieces lie on pages of their own
# To write one of C where the second level holds C, and to transpose it on the way.
WRITE, WRITE_FORTRAN = 4.0, 10.0
# To write one of C where it does not: whole rows of C, and rows of panels.
WRITE_ROWS, WRITE_PANELS = 6.0, 14.0
WAIT = 3.5  # to write and read one of sums, between two blocks
DENSE = 0.62  # for a multiply-add of vectors in BLAS
DENSE_VECTOR = 10.0  # for one of B or C there: it is looked at, packed and written
# For one of dense weights, which BLAS packs at every call: from the second level, and from beyond.
DENSE_WEIGHT, MEMORY_WEIGHT = 8.0, 20.0
# Cycles for other things.
MEMORY_ENTRY = 1.2  # for an entry of A from beyond the second level, with each panel
ROW = 12.0  # for a row of a block, whatever it has
FALSE_SHARING = 100.0  # for a row of C in which two threads write to one pair of cache lines
START = 12000.0  # for a call
# Seconds.
DIRECT_CALL = 1.5e-6  # for a call with A and B as they are
DENSE_CALL = 1e-5  # for a call of BLAS: B is looked at, and the threads of BLAS are set
PACK_CALL, PACK_ENTRY = 1e-5, 3e-9  # to pack A: for a call, and for an entry
K_BLOCKS = (64, 96, 128, 192, 256, 512, 1024, 2048, 4096)
TRIED = 8  # variants of the stream that a trial times, the fastest by the model
K_BLOCKS_TRIED = 3  # among them, that differ in k_block alone
# BLAS is tried where the model gives it at most this many times the best time.
DENSE_MARGIN = 3.0
ENTRY_BITS = 4  # leading ones of a number of entries, by which a choice is remembered
REMEMBERED = 256  # choices for products of different sizes
TRIAL_SECONDS = 2e-3  # of repetitions of each candidate
MAX_REPEATS = 20


@dataclass(frozen=True)
class ProductSize:
    """What a choice depends on.

    Attributes
    ----------
    rows, inner, columns : int
        m, k and n of C = A B.
    entries : int
        Of A.
    itemsize : int
        Bytes of an item.
    fortran, out_fortran : bool
        Whether columns of B, and those of C, lie together rather than rows.
    aligned : bool
        Whether rows of B start on cache lines and are whole vectors.
    threads : int
        That may be used.
    """

    rows: int
    inner: int
    columns: int
    entries: int
    itemsize: int
    fortran: bool
    out_fortran: bool
    aligned: bool
    threads: int

    @functools.cached_property
    def vectors(self) -> int:
        """Vectors of 64 bytes in a row of C."""
        return max(1, -(-self.columns * self.itemsize // BLOCK_BYTES))


def size_of(
    A: SparseOperand, columns: int, layout: int, workers: ThreadPool, keeps_order: bool = False
) -> ProductSize:
    """Return what a choice depends on for a product with so many columns.

    Where C keeps B's order it is in Fortran order if B is; else it is in C order.
    """
    rows, inner = A.shape
    itemsize = A.dtype.itemsize
    shared = is_shared(int(A.nnz), (rows, inner), columns, itemsize)
    fortran = layout == Layout.FORTRAN
    return ProductSize(
        rows, inner, columns, int(A.nnz), itemsize, fortran, fortran and keeps_order,
        layout == Layout.ALIGNED, workers.threads if shared else 1,
    )  # fmt: skip


@functools.lru_cache(maxsize=REMEMBERED)
def stream_variants(size: ProductSize) -> tuple[StreamVariant, ...]:
    """Return the variants of the stream, the fastest by the model first."""
    inner = max(1, size.inner)
    found: list[StreamVariant] = []
    seen: Counter[tuple[object, ...]] = Counter()
    for variant in _variants(size, [block for block in K_BLOCKS if block < inner] + [inner]):
        kind = variant.vectors, *variant[2:]  # all but k_block
        seen[kind] += 1
        if seen[kind] <= K_BLOCKS_TRIED:
            found.append(variant)
    return tuple(found)


def single_variant(size: ProductSize) -> tuple[StreamVariant, bool]:
    """Return the variant for a single product, and whether it packs A before.

    Otherwise it takes A as it is, in one block. Matrices of about as many entries share a choice:
    one takes longer than a small product.
    """
    unit = 1 << max(0, size.entries.bit_length() - ENTRY_BITS)
    return _single_variant(replace(size, entries=size.entries // unit * unit))


@functools.lru_cache(maxsize=REMEMBERED)
def _single_variant(size: ProductSize) -> tuple[StreamVariant, bool]:
    whole = _variants(size, [max(1, size.inner)])[0]
    seconds, packing = stream_seconds(size, whole), packing_seconds(size)
    if seconds > 2 * packing:  # else it hardly pays
        packed = stream_variants(size)[0]
        if stream_seconds(size, packed) + packing < seconds:
            return packed, True
    return whole, False


def direct_is_faster(size: ProductSize) -> bool:
    """Whether a single product takes less time with A and B as they are than by the stream."""
    variant, packs = single_variant(size)
    before = packing_seconds(size) if packs else 0.0
    return direct_seconds(size) < stream_seconds(size, variant) + before


def packing_seconds(size: ProductSize) -> float:
    """Return what it takes to pack A for the stream."""
    return PACK_CALL + PACK_ENTRY * size.entries


def _variants(size: ProductSize, k_blocks: list[int]) -> list[StreamVariant]:
    """Return the variants with some blocks of K, and in place, the fastest by the model first."""
    part_counts = tuple(dict.fromkeys((1, size.threads)))
    found = [
        StreamVariant(vectors, k_block, parts)
        for vectors in _panel_widths(size.vectors, size.threads)
        for k_block in k_blocks
        for parts in part_counts
    ]
    if size.aligned:
        found += [
            StreamVariant(vectors, k_blocks[-1], parts, panels, in_place=True)
            for vectors in dict.fromkeys(min(width, size.vectors, MAX_VECTORS) for width in (4, 8))
            for panels in dict.fromkeys((1, _panels_together(size, vectors)))
            for parts in part_counts
        ]
    return sorted(dict.fromkeys(found), key=lambda variant: stream_seconds(size, variant))


def _panels_together(size: ProductSize, vectors: int) -> int:
    """Return how many panels of B the second-level cache holds, at most those that there are."""
    fitting = int(L2_SHARE * L2) // (max(1, size.inner) * vectors * BLOCK_BYTES)
    return max(1, min(fitting, -(-size.vectors // vectors)))


def _panel_widths(vectors: int, threads: int) -> list[int]:
    """Return widths of panels that divide so many vectors about evenly, one for each thread too."""
    least = -(-vectors // MAX_VECTORS)
    numbers = {max(least, -(-vectors // width)) for width in range(1, MAX_VECTORS + 1)}
    numbers.add(max(least, min(threads, vectors)))
    return sorted({-(-vectors // panels) for panels in numbers})


def stream_seconds(size: ProductSize, variant: StreamVariant) -> float:
    """Return what the model says of a variant, in seconds."""
    rows = max(1, size.rows)
    blocks_of_k = -(-max(1, size.inner) // variant.k_block)
    load = _load(size, variant)
    # Besides its vectors an entry loads its value and its offset.
    entry = load + 2 * L1_LOAD / variant.vectors
    if size.entries * (size.itemsize + 4) > L2_SHARE * L2:
        entry += MEMORY_ENTRY / (variant.vectors * variant.panels)
    sums = size.entries / rows * entry
    copy = TRANSPOSE if size.fortran else COPY
    if size.inner * size.vectors * BLOCK_BYTES > L2:
        panel = variant.k_block * variant.vectors * BLOCK_BYTES
        moved = MEMORY_TO_L1 if panel <= L1_SHARE * L1 else MEMORY_TO_L2
        copy = max(copy, moved + PIECE / variant.vectors)
    copies = 0.0 if variant.in_place else size.inner * variant.parts / rows * copy
    parts = min(variant.parts, size.threads)
    write = WRITE_FORTRAN if size.out_fortran else WRITE
    written = rows * size.vectors * BLOCK_BYTES / parts
    if written > L2 / 2:
        whole = variant.vectors * variant.panels >= size.vectors
        write = max(write, WRITE_ROWS if whole else WRITE_PANELS)
    row = blocks_of_k * ROW / (variant.vectors * variant.panels)
    cycles = sums + copies + write + WAIT * (blocks_of_k - 1) + row
    tasks = -(-size.vectors // (variant.vectors * variant.panels)) * variant.parts
    rounds = -(-tasks // size.threads) / tasks  # the share of the thread that has most
    shared = 0.0
    if parts < min(size.threads, tasks) and size.columns * size.itemsize % (2 * BLOCK_BYTES):
        shared = FALSE_SHARING * rows
    return CYCLE * (START + cycles * rows * size.vectors * rounds + shared)


def _load(size: ProductSize, variant: StreamVariant) -> float:
    """Return the cycles of a load of B."""
    row = variant.vectors * variant.panels * BLOCK_BYTES
    rows = max(1, min(variant.k_block, size.inner))
    if variant.in_place:
        near = _near(size, rows, row)
    elif rows * row <= L1_SHARE * L1:
        return L1_LOAD
    else:
        near = min(1.0, L2_SHARE * L2 / (rows * row))
    return near * L2_LOAD + (1 - near) * MEMORY_LOAD


def _near(size: ProductSize, rows: int, row: int, cache: float = L2_SHARE * L2) -> float:
    """Return the share of rows of B, `row` bytes of each, that a cache holds.

    Rows that lie a power of two apart compete for few of the cache's sets.
    """
    alias_stride = math.gcd(size.vectors * BLOCK_BYTES, L2 // L2_WAYS)
    return min(1.0, cache * min(1.0, row / alias_stride) / max(1, rows * row))


def direct_seconds(size: ProductSize) -> float:
    """Return what the model says of A as it is and B in place, in seconds."""
    read = min(size.entries, size.inner)  # rows of B
    row = min(size.vectors, MAX_VECTORS) * BLOCK_BYTES
    near, nearest = _near(size, read, row), _near(size, read, row, L1_SHARE * L1)
    turned, copied = TRANSPOSE * size.rows * size.out_fortran, 0.0
    if size.fortran:
        turned += TRANSPOSE * size.inner
    elif not size.aligned and is_reused(size.entries, size.inner, size.columns, size.itemsize):
        copied = COPY * size.inner
    across = 1.0 if size.aligned or size.fortran or copied else ACROSS_LINES
    load = (1 - near) * MEMORY_LOAD + across * (
        nearest * L1_LOAD + max(0.0, near - nearest) * L2_LOAD
    )
    first = MEMORY_LOAD if size.inner * size.vectors * BLOCK_BYTES > L2 else load
    loads = (size.entries - read) * load + read * first
    write = WRITE if size.rows * size.vectors * BLOCK_BYTES <= L2 / 2 else WRITE_PANELS
    shared = (loads + size.rows * write) / (1 if size.fortran else size.threads)
    return DIRECT_CALL + CYCLE * size.vectors * (shared + turned + copied)


def dense_seconds(size: ProductSize) -> float:
    """Return what the model says of BLAS, in seconds."""
    weights = size.rows * size.inner * size.itemsize / BLOCK_BYTES
    packed = DENSE_WEIGHT if weights * BLOCK_BYTES <= L2_SHARE * L2 else MEMORY_WEIGHT
    cycles = weights * (DENSE * size.columns + packed)
    cycles += DENSE_VECTOR * (size.rows + size.inner) * size.vectors
    return DENSE_CALL + CYCLE * cycles / size.threads


def measured(run: Callable[[], object], best: float) -> float:
    """Return the least seconds of some runs; few where one is far slower than the best so far."""
    run()  # compiles, or loads from the cache, and touches pages
    least, spent, repeats = float("inf"), 0.0, 0
    while spent < TRIAL_SECONDS and repeats < MAX_REPEATS:
        seconds = seconds_of(run)
        least, spent, repeats = min(least, seconds), spent + seconds, repeats + 1
        if repeats > 1 and least > 2 * best:
            break
    return least
