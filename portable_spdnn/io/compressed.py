"""Reading files that may be compressed, with errors that name the file and its damage."""

from __future__ import annotations

import gzip
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from portable_spdnn.errors import InputError
from portable_spdnn.host import available_bytes, format_bytes

BLOCK_BYTES = 1 << 23
_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
_MAGIC_OF_SUFFIX = {".gz": (_GZIP, "gzip"), ".xz": (_XZ, "xz")}


@contextmanager
def open_decompressed(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a plain, gzip (RFC 1952) or xz file, told apart by its first bytes.

    Checksums of the compressed formats are verified once the stream is read to its end.

    Parameters
    ----------
    path : path-like

    Yields
    ------
    BinaryIO
        The decompressed bytes; read-only.

    Raises
    ------
    InputError
        If the file cannot be opened, if its suffix promises a compression that its content is
        not, or, from within the block, if it turns out to be truncated or damaged.
    """
    path = Path(path)
    try:
        with path.open("rb") as raw:
            head = raw.read(len(_XZ))
            raw.seek(0)
            magic, kind = _MAGIC_OF_SUFFIX.get(path.suffix, (b"", ""))
            if head and not head.startswith(magic):
                raise InputError(
                    f"{path}: is no {kind} file (it begins with {head!r}); download or copy it "
                    "again"
                )
            if head.startswith(_GZIP):
                with gzip.open(raw) as stream:
                    yield cast(BinaryIO, stream)
            elif head.startswith(_XZ):
                with lzma.open(raw) as stream:
                    yield cast(BinaryIO, stream)
            else:
                yield raw
    except EOFError as error:
        raise truncated(path) from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise InputError(
            f"{path}: damaged or truncated ({error}); download or copy it again"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def read_at_most(stream: BinaryIO, size: int) -> bytearray:
    """Read `size` bytes, or all there are: a false header must not reserve the memory it asks."""
    content = bytearray()
    while len(content) < size and (piece := stream.read(min(size - len(content), 1 << 22))):
        content += piece
    return content


def line_blocks(stream: BinaryIO, source: str) -> Iterator[tuple[int, bytes]]:
    """Read a text in blocks of whole lines, a few megabytes each.

    Parameters
    ----------
    stream : BinaryIO
    source : str
        The file, as messages name it.

    Yields
    ------
    line : int
        Number of the block's first line, counted from 1.
    block : bytes

    Raises
    ------
    InputError
        If a line is longer than a block, which no line of a number or three is.
    """
    line, rest = 1, b""
    while piece := stream.read(BLOCK_BYTES):
        end = piece.rfind(b"\n") + 1
        if end:
            block, rest = rest + piece[:end], piece[end:]
            yield line, block
            line += block.count(b"\n")
        else:
            rest += piece
        if len(rest) >= BLOCK_BYTES:
            raise InputError(
                f"{source}, line {line}: goes on for more than {format_bytes(BLOCK_BYTES)} without "
                "an end; is this a text file?"
            )
    if rest:
        yield line, rest


def read_text(stream: BinaryIO, source: str) -> bytes:
    """Return a whole text of lines.

    Raises
    ------
    InputError
        If a line is longer than `line_blocks` allows, or the text and what is read from it do not
        fit in the memory available.
    """
    blocks: list[bytes] = []
    size, available = 0, available_bytes()
    for _, block in line_blocks(stream, source):
        blocks.append(block)
        size += len(block)
        # The text in blocks, in one piece, and its numbers, which take as much again.
        if available is not None and 4 * size > available:
            raise InputError(
                f"{source}: is a text of more than {format_bytes(size)}; with what is read from it "
                f"that does not fit in the {format_bytes(available)} of memory available"
            )
    return b"".join(blocks)


def truncated(path: Path) -> InputError:
    """Return the error for a file that ends too early."""
    return InputError(f"{path}: truncated; download or copy it again")
