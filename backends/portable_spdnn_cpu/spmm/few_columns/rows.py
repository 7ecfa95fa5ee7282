"""A packed row by row, in one block of columns or more, whose rows of B stay in a cache.

The arrays, where a visit is a row in a block of columns and a word ENTRIES entries::

    values   (words, ENTRIES)        of A; 0 beyond the entries of a row
    places   (words, ENTRIES)        rows of B in the block, in units of 8 bytes, uint16
    starts, first_entries            the first visit, and entry, of each block of each part
    visits                           the row of C, plus 2^32 times its entries in the block, those
                                     included that fill up its last word
    bias     (rows of A)
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.jit.compilation import Array, kernel
from portable_spdnn_cpu.machine.cpu_info import aligned_empty, cache_bytes
from portable_spdnn_cpu.spmm.few_columns.costs import (
    COSTS,
    FAR_READ,
    FAR_WRITE,
    far_factor,
    loaded_seconds,
)
from portable_spdnn_cpu.spmm.few_columns.packing import BEGUN, PackedProduct, table_of
from portable_spdnn_cpu.spmm.few_columns.specs import ENTRIES, UNIT, RowsSpec
from portable_spdnn_cpu.spmm.row_parts import divide

MAX_PLACES = 1 << 16
ROW_PLACE = 2  # bytes of a place
# Bytes of the rows of B of a block: as many as the first level holds, and at most so many, where
# sums and entries of A are in the second level too.
L1, MOST_BLOCK_BYTES = cache_bytes(1), cache_bytes(2) * 3 // 4
# About so many entries, or rows, tell how many blocks the rows of A meet; of a row no more count.
SAMPLED = 1 << 14


class Visits(NamedTuple):
    """How often rows of A are visited in blocks of columns.

    Attributes
    ----------
    total : float
    continued : float
        Those that add to sums of an earlier block.
    slots : float
        Entries, with those that fill them up to whole words.
    """

    total: float
    continued: float
    slots: float


def pack_rows(
    A: SparseOperand, spec: RowsSpec, epilogue: tuple[Array, Array], parts: int
) -> PackedProduct:
    """Pack A row by row.

    Parameters
    ----------
    A : csr_array, canonical
    spec : RowsSpec
    epilogue, parts
        As in `packed_slices`.
    """
    bias, bounds = epilogue
    height, depth = A.shape
    block_rows = max(1, -(-depth // column_blocks(A, spec)))
    blocks = max(1, -(-depth // block_rows))  # none is empty
    ends = np.empty((height, blocks + 1), np.int64)
    block_bounds(A.indptr, A.indices, block_rows, ends)
    counts = np.diff(ends, axis=1)
    divided = np.unique(divide(A.indptr, parts, BEGUN))
    visited, starts = [], [0]
    for first, end in pairwise(divided):
        for block in range(blocks):
            rows = first + np.argsort(counts[first:end, block], kind="stable")
            if 0 < block < blocks - 1:  # the first begins the sums of a row, the last ends them
                rows = rows[counts[rows, block] > 0]
            visited.append(rows)
            starts.append(starts[-1] + len(rows))
    rows = np.concatenate((np.empty(0, np.int64), *visited))
    block_of = np.repeat(np.tile(np.arange(blocks), len(divided) - 1), np.diff(starts))
    words = -(-counts[rows, block_of] // ENTRIES)
    before = np.concatenate(([0], np.cumsum(words)))
    values = aligned_empty((int(before[-1]), ENTRIES), A.dtype)
    places = aligned_empty((int(before[-1]), ENTRIES), np.uint16)
    scale = spec.row_bytes // UNIT
    fill_rows(A.indices, A.data, ends, rows, block_of, block_rows, scale, before, values, places)
    arrays = {
        "values": values, "places": places, "starts": np.array(starts, np.int64),
        "visits": rows + (ENTRIES * words << 32),
        "first_entries": ENTRIES * before[starts].astype(np.int64), "bias": bias, "bounds": bounds,
    }  # fmt: skip
    copied = blocks * (block_rows + 1) * spec.row_bytes
    numbers = {"depth": depth, "blocks": blocks, "block_rows": block_rows, "sums": copied}
    sums = height * spec.row_bytes if blocks > 1 else 0
    return PackedProduct(
        spec, table_of(arrays, numbers), arrays, len(divided) - 1,
        copied + sums, values.size,
    )  # fmt: skip


def column_blocks(A: SparseOperand, spec: RowsSpec) -> int:
    """Return into how many blocks of columns A is cut.

    Rows of B in the first-level cache take less time, and fewer blocks have fewer visits.
    """
    by_blocks = _seconds_by_blocks(A, spec)
    return min(by_blocks, key=by_blocks.__getitem__)


def rows_seconds(A: SparseOperand, spec: RowsSpec) -> float:
    """Return what a product takes, by the model, but for its call and the copy of B."""
    return min(_seconds_by_blocks(A, spec).values())


def _seconds_by_blocks(A: SparseOperand, spec: RowsSpec) -> dict[int, float]:
    """Return what a product takes with each number of blocks that comes into question."""
    least, most = (least_blocks(A.shape[1], spec, held) for held in (MOST_BLOCK_BYTES, L1))
    numbers = [least << times for times in range((most // least).bit_length())]
    sample = RowSample(A)
    return {
        blocks: _block_seconds(A, spec, blocks, sample.visits(blocks))
        for blocks in (*numbers, most)
    }


def _block_seconds(A: SparseOperand, spec: RowsSpec, blocks: int, visits: Visits) -> float:
    """Return what a product takes with so many blocks."""
    row_bytes = spec.row_bytes
    if spec.vector_bytes < 64:
        row_bytes = max(row_bytes, spec.vector_bytes)
    computed = visits.slots * (COSTS.entry[spec.itemsize] + row_bytes * COSTS.row_byte)
    computed += COSTS.visit * visits.total
    block_bytes = max(1, A.shape[1]) / blocks * spec.row_bytes
    computed += far_seconds(A.nnz * spec.row_bytes, block_bytes, L1)
    sums = A.shape[0] * spec.row_bytes
    moved = visits.continued * spec.row_bytes * far_factor(sums)
    computed += moved * (FAR_READ + FAR_WRITE)
    results = A.shape[0] * spec.columns * spec.itemsize
    computed += results * far_factor(results) * FAR_WRITE
    return max(computed, loaded_seconds(visits.slots * (spec.itemsize + ROW_PLACE)))


def far_seconds(loaded: float, size: float, held: float) -> float:
    """Return what it takes more to load bytes of B where a cache holds `held` of `size` bytes."""
    from_l2 = COSTS.l2_byte_of_b * max(0.0, 1 - held / max(size, 1))
    return loaded * (from_l2 + FAR_READ * far_factor(size))


def least_blocks(depth: int, spec: RowsSpec, cache: int) -> int:
    """Return how many blocks there are, if their rows of B fit a cache and places two bytes."""
    rows = max(1, min(cache, MAX_PLACES * UNIT) // spec.row_bytes - 1)  # and a row of zeros
    return max(1, -(-depth // rows))


class RowSample:
    """Rows of A, one of so many, which tell how often blocks of columns are visited.

    Parameters
    ----------
    A : csr_array, canonical
    """

    def __init__(self, A: SparseOperand) -> None:
        self._height, self._depth, self._entries = *A.shape, A.nnz
        step = max(1, min(max(A.nnz, A.shape[0]) // SAMPLED, A.shape[0]))
        begins = np.arange(0, A.shape[0] - step + 1, step)
        # Anywhere in each run of so many rows, as lengths may repeat: a number of a fixed seed.
        rows = begins + np.random.default_rng(0).integers(0, step, begins.size)
        starts = A.indptr[rows]
        counts = np.minimum(A.indptr[rows + 1] - starts, SAMPLED)
        before = np.cumsum(counts) - counts
        places = np.arange(counts.sum()) + np.repeat(starts - before, counts)
        self._rows, self._columns = np.repeat(np.arange(counts.size), counts), A.indices[places]
        self._scale = self._height / max(1, counts.size)

    def visits(self, blocks: int) -> Visits:
        """Return about how many visits there are in so many blocks, or fewer if some were empty.

        Each row is visited in the first block and the last, and where it has entries.
        """
        block_rows = max(1, -(-self._depth // blocks))
        blocks = max(1, -(-self._depth // block_rows))  # as `pack_rows` makes them
        met = self._rows * blocks + self._columns // block_rows
        begins = np.flatnonzero(np.concatenate(([True], met[1:] != met[:-1])))[: met.size]
        words = -(-np.diff(begins, append=met.size) // ENTRIES)
        block = met[begins] % blocks
        inner = np.count_nonzero((block > 0) & (block < blocks - 1))
        continued = self._height * (min(blocks, 2) - 1) + self._scale * inner
        filled_up = self._scale * (ENTRIES * int(words.sum()) - met.size)
        return Visits(self._height + continued, continued, self._entries + filled_up)


@kernel
def block_bounds(indptr: Array, indices: Array, block_rows: int, ends: Array) -> None:
    """Find where the entries of each row in each block of columns begin, and the last end."""
    for row in range(ends.shape[0]):
        at = indptr[row]
        for block in range(ends.shape[1] - 1):
            ends[row, block] = at
            while at < indptr[row + 1] and indices[at] < (block + 1) * block_rows:
                at += 1
        ends[row, -1] = at


@kernel
def fill_rows(
    indices: Array,
    data: Array,
    ends: Array,
    rows: Array,
    block_of: Array,
    block_rows: int,
    scale: int,
    before: Array,
    values: Array,
    places: Array,
) -> None:
    """Write the entries of each visit; what fills it up is 0 times the block's row of zeros."""
    for visit in range(rows.size):
        row, block = rows[visit], block_of[visit]
        at, end = ends[row, block], ends[row, block + 1]
        for word in range(before[visit], before[visit + 1]):
            for entry in range(ENTRIES):
                if at < end:
                    values[word, entry] = data[at]
                    place = indices[at] - block * block_rows + 1
                    places[word, entry] = place * scale
                    at += 1
                else:
                    values[word, entry] = 0
                    places[word, entry] = 0
