"""Where the networks, inputs and truth of the table come from: one folder, or generated.

A folder may hold several networks, as the challenge's own files or as packed stores. What
belongs to one number of neurons belongs together: the truth is that of the inputs beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.configurations import Configuration, Truth
from portable_spdnn.io.packed_layout import is_packed_store
from portable_spdnn.io.packed_store import PackedStore
from portable_spdnn.workloads.sources import load_truth
from portable_spdnn.workloads.streamed_network import GeneratedLayers, LayerFacts, StoredLayers

TEXT, STORE, GENERATED = "files", "packed store", "generated"


@dataclass(frozen=True)
class NetworkSource:
    """Where a network comes from.

    Attributes
    ----------
    kind : {"files", "packed store", "generated"}
    path : Path or None
        Folder or store; None where it is generated.
    identity : str
        Equal for equal networks, and known without reading weights.
    facts : sequence of LayerFacts
        For text files what the challenge says of them.
    """

    kind: str
    path: Path | None
    identity: str
    facts: Sequence[LayerFacts]


class Sources:
    """What a folder or a packed store holds of the table.

    Parameters
    ----------
    data : Path or None
        None: everything is generated.
    seed : int
        Of generated networks.
    wanted : iterable of Configuration
        The networks of the table.

    Raises
    ------
    InputError
        If there is no such folder or store, a store is damaged, or nothing in it is wanted.
    """

    def __init__(self, data: Path | None, seed: int, wanted: Iterable[Configuration]) -> None:
        self.data, self.seed = data, seed
        self._deepest: dict[int, int] = {}
        for one in wanted:
            self._deepest[one.neurons] = max(one.layers, self._deepest.get(one.neurons, 0))
        self._stores: dict[int, list[PackedStore]] = {}
        self._texts: dict[int, Path] = {}
        self._layers: dict[int, int] = {}
        if data is None:
            return
        if not data.exists():
            raise InputError(f"{data}: there is no such file or folder")
        if data.is_dir():
            from portable_spdnn.graphchallenge.folder_layout import network_paths

            self._texts = network_paths(data)
            files = [path for path in sorted(data.iterdir()) if path.is_file()]
        else:
            files = [data]
        for path in files:
            if is_packed_store(path):
                store = PackedStore(path)
                self._stores.setdefault(store.neurons, []).append(store)
        if not any(self._holds(neurons) for neurons in self._deepest):
            sizes = ", ".join(str(neurons) for neurons in self._deepest)
            raise InputError(
                f"{data}: holds neither network nor inputs of {sizes} neurons, as files of the "
                "challenge or packed stores; leave --data out to have all generated"
            )

    def network(self, configuration: Configuration) -> NetworkSource:
        """Return where a network comes from: a store, else text files, else it is generated.

        Raises
        ------
        InputError
            If an archive is truncated or damaged.
        """
        neurons, layers = configuration.neurons, configuration.layers
        deep = [one for one in self._stores.get(neurons, ()) if one.layers >= layers]
        if deep:
            # One with the truth, then one with inputs, before others.
            store = max(
                deep, key=lambda one: (layers in one.truth_layers, one.input_shape is not None)
            )
            stored = StoredLayers(store, layers)
            return NetworkSource(STORE, store.path, stored.fingerprint(), stored.facts)
        if neurons in self._texts and self._text_layers(neurons) >= layers:
            facts = [LayerFacts((neurons, neurons), 32 * neurons, 0, True)] * layers
            identity = _files_identity(self._texts[neurons], neurons, layers)
            return NetworkSource(TEXT, self.data, identity, facts)
        generated = GeneratedLayers(neurons, layers, self.seed)
        return NetworkSource(GENERATED, None, generated.fingerprint(), generated.facts)

    def inputs_path(self, neurons: int) -> Path | None:
        """Return the folder or store that holds inputs of so many neurons, None where none do."""
        for store in self._stores.get(neurons, ()):
            if store.input_shape is not None:
                return store.path
        return self.data if self._has_text_inputs(neurons) else None

    def truth(self, configuration: Configuration, total: int, at_hand: int) -> Truth | None:
        """Return the truth of the inputs that `inputs_path` names, None where there is none.

        It is the truth of the network that the folder or store holds, not of a generated one.

        Parameters
        ----------
        configuration : Configuration
        total, at_hand : int
            Inputs there are, and how many of them are used.

        Raises
        ------
        InputError
            If the truth is malformed or damaged.
        """
        path = self.inputs_path(configuration.neurons)
        if path is None:
            return None
        # A store's inputs may be those of the folder that it lies in, where the truth is a file.
        for place in dict.fromkeys((path, self.data)):
            if place is not None:
                known = load_truth(
                    place, configuration.neurons, configuration.layers, total, at_hand
                )
                if known is not None:
                    return known
        return None

    def _holds(self, neurons: int) -> bool:
        return neurons in self._stores or neurons in self._texts or self._has_text_inputs(neurons)

    def _has_text_inputs(self, neurons: int) -> bool:
        from portable_spdnn.graphchallenge.folder_layout import inputs_path

        return (
            self.data is not None
            and self.data.is_dir()
            and inputs_path(self.data, neurons) is not None
        )

    def _text_layers(self, neurons: int) -> int:
        """Return how many layers the text files have; an archive is looked through once."""
        from portable_spdnn.graphchallenge.folder_layout import layers_present

        if neurons not in self._layers:
            wanted = self._deepest[neurons]
            self._layers[neurons] = layers_present(self._texts[neurons], neurons, wanted)
        return self._layers[neurons]


def _files_identity(path: Path, neurons: int, layers: int) -> str:
    """Return a text that changes when a file of the network is replaced.

    It holds names, sizes and times: to read weights for it would take as long as to load them.
    """
    one_each = [path / f"n{neurons}-l{number}.tsv" for number in range(1, layers + 1)]
    digest = hashlib.sha256(str(layers).encode())
    for file in one_each if path.is_dir() else [path]:
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"text files {digest.hexdigest()}"
