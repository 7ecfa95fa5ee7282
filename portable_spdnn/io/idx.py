"""Images in IDX format, that of the MNIST files.

Four big-endian 32-bit numbers, the magic 0x00000803, images, rows and columns, come before one
byte a pixel, image by image and row by row (Y. LeCun, C. Cortes and C. Burges, "The MNIST
database of handwritten digits").
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.host import require_memory
from portable_spdnn.io.compressed import open_decompressed, read_at_most

PathLike = str | os.PathLike[str]

_IMAGES_MAGIC = 0x00000803
_TYPES = {
    0x08: "unsigned bytes",
    0x09: "signed bytes",
    0x0B: "16-bit integers",
    0x0C: "32-bit integers",
    0x0D: "float32 numbers",
    0x0E: "float64 numbers",
}


def is_idx(path: PathLike) -> bool:
    """Tell whether a file, compressed or not, begins like an IDX file of images or of others.

    Raises
    ------
    InputError
        If the file cannot be read or its compression is damaged.
    """
    with open_decompressed(path) as stream:
        magic = stream.read(4)
    return len(magic) == 4 and magic[:2] == b"\0\0" and magic[2] in _TYPES and magic[3] > 0


def count_idx(path: PathLike) -> int:
    """Return the number of images that the header states; raises as `read_idx`."""
    with open_decompressed(path) as stream:
        return _read_header(stream, Path(path))[0]


def read_idx(path: PathLike, first: int | None = None) -> Array:
    """Read images.

    Parameters
    ----------
    path : path-like
        May be compressed (gzip, xz).
    first : int, optional
        Number of images to take from the start; what follows them is not read. Default all.

    Returns
    -------
    ndarray of uint8, shape (images, rows, columns)

    Raises
    ------
    InputError
        If the file cannot be read, is not of this kind, has no pixels, or holds fewer or more
        bytes than its header says; if `first` is below 1 or beyond the images of the file.
    """
    if first is not None and first < 1:
        raise InputError(f"{path}: the first {first} images are asked for; 1 is the least")
    with open_decompressed(path) as stream:
        count, rows, columns = _read_header(stream, Path(path))
        if first is not None and first > count:
            raise InputError(
                f"{path}: the first {first} images are asked for but the file holds {count}"
            )
        wanted = count if first is None else first
        require_memory(2 * wanted * rows * columns, f"{path}: {wanted} images")
        pixels = read_at_most(stream, wanted * rows * columns)
        if len(pixels) < wanted * rows * columns:
            raise InputError(
                f"{path}: is truncated; {len(pixels) // (rows * columns)} of {count} images "
                "are there in full, fetch the file again"
            )
        if wanted == count and read_at_most(stream, 1):
            raise InputError(
                f"{path}: goes on after its last image; the header says {count} images of "
                f"{rows} x {columns} pixels"
            )
    return np.frombuffer(pixels, np.uint8).reshape(wanted, rows, columns)


def _read_header(stream: BinaryIO, path: Path) -> tuple[int, int, int]:
    header = read_at_most(stream, 16)
    magic = int.from_bytes(header[:4], "big")
    if len(header) < 4 or magic != _IMAGES_MAGIC:
        kind = _TYPES.get(header[2]) if header[:2] == b"\0\0" and len(header) >= 4 else None
        found = f"{header[3]}-dimensional {kind}" if kind else "another format"
        raise InputError(
            f"{path}: holds {found}, not IDX images: it begins with 0x{header[:4].hex()}; "
            f"0x{_IMAGES_MAGIC:08x} (unsigned bytes, images x rows x columns) is expected"
        )
    if len(header) < 16:
        raise InputError(f"{path}: is truncated within its header of 16 bytes; fetch it again")
    count, rows, columns = (int.from_bytes(header[at : at + 4], "big") for at in (4, 8, 12))
    if not count * rows * columns:
        raise InputError(f"{path}: holds no pixels: {count} images of {rows} x {columns}")
    return count, rows, columns
