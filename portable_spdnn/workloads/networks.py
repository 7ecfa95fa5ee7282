"""Networks of every origin: text files, a packed store, or the generator."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from portable_spdnn.arrays import Progress
from portable_spdnn.caching import cached_property
from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge import layers_tsv
from portable_spdnn.graphchallenge.folder_layout import network_paths, resolve_neurons
from portable_spdnn.host import require_memory
from portable_spdnn.io.packed_store import PackedStore
from portable_spdnn.layer import Layer
from portable_spdnn.network import LayerStatistics, Network
from portable_spdnn.workloads.streamed_network import LayerSource, StreamedNetwork

TEXT, STORE, GENERATED = "files", "packed store", "generated"


class NetworkSource:
    """A network, not loaded yet, whose layers can be had one by one in any order.

    Parameters
    ----------
    kind : {"files", "packed store", "generated"}
    name : str
        What people are told.
    neurons : int
    y_max : float or None
    find_layers : callable
        Returns the LayerSource; called when the first of its layers is needed.

    Attributes
    ----------
    why_not_streamed : str
        Why its layers cannot be read, or generated, when they are used; empty where they can.
    """

    why_not_streamed = ""

    def __init__(
        self,
        kind: str,
        name: str,
        neurons: int,
        y_max: float | None,
        find_layers: Callable[[], LayerSource],
    ) -> None:
        self.kind, self.name, self.neurons, self.y_max = kind, name, neurons, y_max
        self._find_layers = find_layers

    @cached_property
    def layers(self) -> LayerSource:
        """The layers; raises InputError where there are fewer than were asked for."""
        return self._find_layers()

    def load(self, progress: Progress | None = None) -> Network:
        """Load the network into memory; of a packed store, map it.

        `progress` is called with (layers done, layers in all; 0 while not known).
        """
        if self.kind == GENERATED:
            statistics = self.layers.statistics
            nbytes = sum(4 * one.nnz + 8 * one.shape[0] for one in statistics[:1]) * len(statistics)
            require_memory(nbytes, f"{self.name}, {len(statistics)} layers: all in memory at once")
        found: list[Layer] = []
        for layer in self.iter_layers():
            found.append(layer)
            if progress is not None:
                progress(len(found), len(self.layers.statistics))
        return Network(found, self.y_max)

    def open(self) -> StreamedNetwork:
        """Return the network with its layers left where they are until they are used."""
        return StreamedNetwork(self.layers, self.y_max)

    def iter_layers(self) -> Iterator[Layer]:
        """Return the layers in order, in bounded memory."""
        return map(self.layers.read, range(len(self.layers.statistics)))


class TextNetwork(NetworkSource):
    """The first `layers` layers (default: all) of a network in the challenge's text files.

    Raises InputError if the folder does not hold a network of so many neurons, or holds several
    and `neurons` is not given.
    """

    def __init__(
        self,
        folder: Path,
        neurons: int | None,
        layers: int | None,
        bias: float | None,
        y_max: float | None,
    ) -> None:
        neurons = resolve_neurons(folder, neurons)
        super().__init__(
            TEXT, str(folder), neurons, y_max, lambda: TextLayers(folder, neurons, layers or 0)
        )
        self._asked = (folder, neurons, layers, bias)
        self.why_not_streamed = (
            f"{folder}: text files are not streamed; pack the network of {neurons} neurons first: "
            f"portable-spdnn convert {folder} --neurons {neurons} --out {neurons}.spdnn"
        )

    def load(self, progress: Progress | None = None) -> Network:
        """Load the network; an archive is read once, in the order of its members."""
        found = dict(layers_tsv.stream_layers(*self._asked, progress))
        return Network([found[number] for number in sorted(found)], self.y_max)

    def open(self) -> StreamedNetwork:
        """Raise InputError: text files cannot be read layer by layer again and again."""
        raise InputError(self.why_not_streamed)

    def iter_layers(self) -> Iterator[Layer]:
        """Return the layers in order; those of an archive that come too early wait on disk."""
        return layers_tsv.iter_layers(*self._asked)


class TextLayers(LayerSource):
    """What the challenge says of the layers of text files; one by one they are not read."""

    def __init__(self, folder: Path, neurons: int, layers: int) -> None:
        self.path, self.neurons = network_paths(folder)[neurons], neurons
        self.statistics = [LayerStatistics((neurons, neurons), 32 * neurons, 0, True)] * layers

    def read(self, number: int) -> Layer:
        """Raise InputError; see `TextNetwork.open`."""
        raise InputError(f"{self.path}: text files are not streamed")

    def fingerprint(self) -> str:
        """Return a text that changes when a file of the network is replaced.

        It holds names, sizes and times: to read weights for it would take as long as to load
        them.
        """
        numbers = range(1, len(self.statistics) + 1)
        each = [self.path / f"n{self.neurons}-l{number}.tsv" for number in numbers]
        digest = hashlib.sha256(str(len(numbers)).encode())
        for file in each if self.path.is_dir() else [self.path]:
            status = file.stat()
            digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        return f"text files {digest.hexdigest()}"


def open_store(path: Path, neurons: int | None = None) -> PackedStore:
    """Open a packed store; raise InputError if its network has other than `neurons` neurons."""
    store = PackedStore(path)
    if neurons is not None and neurons != store.neurons:
        raise InputError(
            f"{path}: holds a network of {store.neurons} neurons, not {neurons}; "
            f"was neurons={store.neurons} meant?"
        )
    return store
