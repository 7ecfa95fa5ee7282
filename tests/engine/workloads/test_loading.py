"""Loading from folders, stores and files, and converting one to the other."""

from __future__ import annotations

import gzip
import re
import shutil
import struct

import numpy as np
import pytest
import scipy.sparse as sp

from portable_spdnn.errors import InputError
from portable_spdnn.features import PackedFeatures
from portable_spdnn.graphchallenge.categories import judge, write_categories
from portable_spdnn.graphchallenge.tsv_writing import write_inputs, write_layer
from portable_spdnn.io.packed_store import PackedStore
from portable_spdnn.io.packed_writer import PackedStoreWriter
from portable_spdnn.layer import Layer
from portable_spdnn.workloads import images
from portable_spdnn.workloads.loading import (
    convert,
    iter_layers,
    load_inputs,
    load_network,
)
from portable_spdnn.workloads.sources import Request, load_truth, resolve

NEURONS, LAYERS, INPUTS = 32, 3, 21


def random_layers(neurons, layers):
    rng = np.random.default_rng(neurons)
    return [
        Layer(sp.random_array((neurons, neurons), density=0.2, rng=rng, dtype=np.float32), -0.1)
        for _ in range(layers)
    ]


def add_network(directory, neurons, layers):
    (directory / f"neuron{neurons}").mkdir(parents=True)
    for number, layer in enumerate(layers, start=1):
        write_layer(directory / f"neuron{neurons}" / f"n{neurons}-l{number}.tsv", layer)


@pytest.fixture
def layers():
    return random_layers(NEURONS, LAYERS)


@pytest.fixture
def features():
    return PackedFeatures.from_dense(np.random.default_rng(3).random((INPUTS, NEURONS)) < 0.4)


@pytest.fixture
def folder(tmp_path, layers, features):
    directory = tmp_path / "data"
    add_network(directory, NEURONS, layers)
    write_inputs(directory / f"sparse-images-{NEURONS}.tsv.gz", features)
    write_categories(directory / f"neuron{NEURONS}-l2-categories.tsv", [0, 4, 59_000])
    write_categories(directory / f"neuron{NEURONS}-l3-categories.tsv", [4])
    write_categories(directory / "neuron64-l3-categories.tsv", [5])
    return directory


@pytest.fixture
def store(folder, tmp_path):
    convert(folder, tmp_path / "net.spdnn")
    return tmp_path / "net.spdnn"


@pytest.fixture(params=["folder", "store"])
def source(request):
    return request.getfixturevalue(request.param)


def load_first(path, neurons, first=None):
    return resolve(Request(neurons=neurons, inputs=path, first_inputs=first)).load_inputs()


def assert_same_weights(got, expected):
    got, expected = list(got), list(expected)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one.csr().toarray(), other.csr().toarray())


def test_network(source, layers):
    network = load_network(source)
    assert_same_weights(network, layers)
    assert network.y_max == 32
    assert all((layer.bias == -0.175).all() for layer in network)
    assert_same_weights(iter_layers(source), layers)
    assert_same_weights(iter_layers(source, NEURONS, 2), layers[:2])
    assert_same_weights(load_network(source, NEURONS, 1), layers[:1])


def test_other_bias_and_bound(source):
    network = load_network(source, bias=-0.5, y_max=3)
    assert network.y_max == 3
    assert all((layer.bias == -0.5).all() for layer in network)
    assert all((layer.bias == -0.5).all() for layer in iter_layers(source, bias=-0.5))
    assert load_network(source, y_max=np.inf).y_max is None


def test_bias_and_bound_of_a_store_are_its_own(tmp_path, layers):
    with PackedStoreWriter(tmp_path / "net.spdnn", y_max=7.0) as store:
        store.add_layer(1, layers[0])
    network = load_network(tmp_path / "net.spdnn")
    assert network.y_max == 7
    assert (network.layers[0].bias == -0.1).all()


def test_converting_with_another_bias(folder, tmp_path):
    steps = []
    convert(folder, tmp_path / "b.spdnn", NEURONS, 2, -0.7, lambda *step: steps.append(step))
    network = load_network(tmp_path / "b.spdnn")
    assert len(network) == 2
    assert all((layer.bias == -0.7).all() for layer in network)
    assert steps == [(1, 2), (2, 2)]


def test_progress_of_loading(source):
    steps = []
    load_network(source, progress=lambda *step: steps.append(step))
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_inputs(source, features):
    np.testing.assert_array_equal(load_inputs(source, NEURONS).bits, features.bits)
    few, total = load_first(source, NEURONS, first=5)
    np.testing.assert_array_equal(few.bits, features.bits[:5])
    assert total == INPUTS
    with pytest.raises(InputError, match=f"{INPUTS} inputs, not 22"):
        load_inputs(source, NEURONS, first=22)
    with pytest.raises(InputError, match=r"first 0 inputs|not 0;"):
        load_inputs(source, NEURONS, first=0)


def test_truth(source):
    two = load_truth(source, NEURONS, 2, INPUTS)
    assert (two.categories.tolist(), two.beyond) == ([0, 4], 1)
    three = load_truth(source, NEURONS, 3, INPUTS, inputs=4)
    assert (three.categories.tolist(), three.beyond) == ([], 1)
    assert load_truth(source, NEURONS, 1, INPUTS) is None


def test_truth_files_are_found(folder, store):
    expected = str(folder / f"neuron{NEURONS}-l2-categories.tsv")
    assert load_truth(folder, NEURONS, 2, INPUTS).source == expected
    assert load_truth(folder, NEURONS, 120, INPUTS) is None
    assert str(store) in load_truth(store, NEURONS, 2, INPUTS).source
    assert PackedStore(store).truth_layers == (2, 3)


def test_plain_inputs_come_before_compressed_ones(folder, features):
    write_inputs(folder / f"sparse-images-{NEURONS}.tsv", features[:3])
    assert load_inputs(folder, NEURONS).shape == (3, NEURONS)


def test_input_files_of_any_name(tmp_path, features):
    dense = features.dense()
    dense[2, 3] = 0.25
    write_inputs(tmp_path / "some.tsv", dense)
    np.testing.assert_array_equal(load_inputs(tmp_path / "some.tsv", NEURONS).toarray(), dense)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_idx_images(tmp_path, compress):
    pixels = np.random.default_rng(0).integers(0, 256, (7, 4, 4), dtype=np.uint8)
    path = tmp_path / "images"
    path.write_bytes(compress(struct.pack(">IIII", 0x803, 7, 4, 4) + pixels.tobytes()))
    expected = images.load_idx_features(path, 64)
    got, total = load_first(path, 64)
    np.testing.assert_array_equal(got.bits, expected.bits)
    assert total == 7
    got, total = load_first(path, 64, first=3)
    np.testing.assert_array_equal(got.bits, expected.bits[:3])
    assert total == 7


def test_converting_without_inputs_and_truth(tmp_path, layers):
    add_network(tmp_path / "bare", NEURONS, layers)
    convert(tmp_path / "bare", tmp_path / "net.spdnn")
    store = PackedStore(tmp_path / "net.spdnn")
    assert (store.input_shape, store.truth_layers) == (None, ())
    with pytest.raises(InputError, match=r"net.spdnn: holds no inputs; name a file of them"):
        load_inputs(tmp_path / "net.spdnn", NEURONS)
    with pytest.raises(InputError, match=r"bare: holds no sparse-images-32.tsv .*name an input"):
        load_inputs(tmp_path / "bare", NEURONS)


def test_failed_conversion_leaves_nothing(folder, tmp_path):
    (folder / "neuron32" / "n32-l2.tsv").write_text("1\t1\n")
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(InputError, match=r"n32-l2.tsv, line 1: 2 field"):
        convert(folder, tmp_path / "net.spdnn")
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_stores_are_not_converted(store, tmp_path):
    with pytest.raises(InputError, match=r"net.spdnn: is a packed store already"):
        convert(store, tmp_path / "again.spdnn")


def test_which_network_is_meant(folder, layers):
    for load in (load_network, lambda *given: list(iter_layers(*given))):
        with pytest.raises(
            InputError, match=r"networks of 32 neurons, not 4096; was neurons=32 meant"
        ):
            load(folder, 4096)
    add_network(folder, 64, random_layers(64, 1))
    assert load_network(folder, 64).neurons == 64
    with pytest.raises(InputError, match="of 32 and 64 neurons; choose one, neurons="):
        load_network(folder)
    with pytest.raises(InputError, match=r"networks of 32 and 64 neurons, not 4096$"):
        load_network(folder, 4096)
    assert_same_weights(load_network(folder, NEURONS), layers)


def test_store_of_another_width(store):
    fault = r"net.spdnn: holds a network of 32 neurons, not 64; was neurons=32 meant\?"
    for load in (load_network, iter_layers, load_inputs):
        with pytest.raises(InputError, match=fault):
            load(store, 64)


def test_store_of_fewer_layers(store):
    with pytest.raises(InputError, match=r"layers 1 to 3, not 120; was layers=3 meant"):
        load_network(store, layers=120)


def test_inputs_of_another_width(folder, tmp_path):
    official = folder / "sparse-images-32.tsv.gz"
    fault = r"of 32 neurons, not 64; was neurons=32 meant\?"
    with pytest.raises(InputError, match=re.escape(str(official)) + ".*" + fault):
        load_inputs(official, 64)
    shutil.copy(official, tmp_path / "other.tsv.gz")
    with pytest.raises(InputError, match=r"other.tsv.gz, line \d+: neuron \d+ is outside 1 .. 8"):
        load_inputs(tmp_path / "other.tsv.gz", 8)


def test_paths_that_are_neither_folder_nor_store(folder, tmp_path):
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "neuron32.tar.gz").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    expected = "expected a folder in the Graph Challenge layout or a packed store"
    for path, fault in (
        ("absent", f"absent: there is no such file or folder; {expected}"),
        ("notes.txt", f"notes.txt: is neither folder nor packed store; {expected}"),
        ("neuron32.tar.gz", f"{expected}; was its folder {tmp_path} meant?"),
        ("empty", "empty: holds no network: neither a folder neuronN nor an archive"),
        ("data/neuron32", f"holds no network.*; was its parent {folder} meant?"),
    ):
        pattern = re.escape(fault).replace(r"\.\*", ".*")
        with pytest.raises(InputError, match=pattern):
            load_network(tmp_path / path)
    with pytest.raises(InputError, match="absent: there is no such file"):
        load_inputs(tmp_path / "absent", 32)


def test_official_network_gives_the_official_categories(shared, tmp_path):
    """The layer loop, spelled out: all 120 layers on the 1,200 inputs at hand."""
    source = shared / "graphchallenge"
    convert(source, tmp_path / "official.spdnn")
    for path in (source, tmp_path / "official.spdnn"):
        network = load_network(path, 1024, 120)
        features = load_inputs(path, 1024).csr()
        for layer in network:
            features = features @ layer.csr()
            features.data = np.minimum(np.maximum(features.data + layer.bias[0], 0), network.y_max)
            features.eliminate_zeros()
        categories = np.flatnonzero(np.diff(features.indptr))
        truth = load_truth(path, 1024, 120, total=1200)
        assert truth.categories.size == 19
        assert judge(categories, truth).passed
