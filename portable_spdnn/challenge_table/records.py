"""Finished networks on disk, from which an interrupted table goes on.

The folder holds ``challenge.json``, which names the run (version, backend, device, options); for
each finished network ``NEURONSxLAYERS.json`` with its record, its categories (counted from 0)
and what names its network and inputs; and for a network under way the folder
``NEURONSxLAYERS.batches`` (``.streamed`` where its layers are streamed), a checkpoint of its
finished batches (`portable_spdnn.plans.checkpoint`), which goes when the network is finished.
Every file appears whole or not at all.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.configurations import Configuration
from portable_spdnn.io.run_folder import check_identity, claim_folder, read_json, write_json

Json = dict[str, Any]

BATCHES = ("batches", "streamed")  # held in memory, or streamed: other batches


class Records:
    """The finished networks of one run.

    `identity` is what all networks share, of JSON's types. Raises InputError if the folder holds
    another run (the message names what differs) or other files, or cannot be written.
    """

    def __init__(self, folder: Path, identity: Json) -> None:
        self.folder = folder
        claim_folder(folder, "challenge.json", identity)

    def path(self, configuration: Configuration, suffix: str = "json") -> Path:
        """Return the file of a network once it is finished, or its folder of `BATCHES`."""
        return self.folder / f"{configuration.neurons}x{configuration.layers}.{suffix}"

    def load(self, configuration: Configuration, key: Json) -> tuple[Json, list[int]]:
        """Return the record and the categories of a finished network.

        Raises InputError if it was finished with another `key`, which names network and inputs,
        or the file is damaged.
        """
        path, remedy = self.path(configuration), "remove it, and its network runs again"
        stored = read_json(path, remedy)
        if not {"key", "record", "categories"} <= set(stored):
            raise InputError(f"{path}: is damaged; {remedy}")
        check_identity(f"{path}: is of another run", stored["key"], key)
        return stored["record"], stored["categories"]

    def save(
        self, configuration: Configuration, key: Json, record: Json, categories: list[int]
    ) -> None:
        """Keep a finished network, and let its batches go."""
        stored = {"key": key, "record": record, "categories": categories}
        write_json(self.path(configuration), stored)
        for suffix in BATCHES:
            shutil.rmtree(self.path(configuration, suffix), ignore_errors=True)
