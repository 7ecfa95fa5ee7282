"""Finished networks on disk, from which an interrupted table goes on.

The folder holds ``challenge.json``, which names the run (version, backend, device, options); for
each finished network ``NEURONSxLAYERS.json`` with its record, its categories (counted from 0)
and what names its network and inputs; and for a network under way the folder
``NEURONSxLAYERS.batches`` (``.streamed`` where its layers are streamed), a checkpoint of its
finished batches (`portable_spdnn.plans.checkpoint`), which goes when the network is finished. Every
file appears whole or not at all.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.configurations import Configuration
from portable_spdnn.io.atomic_output import atomic_output

_IDENTITY = "challenge.json"
_PARTS = ("key", "record", "categories")


class Records:
    """The finished networks of one run.

    Parameters
    ----------
    folder : Path
        Made where there is none.
    identity : dict
        What all networks share, of JSON's types. A folder of another run is not taken over.

    Raises
    ------
    InputError
        If the folder holds another run, or other files, or cannot be written; the message
        names what differs.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = [entry.name for entry in folder.iterdir()]
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"{folder}: cannot hold a checkpoint ({reason})") from error
        if _IDENTITY in found:
            theirs = _read(folder / _IDENTITY, "name a new folder")
            _compare(f"{folder}: is the checkpoint of another run", theirs, identity)
        elif any(not name.startswith(".") for name in found):
            raise InputError(
                f"{folder}: holds files but no checkpoint of a challenge; name a new folder"
            )
        else:
            _write(folder / _IDENTITY, identity)

    def holds(self, configuration: Configuration) -> bool:
        """Whether a network is finished."""
        return self._path(configuration).exists()

    def load(
        self, configuration: Configuration, key: dict[str, Any]
    ) -> tuple[dict[str, Any], list[int]] | None:
        """Return the record and the categories of a network, None where it is not finished.

        Parameters
        ----------
        configuration : Configuration
        key : dict
            What names its network and inputs, as it was saved.

        Raises
        ------
        InputError
            If it was finished with another network or other inputs, or the file is damaged.
        """
        path = self._path(configuration)
        if not path.exists():
            return None
        stored = _read(path, "remove it, and its network runs again")
        if any(part not in stored for part in _PARTS):
            raise InputError(f"{path}: is damaged; remove it, and its network runs again")
        _compare(f"{path}: is of another run", stored["key"], key)
        return stored["record"], stored["categories"]

    def save(
        self,
        configuration: Configuration,
        key: dict[str, Any],
        record: dict[str, Any],
        categories: list[int],
    ) -> None:
        """Keep a finished network, and let its batches go.

        Raises
        ------
        InputError
            If the disk is full or the folder cannot be written.
        """
        stored = dict(zip(_PARTS, (key, record, categories), strict=True))
        _write(self._path(configuration), stored)
        for streamed in (False, True):
            if self.batches(configuration, streamed).exists():
                shutil.rmtree(self.batches(configuration, streamed))

    def batches(self, configuration: Configuration, streamed: bool) -> Path:
        """Return the folder for the batches of a network under way."""
        suffix = "streamed" if streamed else "batches"
        return self.folder / f"{_name(configuration)}.{suffix}"

    def _path(self, configuration: Configuration) -> Path:
        return self.folder / f"{_name(configuration)}.json"


def _name(configuration: Configuration) -> str:
    return f"{configuration.neurons}x{configuration.layers}"


def _compare(what: str, theirs: dict[str, Any], mine: dict[str, Any]) -> None:
    for name, value in mine.items():
        if theirs.get(name) != value:
            raise InputError(
                f"{what}: its {name} is {theirs.get(name)}, here it is {value}; name a new folder"
            )


def _read(path: Path, remedy: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {remedy}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: is damaged; {remedy}")
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    with atomic_output(path) as stream:
        stream.write(json.dumps(content, indent=1).encode() + b"\n")
