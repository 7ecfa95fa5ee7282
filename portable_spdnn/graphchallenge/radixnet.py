"""The RadiX-Nets of the Graph Challenge.

Sources: Kepner and Robinett, "RadiX-Net: Structured Sparse Matrices for Deep Neural Networks",
IEEE IPDPS Workshops 2019 (the construction); Kepner, Alford, Gadepally, Jones, Milechin,
Robinett and Samsi, "Sparse Deep Neural Network Graph Challenge", IEEE HPEC 2019 (its use, and
the official layers, whose permutations follow the form stated here).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from portable_spdnn.arguments import checked_count
from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.configurations import challenge_bias
from portable_spdnn.host import require_memory
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network
from portable_spdnn.sparse_arrays import index_dtype

COPIES = 16
"""Kronecker width of the challenge networks; also the reciprocal of their weights."""


def radixnet(
    neurons: int = 1024,
    layers: int = 120,
    seed: int = 0,
    *,
    bias: npt.ArrayLike | None = None,
    y_max: float | None = 32.0,
) -> Network:
    """Generate a network with the structure of the Graph Challenge.

    The layers are those of `radixnet_layers`, all in memory at once: 2 bytes an edge up to
    65,536 neurons.

    Parameters
    ----------
    neurons : int
        N = 16 * 2^s with s >= 1.
    layers : int
        At least 1.
    seed : int
        At least 0. Equal seeds give equal networks.
    bias : float or array_like of shape (neurons,), optional
        Of every layer. Default: `portable_spdnn.graphchallenge.configurations.challenge_bias`.
    y_max : float, optional
        Upper bound of the features after a layer. None: no bound.

    Returns
    -------
    Network

    Raises
    ------
    InputError
        If an argument is outside the stated range.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> ps.radixnet(1024, layers=3)
    Network(1024 neurons, 3 layers, 98304 edges, y_max=32.0)
    """
    return Network(radixnet_layers(neurons, layers, seed, bias), y_max)


def radixnet_layers(
    neurons: int, layers: int, seed: int = 0, bias: npt.ArrayLike | None = None
) -> Iterator[Layer]:
    """Generate the layers of a challenge network one by one.

    With m = N / 16 and s = log2(m), layers come in blocks of s. Layer t = 0 .. s - 1 of block
    b is ``W[i, j] = 1/16`` where ``(p_b[i] - j) mod m`` is 0 or 2^t, else 0. Every neuron has
    32 connections on either side. In block 0, p_0[i] = i. In each later block p_b is a random
    permutation of 0 .. N - 1, shared by the layers of the block: row i of W, the outgoing
    connections of input neuron i, is row p_b[i] of the layer of block 0 with the same t.
    Columns stay where they are.

    Only p_b mod m matters, because rows m apart are equal. p_b is the stable sorting order of
    the first N raw 64-bit outputs of ``numpy.random.PCG64([seed, b])``.

    Parameters
    ----------
    neurons : int
        N = 16 * 2^s with s >= 1.
    layers : int
        At least 1; it need not be a multiple of s.
    seed : int
        At least 0.
    bias : float or array_like of shape (neurons,), optional
        Of every layer. Default: `portable_spdnn.graphchallenge.configurations.challenge_bias`.

    Returns
    -------
    iterator of Layer
        Weights are one float32 number, indices uint16 up to 65,536 neurons. No more than the
        layer at hand is kept.

    Raises
    ------
    InputError
        At once, if an argument is outside the stated range; with the first layer, if `bias`
        does not fit it.
    """
    _layers_per_block(neurons)
    layers = checked_count("layers", layers)
    seed = checked_count("seed", seed, least=0)
    bias = challenge_bias(neurons) if bias is None else bias
    return (radixnet_layer(neurons, index, seed, bias) for index in range(layers))


def radixnet_layer(
    neurons: int, index: int, seed: int = 0, bias: npt.ArrayLike | None = None
) -> Layer:
    """Generate one layer of a challenge network by itself.

    Parameters
    ----------
    neurons, seed, bias
        As for `radixnet_layers`.
    index : int
        Counted from 0.

    Returns
    -------
    Layer
        Equal to item `index` of ``radixnet_layers(neurons, layers, seed, bias)``.

    Raises
    ------
    InputError
        If an argument is outside the stated range.
    """
    per_block = _layers_per_block(neurons)
    block, t = divmod(checked_count("layer index", index, least=0), per_block)
    sources = _source_rows(neurons, checked_count("seed", seed, least=0), block)
    # Node n of the base goes to nodes n and n - 2^t; each has a copy every N / 16 neurons.
    nodes = neurons // COPIES
    node = np.arange(nodes)
    targets = np.sort(np.stack([node, node - (1 << t)], axis=1) % nodes, axis=1)
    columns = (nodes * np.arange(COPIES)[:, None] + targets[:, None, :]).reshape(nodes, -1)
    columns = columns.astype(index_dtype(neurons))[sources]
    indptr = np.arange(0, columns.size + 1, columns.shape[1])
    bias = challenge_bias(neurons) if bias is None else bias
    shape = neurons, neurons
    return Layer.from_csr(indptr, columns.reshape(-1), 1 / COPIES, shape, bias, copy=False)


@functools.lru_cache(maxsize=2)  # layers of a block, asked for one by one, share it
def _source_rows(neurons: int, seed: int, block: int) -> Array:
    """Return p_b mod m: which of the m distinct rows each row of the block's layers is."""
    if block == 0:
        return np.arange(neurons) % (neurons // COPIES)
    # NumPy promises to keep the raw stream of a bit generator, but not what `permutation` makes
    # of it: a seed must name the same network under every version.
    raw = np.random.PCG64([seed, block]).random_raw(neurons)
    return np.argsort(raw, kind="stable") % (neurons // COPIES)


def _layers_per_block(neurons: int) -> int:
    nodes, rest = divmod(checked_count("neurons", neurons, 2 * COPIES), COPIES)
    if rest or nodes < 2 or nodes & (nodes - 1):
        raise InputError(f"neurons must be 16 * 2^s with s >= 1, e.g. 1024; got {neurons}")
    # The nodes of its edges, as integers of 8 bytes, before and after they are permuted.
    if neurons > 1 << 20:
        require_memory(32 * 2 * 8 * neurons, f"neurons is {neurons}: to generate a layer")
    return nodes.bit_length() - 1
