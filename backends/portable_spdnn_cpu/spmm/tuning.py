"""How a product of pruned weights runs: candidates, what a model says of them, and their trial.

The model counts cycles of a thread for a vector of C. Its constants were measured on a core of 2023
with AVX-512 (two multiply-adds and 1.6 loads of 64 bytes in a cycle, 48 KiB and 2 MiB of cache);
they are the same on every machine, for it is their ratios that choose.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.machine.timing import seconds_of
from portable_spdnn_cpu.spmm.stream.microkernels import MAX_VECTORS
from portable_spdnn_cpu.spmm.stream.product import StreamVariant

CYCLE = 2.7e-10  # seconds
# From here on cycles for each 64-byte vector, unless said otherwise.
LOAD = 0.62  # from the first-level cache
FAR_LOAD = 1.3  # from the second
FARTHEST_LOAD = 8.0  # from beyond
FARTHEST_ENTRY = 4.0  # of an entry of A that comes from beyond, for all vectors of a panel
L1, L2 = cache_bytes(1), cache_bytes(2)
L1_SHARE = 0.8  # of the first level, for a panel: weights stream through it too
L2_SHARE = 0.62  # of the second: sums and C are there as well
L2_WAYS = 16
COPY, TRANSPOSE = 4.5, 8.0  # of a vector of B into a panel: as it lies, and transposed
# Of one that comes from beyond the second level: into a panel in the first, and into a larger one.
COPY_FAR, COPY_FARTHER = 10.0, 18.0
WRITE, WRITE_FORTRAN = 4.0, 10.0  # of a vector of C that the second level holds
# Of one that it does not hold, in whole rows of C, and in panels of them.
WRITE_ROWS, WRITE_PANELS = 6.0, 14.0
SHARED_ROW = 100.0  # of a row of C in which two threads write to one pair of cache lines
WAIT = 3.5  # of a vector of sums, between two blocks
ROW = 12.0  # of a row of a block, whatever it has
DENSE = 0.62  # of a multiply-add of vectors in BLAS
START = 12000.0  # of a call
DENSE_CALL = 1e-5  # seconds: B is looked at, and the threads of BLAS are set
# Seconds that SciPy takes for an entry of A: with one column, and with each of several.
SCIPY_VECTOR, SCIPY = 4e-10, 1.3e-10
PREPARING = 1.5e-5  # seconds, of a product that is not kept
PACKED_ONCE = 1024  # columns from which packing pays in a single product
K_BLOCKS = (64, 96, 128, 192, 256, 512, 1024, 2048, 4096)
TRIED = 8  # variants of the stream that a trial times, the fastest by the model
ALIKE = 3  # among them, that differ in the blocks of K alone
# BLAS is tried where the model gives it at most this many times the best time.
DENSE_MARGIN = 3.0
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
    fortran : bool
        Whether columns of B, and of C, lie together rather than rows.
    aligned : bool
        Whether rows of B start on cache lines and are whole vector blocks.
    threads : int
        That may be used.
    """

    rows: int
    inner: int
    columns: int
    entries: int
    itemsize: int
    fortran: bool
    aligned: bool
    threads: int

    @functools.cached_property
    def vectors(self) -> int:
        """Vector blocks in a row of C."""
        return max(1, -(-self.columns * self.itemsize // BLOCK_BYTES))


@functools.lru_cache(maxsize=REMEMBERED)
def stream_variants(size: ProductSize) -> tuple[StreamVariant, ...]:
    """Return the variants of the stream, the fastest by the model first."""
    inner = max(1, size.inner)
    found: list[StreamVariant] = []
    alike: Counter[tuple[object, ...]] = Counter()
    for variant in _variants(size, [block for block in K_BLOCKS if block < inner] + [inner]):
        kind = variant.vectors, *variant[2:]  # all but k_block
        alike[kind] += 1
        if alike[kind] <= ALIKE:
            found.append(variant)
    return tuple(found)


@functools.lru_cache(maxsize=REMEMBERED)
def whole_variant(size: ProductSize) -> StreamVariant | None:
    """Return the variant for A as it is, in one block; None where A is better packed even once."""
    if size.columns >= PACKED_ONCE:
        return None
    return _variants(size, [max(1, size.inner)])[0]


def _variants(size: ProductSize, k_blocks: list[int]) -> list[StreamVariant]:
    """Return the variants with some blocks of K, and in place, the fastest by the model first."""
    parts = tuple(dict.fromkeys((1, size.threads)))
    found = [
        StreamVariant(vectors, k_block, some)
        for vectors in _panel_widths(size.vectors, size.threads)
        for k_block in k_blocks
        for some in parts
    ]
    if size.aligned:
        found += [
            StreamVariant(vectors, k_blocks[-1], some, panels, in_place=True)
            for vectors in dict.fromkeys(min(width, size.vectors, MAX_VECTORS) for width in (4, 8))
            for panels in dict.fromkeys((1, _panels_together(size, vectors)))
            for some in parts
        ]
    return sorted(dict.fromkeys(found), key=lambda variant: stream_seconds(size, variant))


def _panels_together(size: ProductSize, vectors: int) -> int:
    """Return how many panels of B the second-level cache holds, at most those that there are."""
    fitting = int(L2_SHARE * L2) // (max(1, size.inner) * vectors * BLOCK_BYTES)
    return max(1, min(fitting, -(-size.vectors // vectors)))


def _panel_widths(vectors: int, threads: int) -> list[int]:
    """Return widths of panels that divide so many vectors about evenly, one for each thread too."""
    least = -(-vectors // MAX_VECTORS)
    numbers = {*range(least, max(least, -(-vectors // 3)) + 1), max(least, min(threads, vectors))}
    numbers.update(max(least, -(-vectors // width)) for width in (1, 2))
    return sorted({-(-vectors // panels) for panels in numbers})


def stream_seconds(size: ProductSize, variant: StreamVariant) -> float:
    """Return what the model says of a variant, in seconds."""
    rows = max(1, size.rows)
    blocks_of_k = -(-max(1, size.inner) // variant.k_block)
    load = _load(size, variant)
    # Besides its vectors an entry loads its value and its offset.
    entry = load + 2 * LOAD / variant.vectors
    if size.entries * (size.itemsize + 4) > L2_SHARE * L2:
        entry += FARTHEST_ENTRY / (variant.vectors * variant.panels)
    sums = size.entries / rows * entry
    copy = TRANSPOSE if size.fortran else COPY
    if size.inner * size.vectors * BLOCK_BYTES > L2:
        panel = variant.k_block * variant.vectors * variant.panels * BLOCK_BYTES
        copy = max(copy, COPY_FAR if panel <= L1_SHARE * L1 else COPY_FARTHER)
    copies = 0.0 if variant.in_place else size.inner * variant.parts / rows * copy
    parts = min(variant.parts, size.threads)
    write = WRITE_FORTRAN if size.fortran else WRITE
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
        shared = SHARED_ROW * rows
    return CYCLE * (START + cycles * rows * size.vectors * rounds + shared)


def _load(size: ProductSize, variant: StreamVariant) -> float:
    """Return the cycles of a load of B."""
    row = variant.vectors * variant.panels * BLOCK_BYTES
    held = max(1, min(variant.k_block, size.inner)) * row
    capacity = L2_SHARE * L2
    if not variant.in_place:
        if held <= L1_SHARE * L1:
            return LOAD
    else:
        # Rows of B that lie powers of two apart compete for few of the cache's sets.
        apart = math.gcd(size.vectors * BLOCK_BYTES, L2 // L2_WAYS)
        capacity *= min(1.0, row / apart)
    near = min(1.0, capacity / held)
    return near * FAR_LOAD + (1 - near) * FARTHEST_LOAD


def scipy_seconds(size: ProductSize) -> float:
    """Return about what SciPy's product takes on its one thread, in seconds."""
    return size.entries * scipy_entry(size.columns) * size.itemsize / 4


def scipy_entry(columns: int) -> float:
    """Return about what SciPy takes for an entry of float32, in seconds."""
    return SCIPY_VECTOR if columns == 1 else SCIPY * columns


def dense_seconds(size: ProductSize) -> float:
    """Return what the model says of BLAS, in seconds."""
    # Few columns do not fill vectors, and A is read from the second-level cache, or from beyond.
    weights = size.rows * size.inner * size.itemsize / BLOCK_BYTES
    cycles = max(DENSE * weights * size.columns, FAR_LOAD * weights)
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
