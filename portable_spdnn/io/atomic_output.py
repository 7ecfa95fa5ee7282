"""Output files and folders that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from portable_spdnn.errors import InputError


@contextmanager
def atomic_output(path: str | os.PathLike[str], seekable: bool = False) -> Iterator[BinaryIO]:
    """Open a file for writing that takes its name only once everything is written.

    The bytes go to a hidden file in the same folder. It replaces `path` when the block ends
    and is removed when the block raises; what `path` held before stays until then, and so do its
    permissions. Hidden files that killed processes left of the same output are removed.

    A symbolic link is followed. What is no regular file, such as a pipe or ``/dev/stdout``, is
    written to directly: there is nothing to replace.

    Parameters
    ----------
    path : path-like
        The file to write; its folder must exist.
    seekable : bool
        Whether the block seeks, which pipes and devices cannot.

    Yields
    ------
    BinaryIO
        Buffered, write-only.

    Raises
    ------
    InputError
        If the folder does not exist or cannot be written, the disk is full, `path` is a folder,
        or the output must be seekable and is not.
    """
    asked = Path(path)
    target, found = _target(asked)
    if found is not None and not stat.S_ISREG(found.st_mode):
        if seekable:
            raise InputError(f"{asked}: is no regular file; this output needs one")
        with _opened(target, "wb", asked) as stream:
            yield stream
        return
    partial, stream = _new_partial(target, asked)
    locked = os.dup(stream.fileno())  # until the file has its name
    try:
        with stream:
            if found is not None:
                os.fchmod(stream.fileno(), stat.S_IMODE(found.st_mode))
            yield stream
        try:
            os.replace(partial, target)
        except OSError as error:
            raise _cannot_write(asked, error) from error
    finally:
        partial.unlink(missing_ok=True)
        os.close(locked)


def check_outputs(*paths: str | os.PathLike[str] | None) -> None:
    """Raise InputError where `atomic_output` could not write, as far as that can be told before.

    For commands that compute for long before they write; None and "-" are no files.
    """
    seen: set[Path] = set()
    for path in paths:
        if path is None or path == "-":
            continue
        asked = Path(path)
        target, found = _target(asked)
        replaced = found is None or stat.S_ISREG(found.st_mode)
        if replaced and target in seen:
            raise InputError(f"{asked}: is named for two outputs; name another file for one")
        seen.add(target)
        within = target.parent if replaced else target
        if replaced and not within.is_dir():
            raise InputError(f"{asked}: there is no folder {within}; create it first")
        if not os.access(within, os.W_OK):
            raise _cannot_write(asked, OSError(errno.EACCES, os.strerror(errno.EACCES)))


def _target(asked: Path) -> tuple[Path, os.stat_result | None]:
    """Return what a path leads to, and its status where it exists; InputError for a folder."""
    try:
        found = asked.stat()
        # A pipe has a path of its own, as /dev/stdout does, which leads to no name.
        target = asked.resolve() if stat.S_ISREG(found.st_mode) else asked
    except (FileNotFoundError, NotADirectoryError):
        target, found = asked.resolve(), None  # of a link, where it leads to
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a zero byte
        raise InputError(f"{asked}: cannot be written ({error})") from error
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise InputError(f"{asked}: is a folder; the name of a file is expected")
    return target, found


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Make a folder that takes its name only once everything is in it.

    Parameters
    ----------
    path : path-like
        The folder to make; an empty one may exist. Folders above it are made where missing.

    Yields
    ------
    Path
        A hidden folder beside it, which is renamed when the block ends and removed when it
        raises. Those that killed processes left of the same output are removed before.

    Raises
    ------
    InputError
        If `path` exists and is no empty folder, cannot be written, or the disk is full.
    """
    folder = Path(path)
    try:
        folder = folder.resolve()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder}: exists and is not an empty folder; name a new one")
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        partial, descriptor = _new_folder(folder)
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path}: cannot be written ({error})") from error
    try:
        yield partial
        try:
            partial.replace(folder)
        except OSError as error:
            raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(descriptor)


def _new_folder(target: Path) -> tuple[Path, int]:
    """Return a new partial folder and the descriptor that has it locked."""
    while True:
        partial = _partial_name(target)
        partial.mkdir()
        descriptor = os.open(partial, os.O_RDONLY)
        _lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            return partial, descriptor
        os.close(descriptor)  # another process took it for abandoned


def _partial_name(target: Path) -> Path:
    # Not by `tempfile`: it denies other users the file, and the mode would survive the renaming.
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")


def _new_partial(target: Path, asked: Path) -> tuple[Path, io.BufferedWriter]:
    """Return a new partial file, locked for as long as it is open."""
    _remove_abandoned(target)
    while True:
        partial = _partial_name(target)
        stream = _opened(partial, "xb", asked)
        _lock(stream.fileno())
        if os.fstat(stream.fileno()).st_nlink:
            return partial, stream
        stream.close()  # between its creation and its lock another process took it for abandoned


def _lock(descriptor: int, wait: bool = True) -> bool:
    """Lock a file until it is closed; False where that cannot be."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # another process has it locked, or the file system has no locks
        return False
    return True


def _remove_abandoned(target: Path) -> None:
    """Remove what is partial of an output and has lost its writer: nobody has it locked."""
    begin, end, size = f".{target.name}.", ".partial", len(target.name) + 18
    found: list[os.DirEntry[str]] = []
    with suppress(OSError), os.scandir(target.parent) as entries:
        found = [e for e in entries if len(e.name) == size and e.name.startswith(begin)]
    for entry in (entry for entry in found if entry.name.endswith(end)):
        with suppress(OSError):
            descriptor = os.open(entry.path, os.O_RDONLY)
            try:
                if _lock(descriptor, wait=False):
                    shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
            finally:
                os.close(descriptor)


def _opened(path: Path, mode: str, asked: Path) -> io.BufferedWriter:
    try:
        return io.BufferedWriter(_Output(path, mode, asked), 1 << 20)
    except OSError as error:
        raise _cannot_write(asked, error) from error


class _Output(io.FileIO):
    """A file whose write errors name the path that the user asked for.

    They are told apart here, where they arise: an `OSError` of the caller's block may as well
    come from a file that it reads.
    """

    def __init__(self, path: Path, mode: str, asked: Path) -> None:
        super().__init__(path, mode)
        self._path = asked

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise _cannot_write(self._path, error) from error


def _cannot_write(path: Path, error: OSError) -> InputError:
    if not path.parent.is_dir():
        return InputError(f"{path}: there is no folder {path.parent}; create it first")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = "nothing was kept; free some space or write to another disk"
    else:
        remedy = "choose another place to write to"
    return InputError(f"{path}: cannot be written ({error.strerror or error}); {remedy}")
