"""Products of few columns in a form of choice, and what they must give, by plain loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.few_columns import lanes, product, sliced
from portable_spdnn_cpu.spmm.few_columns.choice import Form
from portable_spdnn_cpu.spmm.few_columns.lanes import LanesLayout, lay_out_lanes
from portable_spdnn_cpu.spmm.few_columns.sliced import SlicedLayout
from portable_spdnn_cpu.spmm.few_columns.specs import LanesSpec, RowsSpec, SlicedSpec

ONE_THREAD = ThreadPool(1)
# What this processor runs: code for shorter vectors too.
LENGTHS = [length for length in (64, 32, 16) if length <= VECTOR_BYTES]


def product_of(
    A: Any,
    columns: int,
    form: str,
    vector_bytes: int = VECTOR_BYTES,
    epilogue: Epilogue | None = None,
    window_bytes: int | None = None,
    place_bytes: int | None = None,
    threads: int = 1,
    prefetches: bool = False,
    wide: bool | None = None,
) -> product.FewColumnsProduct:
    """Return the product in a form: "lanes", "sliced" or "rows", whichever would be faster.

    In lanes only where vectors are permuted, else sliced up to two columns, and row by row from
    three on, which are not sliced. Windows of a single column are wide unless `wide` says
    otherwise.
    """
    if form == "sliced" and columns > 2:
        raise ValueError(f"{columns} columns are not sliced, but up to 2")
    size = A.dtype.itemsize
    layout: LanesLayout | SlicedLayout | RowsSpec = RowsSpec(
        columns, size, vector_bytes, prefetches=prefetches
    )
    permutes = LanesSpec(columns, size, vector_bytes).registers_of_window > 0
    is_sliced = form == "sliced" or (form == "lanes" and not permutes)
    if is_sliced and columns <= 2:
        numbered = place_bytes or sliced.place_bytes(A.shape[1])
        spec_of_slices = SlicedSpec(columns, size, vector_bytes, numbered, prefetches=prefetches)
        layout = sliced.lay_out_slices(A, spec_of_slices)
    elif form == "lanes" and permutes:
        spec = LanesSpec(
            columns,
            size,
            vector_bytes,
            prefetches=prefetches,
            wide=columns == 1 if wide is None else wide,
        )
        numbered = window_bytes or lanes.window_bytes(A.shape[1], spec)
        layout = lay_out_lanes(A, replace(spec, window_bytes=numbered))
    prepared = (epilogue or Epilogue()).prepared("spmm", A.shape[0], A.dtype)
    return product.FewColumnsProduct(A, columns, prepared, threads, Form(layout, 0.0))


def multiplied(
    prepared: product.FewColumnsProduct,
    A: Any,
    B: Any,
    residual: Any = None,
    order: Any = "C",
    pool: ThreadPool = ONE_THREAD,
) -> Any:
    """Return the result in an array of that order, which held other numbers before."""
    out = np.full((A.shape[0], B.shape[1]), 77, A.dtype, order=order)
    prepared.multiply(B, out, residual, pool)
    return out


def sums_by_loops(A: Any, B: Any) -> Any:
    """Return A B in float64, of the stored entries of A alone, one after the other."""
    sums = np.zeros((A.shape[0], B.shape[1]))
    with np.errstate(invalid="ignore"):
        for row in range(A.shape[0]):
            for entry in range(A.indptr[row], A.indptr[row + 1]):
                for column in range(B.shape[1]):
                    b = float(B[A.indices[entry], column])
                    sums[row, column] += float(A.data[entry]) * b
    return sums


def random_rows(
    rng: np.random.Generator, rows: int, columns: int, density: float, dtype: Any
) -> Any:
    """Return a csr_array whose rows differ much in length: some empty, some full."""
    each = density * rng.choice([0, 0.5, 1, 1, 2, 1 / density], rows)
    kept = rng.random((rows, columns)) < each[:, None]
    A = sp.csr_array(np.where(kept, rng.standard_normal((rows, columns)), 0).astype(dtype))
    A.sort_indices()
    return A


def assert_near(found: Any, expected: Any, A: Any) -> None:
    """Compare, NaN and infinities included, within the rounding of sums of so many terms."""
    size = 1e-6 if A.dtype == np.float32 else 1e-14
    longest = max(1, int(np.diff(A.indptr).max(initial=1)))
    np.testing.assert_allclose(found, expected, rtol=30 * size, atol=size * 5 * longest)
