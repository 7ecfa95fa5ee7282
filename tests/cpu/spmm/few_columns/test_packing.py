"""Every entry of A is packed once, and what pads meets zeros that are no entries of B."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from few_columns_products import random_rows

from portable_spdnn_cpu.spmm.few_columns import rows
from portable_spdnn_cpu.spmm.few_columns.lanes import lay_out_lanes, pack_lanes
from portable_spdnn_cpu.spmm.few_columns.operands import TABLE
from portable_spdnn_cpu.spmm.few_columns.rows import pack_rows
from portable_spdnn_cpu.spmm.few_columns.sliced import lay_out_slices, pack_slices
from portable_spdnn_cpu.spmm.few_columns.specs import ENTRIES, UNIT, LanesSpec, RowsSpec, SlicedSpec


def epilogue(A):
    return np.arange(A.shape[0], dtype=A.dtype), np.array([-np.inf, np.inf], A.dtype)


@pytest.mark.parametrize(
    ("columns", "itemsize", "vector_bytes"),
    [(1, 4, 64), (2, 4, 64), (1, 8, 64), (2, 8, 64), (1, 4, 32)],
)
def test_lanes_hold_each_entry_once(columns, itemsize, vector_bytes):
    A = random_rows(np.random.default_rng(0), 70, 300, 0.1, f"f{itemsize}")
    spec = LanesSpec(columns, itemsize, vector_bytes)
    packed = pack_lanes(A, lay_out_lanes(A, spec), epilogue(A), 3)
    arrays, found = packed.arrays, []
    for slice_, (first, end) in enumerate(
        zip(arrays["starts"], arrays["starts"][1:], strict=False)
    ):
        for chunk in range(first, end):
            for step in range(4):
                number = (chunk * 4 + step) // spec.shared_steps
                begin = int(arrays["windows"][number]) * spec.window_step
                for lane in range(spec.lanes):
                    place = begin + int(arrays["places"][chunk, lane, step])
                    value = arrays["values"][chunk, step, lane]
                    assert place < begin + spec.window
                    row = arrays["rows"][slice_ * spec.lanes + lane]
                    if place % spec.window == spec.window - 1:
                        assert value == 0
                    else:
                        column = place // spec.window * (spec.window - 1) + place % spec.window
                        found.append((row, column, value))
    packed_rows, columns, values = zip(*found, strict=True)
    assert len(found) == A.nnz
    again = sp.csr_array((values, (packed_rows, columns)), shape=A.shape)
    assert abs(again - A).max() == 0
    kept = arrays["rows"] >= 0
    np.testing.assert_array_equal(arrays["bias"][kept], arrays["rows"][kept])
    assert sorted(arrays["rows"][kept]) == list(range(70))


@pytest.mark.parametrize(
    ("columns", "itemsize", "vector_bytes", "place_bytes"),
    [(1, 4, 32, 2), (1, 8, 32, 4), (1, 8, 16, 2), (2, 4, 32, 2), (2, 8, 64, 4)],
)
def test_slices_hold_each_entry_once(columns, itemsize, vector_bytes, place_bytes):
    A = random_rows(np.random.default_rng(0), 70, 300, 0.1, f"f{itemsize}")
    spec = SlicedSpec(columns, itemsize, vector_bytes, place_bytes)
    packed = pack_slices(A, lay_out_slices(A, spec), epilogue(A), 3)
    arrays, found = packed.arrays, []
    for slice_, (first, end) in enumerate(itertools.pairwise(arrays["starts"])):
        for step in range(first, end):
            for lane in range(spec.lanes):
                place, value = int(arrays["places"][step, lane]), arrays["values"][step, lane]
                if place == 0:
                    assert value == 0
                else:
                    found.append((arrays["rows"][slice_ * spec.lanes + lane], place - 1, value))
    packed_rows, packed_columns, values = zip(*found, strict=True)
    assert len(found) == A.nnz
    again = sp.csr_array((values, (packed_rows, packed_columns)), shape=A.shape)
    assert abs(again - A).max() == 0
    kept = arrays["rows"] >= 0
    np.testing.assert_array_equal(arrays["bias"][kept], arrays["rows"][kept])
    assert sorted(arrays["rows"][kept]) == list(range(70))
    assert packed.scratch_bytes == 301 * columns * itemsize  # B, and a row of zeros before it
    assert packed.slots == arrays["values"].size < 1.3 * A.nnz


@pytest.mark.parametrize("near", [300, 1 << 15])
def test_rows_hold_each_entry_once(near, monkeypatch):
    monkeypatch.setattr(rows, "L1", near)
    monkeypatch.setattr(rows, "MOST_BLOCK_BYTES", near)
    A = random_rows(np.random.default_rng(1), 60, 300, 0.1, np.float32)
    packed = pack_rows(A, RowsSpec(7, 4, 32), epilogue(A), 4)
    arrays, table = packed.arrays, dict(zip(TABLE, packed.table, strict=True))
    blocks, found = table["blocks"], []
    assert (blocks > 1) == (near == 300)
    assert packed.parts == 4
    for number, entry in enumerate(arrays["first_entries"][:-1]):
        at, left = divmod(int(entry), ENTRIES)
        assert left == 0
        for visit in range(arrays["starts"][number], arrays["starts"][number + 1]):
            entries, row = divmod(arrays["visits"][visit], 1 << 32)
            assert entries % ENTRIES == 0
            for _ in range(0, entries, ENTRIES):
                for value, place in zip(arrays["values"][at], arrays["places"][at], strict=True):
                    if place == 0:
                        assert value == 0
                        continue
                    row_of_block = int(place) * UNIT // 32 - 1
                    column = number % blocks * table["block_rows"] + row_of_block
                    found.append((row, column, value))
                at += 1
    visited, columns, values = zip(*found, strict=True)
    assert len(found) == A.nnz
    assert abs(sp.csr_array((values, (visited, columns)), shape=A.shape) - A).max() == 0
