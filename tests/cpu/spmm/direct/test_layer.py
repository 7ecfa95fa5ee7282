"""Single layers, which are products of the transposed weights."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.direct import product

FORMS = {"csr": sp.csr_array, "csc": sp.csc_array}


def matrix() -> sp.csr_array:
    rng = np.random.default_rng(9)
    return sp.random_array((25, 40), density=0.3, rng=rng, dtype=np.float32).tocsr()


@pytest.mark.parametrize("inputs", [1, 3, 20, 70, 60_000])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_weights_are_taken_its_weights_as_they_are(form: str, inputs: int) -> None:
    W, rng = FORMS[form](matrix()), np.random.default_rng(9)
    Y = rng.uniform(-1, 1, (inputs, 25)).astype(np.float32)
    residual = rng.uniform(-1, 1, (inputs, 40)).astype(np.float32)
    epilogue = ps.Epilogue(rng.uniform(-1, 1, 40), "relu", upper=0.4)
    numba, scipy = ps.get_backend("numba"), ps.get_backend("scipy")
    for added in (None, residual):
        found = numba.layer(W, Y, epilogue=epilogue, residual=added)
        expected = scipy.layer(W, Y, epilogue=epilogue, residual=added)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert found.flags.c_contiguous
        as_given = product.layer_as_given(ThreadPool(1), W, Y, epilogue, added)
        assert (as_given is None) == (inputs == 60_000)


@pytest.mark.parametrize("inputs", [3, 60_000])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_what_is_wrong_with_a_layer_is_named(form: str, inputs: int) -> None:
    backend, W = ps.get_backend("numba"), FORMS[form](matrix())
    for part, other in (
        ("indptr", W.indptr + 1), ("indptr", W.indptr[:-1]), ("indptr", W.indptr + 0.5),
        ("indices", W.indices + 0.5), ("indices", W.indices > 3), ("indices", W.indices.tolist()),
        ("indices", W.indices[:-1]), ("data", W.data[:-1]), ("data", W.data[:, None]),
        ("data", W.data.tolist()), ("data", None),
    ):  # fmt: skip
        lying = W.copy()
        setattr(lying, part, other)
        with pytest.raises(ps.InputError, match="layer: weights"):
            backend.layer(lying, np.ones((inputs, 25), np.float32))
    Y, invalid = np.ones((inputs, 25), np.float32), W.copy()
    invalid.indices[3] = 90
    with pytest.raises(ps.InputError, match="layer: weights"):
        backend.layer(invalid, Y)
    with pytest.raises(ps.InputError, match="layer: weights are 25 x 40 but features have 24"):
        backend.layer(W, Y[:, :-1])
    with pytest.raises(ps.InputError, match="layer: features has 0 dimension"):
        backend.layer(W, np.array(1, np.float32))
    with pytest.raises(ps.InputError, match="layer: bias has shape"):
        backend.layer(W, Y, [1.0, 2.0])
    with pytest.raises(ps.InputError, match="layer: residual has shape"):
        backend.layer(W, Y, residual=np.ones((25, 3), np.float32))
    with pytest.raises(ps.InputError, match="layer"):
        backend.layer(W, Y, residual="words")
    with pytest.raises(ps.InputError, match="layer"):
        backend.layer(W.astype(np.complex64), Y)
