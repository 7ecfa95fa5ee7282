r"""Packed store: a network, its inputs and its truth in one memory-mapped file (``.spdnn``).

Layout. All numbers are little-endian, all offsets count bytes from the start of the
file, and CRC-32 is that of zlib, gzip and PNG (polynomial 0x04C11DB7, reflected).

======  ======  ======================================================================
offset  bytes   header
======  ======  ======================================================================
0       8       magic: 93 53 50 44 4E 4E 0D 0A (``\x93SPDNN\r\n``)
8       4       version, uint32: 1, or 2 where a layer has members of version 2
12      4       CRC-32 of the index, uint32
16      8       offset of the index, uint64
24      8       length of the index in bytes, uint64
32      28      zero
60      4       CRC-32 of bytes 0 to 59, uint32
======  ======  ======================================================================

Arrays follow, each from a multiple of 64 on, with zeros in the gaps, then the index. The index
is JSON in UTF-8 and ends the file. It refers to an array by an object ::

    {"offset": 64, "count": 32768, "dtype": "<u2", "crc32": 3141592653}

with `dtype` one of ``|u1 <u2 <i4 <i8 <f4 <f8`` (NumPy's notation), `count` in elements and the
CRC-32 of the array's bytes. Members of the index:

``y_max``
    Upper bound of the features after each ReLU layer: a number, or null for none.
``layers``
    A list of objects in the order of the layers, each with

    - ``shape``: [neurons_in, neurons_out]; W is in CSR, rows are input neurons
    - ``row_length``: the number of weights in each row where all rows have as many, else null
    - ``indptr``: array of ``<i8``, the neurons_in + 1 row offsets; null where row_length is given
    - ``indices``: array of columns from 0, rising within each row; ``<u2`` up to 65,536
      columns, ``<i4`` up to 2^31, else ``<i8``
    - ``weight_dtype``: ``<f4`` or ``<f8``
    - ``weight``: the number that all weights equal, or null where they differ or there are none
    - ``weights``: array of weight_dtype, one for each column index; null where ``weight`` is given
    - ``bias``: one number for all output neurons, or an array of ``<f8``
    - in version 2, ``activation``: a name of `portable_spdnn.epilogue.ACTIVATIONS`, and ``lower``
      and ``upper``: numbers, or null for no bound. A layer without them, as all are in version
      1, is ReLU with no bounds of its own. ``y_max`` bounds ReLU layers alone.

``inputs``
    null, or an object with ``shape``: [inputs, neurons] and either

    - ``bits``: array of ``|u1``, ceil(neurons / 8) bytes an input, the first neuron in the
      highest bit of the first byte, bits past the last neuron zero; or
    - ``indptr``, ``indices`` (both ``<i4`` or both ``<i8``) and ``data`` (``<f4`` or ``<f8``):
      CSR arrays of the features

``truth``
    An object that gives, under a number of layers in decimal, the categories after so many
    layers: an array of ``<i8``, inputs counted from 0, rising.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from portable_spdnn.errors import InputError

MAGIC = b"\x93SPDNN\r\n"
VERSION = 2  # the newest that is read; 1 is written where it can say all
ALIGNMENT = 64
_HEADER = struct.Struct("<8sIIQQ28x")  # the CRC-32 of these 60 bytes follows


def is_packed_store(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file begins like a packed store of any version."""
    try:
        with open(path, "rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def pack_header(index: bytes, offset: int, version: int) -> bytes:
    """Return the header of a store of a version, whose index begins at `offset`."""
    header = _HEADER.pack(MAGIC, version, zlib.crc32(index), offset, len(index))
    return header + struct.pack("<I", zlib.crc32(header))


class MappedStore(NamedTuple):
    """A store in memory whose header, and the checksum of whose index, are right."""

    mapped: mmap.mmap  # the whole file, read-only
    version: int
    text: bytes  # of the index
    end: int  # where the index begins, and arrays end


def map_store(path: Path) -> MappedStore:
    """Map a store into memory.

    Raises
    ------
    InputError
        If the file cannot be read, is no packed store, is of a later version, truncated, or
        damaged in its header or index.
    """
    try:
        with path.open("rb") as stream:
            header = stream.read(ALIGNMENT)
            size = stream.seek(0, os.SEEK_END)
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if size else None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if header[: len(MAGIC)] != MAGIC or mapped is None:
        raise InputError(f"{path}: is no packed store; `portable-spdnn convert` writes one")
    if size < ALIGNMENT:
        raise _truncated(path, size)
    _, version, checksum, offset, length = _HEADER.unpack(header[: _HEADER.size])
    if version > VERSION:
        raise InputError(
            f"{path}: is a packed store of version {version}, this program reads versions up to "
            f"{VERSION}; update it, or convert the network again"
        )
    if struct.pack("<I", zlib.crc32(header[: _HEADER.size])) != header[_HEADER.size :]:
        raise checksum_mismatch(path, "the header")
    if size < offset + length:
        raise _truncated(path, size)
    index = mapped[offset : offset + length]
    if zlib.crc32(index) != checksum or size != offset + length:
        raise checksum_mismatch(path, "the index")
    return MappedStore(mapped, version, index, offset)


def release_pages(mapped: mmap.mmap, offset: int, length: int) -> None:
    """Drop the pages that lie within a part of a mapped store from this process's memory."""
    first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (offset + length) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if whole > 0 and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED, first, whole)


def checksum_mismatch(path: Path, part: str) -> InputError:
    """Return the error for a part whose CRC-32 is wrong."""
    return InputError(
        f"{path}: checksum mismatch in {part}; the file is damaged, copy or convert it again"
    )


def _truncated(path: Path, size: int) -> InputError:
    return InputError(f"{path}: truncated (it ends after {size} bytes); copy or convert it again")
