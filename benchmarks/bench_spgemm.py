"""spgemm: sparse inputs times sparse weights, C = A B.

The inputs of the challenge (images, a tenth of the pixels 1) times layer 1, and the features
after layer 1, a third of them nonzero, times layer 2. One-shot: both phases; reused: the numeric
phase alone, on a handle that has been through both.
"""

from __future__ import annotations

import numpy as np
import pytest

from portable_spdnn_cpu.kernel_models import sparse_product_model

from .agreement import assert_agree, assert_product

INPUTS = 10_000
NEURONS = 1024


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
        expected = reference.spgemm(A, B)
        assert_product(expected, A, B)
        return A, B, expected

    A, B, expected = prepared(build)

    def check(result):
        assert result.nnz == expected.nnz
        assert_agree(result, expected)

    operation = lambda: backend.spgemm(A, B)  # noqa: E731
    if case.endswith("-reused"):
        handle = backend.spgemm_handle(A, B)
        check(handle.numeric())
        operation = handle.numeric
    measure(
        operation,
        check,
        edges=int(np.diff(B.indptr)[A.indices].sum()),
        model=sparse_product_model(A, B, expected.nnz),
        weights=weights,
        inputs=f"{inputs}, {features.shape[0]}",
    )
