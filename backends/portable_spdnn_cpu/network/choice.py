"""Which of its plans suits a network."""

from __future__ import annotations

import numpy as np

from portable_spdnn.layer import Layer
from portable_spdnn.network import Network
from portable_spdnn_cpu.layout.clusters import cluster_outputs
from portable_spdnn_cpu.layout.csc_to_csr import csc_to_csr
from portable_spdnn_cpu.layout.tile_shape import CLUSTER

SAMPLED_LAYERS = 3  # which tell for all whether outputs share inputs
DENSE = 0.25  # the part of a layer's weights from which products win, whatever outputs share


def suits_products(network: Network) -> bool:
    """Whether layers are faster one by one, as products, than depth first in tiles.

    Tiles gain where inputs die out, where all weights are equal, and where outputs share inputs, as
    in the challenge's networks. Layers of pruned networks have none of that.
    """
    if network.sparse_features_exact and any(
        np.min(layer.epilogue().bias, initial=0.0) < 0 for layer in network
    ):
        return False
    sampled = np.unique(np.linspace(0, len(network) - 1, SAMPLED_LAYERS).astype(int))
    layers = [network.layers[number] for number in sampled]
    suited = sum(layer.nnz for layer in layers if _is_irregular(layer))
    return bool(2 * suited >= sum(layer.nnz for layer in layers))


def _is_irregular(layer: Layer) -> bool:
    """Whether edges have weights of their own and few outputs share inputs, or all is dense."""
    neurons_in, neurons_out = layer.shape
    if layer.nnz >= DENSE * neurons_in * neurons_out:
        return True
    if layer.constant is not None:
        return False
    by_output = csc_to_csr(layer.csr().T)
    assert by_output is not None  # layers are canonical
    _, clusters = cluster_outputs(by_output.indptr.astype(np.int64), by_output.indices)
    return 2 * CLUSTER * clusters < neurons_out
