"""What kernels of a product take, by a model: seconds that choices are made by.

The model counts cycles of a thread for vectors of C, of 64 bytes whatever the processor's have. Its
constants are in `costs`. Two thirds of random products took 0.90 to 1.10 times what it says on a
Zen 4, and 0.90 to 1.12 times on a Zen 5, by the stream 0.92 to 1.10 times on both; 0.84 to 1.17
times on an Intel Xeon, by the stream 0.87 to 1.16 times, and 0.8 to 1.35 times for those with up to
250,000 rows; and on a Zen 3 with AVX2 whose cores others used as well 0.78 to 1.24 times by the
stream and 0.81 to 1.33 times with A as it is. Choices depend mostly on ratios of what it says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from portable_spdnn.caching import cached_property
from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.costs import COSTS, UNPREDICTED_ROWS, beyond
from portable_spdnn_cpu.spmm.dense_layout import (
    ALIASING,
    Layout,
    is_reused,
    is_shifted,
    meets_few_rows,
)
from portable_spdnn_cpu.spmm.row_ends import adds_each_entry, may_add_each_entry
from portable_spdnn_cpu.spmm.stream.microkernels import MAX_VECTORS, last_is_halved, pairs
from portable_spdnn_cpu.spmm.stream.product import StreamVariant, is_shared

L1, L2 = cache_bytes(1), cache_bytes(2)
L2_SHARE = 0.62  # what a panel may take of the second level: sums and C are there as well
L2_WAYS = 16  # lines in a set of the second level, of a Zen 5; a Zen 3 has 8
SUM_PIECES = 3  # sums that are far take, between two blocks, as long as so many far pieces of B
NARROW = 0.25  # what a far piece of a single vector takes, as a share of one of several
FAR_LEVELS = 8  # from so many times the second level on, pieces of rows are far: see `_far_piece`
# A vector of C beyond the second level takes clusters of rows so many times as long to write as the
# stream: 100,000 x 8 with an entry in each row takes them 2 to 4 times as long as A as it is on an
# Intel core.
CLUSTERED_FAR = 3.0
FALSE_SHARING = 100.0  # of a row of C in which two threads write to one pair of cache lines
PLACE_BYTES = 3  # of an entry's place: the mean of 4 in A and 2 packed
OUTER_ITEM = 1.6e-9  # of an item of C where k is 1, and NumPy takes a loop of its own


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
    layout : int
        Of B, one of `Layout`.
    out_fortran : bool
        Whether columns of C lie together rather than rows.
    threads : int
        That may be used.
    """

    rows: int
    inner: int
    columns: int
    entries: int
    itemsize: int
    layout: int
    out_fortran: bool
    threads: int

    @cached_property
    def fortran(self) -> bool:
        """Whether columns of B lie together rather than rows."""
        return self.layout == Layout.FORTRAN

    @cached_property
    def aligned(self) -> bool:
        """Whether rows of B are whole cache lines."""
        return self.layout == Layout.ALIGNED

    @cached_property
    def is_read_in_place(self) -> bool:
        """Whether panels may be read in B: see `StreamProduct.reads_in_place`."""
        return self.aligned or (HAS_FAST_MASKS and self.layout == Layout.SHIFTED)

    def panel_vectors(self, in_place: bool) -> int:
        """Return the vectors of a row that panels cover: one more where they begin before it."""
        return self.vectors + (in_place and self.layout == Layout.SHIFTED)

    @cached_property
    def vectors(self) -> int:
        """Vectors of 64 bytes in a row of C."""
        return max(1, -(-self.columns * self.itemsize // BLOCK_BYTES))

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row of B, or of C: of whole vectors where it is longer than one."""
        return min(max(1, self.columns) * self.itemsize, BLOCK_BYTES) * self.vectors

    @cached_property
    def a_bytes(self) -> int:
        """Bytes of the entries of A, with indices of 32 bits."""
        return self.entries * (self.itemsize + 4)

    @cached_property
    def c_bytes(self) -> int:
        """Bytes of C."""
        return max(1, self.rows) * self.row_bytes

    @cached_property
    def b_bytes(self) -> int:
        """Bytes of B."""
        return max(1, self.inner) * self.row_bytes


def size_of(
    shape: tuple[int, ...],
    entries: int,
    itemsize: int,
    columns: int,
    layout: int,
    workers: ThreadPool,
    keeps_order: bool = False,
) -> ProductSize:
    """Return what a choice depends on, of A's shape and entries and B's columns and layout.

    Where C keeps B's order it is in Fortran order if B is; else it is in C order.
    """
    rows, inner = shape
    shared = is_shared(entries, shape, columns, itemsize)
    out_fortran = layout == Layout.FORTRAN and keeps_order
    threads = workers.threads if shared else 1
    return ProductSize(rows, inner, columns, entries, itemsize, layout, out_fortran, threads)


def stream_seconds(size: ProductSize, variant: StreamVariant, prepared: bool = True) -> float:
    """Return what the model says of a variant, in seconds; not prepared, A is not packed."""
    rows, vectors = max(1, size.rows), size.panel_vectors(variant.in_place)
    blocks_of_k = float(-(-max(1, size.inner) // variant.k_block))
    load = _load(size, variant, prepared)
    together = variant.vectors * variant.panels
    by_entry, by_row = COSTS.stream.entry, COSTS.stream.row
    if not (prepared and variant.packs(size.inner)):
        by_entry, by_row = by_entry + COSTS.given_entry, by_row + COSTS.given_row
    if not pairs(variant.vectors):
        by_entry, by_row = by_entry + COSTS.unpaired_entry, by_row + COSTS.unpaired_row
    entry = load + by_entry / variant.vectors
    held = _panel_bytes(size, variant)
    entry += _far_piece(held) / together
    if size.a_bytes > L2_SHARE * L2:
        entry += COSTS.memory_entry / together
    sums = size.entries / rows * entry
    copy = COSTS.stream.copy
    if size.fortran:
        aliases = together * BLOCK_BYTES % ALIASING == 0 and held > L1
        copy = COSTS.stream.transpose + COSTS.aliased * aliases
    if size.b_bytes > L2:
        panel = variant.k_block * variant.vectors * BLOCK_BYTES
        moved = COSTS.memory_to_l1 if panel <= COSTS.l1_share * L1 else COSTS.memory_to_l2
        if variant.vectors < vectors:
            moved += COSTS.piece / variant.vectors
        copy = max(copy, moved * beyond(size.b_bytes))
    copies = 0.0 if variant.in_place else size.inner * variant.parts / rows * copy
    parts = min(variant.parts, size.threads)
    write = COSTS.stream.write_fortran if size.out_fortran else COSTS.stream.write
    if size.c_bytes / parts > L2 / 2:
        far = COSTS.write_rows
        if together < vectors:
            far = COSTS.stream.write_far + COSTS.written_piece / together
        write = max(write, far * beyond(size.c_bytes))
    if blocks_of_k > 2:
        # Between the first block and the last only rows with entries are met: so many, were entries
        # anywhere.
        met = -math.expm1(-size.entries / rows * variant.k_block / size.inner)
        blocks_of_k = 2 + (blocks_of_k - 2) * met
    row = blocks_of_k * by_row / together
    sums_bytes = rows * min(together, vectors) * BLOCK_BYTES
    # Sums pass through the second level with A from one block to the next.
    far_sums = max(0.0, 1 - L2_SHARE * L2 / (sums_bytes + size.a_bytes))
    far_sum = (COSTS.stream.memory + COSTS.stream.write_far) * beyond(sums_bytes)
    wait = COSTS.wait + far_sums * far_sum
    wait += SUM_PIECES * _far_piece(sums_bytes) / together
    cycles = sums + copies + write + wait * (blocks_of_k - 1) + row
    tasks = -(-vectors // together) * variant.parts
    share = share_of_most(vectors, together, variant.parts, size.threads)
    shared = 0.0
    if parts < min(size.threads, tasks) and size.columns * size.itemsize % (2 * BLOCK_BYTES):
        shared = FALSE_SHARING * rows
    return COSTS.cycle * (COSTS.start + cycles * rows * vectors * share + shared)


def share_of_most(vectors: int, together: int, parts: int, threads: int) -> float:
    """Return the share of a product that the thread which has most of it computes.

    Of each part of the rows all tasks but the last have `together` vectors of columns. The threads
    that have a task more than the others have those that are left over, the narrow last among them.
    """
    if parts % threads == 0:
        return 1 / threads
    tasks = -(-vectors // together)
    each, over = divmod(tasks * parts, threads)
    last = vectors - (tasks - 1) * together
    most = each * together
    if over:
        most += last if over == 1 else together
    return min(1.0, most / (vectors * parts))


def clustered_seconds(size: ProductSize, streamed: float, gain: float) -> float:
    """Return what clusters of rows take, by what the stream takes: they write all of C as well.

    `gain` is how many times as fast they do the rest.
    """
    write = COSTS.stream.write_fortran if size.out_fortran else COSTS.stream.write
    if size.c_bytes > L2 / 2:
        write = max(write, CLUSTERED_FAR * COSTS.stream.write_far * beyond(size.c_bytes))
    written = COSTS.cycle * write * size.rows * size.vectors / size.threads
    return min(streamed, written + max(0.0, streamed - written) / gain)


def _load(size: ProductSize, variant: StreamVariant, prepared: bool) -> float:
    """Return the cycles of a load of B, as the mean of all vectors.

    Half a vector takes half of a load from the first level, but as long from others, which move
    whole cache lines.
    """
    row = variant.vectors * variant.panels * BLOCK_BYTES
    held = _panel_bytes(size, variant)
    if variant.in_place:
        nearest, near = 0.0, _near(size, held // row, row)
        held = size.b_bytes
        together = math.inf
    else:
        nearest, near = (min(1.0, cache / held) for cache in (COSTS.l1_share * L1, L2_SHARE * L2))
        together = variant.vectors
    far = (1 - near) * COSTS.stream.memory * beyond(held) * (1 + COSTS.narrow_load / together)
    packed = prepared and variant.packs(size.inner)
    # Rows that are read in place are whole lines.
    halved = packed and last_is_halved(size.columns * size.itemsize, size.vectors)
    loads = 1 - 0.5 * halved / size.vectors
    return nearest * loads * COSTS.stream.l1 + (near - nearest) * COSTS.stream.l2 + far


def _panel_bytes(size: ProductSize, variant: StreamVariant) -> int:
    """Return the bytes of a block of rows of B that entries meet, in a panel or some together."""
    rows = max(1, min(variant.k_block, size.inner))
    return rows * variant.vectors * variant.panels * BLOCK_BYTES


def _far_piece(held: float) -> float:
    """Return the cycles of a piece of a row of B besides its loads, in a panel of so many bytes.

    Entries meet it anywhere, so that a processor does not fetch it ahead.
    """
    return max(0.0, 1 - FAR_LEVELS * L2 / max(1, held)) * COSTS.far_piece


def _near(size: ProductSize, rows: int, row: int, cache: float = L2_SHARE * L2) -> float:
    """Return the share of rows of B, `row` bytes of each, that a cache holds.

    Rows that lie a power of two apart compete for few of the cache's sets.
    """
    alias_stride = math.gcd(size.row_bytes, L2 // L2_WAYS) if size.vectors > 1 else row
    return min(1.0, cache * min(1.0, row / alias_stride) / max(1, rows * row))


def direct_seconds(size: ProductSize) -> float:
    """Return what the model says of A as it is and B in place, in seconds."""
    if size.columns == 1:
        return COSTS.direct_call + COSTS.cycle * (
            COSTS.spmv_entry * size.entries + COSTS.spmv_row * size.rows
        )
    read = min(size.entries, size.inner)  # rows of B
    row = min(size.row_bytes, MAX_VECTORS * BLOCK_BYTES)
    near, nearest = _near(size, read, row), _near(size, read, row, COSTS.l1_share * L1)
    turned, copied = 0.0, 0.0
    if size.fortran:
        # Of all rows, both B and the copy take room in the last cache.
        few = meets_few_rows(size.entries, size.inner)
        turned = COSTS.direct.transpose * (read if few else size.inner * beyond(2 * size.b_bytes))
    elif not size.aligned and is_reused(
        size.entries, size.inner, size.columns, size.itemsize, size.layout
    ):
        copied = COSTS.direct.copy * size.inner
    across = COSTS.across
    if size.aligned or size.fortran or copied:
        across = 1.0
    elif is_shifted(size.columns * size.itemsize, size.layout):
        across = 1 + 1 / size.vectors  # one vector more
    memory = COSTS.direct.memory * beyond(size.b_bytes)
    load = (1 - near) * memory + across * (
        nearest * COSTS.direct.l1 + max(0.0, near - nearest) * COSTS.direct.l2
    )
    first = memory if size.b_bytes > L2 else load
    loads = (size.entries - read) * load + read * first
    write = COSTS.direct.write
    if size.c_bytes > L2 / 2:
        write = COSTS.direct.write_far * beyond(size.c_bytes)
    if size.out_fortran:
        write = COSTS.direct.write_fortran
    panels = -(-size.vectors // MAX_VECTORS)
    vectors = size.vectors * (loads + size.rows * write)
    # More rows of a single vector are on their way at a time.
    far_piece = _far_piece(max(1, size.inner) * row) * (NARROW if size.vectors == 1 else 1.0)
    entry = COSTS.direct.entry + far_piece
    row_ends = COSTS.direct.row + _mispredicted(size)
    vectors += panels * (size.rows * row_ends + size.entries * entry)
    threads = 1 if size.fortran else size.threads
    return COSTS.direct_call + COSTS.cycle * (vectors / threads + size.vectors * (turned + copied))


def _mispredicted(size: ProductSize) -> float:
    """Return the cycles that a row of A as it is takes for a branch that is not predicted."""
    sizes = size.entries, size.rows, size.columns * size.itemsize
    if adds_each_entry(*sizes) or may_add_each_entry(*sizes):
        return 0.0
    return COSTS.mispredicted * min(1.0, size.rows / UNPREDICTED_ROWS)


def dense_seconds(size: ProductSize) -> float:
    """Return what the model says of BLAS, in seconds."""
    if size.inner == 1:
        return COSTS.dense_call + OUTER_ITEM * size.rows * size.columns
    weights = size.rows * size.inner * size.itemsize / BLOCK_BYTES
    packed = COSTS.dense_weight if weights * BLOCK_BYTES <= L2_SHARE * L2 else COSTS.memory_weight
    cycles = weights * (COSTS.dense * size.columns + packed)
    rows = size.rows + size.inner * beyond(size.b_bytes)  # of C and of B
    cycles += COSTS.dense_vector * rows * size.vectors
    return COSTS.dense_call + COSTS.cycle * cycles / size.threads


def packing_seconds(size: ProductSize, variant: StreamVariant) -> float:
    """Return what it takes to pack A for a variant of the stream."""
    blocks = -(-max(1, size.inner) // variant.k_block)
    filled = min(size.entries, size.rows * blocks)
    moved = size.entries * 2 * (size.itemsize + PLACE_BYTES)
    costs = COSTS.packing
    far = costs.far_byte * max(0, moved - L2) * beyond(moved)
    return costs.call + costs.entry * size.entries + costs.row * filled + far
