"""RadiX-Nets against spelled-out definitions and the official layers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.radixnet import radixnet, radixnet_layer, radixnet_layers
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network


def dense(layer: Layer) -> np.ndarray:
    return layer.csr().toarray()


def plain_challenge_layer(neurons: int, t: int) -> np.ndarray:
    """Block 0, entry by entry."""
    weights = np.zeros((neurons, neurons))
    for i, j in itertools.product(range(neurons), repeat=2):
        if (i - j) % (neurons // 16) in (0, 2**t):
            weights[i, j] = 1 / 16
    return weights


def rows_taken(block: list[np.ndarray], plain: list[np.ndarray]) -> np.ndarray:
    """Return for each row of a block the plain row that it equals in every layer at once."""
    distinct = len(plain[0]) // 16
    place = {row.tobytes(): r for r, row in enumerate(np.hstack(plain)[:distinct])}
    assert len(place) == distinct
    return np.array([place[row.tobytes()] for row in np.hstack(block)])


def assert_equal_layers(left: Layer, right: Layer) -> None:
    assert left.shape == right.shape
    np.testing.assert_array_equal(left.indptr, right.indptr)
    np.testing.assert_array_equal(left.indices, right.indices)
    np.testing.assert_array_equal(left.data, right.data)
    np.testing.assert_array_equal(left.bias, right.bias)


@pytest.mark.parametrize("neurons", [32, 64, 256])
def test_block_0_is_the_definition(neurons: int) -> None:
    layers = int(math.log2(neurons // 16))
    for t, layer in enumerate(radixnet_layers(neurons, layers, seed=3)):
        np.testing.assert_array_equal(dense(layer), plain_challenge_layer(neurons, t))
        assert layer.constant == 1 / 16
        assert layer.row_length == 32
        assert layer.indices.dtype == np.uint16


@pytest.mark.parametrize("neurons", [64, 128, 256])
def test_later_blocks_are_row_permutations_of_block_0(neurons: int) -> None:
    per_block = int(math.log2(neurons // 16))
    layers = [dense(layer) for layer in radixnet_layers(neurons, 3 * per_block, seed=1)]
    plain = layers[:per_block]
    taken = [rows_taken(layers[at : at + per_block], plain) for at in (per_block, 2 * per_block)]
    for rows in taken:
        assert (np.bincount(rows) == 16).all()
        assert (rows != np.arange(neurons) % (neurons // 16)).any()
    assert (taken[0] != taken[1]).any()
    for layer in layers:
        assert ((layer > 0).sum(axis=0) == 32).all()


def test_any_layer_can_be_generated_alone() -> None:
    for index, layer in enumerate(radixnet_layers(64, 7, seed=5, bias=-0.5)):
        assert_equal_layers(layer, radixnet_layer(64, index, seed=5, bias=-0.5))


def test_the_seed_decides_all_blocks_but_the_first() -> None:
    first, again, other = (list(radixnet_layers(64, 6, seed)) for seed in (0, 0, 1))
    for index, layer in enumerate(first):
        assert_equal_layers(layer, again[index])
        same = np.array_equal(layer.indices, other[index].indices)
        assert same == (index < 2)


def test_a_seed_names_the_same_network_for_ever() -> None:
    # The stream of PCG64 is fixed by NumPy, so these rows may never change.
    raw = np.random.PCG64([0, 1]).random_raw(64)
    order = sorted(range(64), key=lambda place: int(raw[place]))
    assert order[:8] == [7, 10, 35, 41, 18, 4, 60, 38]
    plain, permuted = plain_challenge_layer(64, 1), dense(radixnet_layer(64, 3, seed=0))
    np.testing.assert_array_equal(permuted, plain[order])


def test_layers_are_made_when_asked_for() -> None:
    layers = radixnet_layers(65536, 10**9)
    layer = next(layers)
    assert layer.nnz == 32 * 65536
    assert layer.indices.dtype == np.uint16
    assert layer.indices.max() == 65535
    assert layer.bias[0] == -0.45


def test_beyond_65536_neurons_indices_widen() -> None:
    layer = radixnet_layer(131072, 3, bias=0)
    assert layer.indices.dtype == np.int32
    columns = layer.indices[32 * 5 : 32 * 6]
    nodes = 131072 // 16
    expected = sorted(j + nodes * copy for j in (5, (5 - 8) % nodes) for copy in range(16))
    np.testing.assert_array_equal(columns, expected)


def test_network_has_the_challenge_bias_and_clamp() -> None:
    network = radixnet()
    assert isinstance(network, Network)
    assert (network.neurons, len(network), network.edges) == (1024, 120, 120 * 32768)
    assert network.y_max == 32
    assert all((layer.bias == -0.3).all() for layer in network)
    given = radixnet(32, 2, bias=np.arange(32), y_max=None)
    assert given.y_max is None
    np.testing.assert_array_equal(given.layers[1].bias, np.arange(32))


@pytest.mark.parametrize("neurons", [-16, 0, 1, 16, 31, 48, 1000, 1025])
def test_neurons_outside_the_family(neurons: int) -> None:
    for generate in (radixnet_layers, radixnet_layer):
        with pytest.raises(InputError, match=r"neurons") as raised:
            generate(neurons, 1)
        assert str(neurons) in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": 0}, "layers is 0; it must be a whole number, at least 1"),
        ({"layers": 1.5}, "layers is 1.5; it must be a whole number"),
        ({"neurons": 1024.0}, "neurons is 1024.0; it must be a whole number"),
        ({"seed": -1}, "seed is -1; it must be a whole number, at least 0"),
        ({"bias": [0.0, 1.0]}, "bias has shape"),
        ({"bias": math.nan}, "bias is NaN"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        radixnet(**{"neurons": 64, "layers": 2, **arguments})


def test_bad_layer_index() -> None:
    with pytest.raises(InputError, match="layer index is -1"):
        radixnet_layer(64, -1)


SYSTEMS = [
    ([(2,)], [1, 1]),
    ([(2, 3)], [1, 2, 3]),
    ([(2, 3), (3, 2), (6,)], [2, 1, 3, 1, 2, 1]),
    ([(2, 2, 3), (4, 3), (2, 3)], [1, 1, 2, 1, 3, 1, 1, 2]),
    ([(5, 2), (2,)], [3, 1, 1, 2]),
]
