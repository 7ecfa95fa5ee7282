"""Which accumulator rows take, and how they are cut into chunks."""

from __future__ import annotations

import numpy as np
import pytest

from portable_spdnn_cpu.spgemm import row_bins
from portable_spdnn_cpu.spgemm.row_bins import DENSE, HASH, SORTED


def test_chunks_have_about_equal_work_and_no_row_without() -> None:
    rng = np.random.default_rng(0)
    products = rng.integers(0, 50, 5000) * (rng.random(5000) < 0.5)
    products[[17, 4000]] = 10**6
    accumulators = rng.integers(0, 3, products.size)
    bounds = np.minimum(products, 30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_bins, "MIN_PRODUCTS", 100)
        bins = row_bins.bin_rows(products, accumulators, bounds, threads=2)
    rows = np.concatenate([row_bin.rows for row_bin in bins.values()])
    np.testing.assert_array_equal(np.sort(rows), np.flatnonzero(products))
    target = products.sum() // (2 * row_bins.CHUNKS)
    for accumulator, row_bin in bins.items():
        offsets = row_bin.chunk_offsets
        assert (accumulators[row_bin.rows] == accumulator).all()
        assert offsets[0] == 0
        assert offsets[-1] == row_bin.rows.size
        assert (np.diff(offsets) > 0).all()
        for chunk, capacity in enumerate(row_bin.capacities):
            members = row_bin.rows[offsets[chunk] : offsets[chunk + 1]]
            assert capacity == bounds[members].sum()
            # A gigantic row is alone and comes first; other chunks overshoot by a row at most.
            assert products[members].sum() <= target + 50 or members.size == 1
    for row in (17, 4000):
        row_bin = bins[int(accumulators[row])]
        place = int(np.flatnonzero(row_bin.rows == row)[0])
        assert {place, place + 1} <= set(row_bin.chunk_offsets.tolist())
        assert place < 2


@pytest.mark.parametrize(
    ("products", "columns", "entries", "accumulator"),
    [
        (1, 32, None, DENSE), (64, 10**6, None, SORTED), (65, 10**6, None, HASH),
        (10**4, 10**6, None, DENSE), (10**4, 10**6, 10**4, SORTED), (10**5, 10**6, 10**5, DENSE),
        (1024, 65536, 64, HASH), (1024, 65536, 400, DENSE), (1024, 65536, 1024, SORTED),
        (1 << 22, 1 << 60, None, DENSE),
    ],
)  # fmt: skip
def test_the_accumulator_follows_from_products_columns_and_entries(
    products: int, columns: int, entries: int | None, accumulator: int
) -> None:
    known = None if entries is None else np.array([entries])
    assert row_bins.numeric_accumulators(np.array([products]), columns, known) == [accumulator]
