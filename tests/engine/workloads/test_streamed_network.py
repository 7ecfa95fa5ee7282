"""Networks that are read on use: the same layers, no weights held, statistics without reading."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.io.packed_store import PackedStore
from portable_spdnn.io.packed_writer import PackedStoreWriter
from portable_spdnn.network import LayerStatistics
from portable_spdnn.workloads.streamed_network import GeneratedLayers, StoredLayers, StreamedNetwork


def assert_same_layers(got: ps.Network, expected: ps.Network) -> None:
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.shape == theirs.shape
        for name in ("indptr", "indices", "data", "bias"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def assert_same_statistics(got: ps.Network, expected: ps.Network) -> None:
    for name in ("neurons", "neurons_out", "widest", "edges", "y_max", "layers_filling_zeros",
                 "sparse_features_exact"):  # fmt: skip
        assert getattr(got, name) == getattr(expected, name), name
    statistics = got.source.statistics  # type: ignore[attr-defined]
    assert statistics == [LayerStatistics.of(layer) for layer in expected]


@pytest.fixture
def odd_network() -> ps.Network:
    """Layers of many widths: values and constants, one bias and many, one that revives."""
    rng = np.random.default_rng(5)
    widths, layers = [20, 33, 1, 70, 26], []
    for number, (rows, columns) in enumerate(itertools.pairwise(widths)):
        weights = sp.random_array((rows, columns), density=0.4, rng=rng)
        if number == 2:
            weights.data[:] = 0.25
        layers.append(ps.Layer(weights, rng.uniform(-1, 0.5 if number == 3 else 0, columns)))
    return ps.Network(layers, 32.0)


@pytest.fixture
def store(tmp_path: Path, odd_network: ps.Network) -> PackedStore:
    path = tmp_path / "odd.spdnn"
    with PackedStoreWriter(path, y_max=odd_network.y_max) as writer:
        for number, layer in enumerate(odd_network, start=1):
            writer.add_layer(number, layer)
    return PackedStore(path)


def test_a_store_read_on_use_is_the_store(store: PackedStore, odd_network: ps.Network) -> None:
    network = StreamedNetwork(StoredLayers(store), store.y_max)
    assert_same_statistics(network, odd_network)
    assert network.layers_filling_zeros == (3,)
    for _ in range(2):  # released pages are read again
        assert_same_layers(network, odd_network)
    network.source.release(0, len(network))
    assert_same_layers(network, odd_network)
    assert [layer.shape for layer in network.layers[1:3]] == [(33, 1), (1, 70)]
    assert network.layers[-1].shape == (70, 26)
    opened = ps.open_network(store.path, layers=2, bias=-0.5)
    loaded = ps.load_network(store.path, layers=2, bias=-0.5)
    assert_same_statistics(opened, loaded)
    assert_same_layers(opened, loaded)
    assert ps.open_network(store.path, y_max=3.0).y_max == 3.0


def test_generated_layers_are_those_of_the_network() -> None:
    network = StreamedNetwork(GeneratedLayers(64, 7, seed=3), 32.0)
    expected = ps.radixnet(64, 7, seed=3)
    assert_same_statistics(network, expected)
    assert_same_layers(network, expected)
    lifted = StreamedNetwork(GeneratedLayers(64, 3, bias=0.1))
    assert lifted.layers_filling_zeros == (0, 1, 2)


def test_fingerprints_tell_networks_apart(store: PackedStore, odd_network: ps.Network) -> None:
    prints = [
        StreamedNetwork(StoredLayers(store), 32.0).fingerprint(),
        StreamedNetwork(StoredLayers(store), 31.0).fingerprint(),
        StreamedNetwork(StoredLayers(store, 3), 32.0).fingerprint(),
        StreamedNetwork(StoredLayers(store, bias=-1.0), 32.0).fingerprint(),
        StreamedNetwork(GeneratedLayers(64, 7), 32.0).fingerprint(),
        StreamedNetwork(GeneratedLayers(64, 7, seed=1), 32.0).fingerprint(),
        StreamedNetwork(GeneratedLayers(64, 7, bias=-0.1), 32.0).fingerprint(),
        odd_network.fingerprint(),
        ps.Network(odd_network.layers, 31.0).fingerprint(),
        ps.Network(odd_network.layers[:3], 32.0).fingerprint(),
    ]
    assert len(set(prints)) == len(prints)
    again = StreamedNetwork(StoredLayers(PackedStore(store.path)), 32.0)
    assert again.fingerprint() == prints[0]
    weights = odd_network.layers[0].csr()
    rebuilt = [ps.Layer(weights, odd_network.layers[0].bias), *odd_network.layers[1:]]
    assert ps.Network(rebuilt, 32.0).fingerprint() == odd_network.fingerprint()
    weights.data[3] += 1
    other = [ps.Layer(weights, odd_network.layers[0].bias), *odd_network.layers[1:]]
    assert ps.Network(other, 32.0).fingerprint() != odd_network.fingerprint()


def test_what_cannot_be_streamed_says_so(tmp_path: Path, store: PackedStore) -> None:
    folder = tmp_path / "text"
    (folder / "neuron64").mkdir(parents=True)
    with pytest.raises(ps.InputError, match=r"portable-spdnn convert .*text --neurons 64 --out"):
        ps.open_network(folder)
    with pytest.raises(ps.InputError, match="holds layers 1 to 4, not 9"):
        ps.open_network(store.path, layers=9)
    with pytest.raises(ps.InputError, match=r"neurons must be 16 \* 2\^s"):
        GeneratedLayers(100, 3)
    with pytest.raises(ps.InputError, match="y_max is -1"):
        StreamedNetwork(GeneratedLayers(64, 3), -1.0)

    class Misfit(GeneratedLayers):
        def __init__(self) -> None:
            super().__init__(64, 2)
            self.statistics = [self.statistics[0], LayerStatistics((32, 64), 5, 0, True)]

    with pytest.raises(ps.InputError, match="layer 1 gives 64 outputs but layer 2 takes 32"):
        StreamedNetwork(Misfit())
