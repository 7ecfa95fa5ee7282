"""Tables of addresses: all that a kernel asks for is there, for any number of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.dense_layout import LEAST_SHIFTED_ROW
from portable_spdnn_cpu.spmm.direct import code_table
from portable_spdnn_cpu.spmm.direct.choice import CSC_BYTES
from portable_spdnn_cpu.spmm.direct.code_table import (
    CSC_VECTOR,
    EACH_ENTRY,
    FEW_COLUMNS,
    PANELS,
    SHIFTED_PANELS,
    multiplying_codes,
    panel_width,
    row_panels,
)
from portable_spdnn_cpu.spmm.row_ends import adds_each_entry, may_add_each_entry
from portable_spdnn_cpu.spmm.stream.microkernels import MAX_VECTORS

COLUMNS = [*range(2, 200), *range(250, 270), 500, 512, 784, 1000, 1024]


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Note the form and the sizes of what would be compiled."""
    noted: list[tuple[Any, ...]] = []

    def note(form: Any, vectors: int, vector_bytes: int, **_: Any) -> int:
        noted.append((form, vectors, vector_bytes))
        return len(noted)

    monkeypatch.setattr(code_table, "multiplying_code", note)
    return noted


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_panels_cover_all_columns_once(dtype: Any) -> None:
    itemsize = np.dtype(dtype).itemsize
    lanes = BLOCK_BYTES // itemsize
    for overlaps in (True, False):
        for columns in COLUMNS:
            for before in range(lanes) if not overlaps and columns % lanes == 0 else (0,):
                panels = list(row_panels(columns, before, itemsize, overlaps))
                assert [shifted for shifted, _ in panels] == [
                    bool(before) and number == 0 for number in range(len(panels))
                ]
                assert all(1 <= n <= MAX_VECTORS + shifted for shifted, n in panels)
                whole = sum(vectors for _, vectors in panels) * lanes
                assert whole - lanes * len(panels) < columns + before <= whole
                # As many as needed: those of aligned rows, but for the vectors that overlap.
                assert len(panels) <= -(-(columns + before) // (MAX_VECTORS * lanes))


def test_a_panel_leaves_enough_for_the_last_one() -> None:
    assert panel_width(20, 16, 8) == 8
    assert panel_width(20, 16, 0) == panel_width(24, 16, 8) == 16
    assert panel_width(7, 16, 8) == 7


@pytest.mark.parametrize("fast_masks", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_there_is_code_for_all_that_rows_take(
    dtype: Any,
    fast_masks: bool,
    compiled: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(code_table, "HAS_FAST_MASKS", fast_masks)
    monkeypatch.setattr(code_table, "OVERLAPS", not fast_masks)
    kinds = np.dtype(dtype), np.dtype(np.int32)
    lanes = BLOCK_BYTES // kinds[0].itemsize
    for columns in COLUMNS:
        compiled.clear()
        size, found = columns * kinds[0].itemsize, multiplying_codes(False, columns, *kinds)
        assert set(found.values()) == set(range(1, len(compiled) + 1))  # none for nothing
        assert max(found) < code_table.LENGTH
        if adds_each_entry(0, 1, size) or may_add_each_entry(0, 1 << 20, size):
            assert EACH_ENTRY in found
        if FEW_COLUMNS in found:
            _, vectors, vector_bytes = compiled[found[FEW_COLUMNS] - 1]
            assert (vectors - 1) * vector_bytes < size <= vectors * vector_bytes
            continue
        shifts = fast_masks and size >= LEAST_SHIFTED_ROW and size % BLOCK_BYTES == 0
        for before in range(lanes if shifts else 1):
            first = 0
            if before:
                width = min(columns + before, (MAX_VECTORS + 1) * lanes)
                assert SHIFTED_PANELS - (-width // lanes) in found
                first = width - before
            while first < columns:
                least = 0 if fast_masks else lanes
                width = panel_width(columns - first, MAX_VECTORS * lanes, least)
                assert PANELS - (-width // lanes) in found
                first += width


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_there_is_code_for_all_that_columns_take(
    dtype: Any, compiled: list[tuple[Any, ...]]
) -> None:
    item = np.dtype(dtype).itemsize
    for columns in COLUMNS:
        compiled.clear()
        size, found = (
            columns * item,
            multiplying_codes(True, columns, np.dtype(dtype), np.dtype("i4")),
        )
        assert (EACH_ENTRY in found) == adds_each_entry(0, 1, size)
        for place, address in found.items():
            _, vectors, vector_bytes = compiled[address - 1]
            assert vectors * vector_bytes <= size  # whole vectors; what is left goes in pieces
            if place >= PANELS:
                assert 0 <= (place - PANELS) * CSC_VECTOR - vectors * vector_bytes < vector_bytes
        first = 0
        while first < columns and FEW_COLUMNS not in found:
            width = panel_width(columns - first, CSC_BYTES // item, CSC_VECTOR // item)
            assert PANELS + width * item // CSC_VECTOR in found
            first += width
