"""Folders of finished work, each of one run, and the JSON files in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from portable_spdnn.errors import InputError
from portable_spdnn.io.atomic_output import atomic_output


def claim_folder(folder: Path, name: str, identity: dict[str, Any]) -> None:
    """Make a folder for the run that `identity` names, or check that it is of this run.

    Parameters
    ----------
    folder : Path
    name : str
        Of the file that holds the identity.
    identity : dict
        Of JSON's types.

    Raises
    ------
    InputError
        If the folder is of another run (the message says what differs), holds other files, or
        cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise InputError(
            f"{folder}: cannot hold a checkpoint ({error.strerror or error})"
        ) from error
    if name in found:
        theirs = read_json(folder / name, "name a new folder")
        check_identity(f"{folder}: is the checkpoint of another run", theirs, identity)
    elif any(not one.startswith(".") for one in found):
        raise InputError(f"{folder}: holds files but no checkpoint; name a new folder")
    else:
        write_json(folder / name, identity)


def check_identity(what: str, theirs: dict[str, Any], mine: dict[str, Any]) -> None:
    """Raise InputError, which begins with `what`, where an entry of `mine` is not as `theirs`."""
    other = [
        f"its {name} is {theirs.get(name)}, here it is {value}"
        for name, value in mine.items()
        if theirs.get(name) != value
    ]
    if other:
        raise InputError(f"{what}: {'; '.join(other)}; name a new folder")


def read_bounded(path: Path, most: int = 1 << 26) -> bytes:
    """Return a small file; raise ValueError where it is larger than 64 MiB, OSError as it fails."""
    with path.open("rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most >> 20} MiB")
    return content


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Return the JSON object of a file, empty where it holds another value.

    Raises InputError, which ends with `remedy`, where the file cannot be read or parsed.
    """
    try:
        content = json.loads(read_bounded(path))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {remedy}") from error
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object to a file, whole or not at all."""
    with atomic_output(path) as stream:
        stream.write(json.dumps(content, indent=1).encode() + b"\n")
