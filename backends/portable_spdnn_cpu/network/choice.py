"""Which of its plans suits a network."""

from __future__ import annotations

import numpy as np

from portable_spdnn.layer import Layer
from portable_spdnn.network import Network
from portable_spdnn_cpu.layout.clusters import cluster_outputs
from portable_spdnn_cpu.layout.csc_to_csr import transposed
from portable_spdnn_cpu.layout.tile_shape import CLUSTER

SAMPLED_LAYERS = 3  # the first, one in the middle and the last: they tell for all
# Densities: parts of a layer's possible weights. From DENSE on products win whatever outputs share;
# below THIN they win by so little that tiles are better where inputs may die out.
DENSE, THIN = 0.25, 0.05
FEW_INPUTS = 16  # with so few, products are up to twice as fast
# Networks of at most so many weights, and others if these times the expected inputs are at most so
# many multiply-adds, are faster as products whatever they share. Measured on a Zen 5, on which
# tiles take 70 microseconds before they begin: with 200 to 53,000 weights, products of 1 to 10,000
# inputs took 0.01 to 1.02 times as long as tiles.
FEW_WEIGHTS, FEW_MULTIPLY_ADDS = 1 << 14, 1 << 22


def suits_products(network: Network, expected_inputs: int | None = None) -> bool:
    """Whether layers are faster one by one, as products, than depth first in tiles of inputs.

    Of the first, a middle and the last layer, those tell that hold at least half of the three's
    weights. A layer is for tiles where all its weights are equal. If none of the three is so, they
    are for products where the network is small, or small for the inputs that are expected. Else a
    layer is for products where it is DENSE; else for tiles where half of its outputs are in
    clusters that share inputs, or where it is THIN and inputs may die out, unless few inputs are
    expected; else for products. Inputs may die out where zeros stay zeros in every layer, and a
    bias of these three is below zero.
    """
    sampled = np.unique(np.linspace(0, len(network) - 1, SAMPLED_LAYERS).astype(int))
    layers = [network.layers[number] for number in sampled]
    edges = network.edges
    small = edges <= FEW_WEIGHTS
    if expected_inputs is not None:
        small |= expected_inputs * edges <= FEW_MULTIPLY_ADDS
    if small and all(layer.constant is None for layer in layers):
        return True
    few_inputs = expected_inputs is not None and expected_inputs <= FEW_INPUTS
    dying = (
        not few_inputs and network.sparse_features_exact and any(map(_has_negative_bias, layers))
    )
    suited = sum(layer.nnz for layer in layers if _suits_products(layer, dying))
    return bool(2 * suited >= sum(layer.nnz for layer in layers))


def _suits_products(layer: Layer, dying: bool) -> bool:
    """Whether a layer is for products, given whether inputs may die out."""
    if layer.constant is not None:
        return False
    neurons_in, neurons_out = layer.shape
    density = layer.nnz / max(1, neurons_in * neurons_out)
    if density >= DENSE:
        return True
    if dying and density < THIN:
        return False
    by_output = transposed(layer.csr())
    _, clusters = cluster_outputs(by_output.indptr.astype(np.int64), by_output.indices)
    return 2 * CLUSTER * clusters < neurons_out


def _has_negative_bias(layer: Layer) -> bool:
    return bool(np.min(layer.epilogue().bias, initial=0.0) < 0)
