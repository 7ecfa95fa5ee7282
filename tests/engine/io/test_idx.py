"""Images in IDX format: what is read, and what is said of damage."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from portable_spdnn.errors import InputError
from portable_spdnn.io.idx import count_idx, is_idx, read_idx
from portable_spdnn.workloads.images import binary_features, load_idx_features


def idx_bytes(images: np.ndarray) -> bytes:
    return struct.pack(">4I", 0x803, *images.shape) + images.astype(np.uint8).tobytes()


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_round_trip_whatever_the_name(tmp_path: Path, images: np.ndarray, pack) -> None:
    for name in ("images", "images-idx3-ubyte", *(["images.gz"] if pack is gzip.compress else [])):
        path = tmp_path / name
        path.write_bytes(pack(idx_bytes(images)))
        assert is_idx(path)
        read = read_idx(path)
        assert read.dtype == np.uint8
        np.testing.assert_array_equal(read, images)
        np.testing.assert_array_equal(read_idx(path, first=2), images[:2])
        np.testing.assert_array_equal(read_idx(path, first=5), images)
        assert count_idx(path) == 5
        features = load_idx_features(path, 16, slice(3))
        np.testing.assert_array_equal(features.bits, binary_features(images[:3], 16).bits)


def test_first_reads_no_further(tmp_path: Path, images: np.ndarray) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(images)[: 16 + 2 * 12])
    np.testing.assert_array_equal(read_idx(path, first=2), images[:2])


@pytest.mark.parametrize(
    ("change", "first", "message"),
    [
        (lambda b: b[:-1], None, "is truncated; 4 of 5 images"),
        (lambda b: b[:16], None, "is truncated; 0 of 5 images"),
        (lambda b: b[:-1], 5, "is truncated; 4 of 5 images"),
        (lambda b: b[:11], None, "truncated within its header"),
        (lambda b: b"", None, "not IDX images"),
        (lambda b: b"\0\0", None, "not IDX images"),
        (lambda b: b"1\t188\t1\n" * 9, None, "holds another format, not IDX images"),
        (lambda b: b"\0\0\x08\x01" + b[4:], None, "1-dimensional unsigned bytes"),
        (lambda b: b"\0\0\x0d\x03" + b[4:], None, "3-dimensional float32"),
        (lambda b: b + b"\0", None, "goes on after its last image"),
        (lambda b: b + b"\0", 5, "goes on after its last image"),
        (lambda b: b[:4] + bytes(4) + b[8:16], None, "no pixels: 0 images of 4 x 3"),
        (lambda b: b[:8] + bytes(4) + b[12:16], None, "no pixels: 5 images of 0 x 3"),
        (lambda b: b[:4] + b"\xff" * 12 + b[16:], None, "4294967295 images would take"),
        (lambda b: b, 6, "first 6 images are asked for but the file holds 5"),
        (lambda b: b, 0, "1 is the least"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_bad_idx(tmp_path: Path, images: np.ndarray, pack, change, first, message: str) -> None:
    path = tmp_path / "images-idx3-ubyte"
    path.write_bytes(pack(change(idx_bytes(images))))
    with pytest.raises(InputError, match=message) as raised:
        read_idx(path, first)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_damaged_gzip(tmp_path: Path, images: np.ndarray) -> None:
    whole = gzip.compress(idx_bytes(images))
    path = tmp_path / "images.gz"
    for length in range(2, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"images\.gz: (damaged or )?truncated"):
            read_idx(path)
    spoilt = bytearray(whole)
    spoilt[-8] ^= 1
    path.write_bytes(spoilt)
    with pytest.raises(InputError, match=r"damaged or truncated .*CRC"):
        read_idx(path)
    path.write_bytes(whole[:10] + b"\xff" * 50)
    with pytest.raises(InputError, match="damaged or truncated"):
        read_idx(path)
    path.write_bytes(whole + b"junk")
    with pytest.raises(InputError, match="damaged or truncated"):
        read_idx(path)


def test_unreadable_files(tmp_path: Path) -> None:
    for reader in (read_idx, is_idx):
        with pytest.raises(InputError, match=r"absent: cannot be read \(No such file"):
            reader(tmp_path / "absent")
        with pytest.raises(InputError, match="cannot be read"):
            reader(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\0\0\x08\x03", True),
        (b"\0\0\x08\x01\0\0\0\5", True),
        (b"\0\0\x08", False),
        (b"", False),
        (b"1\t188\t1\n", False),
        (b"\0\0\x07\x03", False),
        (b"\0\0\x08\x00", False),
    ],
)
def test_is_idx(tmp_path: Path, content: bytes, expected: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert is_idx(path) is expected
