"""Output files that appear whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from portable_spdnn.errors import InputError


@contextmanager
def atomic_output(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing that takes its name only once everything is written.

    The bytes go to a hidden file in the same folder. It replaces `path` when the block ends
    and is removed when the block raises; what `path` held before stays until then.

    Parameters
    ----------
    path : path-like
        The file to write; its folder must exist.

    Yields
    ------
    BinaryIO
        Buffered, seekable, write-only.

    Raises
    ------
    InputError
        If the folder does not exist or cannot be written, or the disk is full.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; the name of a file is expected")
    # Not by `tempfile`: it denies other users the file, and the mode would survive the renaming.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        raw = _Output(partial, path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        with io.BufferedWriter(raw, 1 << 20) as stream:
            yield stream
        try:
            os.replace(partial, path)
        except OSError as error:
            raise _cannot_write(path, error) from error
    finally:
        partial.unlink(missing_ok=True)


class _Output(io.FileIO):
    """A file whose write errors name the path that the user asked for.

    They are told apart here, where they arise: an `OSError` of the caller's block may as well
    come from a file that it reads.
    """

    def __init__(self, partial: Path, path: Path) -> None:
        super().__init__(partial, "xb")
        self._path = path

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise _cannot_write(self._path, error) from error


def _cannot_write(path: Path, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return InputError(f"{path}: there is no folder {path.parent}; create it first")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = "nothing was kept; free some space or write to another disk"
    else:
        remedy = "choose another place to write to"
    return InputError(f"{path}: cannot be written ({error.strerror or error}); {remedy}")
