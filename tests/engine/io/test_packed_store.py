"""The packed store: what goes in comes out, and damage never goes unnoticed."""

from __future__ import annotations

import json
import mmap
import os
import re
import resource
import struct
import zlib

import numpy as np
import pytest
import scipy.sparse as sp

from portable_spdnn.errors import InputError
from portable_spdnn.features import PackedFeatures
from portable_spdnn.io.packed_layout import is_packed_store
from portable_spdnn.io.packed_store import PackedStore
from portable_spdnn.io.packed_writer import PackedStoreWriter
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network
from portable_spdnn.workloads.loading import load_inputs, load_network, open_network


def random_layer(rng, rows, columns, density=0.3, dtype=np.float32, bias=-0.3):
    weights = sp.random_array((rows, columns), density=density, rng=rng, dtype=np.float64)
    return Layer(weights.astype(dtype), bias)


def assert_same_layer(got, expected):
    assert got.shape == expected.shape
    for name in ("indptr", "indices", "data", "bias"):
        one, other = getattr(got, name), getattr(expected, name)
        assert one.dtype == other.dtype, name
        np.testing.assert_array_equal(one, other, err_msg=name)
    assert got.constant == expected.constant
    for name in ("activation", "lower", "upper"):
        assert getattr(got, name) == getattr(expected, name)


def write(path, layers, inputs=None, truth=None, y_max=32.0):
    with PackedStoreWriter(path, y_max=y_max) as store:
        for number, layer in enumerate(layers, start=1):
            store.add_layer(number, layer)
        if inputs is not None:
            store.set_inputs(inputs)
        for depth, categories in (truth or {}).items():
            store.set_truth(depth, categories)
    return path


@pytest.fixture
def layers():
    rng = np.random.default_rng(7)
    return [
        random_layer(rng, 9, 13),
        random_layer(rng, 13, 5, dtype=np.float64, bias=np.linspace(-1, 0.5, 5)),
        Layer.from_csr(np.arange(6) * 2, np.array([0, 6] * 5), 1 / 16, (5, 7), -0.25),
        Layer(sp.csr_array((7, 1), dtype=np.float32)),
        Layer(np.array([[0.1]]), 3.0),
        Layer(np.zeros((1, 0))),
    ]


def layers_of(store):
    return [store.layer(number) for number in range(1, store.layers + 1)]


def test_every_kind_of_layer_survives(tmp_path, layers):
    store = PackedStore(write(tmp_path / "net.spdnn", layers, y_max=2.5))
    assert (store.neurons, store.layers, store.y_max) == (9, 6, 2.5)
    for got, expected in zip(layers_of(store), layers, strict=True):
        assert_same_layer(got, expected)
    network = load_network(store.path)
    assert isinstance(network, Network)
    assert (len(network), network.y_max) == (6, 2.5)


def version(path):
    return struct.unpack_from("<I", path.read_bytes(), 8)[0]


def test_only_layers_that_are_not_plain_relu_need_version_2(tmp_path, layers):
    assert version(write(tmp_path / "relu.spdnn", layers)) == 1
    others = [
        Layer(np.ones((3, 2)), -0.5, "gelu"),
        Layer(np.ones((2, 2)), 0, "relu", upper=6),
        Layer(np.ones((2, 4)), 0, "none", -1, 0.25),
    ]
    path = write(tmp_path / "any.spdnn", others)
    assert version(path) == 2
    store = PackedStore(path)
    for got, expected in zip(layers_of(store), others, strict=True):
        assert_same_layer(got, expected)
    network, streamed = load_network(path), open_network(path)
    assert network.fingerprint() == Network(others, 32.0).fingerprint()
    assert streamed.layers_filling_zeros == network.layers_filling_zeros == (0,)
    assert open_network(path, bias=0.0).layers_filling_zeros == ()


def test_version_1_has_no_activations(tmp_path):
    path = write(tmp_path / "small.spdnn", [Layer(np.ones((3, 2)), -0.5)])
    rewritten(path, lambda index: index["layers"][0].update(activation="gelu"))
    assert version(path) == 1
    with pytest.raises(InputError, match="version 1 has members of version 2"):
        PackedStore(path)


def test_an_activation_that_is_none_is_malformed(tmp_path):
    path = write(tmp_path / "small.spdnn", [Layer(np.ones((3, 2)), -0.5, "gelu")])
    for member, value in (("activation", "swish"), ("lower", "low"), ("upper", [1])):
        rewritten(path, lambda index: index["layers"][0].update({member: value}))  # noqa: B023
        with pytest.raises(InputError, match=rf"{member}|layers\[0\]"):
            PackedStore(path).layer(1)
        rewritten(path, lambda index: index["layers"][0].update({member: None}))  # noqa: B023
        if member == "activation":
            rewritten(path, lambda index: index["layers"][0].update(activation="gelu"))


@pytest.mark.parametrize(
    ("columns", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.int32), (1 << 32, np.int64)]
)
def test_indices_are_as_narrow_as_the_columns_allow(tmp_path, columns, dtype):
    # Without weights and bias vectors of that length the columns cost nothing.
    indices = np.array([0, columns - 1])
    layer = Layer.from_csr(np.array([0, 2]), indices, 2.0, (1, columns), -1.0)
    path = write(tmp_path / "net.spdnn", [layer])
    assert path.stat().st_size < 2000
    got = PackedStore(path).layer(1)
    assert got.indices.dtype == dtype
    np.testing.assert_array_equal(got.indices, indices)


def test_equal_weights_and_row_lengths_are_not_stored(tmp_path):
    rng = np.random.default_rng(0)
    indices = np.concatenate([np.sort(rng.permutation(1024)[:32]) for _ in range(1024)])
    layer = Layer.from_csr(np.arange(1025) * 32, indices, 1 / 16, (1024, 1024), -0.3)
    path = write(tmp_path / "net.spdnn", [layer])
    assert path.stat().st_size < 2 * layer.nnz + 1000
    assert_same_layer(PackedStore(path).layer(1), layer)


def test_arrays_are_mapped_not_read(tmp_path, layers):
    layer = PackedStore(write(tmp_path / "net.spdnn", layers)).layer(2)
    for array in (layer.indptr, layer.indices, layer.data, layer.bias):
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        assert isinstance(owner.base.obj, mmap.mmap)
        assert array.ctypes.data % 64 == 0
        assert not array.flags.writeable


def test_layers_may_come_in_any_order(tmp_path, layers):
    path = tmp_path / "net.spdnn"
    with PackedStoreWriter(path, y_max=None) as store:
        for number in (3, 6, 1, 5, 2, 4):
            store.add_layer(number, layers[number - 1])
    store = PackedStore(path)
    assert store.y_max is None
    for got, expected in zip(layers_of(store), layers, strict=True):
        assert_same_layer(got, expected)


def test_fewer_layers_other_bias_other_bound(tmp_path, layers):
    path = write(tmp_path / "net.spdnn", layers)
    seen = []
    network = load_network(
        path, layers=2, bias=-0.5, y_max=4.0, progress=lambda *step: seen.append(step)
    )
    assert [layer.shape for layer in network] == [(9, 13), (13, 5)]
    assert network.y_max == 4.0
    assert all((layer.bias == -0.5).all() for layer in network)
    assert seen == [(1, 2), (2, 2)]
    assert load_network(path, layers=1, y_max=np.inf).y_max is None
    for layers_asked in (0, 7):
        with pytest.raises(InputError, match=r"net.spdnn: holds layers 1 to 6, not .*layers="):
            load_network(path, layers=layers_asked)


def test_binary_inputs_and_truth(tmp_path, layers):
    dense = np.random.default_rng(1).random((11, 9)) < 0.4
    inputs = PackedFeatures.from_dense(dense)
    path = write(tmp_path / "net.spdnn", layers, inputs, {120: [0, 3], 480: []})
    store = PackedStore(path)
    got = store.inputs()
    assert isinstance(got, PackedFeatures)
    np.testing.assert_array_equal(got.dense(bool), dense)
    assert store.input_shape == (11, 9)
    assert store.truth_layers == (120, 480)
    assert store.truth(120).tolist() == [0, 3]
    assert store.truth(480).tolist() == []
    assert store.truth(6) is None
    np.testing.assert_array_equal(load_inputs(path, 9, first=4).dense(bool), dense[:4])
    for first in (0, 12):
        with pytest.raises(InputError, match="there are 11 inputs"):
            load_inputs(path, 9, first)


@pytest.mark.parametrize("form", ["csr", "dense"])
def test_inputs_of_other_values(tmp_path, layers, form):
    dense = np.random.default_rng(1).random((11, 9), dtype=np.float32)
    dense[dense < 0.5] = 0
    path = write(tmp_path / "n.spdnn", layers, sp.csr_array(dense) if form == "csr" else dense)
    store = PackedStore(path)
    assert store.inputs().dtype == np.float32
    np.testing.assert_array_equal(store.inputs().toarray(), dense)
    np.testing.assert_array_equal(load_inputs(path, 9, first=3).toarray(), dense[:3])


def test_without_inputs(tmp_path, layers):
    store = PackedStore(write(tmp_path / "net.spdnn", layers))
    assert store.input_shape is None
    with pytest.raises(InputError, match="holds no inputs"):
        store.inputs()


def read_as_documented(path):
    """Read layers as the description of the layout says, with nothing of the package."""
    file = path.read_bytes()
    magic, version, index_crc, offset, length = struct.unpack_from("<8sIIQQ", file)
    assert magic == bytes.fromhex("93 53 50 44 4E 4E 0D 0A")
    assert version == 1
    assert not any(file[32:60])
    assert struct.unpack_from("<I", file, 60)[0] == zlib.crc32(file[:60])
    assert offset + length == len(file)
    assert zlib.crc32(file[offset:]) == index_crc
    index = json.loads(file[offset:].decode())

    def array(entry):
        assert entry["offset"] % 64 == 0
        found = np.frombuffer(file, entry["dtype"], entry["count"], entry["offset"])
        assert zlib.crc32(found.tobytes()) == entry["crc32"]
        return found

    dense = []
    for layer in index["layers"]:
        rows, columns = layer["shape"]
        weights = np.zeros((rows, columns), layer["weight_dtype"])
        indices = array(layer["indices"])
        for row in range(rows):
            if layer["row_length"] is not None:
                start, end = row * layer["row_length"], (row + 1) * layer["row_length"]
            else:
                start, end = array(layer["indptr"])[row : row + 2]
            for at in range(start, end):
                value = layer["weight"]
                weights[row, indices[at]] = array(layer["weights"])[at] if value is None else value
        bias = layer["bias"]
        dense.append((weights, array(bias) if isinstance(bias, dict) else np.full(columns, bias)))
    return index, dense, array


def test_layout_is_as_documented(tmp_path, layers):
    bits = np.random.default_rng(3).random((4, 9)) < 0.5
    inputs = PackedFeatures.from_dense(bits)
    path = write(tmp_path / "net.spdnn", layers, inputs, {120: [1, 2]})
    index, dense, array = read_as_documented(path)
    assert index["y_max"] == 32.0
    for (weights, bias), layer in zip(dense, layers, strict=True):
        np.testing.assert_array_equal(weights, layer.csr().toarray())
        np.testing.assert_array_equal(bias, layer.bias)
    packed = array(index["inputs"]["bits"]).reshape(4, 2)
    np.testing.assert_array_equal(np.unpackbits(packed, axis=1, count=9), bits)
    assert array(index["truth"]["120"]).tolist() == [1, 2]


def content(path):
    """Read everything that a store holds, as bytes."""
    store = PackedStore(path)
    parts = [repr((store.neurons, store.layers, store.y_max)).encode()]
    for layer in layers_of(store):
        parts += [layer.indptr.tobytes(), layer.indices.tobytes(), layer.data.tobytes()]
        parts += [layer.bias.tobytes(), repr(layer.shape).encode()]
    parts.append(store.inputs().bits.tobytes())
    parts += [store.truth(depth).tobytes() for depth in store.truth_layers]
    return b"|".join(parts)


@pytest.fixture
def small_store(tmp_path):
    rng = np.random.default_rng(5)
    layers = [random_layer(rng, 4, 3, bias=[-1.0, 0.0, 1.0]), random_layer(rng, 3, 2, density=0.9)]
    inputs = PackedFeatures.from_dense(rng.random((5, 4)) < 0.5)
    return write(tmp_path / "small.spdnn", layers, inputs, {2: [0, 4]})


def refusal(path, expected):
    """Return the error of reading a store, None where it holds what is expected."""
    try:
        return None if content(path) == expected else "other content"
    except InputError as error:
        return str(error)


def test_no_damaged_byte_goes_unnoticed(small_store):
    intact, expected = small_store.read_bytes(), content(small_store)
    assert refusal(small_store, expected) is None
    errors = []
    for at in range(len(intact)):
        damaged = bytearray(intact)
        damaged[at] ^= 0x10
        small_store.write_bytes(damaged)
        errors.append(refusal(small_store, expected))
    assert all(error is None or error.startswith(str(small_store)) for error in errors)
    used = sum(entry["count"] * np.dtype(entry["dtype"]).itemsize for entry in arrays(intact))
    offset = struct.unpack_from("<Q", intact, 16)[0]
    # Only what lies between the arrays may change without harm.
    assert errors.count(None) == offset - 64 - used


def arrays(file):
    """Return the references to arrays in the index of a store."""
    found = []
    json.loads(
        file[struct.unpack_from("<Q", file, 16)[0] :],
        object_hook=lambda entry: found.append(entry) if "crc32" in entry else entry,
    )
    return found


def test_no_truncation_goes_unnoticed(small_store):
    intact = small_store.read_bytes()
    for length in range(len(intact)):
        small_store.write_bytes(intact[:length])
        wording = "truncated" if length >= 8 else "no packed store"
        with pytest.raises(InputError, match=f"small.spdnn: .*{wording}"):
            PackedStore(small_store)


def test_damage_is_named_by_layer(tmp_path, layers):
    path = write(tmp_path / "net.spdnn", layers)
    index, _, _ = read_as_documented(path)
    damaged = bytearray(path.read_bytes())
    damaged[index["layers"][1]["weights"]["offset"]] ^= 1
    path.write_bytes(damaged)
    store = PackedStore(path)
    assert store.layer(1).shape == (9, 13)
    with pytest.raises(InputError, match=r"net.spdnn: checksum mismatch in layer 2;.*again"):
        load_network(path)


def rewritten(path, change):
    """Change the index of a store and make its checksums right again."""
    file = path.read_bytes()
    offset = struct.unpack_from("<Q", file, 16)[0]
    index = json.loads(file[offset:])
    change(index)
    text = json.dumps(index).encode()
    number = struct.unpack_from("<I", file, 8)[0]
    head = struct.pack("<8sIIQQ28x", file[:8], number, zlib.crc32(text), offset, len(text))
    path.write_bytes(head + struct.pack("<I", zlib.crc32(head)) + file[64:offset] + text)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda index: index.pop("layers"), "missing required field `layers`"),
        (lambda index: index["layers"].clear(), "length >= 1 - at `$.layers`"),
        (lambda index: index["layers"][0].pop("shape"), "field `shape` - at `$.layers[0]`"),
        (lambda index: index["layers"][1].pop("weights"), "field `weights` - at `$.layers[1]`"),
        (lambda index: index["layers"][1]["indices"].update(offset=64 << 20), "outside the file"),
        (lambda index: index["layers"][1]["indices"].update(offset=65), "no multiple of 64"),
        (lambda index: index["layers"][1]["indices"].update(count=-1), "Expected `int` >= 0"),
        (lambda index: index["layers"][1]["indices"].update(dtype="|O8"), "value '|O8'"),
        (lambda index: index["layers"][1]["indices"].update(dtype="<f4"), "layer 2: indices is of"),
        (lambda index: index["layers"][1].update(bias="x"), "got `str` - at `$.layers[1].bias`"),
        (lambda index: index["layers"][1].update(bias=float("nan")), "JSON is malformed"),
        (lambda index: index["layers"][1].update(bias=10**400), "range - at `$.layers[1].bias`"),
        (lambda index: index["layers"][1].update(row_length=1.5), "got `float`"),
        (
            lambda index: index["layers"][1].update(row_length=10**12),
            "rows of 1000000000000 weights do not make 5",
        ),
        (lambda index: index["layers"][0].update(shape=[10**12, 5]), "layer 1: "),
        (lambda index: index["layers"][0].update(weight={}), "at `$.layers[0].weight`"),
        (
            lambda index: index["layers"][0].update(weight=None, weights=None),
            "one of weight and weights is given",
        ),
        (lambda index: index["layers"][0].update(shape=[3, 4]), "indptr has 5 entries; 4 are"),
        (lambda index: index.update(y_max=-1), "y_max is -1"),
        (lambda index: index.update(truth={"two": 1}), "at `key` in `$.truth`"),
        (lambda index: index.update(inputs=[3, 4]), "got `array` - at `$.inputs`"),
        (lambda index: index["inputs"].pop("bits"), "inputs: indptr is missing"),
        (lambda index: index["inputs"].update(shape=[50, 4]), "inputs: bits has 5 entries; 50"),
        (lambda index: index["inputs"].update(shape=[5, 3]), "inputs have 3 columns but layer 1"),
        (lambda index: index["layers"][1].update(shape=[3, 1]), "outside 0 .. 0"),
    ],
)
def test_inconsistent_index_is_refused(small_store, change, fault):
    rewritten(small_store, change)
    with pytest.raises(InputError, match=f"small.spdnn.*{re.escape(fault)}"):
        content(small_store)


def test_version_from_the_future(small_store):
    file = bytearray(small_store.read_bytes())
    struct.pack_into("<I", file, 8, 3)
    small_store.write_bytes(file)
    assert is_packed_store(small_store)
    with pytest.raises(
        InputError, match="of version 3, this program reads versions up to 2; update"
    ):
        PackedStore(small_store)


def test_what_is_no_store(tmp_path):
    path = tmp_path / "text"
    path.write_text("1\t1\t0.5\n" * 100)
    assert not is_packed_store(path)
    assert not is_packed_store(tmp_path / "absent")
    assert not is_packed_store(tmp_path)
    with pytest.raises(InputError, match="text: is no packed store"):
        PackedStore(path)
    with pytest.raises(InputError, match="absent: cannot be read"):
        PackedStore(tmp_path / "absent")


def test_writer_refuses_what_does_not_fit(tmp_path, layers):
    path = tmp_path / "net.spdnn"
    path.write_bytes(b"earlier")

    def take(steps, y_max):
        with PackedStoreWriter(path, y_max=y_max) as store:
            for step, *arguments in steps:
                getattr(store, step)(*arguments)

    def attempt(fault, *steps, y_max=None):
        with pytest.raises(InputError, match=fault):
            take(steps, y_max)

    first, second = ("add_layer", 1, layers[0]), ("add_layer", 2, layers[1])
    attempt("layer 1 was never added")
    attempt("layer 1 was never added", second)
    attempt("layer 2 was never added", first, ("add_layer", 3, layers[1]))
    attempt("layer 1 was added already", first, first)
    attempt("layer 0 does not exist", ("add_layer", 0, layers[0]))
    attempt("layer 1 gives 13 outputs but layer 2 takes 9", first, ("add_layer", 2, layers[0]))
    attempt("inputs have 8 columns but layer 1 takes 9", first, ("set_inputs", np.ones((2, 8))))
    attempt("not rising", first, ("set_truth", 120, [3, 3]))
    attempt("not rising", first, ("set_truth", 120, [-1]))
    attempt("y_max is -1", first, y_max=-1)
    assert path.read_bytes() == b"earlier"
    assert [p.name for p in tmp_path.iterdir()] == ["net.spdnn"]


def test_interrupted_writing_leaves_nothing(tmp_path, layers):
    path = tmp_path / "net.spdnn"

    def write_interrupted():
        with PackedStoreWriter(path, y_max=None) as store:
            store.add_layer(1, layers[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_interrupted()
    assert not list(tmp_path.iterdir())


def test_full_disk_leaves_nothing(tmp_path):
    layer = random_layer(np.random.default_rng(0), 800, 800, density=0.9)
    path = tmp_path / "net.spdnn"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        fault = re.escape(str(path)) + ": cannot be written .*nothing was kept; free some space"
        with pytest.raises(InputError, match=fault):
            write(path, [layer])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_written(tmp_path, layers):
    with pytest.raises(InputError, match=r"absent/net.spdnn: there is no folder .*create it"):
        write(tmp_path / "absent" / "net.spdnn", layers)
    with pytest.raises(InputError, match="is a folder"):
        write(tmp_path, layers)


def test_others_may_read_the_store_as_the_umask_says(tmp_path, layers):
    before = os.umask(0o027)
    try:
        path = write(tmp_path / "net.spdnn", layers)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
