"""Inputs of every origin: counted and loaded, all of them or some rows; truth beside them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from portable_spdnn.errors import InputError
from portable_spdnn.features import PackedFeatures
from portable_spdnn.graphchallenge.categories import write_categories
from portable_spdnn.workloads.generation import generate_radixnet
from portable_spdnn.workloads.inputs import DIGITS, IMAGES
from portable_spdnn.workloads.loading import convert
from portable_spdnn.workloads.networks import GENERATED, STORE, TEXT
from portable_spdnn.workloads.sources import Request, resolve

INPUTS = 9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A network of 64 neurons x 2 layers with inputs and truth: as text, packed, and images."""
    rng = np.random.default_rng(0)
    features = PackedFeatures.from_dense(rng.random((INPUTS, 64)) < 0.5)
    generate_radixnet(tmp_path / "text", 64, 2, features=features)
    write_categories(tmp_path / "text" / "neuron64-l2-categories.tsv", [1, 5])
    convert(tmp_path / "text", tmp_path / "packed.spdnn")
    pixels = rng.integers(0, 256, (INPUTS, 8, 8), dtype=np.uint8)
    header = struct.pack(">IIII", 0x803, INPUTS, 8, 8)
    (tmp_path / "images").write_bytes(header + pixels.tobytes())
    return tmp_path


@pytest.mark.parametrize(
    ("data", "inputs", "kinds", "known"),
    [
        ("text", None, (TEXT, TEXT), True),
        ("packed.spdnn", None, (STORE, STORE), True),
        ("packed.spdnn", "text", (STORE, TEXT), False),
        ("text", "images", (TEXT, IMAGES), False),
        (None, "packed.spdnn", (GENERATED, STORE), False),
        (None, None, (GENERATED, DIGITS), False),
    ],
)
def test_a_source_gives_network_inputs_and_truth(
    folder: Path, data: str | None, inputs: str | None, kinds: tuple[str, str], known: bool
) -> None:
    places = {"data": data and folder / data, "inputs": inputs and folder / inputs}
    source = resolve(Request(neurons=64, layers=2, first_inputs=4, **places))  # type: ignore[arg-type]
    assert (source.network.kind, source.inputs.kind) == kinds
    assert source.embedded == (data is None and inputs is None)
    network = source.load_network()
    assert (network.neurons, len(network)) == (64, 2)
    assert [layer.nnz for layer in source.network.iter_layers()] == [32 * 64] * 2
    assert [one.nnz for one in source.network.layers.statistics] == [32 * 64] * 2
    features, total = source.load_inputs()
    assert features.shape == (4, 64)
    assert source.count_inputs() == (None if kinds[1] == TEXT else (4, total))
    some = source.inputs.rows(slice(1, 4, 2), verify=False)
    np.testing.assert_array_equal(some.dense(), features.dense()[1::2])
    truth = source.load_truth(2, 4, total)
    assert (truth is not None) == known
    if truth is not None:
        assert (truth.categories.tolist(), truth.beyond) == ([1], 1)
    assert source.load_truth(3, 4, total) is None
    if kinds[0] == TEXT:
        with pytest.raises(InputError, match="text files are not streamed"):
            source.network.open()
    else:
        assert source.network.open().edges == network.edges


def test_what_does_not_fit_is_told_before_anything_is_loaded(folder: Path) -> None:
    with pytest.raises(InputError, match=r"64 neurons, not 256; was neurons=64 meant\?"):
        resolve(Request(neurons=256, inputs=folder / "packed.spdnn"))
    with pytest.raises(InputError, match="absent: there is no such file"):
        resolve(Request(inputs=folder / "absent"))
    for first in (0, INPUTS + 1):
        with pytest.raises(InputError, match=f"there are {INPUTS} inputs, not {first}"):
            resolve(Request(folder / "packed.spdnn", first_inputs=first)).count_inputs()


def test_the_fingerprint_of_text_files_changes_when_one_is_replaced(folder: Path) -> None:
    before, after = (resolve(Request(folder / "text", 64, 2)).network.layers for _ in range(2))
    identity = before.fingerprint()
    assert after.fingerprint() == identity
    (folder / "text" / "neuron64" / "n64-l2.tsv").write_text("1\t1\t1\n")
    assert after.fingerprint() != identity
