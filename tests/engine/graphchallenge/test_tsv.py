"""Graph Challenge text files: layers, inputs, their archives and their damage."""

from __future__ import annotations

import gzip
import io
import lzma
import re
import resource
import tarfile
import tempfile
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from portable_spdnn.errors import InputError
from portable_spdnn.features import PackedFeatures
from portable_spdnn.graphchallenge.configurations import challenge_bias
from portable_spdnn.graphchallenge.inputs_tsv import read_inputs
from portable_spdnn.graphchallenge.layers_tsv import (
    iter_layers,
    parse_layer,
    stream_layers,
)
from portable_spdnn.graphchallenge.tsv_writing import write_inputs, write_layer
from portable_spdnn.io.compressed import open_decompressed
from portable_spdnn.layer import Layer

COMPRESS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def read_layers(*asked: Any, **options: Any) -> list[Layer]:
    """Return all layers, by their numbers."""
    found = dict(stream_layers(*asked, **options))
    return [found[number] for number in sorted(found)]


def layer_texts(neurons, layers, seed=0):
    """Return lines of random layers, sorted by column as in the official files."""
    rng = np.random.default_rng(seed)
    texts = {}
    for number in range(1, layers + 1):
        columns, rows = np.nonzero(rng.random((neurons, neurons)) < 0.3)
        weights = rng.integers(1, 9, rows.size) / 16
        lines = zip(rows + 1, columns + 1, weights, strict=True)
        texts[number] = "".join(f"{r}\t{c}\t{w:e}\n" for r, c, w in lines).encode()
    return texts


def read_layer(path, neurons, bias=None):
    """Read a file of one layer, compressed or not, wherever it lies."""
    with open_decompressed(path) as stream:
        text = stream.read()
    return parse_layer(text, str(path), neurons, challenge_bias(neurons) if bias is None else bias)


def reference(text, neurons):
    """Read lines with nothing of the package."""
    rows, columns, weights = np.loadtxt(io.BytesIO(text), ndmin=2).T
    dense = np.zeros((neurons, neurons))
    np.add.at(dense, (rows.astype(int) - 1, columns.astype(int) - 1), weights)
    return dense


def archive(texts, neurons, order=None, suffix="", extra=()):
    """Return the bytes of neuronN.tar with a compression, members in the given order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        folder = tarfile.TarInfo(f"neuron{neurons}")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        members = [(f"neuron{neurons}/n{neurons}-l{k}.tsv", texts[k]) for k in order or texts]
        for name, text in [*extra, *members]:
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return COMPRESS[suffix](buffer.getvalue())


def write_folder(directory, texts, neurons):
    (directory / f"neuron{neurons}").mkdir()
    for number, text in texts.items():
        (directory / f"neuron{neurons}" / f"n{neurons}-l{number}.tsv").write_bytes(text)


def assert_layers(layers, texts, neurons):
    layers = list(layers)
    assert len(layers) == len(texts)
    for number, layer in enumerate(layers, start=1):
        assert layer.data.dtype == np.float32
        np.testing.assert_array_equal(layer.csr().toarray(), reference(texts[number], neurons))


@pytest.fixture
def spool(tmp_path, monkeypatch):
    """Folder for temporary files, to see that nothing stays in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


# Layers.


def test_official_layers_equal_an_independent_reading(shared):
    source = shared / "graphchallenge" / "neuron1024.tar.gz"
    texts = {}
    with tarfile.open(source) as tar:
        for member in tar:
            if member.name.endswith(("-l1.tsv", "-l2.tsv", "-l120.tsv")):
                texts[int(member.name[18:-4])] = tar.extractfile(member).read()
    layers = read_layers(source.parent, 1024)
    assert len(layers) == 120
    for number, text in texts.items():
        rows, columns, weights = np.loadtxt(io.BytesIO(text)).T
        entries = (weights, (rows.astype(int) - 1, columns.astype(int) - 1))
        expected = sp.coo_array(entries, shape=(1024, 1024)).toarray()
        np.testing.assert_array_equal(layers[number - 1].csr().toarray(), expected)
    for layer in layers:
        assert (layer.constant, layer.row_length, layer.nnz) == (1 / 16, 32, 32_768)
        assert layer.indices.dtype == np.uint16
        assert (layer.bias == -0.3).all()


def test_official_layer_is_written_as_it_was_read(shared, tmp_path):
    with tarfile.open(shared / "graphchallenge" / "neuron1024.tar.gz") as tar:
        text = tar.extractfile("neuron1024/n1024-l7.tsv").read()
    (tmp_path / "read.tsv").write_bytes(text)
    write_layer(tmp_path / "written.tsv", read_layer(tmp_path / "read.tsv", 1024))
    assert (tmp_path / "written.tsv").read_bytes() == text


@pytest.mark.parametrize("change", ["shuffled", "cr", "no end", "blank end", "gz", "spaces"])
def test_harmless_differences(tmp_path, change):
    text = layer_texts(32, 1)[1]
    lines = text.splitlines(keepends=True)
    path = tmp_path / "n32-l1.tsv"
    changed = {
        "shuffled": b"".join(lines[::-1]),
        "cr": text.replace(b"\n", b"\r\n"),
        "no end": text[:-1],
        "blank end": text + b"\n \r\n\n",
        "gz": gzip.compress(text),
        "spaces": text.replace(b"\t", b" \t "),
    }
    path.write_bytes(changed[change])
    layer = read_layer(path, 32)
    np.testing.assert_array_equal(layer.csr().toarray(), reference(text, 32))
    assert (layer.bias == -0.175).all()


def test_duplicates_are_summed_before_rounding(tmp_path):
    path = tmp_path / "n16-l1.tsv"
    path.write_bytes(b"3\t2\t16777216\n1\t1\t0.25\n3\t2\t1\n3\t2\t1\n")
    layer = read_layer(path, 16, bias=0.5)
    assert layer.indptr.tolist() == [0, 1, 1, *[2] * 14]
    assert layer.indices.tolist() == [0, 1]
    assert layer.data.tolist() == [0.25, 16777218.0]
    assert (layer.bias == 0.5).all()


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"3\t4", r"2 field\(s\); expected three with tabs between: row, column, weight"),
        (b"3 4 0.5", r"1 field\(s\)"),
        (b"3\t4\t0.5\t7", r"4 field\(s\)"),
        (b"3\t4\t0.5\t", r"4 field\(s\)"),
        (b"x\t4\t0.5", "row 'x' is no whole number"),
        (b"3\t\t0.5", "column '' is no whole number"),
        (b"3\t4.5\t0.5", "column '4.5' is no whole number"),
        (b"\x00\x00\t4\t0.5", r"row '\\x00\\x00' is no whole number"),
        (b'"3\t4\t0.5', "row '\"3' is no whole number"),
        (b"3\t4\thalf", "weight 'half' is no number"),
        (b"3\t4\t", "weight '' is no number"),
        (b"3\t4\t\xff", "weight '\ufffd' is no number"),
        (b"0\t4\t0.5", "row 0 is outside 1 .. 32"),
        (b"3\t-4\t0.5", "column -4 is outside 1 .. 32"),
        (b"3\t33\t0.5", "column 33 is outside 1 .. 32; was neurons=1024 meant"),
        (b"70000\t3\t0.5", "row 70000 is outside 1 .. 32$"),
        (b"99999999999999999999\t3\t0.5", "row 99999999999999999999 is outside 1 .. 32$"),
        (b"3\t4\tnan", "weight 'nan' is not finite"),
        (b"3\t4\t-inf", "weight '-inf' is not finite"),
        (b"3\t4\t1e400", "weight '1e400' is not finite"),
        (b"3\t4\t-1e39", "weight '-1e39' is too large for float32"),
    ],
)
@pytest.mark.parametrize("place", [1, 7, None])
def test_malformed_lines_are_named(tmp_path, line, fault, place):
    lines = layer_texts(32, 1)[1].splitlines()
    place = len(lines) if place is None else place
    lines[place - 1] = line
    path = tmp_path / "n32-l1.tsv"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(InputError, match=re.escape(f"{path}, line {place}: ") + fault) as caught:
        read_layer(path, 32)
    assert "\n" not in str(caught.value)


def test_sums_beyond_float32_are_refused(tmp_path):
    path = tmp_path / "n32-l1.tsv"
    path.write_bytes(b"1\t1\t3e38\n1\t1\t3e38\n1\t2\t1\n")
    with pytest.raises(InputError, match=re.escape(f"{path}: layer: a weight is NaN or infinite")):
        read_layer(path, 32)


@pytest.mark.parametrize("text", [b"", b"\n\n", b" \r\n"])
def test_empty_layer_file_is_damage(tmp_path, text):
    path = tmp_path / "n32-l1.tsv"
    path.write_bytes(text)
    with pytest.raises(InputError, match=r"n32-l1.tsv: is empty"):
        read_layer(path, 32)


def test_absent_layer_file(tmp_path):
    with pytest.raises(InputError, match=r"n32-l1.tsv: cannot be read \(No such file"):
        read_layer(tmp_path / "n32-l1.tsv", 32)


# Folders and archives.

ORDERS = {"in order": [1, 2, 3, 4], "sorted as text": [1, 3, 4, 2], "backwards": [4, 3, 2, 1]}


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_archives_are_read_in_place_in_any_order(tmp_path, spool, suffix, order):
    texts = layer_texts(32, 4)
    junk = [("neuron32/._n32-l1.tsv", b"x"), ("README", b"hello"), ("n64-l1.tsv", b"1\t1\t1\n")]
    data = archive(texts, 32, order, suffix, extra=junk)
    (tmp_path / f"neuron32.tar{suffix}").write_bytes(data)
    assert [number for number, _ in stream_layers(tmp_path, 32)] == order
    assert_layers(iter_layers(tmp_path, 32), texts, 32)
    assert_layers(iter_layers(tmp_path, 32, 2), {k: texts[k] for k in (1, 2)}, 32)
    assert_layers(read_layers(tmp_path, 32), texts, 32)
    assert not list(spool.iterdir())


def test_folders_come_before_archives(tmp_path):
    texts, others = layer_texts(32, 3), layer_texts(32, 2, seed=1)
    write_folder(tmp_path, texts, 32)
    (tmp_path / "neuron32.tar.gz").write_bytes(archive(others, 32, suffix=".gz"))
    assert_layers(iter_layers(tmp_path, 32), texts, 32)
    assert_layers(read_layers(tmp_path, 32, 2), {k: texts[k] for k in (1, 2)}, 32)


def test_progress(tmp_path):
    texts = layer_texts(32, 3)
    (tmp_path / "neuron32.tar").write_bytes(archive(texts, 32, [2, 1, 3]))
    seen = []
    read_layers(tmp_path, 32, progress=lambda *step: seen.append(step))
    read_layers(tmp_path, 32, 2, progress=lambda *step: seen.append(step))
    (tmp_path / "neuron32.tar").unlink()
    write_folder(tmp_path, texts, 32)
    read_layers(tmp_path, 32, progress=lambda *step: seen.append(step))
    assert seen == [(1, 0), (2, 0), (3, 0), (1, 2), (2, 2), (1, 3), (2, 3), (3, 3)]


def test_abandoned_reading_leaves_no_temporary_file(tmp_path, spool):
    texts = layer_texts(32, 4)
    (tmp_path / "neuron32.tar").write_bytes(archive(texts, 32, [1, 4, 3, 2]))
    layers = iter_layers(tmp_path, 32)
    first, second = next(layers), next(layers)
    assert len(list(spool.iterdir())) == 1
    layers.close()
    assert not list(spool.iterdir())
    for layer, number in ((first, 1), (second, 2)):
        np.testing.assert_array_equal(layer.csr().toarray(), reference(texts[number], 32))


@pytest.mark.parametrize("form", ["folder", ".gz"])
@pytest.mark.parametrize(
    ("present", "layers", "fault"),
    [
        ((1, 2, 3), 5, r"layer 4 is missing \(n32-l4.tsv\); layers 1 to 3 are present; was "),
        ((1, 2, 3, 5), None, "layer 4 is missing .*; layers 1 to 3 and 5 are present; was "),
        ((1, 2, 3, 5), 5, r"layer 4 .* 1 to 3 and 5 are present; was layers=3 meant"),
        ((1,), 2, r"layer 2 .* layer 1 is present; was layers=1 meant"),
        ((2, 3), None, "layer 1 is missing .*; layers 2 to 3 are present; add it"),
        ((1, 3, 5, 7, 9), None, "layer 2 is missing .*; layers 1, 3, 5 and others are present"),
        ((), None, "holds no layer file n32-lK.tsv"),
    ],
)
def test_missing_layers_are_named(tmp_path, spool, form, present, layers, fault):
    texts = {number: layer_texts(32, 1)[1] for number in present}
    if form == "folder":
        write_folder(tmp_path, texts, 32)
        source = tmp_path / "neuron32"
    else:
        source = tmp_path / "neuron32.tar.gz"
        source.write_bytes(archive(texts, 32, suffix=".gz"))
    for read in (read_layers, iter_layers):
        with pytest.raises(InputError, match=re.escape(f"{source}: ") + fault):
            list(read(tmp_path, 32, layers))
    assert not list(spool.iterdir())


def test_too_few_layers_asked_for(tmp_path):
    write_folder(tmp_path, layer_texts(32, 1), 32)
    with pytest.raises(InputError, match="layers is 0"):
        read_layers(tmp_path, 32, 0)


def test_malformed_member_is_named(tmp_path):
    texts = layer_texts(32, 3)
    texts[2] += b"33\t1\t0.5\n"
    line = texts[2].count(b"\n")
    (tmp_path / "neuron32.tar.gz").write_bytes(archive(texts, 32, suffix=".gz"))
    name = f"{tmp_path}/neuron32.tar.gz: neuron32/n32-l2.tsv, line {line}: row 33 is outside"
    with pytest.raises(InputError, match=re.escape(name)):
        read_layers(tmp_path, 32)


def test_repeated_member_is_refused(tmp_path):
    texts = layer_texts(32, 2)
    (tmp_path / "neuron32.tar").write_bytes(archive(texts, 32, [1, 2, 1]))
    with pytest.raises(InputError, match=r"neuron32.tar: neuron32/n32-l1.tsv .*twice"):
        read_layers(tmp_path, 32)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_truncated_archives(tmp_path, suffix):
    path = tmp_path / f"neuron32.tar{suffix}"
    intact = archive(layer_texts(32, 3), 32, suffix=suffix)
    for length in [*range(7, len(intact), 97), len(intact) - 8, len(intact) - 1]:
        path.write_bytes(intact[:length])
        with pytest.raises(InputError, match=re.escape(f"{path}: ") + ".*truncated") as caught:
            read_layers(tmp_path, 32, 3)
        assert "again" in str(caught.value)


def test_truncated_plain_archive_even_between_members(tmp_path):
    path = tmp_path / "neuron32.tar"
    intact = archive(layer_texts(32, 3), 32)
    end = len(intact.rstrip(b"\0"))
    member = intact.index(b"neuron32/n32-l3.tsv")
    assert member % 512 == 0
    for length in (300, 700, member - 1, member, member + 100, member + 512, end):
        path.write_bytes(intact[:length])
        with pytest.raises(InputError, match=re.escape(f"{path}: ") + ".*truncated"):
            read_layers(tmp_path, 32)


def test_illegible_member_header_is_not_taken_for_the_end(tmp_path):
    path = tmp_path / "neuron32.tar"
    data = bytearray(archive(layer_texts(32, 3), 32))
    data[data.index(b"neuron32/n32-l3.tsv")] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=re.escape(f"{path}: ") + ".*truncated"):
        read_layers(tmp_path, 32)


def test_damaged_gzip(tmp_path):
    path = tmp_path / "neuron32.tar.gz"
    intact = archive(layer_texts(32, 3), 32, suffix=".gz")
    for at in (len(intact) // 2, len(intact) - 6):  # within the data, within the checksum
        data = bytearray(intact)
        data[at] ^= 0xFF
        path.write_bytes(data)
        with pytest.raises(InputError, match=re.escape(str(path))):
            read_layers(tmp_path, 32)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_something_else_under_the_name_of_an_archive(tmp_path, suffix):
    path = tmp_path / f"neuron32.tar{suffix}"
    path.write_bytes(b"<!DOCTYPE html><html>404</html>" * 40)
    with pytest.raises(InputError, match=re.escape(f"{path}: ") + ".*download or copy it again"):
        read_layers(tmp_path, 32)


# Writing layers.


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["layer.tsv", "layer.tsv.gz"])
def test_weights_survive_writing(tmp_path, dtype, name):
    rng = np.random.default_rng(2)
    weights = sp.random_array((101, 101), density=0.2, rng=rng).tocsr()
    extremes = [1 / 16, 0.1, 1 / 3, -2.5e-30, 3.0e38, -0.0, 1e-45, 123456789, 16777217]
    weights.data[:9] = extremes
    weights.data[9:] = rng.standard_normal(weights.nnz - 9)
    layer = Layer(weights.astype(dtype))
    write_layer(tmp_path / name, layer)
    data = (tmp_path / name).read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    fields = [line.split("\t") for line in text.decode().splitlines()]
    order = [(int(column), int(row)) for row, column, _ in fields]
    assert order == sorted(order)
    assert {len(weight) for *_, weight in fields if dtype(weight) == 1 / 16} == {12}
    dense = np.zeros(layer.shape, dtype)
    for row, column, weight in fields:
        dense[int(row) - 1, int(column) - 1] = dtype(weight)
    np.testing.assert_array_equal(dense, layer.csr().toarray())
    again = read_layer(tmp_path / name, 101, bias=0.0)
    np.testing.assert_array_equal(again.data, layer.data.astype(np.float32))


def test_layer_without_weights_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="without weights"):
        write_layer(tmp_path / "layer.tsv", Layer(np.zeros((4, 4))))
    assert not list(tmp_path.iterdir())


def test_layers_that_are_not_plain_relu_are_not_written_as_text(tmp_path):
    for layer in (Layer(np.eye(4), activation="gelu"), Layer(np.eye(4), upper=6)):
        with pytest.raises(InputError, match=r"ReLU layers without bounds.* use a packed store"):
            write_layer(tmp_path / "layer.tsv", layer)
    assert not list(tmp_path.iterdir())


def test_writing_to_a_full_disk_keeps_the_earlier_file(tmp_path):
    path = tmp_path / "layer.tsv"
    path.write_bytes(b"earlier")
    layer = Layer(np.ones((400, 400), np.float32))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(InputError, match=re.escape(f"{path}: cannot be written")):
            write_layer(path, layer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"earlier"
    assert [p.name for p in tmp_path.iterdir()] == ["layer.tsv"]


# Inputs.


def test_official_inputs(shared, tmp_path):
    path = shared / "graphchallenge" / "sparse-images-1024.tsv.gz"
    text = gzip.decompress(path.read_bytes())
    inputs, neurons, _ = np.loadtxt(io.BytesIO(text), dtype=np.int64).T
    expected = np.zeros((1200, 1024), bool)
    expected[inputs - 1, neurons - 1] = True
    features, total = read_inputs(path, 1024)
    assert total == 1200
    np.testing.assert_array_equal(features.dense(bool), expected)
    features, total = read_inputs(path, 1024, first=77)
    assert total == 1200
    np.testing.assert_array_equal(features.dense(bool), expected[:77])
    write_inputs(tmp_path / "again.tsv.gz", PackedFeatures.from_dense(expected))
    assert gzip.decompress((tmp_path / "again.tsv.gz").read_bytes()) == text


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (7, 8), (600, 31), (3, 70_001)])
@pytest.mark.parametrize("name", ["inputs.tsv", "inputs.tsv.gz"])
def test_binary_inputs_survive_writing(tmp_path, shape, name):
    dense = np.random.default_rng(0).random(shape) < 0.3
    dense[-1] = False  # the number of inputs must survive as well
    write_inputs(tmp_path / name, PackedFeatures.from_dense(dense))
    features, total = read_inputs(tmp_path / name, shape[1])
    assert isinstance(features, PackedFeatures)
    assert total == shape[0]
    np.testing.assert_array_equal(features.dense(bool), dense)


@pytest.mark.parametrize("form", [sp.csr_array, np.asarray])
def test_inputs_of_other_values_survive_writing(tmp_path, form):
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((2100, 5)).astype(np.float32)
    dense[rng.random(dense.shape) < 0.6] = 0
    dense[rng.random(dense.shape) < 0.1] = 1
    write_inputs(tmp_path / "inputs.tsv", form(dense))
    lines = (tmp_path / "inputs.tsv").read_text().splitlines()
    assert sum(line.endswith("\t1") for line in lines) == (dense == 1).sum()
    features, total = read_inputs(tmp_path / "inputs.tsv", 5)
    assert features.dtype == np.float32
    np.testing.assert_array_equal(features.toarray(), dense)
    few, again = read_inputs(tmp_path / "inputs.tsv", 5, first=3)
    assert total == again == 2100
    np.testing.assert_array_equal(few.toarray(), dense[:3])


def test_any_order_and_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("portable_spdnn.io.compressed.BLOCK_BYTES", 50)
    rng = np.random.default_rng(0)
    dense = rng.random((40, 19)) < 0.4
    lines = [f"{i + 1}\t{n + 1}\t1\n" for i, n in zip(*np.nonzero(dense), strict=True)]
    rng.shuffle(lines)
    path = tmp_path / "inputs.tsv"
    path.write_text("".join(lines))
    features, _ = read_inputs(path, 19)
    np.testing.assert_array_equal(features.dense(bool), dense)
    lines[100] = "4\t20\t1\n"
    path.write_text("".join(lines))
    with pytest.raises(InputError, match=re.escape(f"{path}, line 101: neuron 20 is outside 1")):
        read_inputs(path, 19)


def test_duplicated_inputs_are_summed(tmp_path):
    path = tmp_path / "inputs.tsv"
    path.write_text("1\t2\t1\n2\t1\t1\n1\t2\t1\n3\t3\t0.5\n3\t3\t-0.5\n")
    features, total = read_inputs(path, 3)
    assert total == 3
    np.testing.assert_array_equal(features.toarray(), [[0, 2, 0], [1, 0, 0], [0, 0, 0]])
    assert features.nnz == 2


def test_values_beyond_the_first_inputs_do_not_matter(tmp_path):
    path = tmp_path / "inputs.tsv"
    path.write_text("3\t1\t0.5\n1\t2\t1\n")
    features, total = read_inputs(path, 3, first=2)
    assert isinstance(features, PackedFeatures)
    assert total == 3
    np.testing.assert_array_equal(features.dense(), [[0, 1, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", ": is empty"),
        ("\n\n", ": is empty"),
        ("1\t2\t1\n1\t3\n", ", line 2: 2 field"),
        ("1\t2\t1\n0\t3\t1\n", ", line 2: input 0 is outside 1 .. "),
        ("1\t2\t1\n\n1\t1025\t1\n", ", line 3: neuron 1025 .* neurons=4096 meant"),
        ("1\t2\tnan\n", ", line 1: value 'nan' is not finite"),
        ("1\t1\t3e38\n1\t1\t3e38\n", ": entries .* add up beyond float32"),
        ("1\t1\t1\n", ": holds 1 inputs, not 2"),
    ],
)
def test_malformed_inputs_are_named(tmp_path, text, fault):
    path = tmp_path / "inputs.tsv"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(str(path)) + fault):
        read_inputs(path, 1024, first=2 if "not 2" in fault else None)


def test_absurd_input_number_is_no_crash(tmp_path):
    path = tmp_path / "inputs.tsv"
    path.write_text("1\t5\t1\n2147483647\t5\t1\n")
    wording = ", line 2: input 2147483647 is outside .* the memory available would hold"
    with pytest.raises(InputError, match=re.escape(str(path)) + wording):
        read_inputs(path, 1 << 16)
    features, total = read_inputs(path, 1 << 16, first=1)
    assert (features.shape, total) == ((1, 1 << 16), 2147483647)


def test_truncated_and_false_gzip(tmp_path):
    path = tmp_path / "inputs.tsv.gz"
    intact = gzip.compress(b"".join(b"%d\t3\t1\n" % k for k in range(1, 2000)))
    for length in (10, len(intact) // 2, len(intact) - 1):
        path.write_bytes(intact[:length])
        with pytest.raises(InputError, match=re.escape(f"{path}: truncated; download or copy")):
            read_inputs(path, 16)
    path.write_bytes(b"1\t3\t1\n")
    with pytest.raises(InputError, match=re.escape(f"{path}: is no gzip file")):
        read_inputs(path, 16)


def test_no_inputs_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="no lines"):
        write_inputs(tmp_path / "inputs.tsv", PackedFeatures(np.empty((0, 2), np.uint8), 16))
    with pytest.raises(InputError, match="the first 0 inputs"):
        read_inputs(tmp_path / "inputs.tsv", 16, first=0)
    assert not list(tmp_path.iterdir())
