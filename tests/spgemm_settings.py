"""Sparse products on CPU threads: accumulators forced by a test, matrices, equality to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from portable_spdnn_cpu.spgemm import operands, row_bins
from portable_spdnn_cpu.spgemm.row_bins import DENSE, HASH, SORTED

ACCUMULATORS = {"dense": DENSE, "hash": HASH, "sorted": SORTED}


@contextmanager
def forced(accumulator: str) -> Iterator[None]:
    """Add up rows in "bitmap", in one of ACCUMULATORS, or "mixed": each row in one by chance."""
    with pytest.MonkeyPatch.context() as patch:
        if accumulator == "bitmap":
            patch.setattr(operands, "BITMAP_WORDS_PER_ENTRY", 1 << 40)
        else:
            patch.setattr(operands, "MAX_BITMAP_BYTES", -1)

            def choose(products: Any, columns: int, entries: Any = None) -> Any:
                if accumulator == "mixed":
                    return np.random.default_rng(0).integers(0, 3, products.size)
                return np.full(products.size, ACCUMULATORS[accumulator])

            patch.setattr(row_bins, "numeric_accumulators", choose)
            patch.setattr(
                row_bins, "symbolic_accumulators", lambda *rows: np.minimum(choose(*rows), HASH)
            )
        # Small chunks: several, of whatever size the matrices are, and shared by all threads.
        patch.setattr(row_bins, "MIN_PRODUCTS", 16)
        patch.setattr(row_bins, "worth_sharing", lambda workers, _: workers)
        yield


def same_bits(one: Any, other: Any) -> None:
    """Assert that two results are the same, signs of zeros included; a NaN is a NaN."""
    np.testing.assert_array_equal(one.indptr, other.indptr)
    np.testing.assert_array_equal(one.indices, other.indices)
    np.testing.assert_array_equal(one.data, other.data)
    real = ~np.isnan(one.data)
    np.testing.assert_array_equal(np.signbit(one.data[real]), np.signbit(other.data[real]))


def matrix(
    rng: np.random.Generator, shape: tuple[int, int], density: float, dtype: Any, wild: bool = False
) -> Any:
    """Return a csr_array with negative entries and stored zeros; wild ones with NaN and infinity.

    At low density rows are empty; where `wild`, row 0 is full.
    """
    present = rng.random(shape) < density
    present[:1] |= wild
    rows, columns = np.nonzero(present)
    values = rng.uniform(-1, 1, rows.size)
    values[::5] = -0.0
    if wild:
        values[1::7], values[3::11] = np.nan, np.inf
    return sp.csr_array((values.astype(dtype), (rows, columns)), shape=shape)
