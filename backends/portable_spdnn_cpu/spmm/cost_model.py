"""What kernels of a product take, by a model: seconds that choices are made by.

The model counts cycles of a thread for vectors of C, of 64 bytes whatever the processor's have. Its
constants are fitted to 10,000 random products: where a processor's vectors have 64 bytes on a Zen 5
(48 KiB and 1 MiB of cache), of which two thirds take 0.85 to 1.2 times what it says, where they are
shorter on a Zen 3 with AVX2 (0.83 to 1.2 times). What comes from beyond the second level took two
to five times as long on an Intel core of 2023 as on that Zen 5: those constants are geometric means
of both. What chooses is mostly their ratios.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.dense_layout import Layout
from portable_spdnn_cpu.spmm.direct.choice import is_reused
from portable_spdnn_cpu.spmm.stream.microkernels import MAX_VECTORS
from portable_spdnn_cpu.spmm.stream.product import StreamVariant, is_shared

L1, L2 = cache_bytes(1), cache_bytes(2)
L1_SHARE = 0.8  # what a panel may take of the first level: weights stream through it too
L2_SHARE = 0.62  # and of the second: sums and C are there as well
L2_WAYS = 16  # lines in a set of the second level, of a Zen 5; a Zen 3 has 8


@dataclass(frozen=True)
class Cycles:
    """What a kernel takes, in cycles.

    Attributes
    ----------
    l1, l2, memory : float
        To load a vector of B from the first level, the second, and beyond.
    across : float
        Factor for one that lies across two cache lines.
    copy, transpose : float
        To copy a vector of B from the second level, and to transpose one of B on the way.
    write, write_far, write_fortran : float
        To write a vector of C where the second level holds C, where it does not, and to transpose
        it on the way.
    row, entry : float
        Of a row of A in a block of columns, whatever it has, and of an entry besides its loads of
        B, for each panel.
    """

    l1: float
    l2: float
    memory: float
    across: float
    copy: float
    transpose: float
    write: float
    write_far: float
    write_fortran: float
    row: float
    entry: float


if VECTOR_BYTES == BLOCK_BYTES:
    CYCLE = 2.3e-10  # seconds
    STREAM = Cycles(
        l1=0.53, l2=1.1, memory=5.0, across=1.0, copy=3.3, transpose=6.9,
        write=2.4, write_far=5.9, write_fortran=8.8, row=6.5, entry=0.86,
    )  # fmt: skip
    DIRECT = Cycles(
        l1=0.64, l2=1.2, memory=4.4, across=1.5, copy=5.6, transpose=6.0,
        write=2.7, write_far=5.9, write_fortran=9.1, row=0.0, entry=1.0,
    )  # fmt: skip
    START = 10000.0  # of a call of the stream
    WAIT = 2.2  # to write and read a vector of sums, between two blocks
    WRITE_ROWS = 4.1  # to write one of C where the second level does not hold C, by whole rows
    # To copy a vector from beyond the second level: to a panel that fits the first, and to a larger
    # one. Besides, for each row of the panel: pieces lie on pages of their own.
    MEMORY_TO_L1, MEMORY_TO_L2, PIECE = 5.1, 7.8, 5.0
    MEMORY_ENTRY = 0.6  # of an entry of A from beyond the second level, with each panel
    VECTOR_ENTRY, VECTOR_ROW = 1.2, 2.9  # of an entry and a row of A as it is, times a vector
    DENSE = 0.68  # of a multiply-add of vectors in BLAS
    DENSE_VECTOR = 4.5  # of a vector of B or C there: it is looked at, packed and written
    # Of one of dense weights, which BLAS packs at every call: from the second level, and beyond.
    DENSE_WEIGHT, MEMORY_WEIGHT = 2.4, 10.0
    # Seconds of a call of BLAS, in which B is looked at and the threads of BLAS are set, and of one
    # with A and B as they are.
    DENSE_CALL, DIRECT_CALL = 8.4e-6, 1.1e-6
else:
    CYCLE = 2.7e-10
    STREAM = Cycles(
        l1=1.45, l2=2.4, memory=6.4, across=1.0, copy=5.5, transpose=12.0,
        write=5.3, write_far=6.4, write_fortran=17.0, row=10.7, entry=1.1,
    )  # fmt: skip
    DIRECT = Cycles(
        l1=2.1, l2=3.0, memory=5.5, across=1.1, copy=14.7, transpose=9.8,
        write=4.2, write_far=4.7, write_fortran=14.0, row=4.6, entry=0.1,
    )  # fmt: skip
    START, WAIT, WRITE_ROWS = 21000.0, 4.7, 5.2
    MEMORY_TO_L1, MEMORY_TO_L2, PIECE = 4.2, 7.4, 5.4
    MEMORY_ENTRY, VECTOR_ENTRY, VECTOR_ROW = 1.2, 1.8, 3.8
    DENSE, DENSE_VECTOR, DENSE_WEIGHT, MEMORY_WEIGHT = 1.4, 15.0, 15.0, 20.0
    DENSE_CALL, DIRECT_CALL = 3.1e-5, 1.7e-6
FALSE_SHARING = 100.0  # of a row of C in which two threads write to one pair of cache lines
# Seconds to pack A: of a call, of an entry, and of a row in a block of columns, on a Zen 3.
PACK_CALL, PACK_ENTRY, PACK_ROW = 3e-5, 2.9e-9, 2e-8
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


def stream_seconds(size: ProductSize, variant: StreamVariant) -> float:
    """Return what the model says of a variant, in seconds."""
    rows = max(1, size.rows)
    blocks_of_k = -(-max(1, size.inner) // variant.k_block)
    load = _load(size, variant)
    entry = load + STREAM.entry / variant.vectors
    if size.entries * (size.itemsize + 4) > L2_SHARE * L2:
        entry += MEMORY_ENTRY / (variant.vectors * variant.panels)
    sums = size.entries / rows * entry
    copy = STREAM.transpose if size.fortran else STREAM.copy
    if size.inner * size.vectors * BLOCK_BYTES > L2:
        panel = variant.k_block * variant.vectors * BLOCK_BYTES
        moved = MEMORY_TO_L1 if panel <= L1_SHARE * L1 else MEMORY_TO_L2
        copy = max(copy, moved + PIECE / variant.vectors)
    copies = 0.0 if variant.in_place else size.inner * variant.parts / rows * copy
    parts = min(variant.parts, size.threads)
    write = STREAM.write_fortran if size.out_fortran else STREAM.write
    written = rows * size.vectors * BLOCK_BYTES / parts
    if written > L2 / 2:
        whole = variant.vectors * variant.panels >= size.vectors
        write = max(write, WRITE_ROWS if whole else STREAM.write_far)
    row = blocks_of_k * STREAM.row / (variant.vectors * variant.panels)
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
        return STREAM.l1
    else:
        near = min(1.0, L2_SHARE * L2 / (rows * row))
    return near * STREAM.l2 + (1 - near) * STREAM.memory


def _near(size: ProductSize, rows: int, row: int, cache: float = L2_SHARE * L2) -> float:
    """Return the share of rows of B, `row` bytes of each, that a cache holds.

    Rows that lie a power of two apart compete for few of the cache's sets.
    """
    alias_stride = math.gcd(size.vectors * BLOCK_BYTES, L2 // L2_WAYS)
    return min(1.0, cache * min(1.0, row / alias_stride) / max(1, rows * row))


def direct_seconds(size: ProductSize) -> float:
    """Return what the model says of A as it is and B in place, in seconds."""
    if size.columns == 1:
        return DIRECT_CALL + CYCLE * (VECTOR_ENTRY * size.entries + VECTOR_ROW * size.rows)
    read = min(size.entries, size.inner)  # rows of B
    row = min(size.vectors, MAX_VECTORS) * BLOCK_BYTES
    near, nearest = _near(size, read, row), _near(size, read, row, L1_SHARE * L1)
    turned, copied = 0.0, 0.0
    if size.fortran:
        turned = DIRECT.transpose * size.inner
    elif not size.aligned and is_reused(size.entries, size.inner, size.columns, size.itemsize):
        copied = DIRECT.copy * size.inner
    across = 1.0 if size.aligned or size.fortran or copied else DIRECT.across
    load = (1 - near) * DIRECT.memory + across * (
        nearest * DIRECT.l1 + max(0.0, near - nearest) * DIRECT.l2
    )
    first = DIRECT.memory if size.inner * size.vectors * BLOCK_BYTES > L2 else load
    loads = (size.entries - read) * load + read * first
    is_near = size.rows * size.vectors * BLOCK_BYTES <= L2 / 2
    write = DIRECT.write if is_near else DIRECT.write_far
    if size.out_fortran:
        write = DIRECT.write_fortran
    panels = -(-size.vectors // MAX_VECTORS)
    vectors = size.vectors * (loads + size.rows * write)
    vectors += panels * (size.rows * DIRECT.row + size.entries * DIRECT.entry)
    threads = 1 if size.fortran else size.threads
    return DIRECT_CALL + CYCLE * (vectors / threads + size.vectors * (turned + copied))


def dense_seconds(size: ProductSize) -> float:
    """Return what the model says of BLAS, in seconds."""
    if size.inner == 1:
        return DENSE_CALL + OUTER_ITEM * size.rows * size.columns
    weights = size.rows * size.inner * size.itemsize / BLOCK_BYTES
    packed = DENSE_WEIGHT if weights * BLOCK_BYTES <= L2_SHARE * L2 else MEMORY_WEIGHT
    cycles = weights * (DENSE * size.columns + packed)
    cycles += DENSE_VECTOR * (size.rows + size.inner) * size.vectors
    return DENSE_CALL + CYCLE * cycles / size.threads


def packing_seconds(size: ProductSize, variant: StreamVariant) -> float:
    """Return what it takes to pack A for a variant of the stream."""
    blocks = -(-max(1, size.inner) // variant.k_block)
    return PACK_CALL + PACK_ENTRY * size.entries + PACK_ROW * size.rows * blocks
