"""Random products, one-shot and prepared, against float64 with a bound on their rounding errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from random_networks import ACTIVATION_ULPS, STEEPEST

import portable_spdnn as ps
from portable_spdnn.epilogue import ACTIVATIONS
from portable_spdnn.testing import oracle

BACKENDS = [info.name for info in ps.backends() if info.availability.available]
SIZES = st.sampled_from((0, 1, 2, 7, 16, 33, 70))


def random_csr(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> Any:
    dense = rng.normal(size=shape) * (rng.random(shape) < rng.choice((0.0, 0.1, 0.5, 1.0)))
    return sp.csr_array(dense.astype(dtype))


def check(found: Any, z: Any, magnitude: Any, terms: int, finish: Any, dtype: str) -> None:
    """Check ``activation(z)``, bounded, where z is a sum of `terms` of such magnitude in all."""
    unit = float(np.finfo(dtype).eps) / 2
    expected = oracle.finish(z, np.zeros(1), *finish)
    off = (terms + 5) * unit * magnitude
    if finish[0] != "none":
        off = STEEPEST * off + ACTIVATION_ULPS * unit * (np.abs(z) + np.abs(expected))
    assert found.dtype == np.dtype(dtype)
    assert (np.abs(np.asarray(found, np.float64) - expected) <= off).all()


@pytest.mark.parametrize("name", BACKENDS)
@given(
    seed=st.integers(0, 2**32 - 1), m=SIZES, k=SIZES, n=SIZES,
    dtype=st.sampled_from(("float32", "float64")), activation=st.sampled_from(ACTIVATIONS),
    lower=st.sampled_from((None, -0.5)), upper=st.sampled_from((None, 1.5)),
    order=st.sampled_from("CF"), threads=st.integers(1, 2), with_residual=st.booleans(),
)  # fmt: skip
def test_products_are_within_their_bounds(
    name: str, seed: int, m: int, k: int, n: int, dtype: str, activation: str,
    lower: float | None, upper: float | None, order: Any, threads: int, with_residual: bool,
) -> None:  # fmt: skip
    rng, backend = np.random.default_rng(seed), ps.get_backend(name, threads)
    A, B = random_csr(rng, (m, k), dtype), rng.normal(size=(k, n)).astype(dtype, order)
    bias = rng.normal(size=m).astype(dtype)
    residual = rng.normal(size=(m, n)).astype(dtype) if with_residual else None
    added = 0 if residual is None else residual.astype(np.float64)
    finish = (activation, lower, upper)
    epilogue = ps.Epilogue(bias, activation, lower, upper)
    dense, wide = A.toarray().astype(np.float64), B.astype(np.float64)
    z = dense @ wide + bias[:, None].astype(np.float64) + added
    magnitude = np.abs(dense) @ np.abs(wide) + np.abs(bias[:, None]) + np.abs(added)
    handle = backend.spmm_handle(A, epilogue=epilogue)
    for found in (backend.spmm(A, B, epilogue, residual), handle.multiply(B, None, residual)):
        check(backend.download(found), z, magnitude, k, finish, dtype)
    # The same product as a layer: Y W = (A B)^T with Y = B^T and W = A^T.
    W, Y = sp.csr_array(A.T), np.asarray(B.T, order=order)
    turned = None if residual is None else residual.T
    layer = backend.layer_handle(W, epilogue=epilogue)
    for found in (
        backend.layer(W, Y, epilogue=epilogue, residual=turned),
        layer.apply(Y, None, turned),
    ):
        check(backend.download(found).T, z, magnitude, k, finish, dtype)


@pytest.mark.parametrize("name", BACKENDS)
@given(
    seed=st.integers(0, 2**32 - 1), m=SIZES, k=SIZES, n=SIZES,
    dtype=st.sampled_from(("float32", "float64")), threads=st.integers(1, 2),
)  # fmt: skip
def test_sparse_products_are_within_their_bounds(
    name: str, seed: int, m: int, k: int, n: int, dtype: str, threads: int
) -> None:
    rng, backend = np.random.default_rng(seed), ps.get_backend(name, threads)
    A, B = random_csr(rng, (m, k), dtype), random_csr(rng, (k, n), dtype)
    a, b = A.toarray().astype(np.float64), B.toarray().astype(np.float64)
    handle = backend.spgemm_handle(A, B)
    for found in (handle.numeric(), handle.numeric(A_data=A.data), backend.spgemm(A, B)):
        C = backend.download(found)
        assert C.has_canonical_format
        check(C.toarray(), a @ b, np.abs(a) @ np.abs(b), k, ("none", None, None), dtype)
