"""The fused layer on sparse features: every accumulator, activation and bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from exact_activations import exact
from hypothesis import given, settings
from hypothesis import strategies as st
from spgemm_settings import forced, matrix, same_bits

import portable_spdnn as ps
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.activations import ACTIVATIONS
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spgemm.fused_layer import sparse_layer


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_sparse_layer_is_the_same_in_every_accumulator(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    m, k = data.draw(st.tuples(st.integers(0, 12), st.integers(0, 12)))
    n = data.draw(st.sampled_from([0, 1, 64, 65, 300]))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    wild = data.draw(st.booleans())
    Y, W = matrix(rng, (m, k), 0.4, dtype, wild), matrix(rng, (k, n), 0.4, dtype)
    bias = rng.uniform(-0.3, 0, n).astype(dtype)
    y_max = data.draw(st.sampled_from([None, 0.4]))
    with np.errstate(invalid="ignore"):
        # What is stored counts: the rest of a row is zero, even if another entry is NaN.
        Z = oracle.spgemm(Y, W)[0] + bias
    expected = np.where(Z <= 0, 0, Z)
    if y_max is not None:
        expected[expected > y_max] = y_max
    results = []
    for accumulator in ("dense", "hash", "sorted", "mixed"):
        for threads in (1, 2):
            with forced(accumulator):
                results.append(ps.get_backend("numba", threads).layer(W, Y, bias, y_max))
    for out in results:
        assert (out.data != 0).all()
        np.testing.assert_allclose(out.toarray(), expected, rtol=1e-4, atol=1e-5)
        same_bits(out, results[0])


def test_buffers_of_the_layer_grow() -> None:
    """One row after the other asks for more than all before it."""
    W = sp.csr_array(np.ones((1, 30_000), np.float32))
    Y = sp.csr_array(np.arange(9, dtype=np.float32)[:, None])
    for accumulator in ("dense", "hash", "sorted"):
        with forced(accumulator):
            out = ps.get_backend("numba", 2).layer(W, Y, -0.5)
        np.testing.assert_array_equal(
            out.toarray(), np.repeat(np.maximum(np.arange(9) - 0.5, 0)[:, None], 30_000, 1)
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_and_bound(activation: str, dtype: Any) -> None:
    """Entries that the patterns allow are computed; what is zero then is not stored."""
    rng = np.random.default_rng(0)
    Y, W = matrix(rng, (20, 15), 0.3, dtype, wild=True), matrix(rng, (15, 80), 0.3, dtype)
    bias = rng.uniform(-0.5, 0.5, 80).astype(dtype)
    with np.errstate(invalid="ignore"):
        sums, pattern = oracle.spgemm(Y, W)
    allowed = np.zeros(sums.shape, bool)
    allowed[tuple(np.transpose(list(pattern)))] = True
    for lower, upper in ((None, None), (None, 0.2), (-0.1, None), (0, 0.3), (0.05, np.inf)):
        with np.errstate(all="ignore"):
            values = exact(activation, sums + bias)
        values[np.isneginf(sums)] = -1 if activation == "tanh" else 0
        if activation == "none":
            values[np.isneginf(sums)] = -np.inf
        expected = np.where(allowed, np.clip(values, lower, upper), 0)
        for accumulator in ("dense", "hash", "sorted"):
            with forced(accumulator):
                epilogue = Epilogue(bias, activation, lower, upper)
                epilogue = epilogue.prepared("layer", W.shape[1], W.dtype)
                out = sparse_layer(ThreadPool(2), W, Y, epilogue)
            assert out.dtype == dtype
            assert (out.data != 0).all()
            np.testing.assert_allclose(out.toarray(), expected, rtol=1e-4, atol=1e-5)
            assert np.isnan(out.data).sum() == np.isnan(expected).sum() > 0
