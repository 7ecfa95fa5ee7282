"""Finished networks on disk, from which an interrupted table goes on.

The folder holds ``challenge.json``, which names the run (version, backend, device, options); for
each finished network ``NEURONSxLAYERS.json`` with its record, its categories (counted from 0)
and what names its network and inputs; and for a network under way the folder
``NEURONSxLAYERS.batches`` (``.streamed`` where its layers are streamed), a checkpoint of its
finished batches (`portable_spdnn.plans.checkpoint`), which goes when the network is finished.
Every file appears whole or not at all.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.configurations import Configuration
from portable_spdnn.io.atomic_output import atomic_output

Json = dict[str, Any]

BATCHES = ("batches", "streamed")  # held in memory, or streamed: other batches
_IDENTITY = "challenge.json"
_RUN_AGAIN = "remove it, and its network runs again"


class Records:
    """The finished networks of one run.

    `identity` is what all networks share, of JSON's types. Raises InputError if the folder holds
    another run (the message names what differs) or other files, or cannot be written.
    """

    def __init__(self, folder: Path, identity: Json) -> None:
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
            raise InputError(f"{folder}: holds files but no checkpoint; name a new folder")
        else:
            _write(folder / _IDENTITY, identity)

    def path(self, configuration: Configuration, suffix: str = "json") -> Path:
        """Return the file of a network once it is finished, or its folder of `BATCHES`."""
        return self.folder / f"{configuration.neurons}x{configuration.layers}.{suffix}"

    def load(self, configuration: Configuration, key: Json) -> tuple[Json, list[int]]:
        """Return the record and the categories of a finished network.

        Raises InputError if it was finished with another `key`, which names network and inputs,
        or the file is damaged.
        """
        path = self.path(configuration)
        stored = _read(path, _RUN_AGAIN)
        if not {"key", "record", "categories"} <= set(stored):
            raise InputError(f"{path}: is damaged; {_RUN_AGAIN}")
        _compare(f"{path}: is of another run", stored["key"], key)
        return stored["record"], stored["categories"]

    def save(
        self, configuration: Configuration, key: Json, record: Json, categories: list[int]
    ) -> None:
        """Keep a finished network, and let its batches go."""
        stored = {"key": key, "record": record, "categories": categories}
        _write(self.path(configuration), stored)
        for folder in (self.path(configuration, suffix) for suffix in BATCHES):
            if folder.exists():
                shutil.rmtree(folder)


def _compare(what: str, theirs: Json, mine: Json) -> None:
    for name, value in mine.items():
        if theirs.get(name) != value:
            raise InputError(
                f"{what}: its {name} is {theirs.get(name)}, here it is {value}; name a new folder"
            )


def _read(path: Path, remedy: str) -> Json:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {remedy}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: is damaged; {remedy}")
    return content


def _write(path: Path, content: Json) -> None:
    with atomic_output(path) as stream:
        stream.write(json.dumps(content, indent=1).encode() + b"\n")
