"""What reads files of strangers: for each kind intact samples, mutations, and what reads them.

A reader either succeeds or raises `SpdnnError`; anything else is a fault: another exception, a
crash, more memory or time than the process is allowed (`fuzz.py`).
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import lzma
import random
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scaling_samples import calibration

import portable_spdnn as ps
from portable_spdnn.graphchallenge.categories import read_categories
from portable_spdnn.graphchallenge.inputs_tsv import read_inputs
from portable_spdnn.graphchallenge.layers_tsv import stream_layers
from portable_spdnn.io.idx import read_idx
from portable_spdnn.io.matrices import load_matrix
from portable_spdnn.io.packed_store import PackedStore
from portable_spdnn.io.packed_writer import PackedStoreWriter
from portable_spdnn.io.run_folder import read_json
from portable_spdnn.scaling.calibration import load_calibration, save_calibration

Mutate = Callable[[bytes, random.Random], bytes]
NUMBERS = (b"0", b"-1", b"2.0", b"1e9", b"nan", b"inf", b"99999999999999999999", b"0x10", b"")
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 64, 2**31, 2**63, 10**400, 0.5, 1e308, "", "x", "<f8", "relu", [], {},
    [1, 2], [10**12, 4], {"offset": 64, "count": 1, "dtype": "<i8", "crc32": 0},
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A kind of file: intact samples, what reads one, how content changes, how it is packed."""

    samples: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    mutate_content: Mutate
    pack: Callable[[bytes], bytes] = bytes

    def mutate(self, content: bytes, rng: random.Random) -> bytes:
        """Return a file of changed content; where that is packed, now and then damaged as well."""
        packed = self.pack(self.mutate_content(content, rng))
        damaged = self.pack is not bytes and rng.random() < 0.2
        return mutate_bytes(packed, rng) if damaged else packed


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Change, insert, repeat or remove bytes at a few places."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randrange(len(found) + 1), rng.randint(1, 9)
        change = rng.randrange(5)
        if change == 0:
            found[at : at + 1] = bytes([rng.randrange(256)])
        elif change == 1:
            found[at:at] = rng.choice(NUMBERS)
        elif change == 2:
            found[at : at + length] = b""
        elif change == 3:
            found[at:at] = found[at : at + length] * rng.randint(1, 50)
        else:
            found[at : at + length] = rng.choice((b"\t", b"\n", b"\r", b" ", b"\0" * 8))
    return bytes(found)


def mutate_store(data: bytes, rng: random.Random) -> bytes:
    """Change the index or the arrays of a packed store, and make its checksums right again."""
    offset = struct.unpack_from("<Q", data, 16)[0]
    body, index = bytearray(data[:offset]), json.loads(data[offset:])
    for _ in range(rng.randint(0, 3)):
        _mutate_json(index, rng)
    for _ in range(rng.randint(0, 3)):
        if offset > 64:
            at = rng.randrange(64, offset)
            body[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    _correct_checksums(index, bytes(body))
    text = json.dumps(index).encode()
    version = rng.choice((1, 2, struct.unpack_from("<I", data, 8)[0]))
    head = struct.pack("<8sIIQQ28x", data[:8], version, zlib.crc32(text), offset, len(text))
    return head + struct.pack("<I", zlib.crc32(head)) + bytes(body[64:]) + text


def _mutate_json(node: Any, rng: random.Random) -> None:
    """Replace, remove or copy one value, however deep."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(node[key], dict | list) and rng.random() < 0.8:
            node = node[key]
            continue
        change = rng.random()
        if change < 0.15:
            del node[key]
        elif change < 0.3:
            node[key] = node[rng.choice(keys)]
        elif isinstance(node[key], int) and change < 0.6:
            node[key] += rng.choice((-64, -2, -1, 1, 2, 64))
        else:
            node[key] = copy.deepcopy(rng.choice(VALUES))  # VALUES stay as they are
        return


def _correct_checksums(node: Any, body: bytes) -> None:
    """Give every array of an index the checksum of the bytes that it names."""
    if isinstance(node, dict):
        with suppress(KeyError, TypeError, ValueError, OverflowError):
            size = np.dtype(node["dtype"]).itemsize * node["count"]
            node["crc32"] = zlib.crc32(body[node["offset"] : node["offset"] + size])
        for child in node.values():
            _correct_checksums(child, body)
    elif isinstance(node, list):
        for child in node:
            _correct_checksums(child, body)


def _stores() -> list[bytes]:
    rng = np.random.default_rng(0)
    dense = [rng.random((9, 7)), rng.random((7, 7)) < 0.5, rng.random((7, 5))]
    networks = [
        [ps.Layer(np.where(one > 0.4, one, 0), -0.25) for one in dense],
        [ps.Layer(dense[0], rng.random(7), "gelu"), ps.Layer(np.ones((7, 1)), 0, "none", -1, 2)],
    ]
    inputs: list[Any] = [ps.PackedFeatures.from_dense(rng.random((4, 9)) < 0.5)]
    inputs.append(sp.csr_array(np.where(rng.random((4, 9)) < 0.5, 0.5, 0)))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (layers, features) in enumerate(zip(networks, inputs, strict=True)):
            path = Path(folder) / f"{number}.spdnn"
            with PackedStoreWriter(path, y_max=32.0) as store:
                for place, layer in enumerate(layers, start=1):
                    store.add_layer(place, layer)
                store.set_inputs(features)
                store.set_truth(len(layers), [0, 2])
            found.append(path.read_bytes())
    return found


def _read_store(path: Path) -> None:
    store = PackedStore(path)
    layers = [store.layer(number) for number in range(1, store.layers + 1)]
    for number in store.truth_layers:
        store.truth(number)
    features = store.inputs()
    network = ps.Network(layers, store.y_max)
    if network.widest < 1000:  # else a plan may rightly take long
        scores = [ps.infer(network, features, name).scores for name in ("scipy", "numba")]
        np.testing.assert_allclose(*map(np.asarray, scores), rtol=1e-3, atol=1e-3)


def _lines() -> list[bytes]:
    return [b"1\t2\t1\n3\t4\t0.0625\r\n64\t64\t-1e-3\n\n", b"1\t1\t1\n" * 40]


def _archives() -> list[bytes]:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as archive:
        for number in (1, 2):
            member = tarfile.TarInfo(f"neuron64/n64-l{number}.tsv")
            member.size = len(_lines()[0])
            archive.addfile(member, io.BytesIO(_lines()[0]))
    return [found.getvalue()]


def _read_layers(path: Path) -> None:
    archive = path.with_name("neuron64.tar.gz")
    path.rename(archive)
    list(stream_layers(archive.parent, 64))


def _calibrations() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kept.json"
        save_calibration(calibration(), path)
        return [path.read_bytes()]


def _images() -> list[bytes]:
    return [struct.pack(">IIII", 0x803, 2, 3, 4) + bytes(range(24))]


CHECKPOINTED = ps.Network([ps.Layer(np.eye(16), -0.5)] * 2), np.eye(3, 16)


def _checkpoints() -> list[bytes]:
    """Return batches with sparse features: those with dense ones have a second file."""
    with tempfile.TemporaryDirectory() as folder:
        ps.infer(*CHECKPOINTED, "scipy", path="spgemm", checkpoint=Path(folder) / "kept")
        return [file.read_bytes() for file in (Path(folder) / "kept").glob("batch*")]


def _read_checkpoint(path: Path) -> None:
    folder = path.with_name("kept")
    expected = ps.infer(*CHECKPOINTED, "scipy", path="spgemm", checkpoint=folder)
    (batch,) = folder.glob("batch*")
    path.replace(batch)
    found = ps.infer(*CHECKPOINTED, "scipy", path="spgemm", checkpoint=folder)
    np.testing.assert_array_equal(np.asarray(found.scores), np.asarray(expected.scores))


def _patterns() -> list[bytes]:
    return [b"3, 4, 5\n0 2 2 5\n0 3 0 1 3\n", b"1, 300, 2\n0 2 \n7 299 \n"]


def _coordinates() -> list[bytes]:
    head = b"%%MatrixMarket matrix coordinate "
    return [
        head + b"real general\n% a comment\n3 4 3\n3 4 -1.5\n1 1 2e-3\n2 3 7\n",
        head + b"integer symmetric\n3 3 2\n2 1 5\r\n3 3 1\r\n",
        head + b"pattern general\n2 300 2\n1 300\n2 1\n",
    ]


def _saved_matrices() -> list[bytes]:
    found = []
    matrix = sp.random_array((5, 7), density=0.4, rng=np.random.default_rng(0))
    for form in ("csr", "csc", "coo"):
        written = io.BytesIO()
        sp.save_npz(written, matrix.asformat(form), compressed=False)
        found.append(written.getvalue())
    return found


def mutate_archive(data: bytes, rng: random.Random) -> bytes:
    """Change the members of a ZIP archive, and make their checksums right again."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(written, "w") as changed:
        for name in archive.namelist():
            content, change = archive.read(name), rng.random()
            if change < 0.2:
                content = mutate_bytes(content, rng)
            elif change < 0.4:  # the array, not what its header says of it
                content = content[:128] + mutate_bytes(content[128:], rng)[: len(content) - 128]
            if change < 0.98:
                changed.writestr(
                    name, content, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
                )
    return written.getvalue()


def _read_matrix(ending: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        named = path.rename(path.with_name(f"matrix{ending}"))
        matrix = load_matrix(named)
        matrix.check_format(full_check=True)
        assert matrix.dtype in (np.float32, np.float64)
        rising = np.diff(matrix.indices)[np.diff(matrix.indptr.searchsorted(
            np.arange(matrix.nnz), "right")) == 0]  # fmt: skip
        assert (rising > 0).all()

    return read


def _read_inputs(path: Path) -> None:
    read_inputs(path, 64)


TARGETS = {
    "store": Target(_stores, _read_store, mutate_store),
    "store bytes": Target(_stores, _read_store, mutate_bytes),
    "inputs": Target(_lines, _read_inputs, mutate_bytes),
    "inputs gzip": Target(_lines, _read_inputs, mutate_bytes, gzip.compress),
    "inputs xz": Target(_lines, _read_inputs, mutate_bytes, lzma.compress),
    "categories": Target(lambda: [b"1\n2\n300\n"], read_categories, mutate_bytes),
    "layers": Target(_archives, _read_layers, mutate_bytes, gzip.compress),
    "images": Target(_images, read_idx, mutate_bytes),
    "checkpoint": Target(_checkpoints, _read_checkpoint, mutate_bytes),
    "run folder": Target(
        lambda: [b'{"version": 1, "names": ["a"], "none": null}'],
        lambda path: read_json(path, "name a new folder"),
        mutate_bytes,
    ),
    "smtx": Target(_patterns, _read_matrix(".smtx"), mutate_bytes),
    "smtx gzip": Target(_patterns, _read_matrix(".smtx.gz"), mutate_bytes, gzip.compress),
    "matrix market": Target(_coordinates, _read_matrix(".mtx"), mutate_bytes),
    "npz": Target(_saved_matrices, _read_matrix(".npz"), mutate_archive),
    "npz bytes": Target(_saved_matrices, _read_matrix(".npz"), mutate_bytes),
    "calibration": Target(_calibrations, load_calibration, mutate_bytes),
}
