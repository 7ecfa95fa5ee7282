"""Tables of addresses: all that a kernel asks for is there, for any number of columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.dense_layout import LEAST_SHIFTED_ROW
from portable_spdnn_cpu.spmm.direct import by_rows, code_table, job_words, kernel
from portable_spdnn_cpu.spmm.direct.code_table import (
    CSC_VECTOR,
    EACH_ENTRY,
    PANELS,
    SHIFTED_PANELS,
    TABLE_WORDS,
    multiplying_codes,
    panel_width,
)
from portable_spdnn_cpu.spmm.direct.microkernels import CSC, CSR, SHIFTED_CSR
from portable_spdnn_cpu.spmm.row_ends import adds_each_entry, may_add_each_entry

COLUMNS = [*range(2, 200), *range(250, 270), 400, 500, 512, 784, 1000, 1024]
# Form, vectors and bytes of each, by the address that stands for their code.
Compiled = dict[int, tuple[Any, int, int]]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """Note what would be compiled."""
    noted: Compiled = {}

    def note(form: Any, vectors: int, vector_bytes: int, **_: Any) -> int:
        kind = form, vectors, vector_bytes
        address = next((known for known, other in noted.items() if other == kind), 1 + len(noted))
        noted[address] = kind
        return address

    monkeypatch.setattr(code_table, "multiplying_code", note)
    return noted


def calls_of(
    module: Any, name: str, words: np.ndarray, found: dict[int, int], patch: pytest.MonkeyPatch
) -> list[tuple[int, int, int]]:
    """Run a kernel in Python; return the address, the first column and the columns of each call."""
    calls: list[tuple[int, int, int]] = []

    def call(address: int, numbers: tuple[Any, ...]) -> int:
        calls.append((address, *numbers[-2:]))
        return 1

    patch.setattr(module, "code_of", lambda _, place: found.get(place, 0))
    patch.setattr(module, "call_code_for_integer", call)
    patch.setattr(module, "panel_width_part", panel_width)
    part: Callable[..., Any] = getattr(module, name).py_func
    assert part(words, 0, 9) if module is by_rows else part(words)
    return calls


def check_calls(
    calls: list[tuple[int, int, int]], columns: int, before: int, itemsize: int, compiled: Compiled
) -> None:
    """Check that calls cover all columns once, by code that is there for just so many."""
    expected = -before
    for address, first, width in calls:
        assert first == expected
        assert width > 0
        form, vectors, vector_bytes = compiled[address]
        assert (form == SHIFTED_CSR) == (first < 0)
        if form == CSC:  # whole vectors; what is left goes in pieces
            assert vectors * vector_bytes <= width * itemsize < (vectors + 1) * vector_bytes
        else:
            assert (vectors - 1) * vector_bytes < width * itemsize <= vectors * vector_bytes
        expected += width
    assert expected == columns


def job(columns: int, itemsize: int, entries: int) -> np.ndarray:
    words = np.zeros(job_words.COUNTERS, np.int64)
    words[job_words.COLUMNS], words[job_words.ITEM] = columns, itemsize
    words[job_words.K], words[job_words.ENTRIES] = 10, entries
    return words


@pytest.mark.parametrize("fast_masks", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_there_is_code_for_all_that_rows_take(
    dtype: Any, fast_masks: bool, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_table, "HAS_FAST_MASKS", fast_masks)
    for module in (code_table, by_rows):
        monkeypatch.setattr(module, "OVERLAPS", not fast_masks)
    monkeypatch.setattr(by_rows, "stay_apart", lambda: None)
    item = np.dtype(dtype).itemsize
    lanes = BLOCK_BYTES // item
    for columns in COLUMNS:
        compiled.clear()
        size = columns * item
        found = multiplying_codes(False, columns, np.dtype(dtype), np.dtype(np.int32))
        assert set(found.values()) == set(compiled)  # none for nothing
        assert max(found) < TABLE_WORDS
        if adds_each_entry(0, 1, size) or may_add_each_entry(0, 1 << 20, size):
            form, vectors, vector_bytes = compiled[found[EACH_ENTRY]]
            assert form != CSR
            assert vectors * vector_bytes <= size < (vectors + 1) * vector_bytes
        shifts = fast_masks and size >= LEAST_SHIFTED_ROW and size % BLOCK_BYTES == 0
        for before in range(lanes if shifts else 1):
            monkeypatch.setattr(by_rows, "columns_before", lambda _, before=before: before)
            words = job(columns, item, 1000)
            calls = calls_of(by_rows, "multiply_in_panels", words, found, monkeypatch)
            check_calls(calls, columns, before, item, compiled)
            if not fast_masks:  # vectors are whole, and the last may overlap the one before
                assert all(compiled[address][2] <= width * item for address, _, width in calls)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_there_is_code_for_all_that_columns_take(
    dtype: Any, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = np.dtype(dtype).itemsize
    for columns in COLUMNS:
        compiled.clear()
        size, kinds = columns * item, (np.dtype(dtype), np.dtype(np.int32))
        found = multiplying_codes(True, columns, *kinds)
        assert set(found.values()) == set(compiled)
        assert max(found) < SHIFTED_PANELS
        assert (EACH_ENTRY in found) == adds_each_entry(0, 1, size)
        monkeypatch.setattr(kernel, "_adds_each_entry", adds_each_entry)
        for entries in (0, 1000):
            words = job(columns, item, entries)
            calls = calls_of(kernel, "multiply_by_columns", words, found, monkeypatch)
            if adds_each_entry(entries, 10, size):
                assert calls == [(found[EACH_ENTRY], 0, columns)]
            elif size < CSC_VECTOR:
                assert len(calls) == 1
                _, vectors, vector_bytes = compiled[calls[0][0]]
                assert vectors * vector_bytes <= size
            else:
                assert all(found_at(found, address) >= PANELS for address, *_ in calls)
                assert sum(width for *_, width in calls) == columns
                for address, _, width in calls:
                    _, vectors, vector_bytes = compiled[address]
                    assert 0 <= width * item - vectors * vector_bytes < vector_bytes


def found_at(found: dict[int, int], address: int) -> int:
    """Return the place of an address in a table."""
    return next(place for place, code in found.items() if code == address)


def test_a_panel_leaves_enough_for_the_last_one() -> None:
    assert panel_width(20, 16, 8) == 8
    assert panel_width(20, 16, 0) == panel_width(24, 16, 8) == 16
    assert panel_width(7, 16, 8) == 7
