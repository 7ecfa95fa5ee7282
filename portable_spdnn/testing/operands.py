"""What the files of the contract suite share: operands, tolerances, what errors must name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps

DTYPES = [np.float32, np.float64]
# Rows, inner, columns: empty, single, around 8, 16, 32, 64 and 128, and of no round number.
SHAPES = [
    (1, 1, 1), (0, 5, 3), (5, 0, 3), (5, 3, 0), (1, 70, 1), (70, 1, 5), (9, 40, 7), (7, 9, 15),
    (8, 8, 16), (16, 17, 31), (17, 16, 32), (31, 33, 33), (33, 31, 48), (12, 64, 63), (13, 65, 64),
    (64, 12, 65), (20, 30, 127), (6, 5, 128), (5, 6, 129), (3, 4, 260),
]  # fmt: skip


def random_sparse(
    rng: np.random.Generator, shape: tuple[int, int], density: float, dtype: Any
) -> Any:
    """Return a csr_array with entries in -1 .. 1; at low density with empty rows and columns."""
    dense = np.where(rng.random(shape) < density, rng.uniform(-1, 1, shape), 0)
    return sp.csr_array(dense.astype(dtype))


def tolerance(dtype: Any) -> dict[str, Any]:
    """Return the rounding of sums of up to 70 terms of order 1."""
    return {"rtol": 2e-5, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-12}


def host(backend: ps.Backend, array: Any) -> Any:
    """Return a result in host memory, all work done."""
    backend.synchronize()
    return backend.download(array)


def as_dense(array: Any) -> Any:
    """Return features as an ndarray."""
    return array.toarray() if sp.issparse(array) else array


@contextmanager
def refused(*facts: object, error: type[Exception] = ps.InputError) -> Iterator[None]:
    """Expect an error of a type whose message names all facts, in whatever words."""
    with pytest.raises(error) as caught:
        yield
    for fact in facts:
        assert str(fact) in str(caught.value), f"{fact} is not named in: {caught.value}"
