"""The contract of fused layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn.testing.operands import (
    DTYPES,
    SHAPES,
    as_dense,
    host,
    random_sparse,
    refused,
    tolerance,
)

# -- layer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("form", ["C", "F", "sparse"])
def test_layer(backend: ps.Backend, shape: Any, form: Any, dtype: Any) -> None:
    outputs, neurons, inputs = shape
    rng = np.random.default_rng(5)
    W = random_sparse(rng, (neurons, outputs), 0.4, dtype)
    Y = np.where(rng.random((inputs, neurons)) < 0.4, rng.random((inputs, neurons)), 0)
    Y = Y.astype(dtype)
    # The sparse form is exact only where no bias is positive.
    bias = rng.uniform(-0.4, 0 if form == "sparse" else 0.3, outputs).astype(dtype)
    given_features = sp.csr_array(Y) if form == "sparse" else np.array(Y, order=form)
    out = host(backend, backend.layer(W, given_features, bias, 0.5))
    assert sp.issparse(out) == (form == "sparse")
    assert out.dtype == dtype
    if form == "sparse":
        assert (out.data != 0).all()
    np.testing.assert_allclose(as_dense(out), oracle.layer(W, Y, bias, 0.5), **tolerance(dtype))


@pytest.mark.parametrize("form", ["C", "F", "sparse"])
@pytest.mark.parametrize("bias", [-0.1, 0.1])
def test_layer_handle(backend: ps.Backend, form: Any, bias: float) -> None:
    rng = np.random.default_rng(8)
    W = random_sparse(rng, (40, 30), 0.3, np.float32)
    Y = np.where(rng.random((48, 40)) < 0.5, rng.random((48, 40)), 0).astype(np.float32)
    expected = oracle.layer(W, Y, np.full(30, bias), 0.5)
    handle = backend.layer_handle(W, bias, 0.5)
    if form == "sparse":
        given = backend.upload(sp.csr_array(Y))
        if bias > 0:
            with refused("dense features"):
                handle.apply(given)
            return
        with refused("layer", "out", "sparse"):
            handle.apply(given, np.zeros((48, 30), np.float32))
    else:
        given = backend.upload(np.array(Y, order=form))
        out = backend.upload(np.empty((48, 30), np.float32))
        np.testing.assert_allclose(host(backend, handle.apply(given, out)), expected, atol=1e-5)
    for _ in range(3):
        found = as_dense(host(backend, handle.apply(given)))
        np.testing.assert_allclose(found, expected, atol=1e-5)
    with refused("layer", "40 x 30", 41):
        handle.apply(np.zeros((2, 41), np.float32))


def test_layer_clamps_only_where_asked_and_takes_a_layer(backend: ps.Backend) -> None:
    rng = np.random.default_rng(6)
    one = ps.Layer(random_sparse(rng, (12, 9), 0.5, np.float32), rng.uniform(-0.2, 0.2, 9))
    Y = 10 * rng.random((21, 12)).astype(np.float32)
    expected = oracle.layer(one.csr(), Y, one.bias, None)
    assert expected.max() > 2
    np.testing.assert_allclose(
        host(backend, backend.layer(one, Y)), expected, **tolerance(np.float32)
    )
    clamped = host(backend, backend.layer(one, Y, y_max=2.0))
    assert clamped.max() == 2
    no_bias = host(backend, backend.layer(one, Y, bias=0.0))
    np.testing.assert_allclose(
        no_bias, oracle.layer(one.csr(), Y, np.zeros(9), None), **tolerance(np.float32)
    )


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_layer_passes_nan_on_and_clamps_infinity(backend: ps.Backend, form: Any) -> None:
    W = sp.csr_array(np.array([[1.0, 0, 0], [0, 1, -1]]))
    Y = np.array([[np.nan, 1.0], [1, np.inf], [0, 2]])
    features = sp.csr_array(Y) if form == "sparse" else Y
    out = as_dense(host(backend, backend.layer(W, features, -0.5, 8.0)))
    np.testing.assert_array_equal(out, [[np.nan, 0.5, 0], [0.5, 8, 0], [0, 1.5, 0]])


def test_layer_names_what_does_not_fit(backend: ps.Backend) -> None:
    W = sp.csr_array((1024, 1024), dtype=np.float32)
    with refused("layer", "1024 x 1024", 4096):
        backend.layer(W, np.zeros((1, 4096)))
    with refused("layer", "bias", "(3,)"):
        backend.layer(W, np.zeros((1, 1024)), bias=np.zeros(3))
    with refused("y_max", 0):
        backend.layer(W, np.zeros((1, 1024)), y_max=0)
    for turning in (ps.Epilogue(0.1, "relu"), ps.Epilogue(-0.1, "tanh"), ps.Epilogue(lower=1)):
        with refused("layer", "zeros", "dense features"):
            backend.layer(W, sp.csr_array((1, 1024)), epilogue=turning)
    with refused("layer", "epilogue", "bias"):
        backend.layer(W, np.zeros((1, 1024)), bias=0.1, epilogue=ps.Epilogue())
    with refused("layer", "residual", "(1, 3)", "(1, 1024)"):
        backend.layer(W, np.zeros((1, 1024)), residual=np.zeros((1, 3)))
    with refused("layer", "residual", "sparse"):
        backend.layer(W, sp.csr_array((1, 1024)), residual=np.zeros((1, 1024)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "activation", ["none", "relu", "gelu", "gelu_tanh", "silu", "hardswish", "sigmoid", "tanh"]
)
def test_layer_epilogue(backend: ps.Backend, activation: str, dtype: Any) -> None:
    rng = np.random.default_rng(13)
    W = random_sparse(rng, (33, 21), 0.3, dtype)
    Y = np.where(rng.random((50, 33)) < 0.5, 3 * rng.uniform(-1, 1, (50, 33)), 0).astype(dtype)
    bias, residual = rng.uniform(-1, 1, 21), rng.uniform(-1, 1, (50, 21)).astype(dtype)
    sums = oracle.product(W, Y)
    for lower, upper in ((None, None), (-0.25, 1.5)):
        epilogue = ps.Epilogue(bias, activation, lower, upper)
        one = ps.Layer(W, bias, activation, lower, upper)
        handle = backend.layer_handle(W, epilogue=epilogue)
        for added in (None, residual):
            expected = oracle.finish(sums, bias, activation, lower, upper, added)
            for found in (
                backend.layer(W, Y, epilogue=epilogue, residual=added),
                backend.layer(one, Y, residual=added),
                handle.apply(Y, residual=added),
                handle.apply(np.asfortranarray(Y), residual=added),
                handle.apply(Y, backend.upload(np.empty((50, 21), dtype)), added),
            ):
                np.testing.assert_allclose(host(backend, found), expected, **tolerance(dtype))
        # Without a bias, zeros stay zeros for all but sigmoid: sparse features are exact.
        if activation != "sigmoid":
            bare = ps.Epilogue(None, activation, lower, upper)
            found = host(backend, backend.layer(W, sp.csr_array(Y), epilogue=bare))
            assert sp.issparse(found)
            assert (found.data != 0).all()
            expected = oracle.finish(sums, np.zeros(1), activation, lower, upper)
            np.testing.assert_allclose(found.toarray(), expected, **tolerance(dtype))


def test_handles_keep_weights_of_their_own(backend: ps.Backend) -> None:
    W = sp.csr_array(np.eye(3))
    layer, product = backend.layer_handle(W), backend.spmm_handle(W)
    W.data[:] = 7
    for Y in (np.ones((2, 3)), sp.csr_array(np.ones((2, 3)))):
        np.testing.assert_array_equal(as_dense(host(backend, layer.apply(Y))), np.ones((2, 3)))
    found = host(backend, product.multiply(np.ones((3, 2))))
    np.testing.assert_array_equal(found, np.ones((3, 2)))
