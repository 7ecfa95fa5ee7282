"""A packed mask holds each entry of the mask once: in a tile, or as a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn_cpu.attention import packing
from portable_spdnn_cpu.attention.packing import LEAST_ENTRIES, block_of_keys, pack_mask, positions
from portable_spdnn_cpu.machine.thread_pool import ThreadPool

MASKS: dict[str, Callable[[], Any]] = {
    "empty": lambda: sp.csr_array((20, 33)),
    "no keys": lambda: sp.csr_array((20, 0)),
    "one": lambda: sp.csr_array(np.ones((1, 1))),
    "full": lambda: sp.csr_array(np.ones((21, 50))),
    "band": lambda: ps.masks.band(200, 40),
    "random": lambda: ps.masks.random(150, 0.9, 2, keys=300),
    "both": lambda: ps.masks.union(ps.masks.band(700, 60), ps.masks.random(700, 0.95)),
    "strided": lambda: ps.masks.strided(130, 16),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("block", [16, 64, 1 << 20])
def test_every_entry_is_there_once(
    name: str, threads: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "block_of_keys", lambda keys, row_bytes: block)
    monkeypatch.setattr(packing, "ENTRIES_EACH", 0)
    mask = sp.csr_array(MASKS[name]())
    packed = pack_mask(ThreadPool(threads), mask, 256)
    stored = mask.toarray() != 0
    found = np.zeros((-(-mask.shape[0] // 8) * 8, -(-mask.shape[1] // 16) * 16), np.int64)
    for group in range(packed.group_tiles.size - 1):
        tiles = range(packed.group_tiles[group], packed.group_tiles[group + 1])
        panels = [int(packed.panels[tile]) for tile in tiles]
        assert panels == sorted(set(panels))
        for tile in tiles:
            bits = packed.bits[8 * tile : 8 * tile + 8, None] >> np.arange(16) & 1
            assert bits.sum() >= LEAST_ENTRIES
            first = 16 * int(packed.panels[tile])
            found[8 * group : 8 * group + 8, first : first + 16] += bits
    read = np.zeros(packed.keys.size, np.int64)
    for part, query in np.ndindex(packed.counts.shape):
        begin, count = packed.begins[part, query], packed.counts[part, query]
        keys, extra = packed.keys[begin : begin + count], int(packed.padding[part, query])
        read[begin : begin + count] += 1
        assert count % 4 == 0
        assert extra < 4
        assert (keys[keys.size - extra :] == keys[-1:]).all()
        assert (keys // block == part).all()
        np.add.at(found[query], keys[: keys.size - extra], 1)
    assert (read == 1).all()
    np.testing.assert_array_equal(found[: mask.shape[0], : mask.shape[1]], stored)
    assert found.sum() == mask.nnz


def test_tables_of_a_long_mask_are_no_larger_than_its_entries() -> None:
    mask = sp.csr_array(sp.eye_array(200_000, format="csr"))
    packed = pack_mask(ThreadPool(1), mask, 256)
    assert packed.keys.size == 4 * mask.nnz
    assert packed.begins.size == mask.nnz


def test_keys_are_in_the_order_in_which_they_are_read() -> None:
    counts = np.ones((2, 130), np.int32)
    begins = positions(counts)
    order = np.argsort(begins.ravel())
    chunk, block, query = order % 130 // 64, order // 130, order % 130
    assert sorted(zip(chunk, block, query, strict=True)) == list(
        zip(chunk, block, query, strict=True)
    )


def test_blocks_of_keys_are_powers_of_two_that_a_cache_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "cache_bytes", lambda level: 1 << 20)
    assert block_of_keys(10_000, 256) == 512
    assert block_of_keys(100, 256) == 128
    assert block_of_keys(10_000, 1 << 20) == 16
