"""spgemm: sparse inputs times sparse weights, C = A B.

The inputs of the challenge (images, a tenth of the pixels 1) times layer 1, and the features
after layer 1, a third of them nonzero, times layer 2. One-shot: both phases; reused: the numeric
phase alone, on a handle that has been through both.

Wide, hypersparse products, whose rows are short beside the columns: two layers of 65,536 neurons,
where sixteen products fall into one entry of C, and random matrices, where hardly two do.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from .agreement import assert_agree, assert_sparse_product
from .kernel_models import sparse_product_model

INPUTS = 10_000
NEURONS = 1024
WIDE = 65_536
EACH = 16  # entries to a row of the random matrices


@pytest.mark.cases("layer1", "layer2", "layer1-reused", "layer2-reused", one_thread=("layer1",))
def test_spgemm(case, backend, reference, prepared, challenge_network, images, measure):
    network, weights = challenge_network(NEURONS, 2)
    features, inputs = images(NEURONS, INPUTS)

    def build():
        first, second = network.layers
        A, B = features.csr(), first.csr()
        if case.startswith("layer2"):
            A, B = reference.layer(first, A, y_max=network.y_max), second.csr()
            A.sort_indices()
        return operands(A, B, reference)

    time_product(
        case, backend, prepared(build), measure, weights=weights,
        inputs=f"{inputs}, {features.shape[0]}",
    )  # fmt: skip


@pytest.mark.cases("two-layers", "random", "two-layers-reused", "random-reused")
def test_spgemm_wide(case, backend, reference, prepared, challenge_network, measure):
    def build():
        if case.startswith("random"):
            return operands(random_rows(0), random_rows(1), reference)
        network, _ = challenge_network(WIDE, 2)
        return operands(*(layer.csr() for layer in network.layers), reference)

    time_product(case, backend, prepared(build), measure, weights="generated, seed 0")


def random_rows(seed):
    """Return a random matrix, WIDE x WIDE, of EACH entries to a row, fewer where some coincide."""
    rng = np.random.default_rng(seed)
    places = np.arange(WIDE).repeat(EACH), rng.integers(0, WIDE, WIDE * EACH)
    return sp.csr_array((rng.random(WIDE * EACH, np.float32), places), shape=(WIDE, WIDE))


def operands(A, B, reference):
    """Return A, B and the product by the reference, which is checked."""
    expected = reference.spgemm(A, B)
    assert_sparse_product(expected, A, B)
    return A, B, expected


def time_product(case, backend, prepared, measure, **record):
    """Check and time a product: on a handle that has been through both phases if reused."""
    A, B, expected = prepared

    def check(result):
        assert result.nnz == expected.nnz
        assert_agree(result, expected)

    operation = lambda: backend.spgemm(A, B)  # noqa: E731
    if case.endswith("-reused"):
        handle = backend.spgemm_handle(A, B)
        check(handle.numeric())
        check(handle.numeric())
        operation = handle.numeric
    measure(
        operation,
        check,
        edges=int(np.diff(B.indptr)[A.indices].sum()),
        model=sparse_product_model(A, B, expected.nnz),
        **record,
    )
