"""layer: spmm, bias, ReLU and clamp in one, Y' = min(max(Y W + b, 0), y_max).

Dense features are random and all active, so that nothing can be left out: 4,096 inputs of 1,024
neurons, in C order (one input after the other) and in Fortran order (one neuron after the
other). Sparse ones are the inputs of the challenge.
"""

from __future__ import annotations

import numpy as np
import pytest

from portable_spdnn_cpu.spmm.clustered.tuning import WIDTHS

from .agreement import assert_agree, assert_layer
from .kernel_models import product_model, sparse_product_model

NEURONS = 1024
DENSE_INPUTS = 4096
SPARSE_INPUTS = 10_000


@pytest.mark.cases("dense-C", "dense-F", "sparse", one_thread=("dense-C",))
def test_layer(case, backend, reference, prepared, challenge_network, images, measure):
    network, weights = challenge_network(NEURONS, 1)
    layer, y_max = network.layers[0], network.y_max
    W, bias = layer.csr(), float(layer.bias[0])

    def build():
        if case == "sparse":
            features, source = images(NEURONS, SPARSE_INPUTS)
            Y, source = features.csr(), f"{source}, {features.shape[0]}"
        else:
            Y, source = (
                np.random.default_rng(0).random((DENSE_INPUTS, NEURONS), np.float32),
                "random",
            )
            Y = np.asarray(Y, order=case[-1])
        expected = reference.layer(W, Y, bias, y_max)
        assert_layer(expected, W, Y, bias, y_max)
        return Y, source, expected

    Y, source, expected = prepared(build)
    if case == "sparse":
        model = sparse_product_model(Y, W, expected.nnz)
    else:
        model = product_model(W.T.shape, W.nnz, DENSE_INPUTS, Y.dtype, WIDTHS[0])
    measure(
        lambda: backend.layer(W, Y, bias, y_max),
        lambda result: assert_agree(result, expected),
        edges=reference.multiply_adds(W, Y),
        model=model,
        weights=weights,
        inputs=source,
    )
