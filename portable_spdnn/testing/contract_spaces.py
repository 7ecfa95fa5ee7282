"""The contract of memory spaces, of optional operations, and of what a backend says of itself."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.backend import OPTIONAL_OPERATIONS
from portable_spdnn.testing.operands import (
    as_dense,
    host,
    refused,
)

# -- the rest -----------------------------------------------------------------------------------


def test_round_trip_through_the_memory_space(backend: ps.Backend) -> None:
    dense = np.arange(12.0).reshape(3, 4)
    sparse = sp.csr_array(np.eye(3))
    np.testing.assert_array_equal(host(backend, backend.upload(dense)), dense)
    np.testing.assert_array_equal(host(backend, backend.upload(sparse)).toarray(), np.eye(3))


def test_what_the_layer_loop_asks(backend: ps.Backend) -> None:
    Y = np.zeros((5, 3))
    Y[1, 2] = 1
    Y[3, 0] = np.nan
    W = backend.upload(sp.csr_array(np.triu(np.ones((3, 4)))))
    for features, work in ((Y, 5 * W.nnz), (sp.csr_array(Y), 2 + 4)):
        mine = backend.upload(features)
        assert backend.active_inputs(mine).tolist() == [1, 3]
        assert backend.multiply_adds(W, mine) == work
        taken = host(backend, backend.take_inputs(mine, np.array([1, 3])))
        np.testing.assert_array_equal(as_dense(taken), Y[[1, 3]])


def test_optional_operations_are_there_or_say_who_has_them(backend: ps.Backend) -> None:
    for operation in OPTIONAL_OPERATIONS:
        if operation not in backend.optional_operations:
            with refused(backend.name, operation, error=NotImplementedError):
                getattr(backend, operation)()


def test_backend_says_what_it_is(backend: ps.Backend) -> None:
    assert backend.execution_space in {"serial", "threads", "cuda"}
    assert backend.memory_space in {"host", "device"}
    assert backend.threads >= 1
    assert backend.device
    availability = type(backend).availability()
    assert availability.available
    assert availability.versions
    with refused("threads", 0):
        type(backend)(threads=0)
