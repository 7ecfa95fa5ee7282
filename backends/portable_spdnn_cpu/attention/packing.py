"""A mask, prepared: dense tiles where there are enough entries, rows of keys elsewhere.

Queries are taken in groups of 8, keys in panels of 16. A tile, a group by a panel, that stores at
least LEAST_ENTRIES entries is computed as a whole, and has a word of 16 bits for each query; but a
mask with few entries for each key has no tiles. All other entries stay keys, query by query as in
CSR, but first by chunks of queries and then by blocks of keys, the order in which they are read. In
a block a query has a whole number of fours of keys, the last of them repeated: how many are left
over differs from query to query, and no processor predicts branches on that. Work and memory grow
with entries, queries and keys, not with the area.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel, read_only
from portable_spdnn_cpu.jit.intrinsics import fetch_add
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.sddmm.operands import few_entries
from portable_spdnn_cpu.sddmm.register_tile import GROUP, TOGETHER
from portable_spdnn_cpu.sddmm.vectors import LANES

# Of 128: a tile takes as long as so many scattered entries (measured at d = 64 with AVX-512 in
# float32: 0.2 microseconds a tile, 4.2 ns an entry).
LEAST_ENTRIES = 48
GROUPS_EACH = 32  # that a thread takes at a time
PANEL_SHIFT = LANES.bit_length() - 1  # divisions take as long as all else
ENTRIES_EACH = 16  # of a query in a block of keys, at least, on average
CHUNK = 64  # queries whose keys of a block are neighbours
L2_SHARE = 8  # a block of keys takes this part of the second-level cache, and so does one of values


class PackedMask(NamedTuple):
    """A mask as kernels take it.

    Attributes
    ----------
    block : int
        Keys of a block.
    group_tiles : ndarray of int64, shape (groups + 1,)
        Where the tiles of a group of queries begin.
    panels : ndarray of uint32, shape (tiles,)
        Of each tile, rising within a group.
    bits : ndarray of uint16, shape (8 tiles,)
        Which of a panel's keys each query of a tile sees.
    begins : ndarray of int64, shape (blocks, queries)
        Where in `keys` those of a query begin that are in a block of keys.
    counts : ndarray of int32, shape (blocks, queries)
        How many they are.
    padding : ndarray of uint8, shape (blocks, queries)
        How many of them, at the end, are repeated.
    keys : ndarray of int32
        Of entries that are in no tile.
    """

    block: int
    group_tiles: Array
    panels: Array
    bits: Array
    begins: Array
    counts: Array
    padding: Array
    keys: Array


def pack_mask(workers: ThreadPool, mask: Any, row_bytes: int) -> PackedMask:
    """Prepare a mask.

    Parameters
    ----------
    workers : ThreadPool
    mask : csr_array, shape (queries, keys), canonical
    row_bytes : int
        Of a row of K, which says how many keys make a block.
    """
    queries, keys = mask.shape
    block = block_of_keys(keys, row_bytes)
    while block < keys and -(-keys // block) * queries * ENTRIES_EACH > mask.nnz:
        block *= 2  # else tables of blocks would be larger than the mask
    groups, blocks = -(-queries // GROUP), -(-keys // block)
    indptr, indices = mask.indptr.astype(np.int64), mask.indices.astype(np.int32, copy=False)
    shift = block.bit_length() - 1
    group_tiles = np.zeros(groups + 1, np.int64)
    begins = np.zeros((blocks, queries), np.int64)
    counts, padding = np.zeros(begins.shape, np.int32), np.zeros(begins.shape, np.uint8)
    # For few entries rows are read in place where they can be, but tiles need K to be packed.
    least = GROUP * LANES + 1 if few_entries(mask.nnz, keys) else LEAST_ENTRIES
    tables = read_only(indptr), read_only(indices), group_tiles, begins, counts, padding
    nothing = np.empty(0, np.uint32), np.empty(0, np.uint16), np.empty(0, np.int32)

    def scan(fill: bool, panels: Array, bits: Array, rest: Array) -> None:
        counter, size = np.zeros(1, np.int64), -(-keys // LANES)

        def work(worker: int) -> None:
            seen = np.zeros(size, np.int32)
            scan_groups(counter, fill, *tables, panels, bits, rest, seen, shift, least)

        workers.run(work)

    scan(False, *nothing)
    np.cumsum(group_tiles, out=group_tiles)
    begins[...] = positions(counts)
    tiles, entries = int(group_tiles[-1]), int(counts.sum(dtype=np.int64))
    panels, bits = np.empty(tiles, np.uint32), np.zeros(GROUP * tiles, np.uint16)
    rest = np.empty(entries, np.int32)
    scan(True, panels, bits, rest)
    arrays = (group_tiles, panels, bits, begins, counts, padding, rest)
    return PackedMask(block, *map(read_only, arrays))


def positions(counts: Array) -> Array:
    """Return where the keys of each block and query begin: by chunks, then blocks, then queries."""
    blocks, queries = counts.shape
    chunks = -(-queries // CHUNK)
    ordered = np.zeros((blocks, chunks * CHUNK), np.int64)
    ordered[:, :queries] = counts
    ordered = np.ascontiguousarray(ordered.reshape(blocks, chunks, CHUNK).transpose(1, 0, 2))
    begins = (np.cumsum(ordered) - ordered.ravel()).reshape(ordered.shape)
    return np.asarray(begins.transpose(1, 0, 2).reshape(blocks, chunks * CHUNK)[:, :queries])


def block_of_keys(keys: int, row_bytes: int) -> int:
    """Return the keys of a block: a power of two, whose rows take a part of the second cache."""
    block = LANES
    while block < keys and 2 * block * row_bytes <= cache_bytes(2) // L2_SHARE:
        block *= 2
    return block


@kernel
def scan_groups(
    counter: Array,
    fill: bool,
    indptr: Array,
    indices: Array,
    group_tiles: Array,
    begins: Array,
    counts: Array,
    padding: Array,
    panels: Array,
    bits: Array,
    rest: Array,
    seen: Array,
    shift: int,
    least: int,
) -> None:
    """Count the tiles of each group and the other keys of each query and block; or store them.

    The tiles of a group are counted in group_tiles[group + 1], the keys of a block in counts; where
    `fill` is set, both have been summed up. `seen` holds a zero for each panel, before and after. A
    block has 2^shift keys, a tile at least `least` entries.
    """
    # Indices are unsigned: see `jit.compilation`.
    groups = group_tiles.size - 1
    touched = np.empty(seen.size, np.uint32)
    while True:
        begin = fetch_add(counter, 0, 1) * GROUPS_EACH
        if begin >= groups:
            break
        for group in range(begin, min(begin + GROUPS_EACH, groups)):
            first, end = GROUP * group, min(GROUP * (group + 1), counts.shape[1])
            many = 0
            for entry in range(np.uint64(indptr[first]), np.uint64(indptr[end])):
                panel = np.uint64(indices[entry] >> PANEL_SHIFT)
                if seen[panel] == 0:
                    touched[many] = panel
                    many += 1
                seen[panel] += 1
            tiles = 0  # their panels come first in `touched`, and `seen` holds minus their number
            for place in range(many):
                panel = touched[place]
                if seen[panel] >= least:
                    touched[place], touched[tiles] = touched[tiles], panel
                    tiles += 1
            touched[:tiles].sort()
            for tile in range(tiles):
                seen[touched[tile]] = -1 - tile
            start = group_tiles[group]
            if fill:
                for tile in range(tiles):
                    panels[start + tile] = touched[tile]
            else:
                group_tiles[group + 1] = tiles
            for query in range(first, end):
                current, place = -1, 0
                for entry in range(np.uint64(indptr[query]), np.uint64(indptr[query + 1])):
                    key = indices[entry]
                    tile, part = -1 - seen[np.uint64(key >> PANEL_SHIFT)], key >> shift
                    if tile < 0 and fill:
                        if part != current:
                            current, place = part, begins[part, query]
                        rest[place] = key
                        place += 1
                    elif tile < 0:
                        counts[part, query] += 1
                    elif fill:
                        bits[GROUP * (start + tile) + query - first] |= np.uint16(
                            1 << (key & (LANES - 1))
                        )
                for part in range(counts.shape[0]):
                    if fill:
                        stop = begins[part, query] + counts[part, query]
                        for place in range(stop - padding[part, query], stop):
                            rest[place] = rest[place - 1]
                    else:
                        padding[part, query] = -counts[part, query] % TOGETHER
                        counts[part, query] += padding[part, query]
            for place in range(many):
                seen[touched[place]] = 0
