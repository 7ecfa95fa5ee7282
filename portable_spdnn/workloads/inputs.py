"""Inputs of every origin: text files, a packed store, images, or the bundled digits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from portable_spdnn.errors import InputError
from portable_spdnn.features import Features
from portable_spdnn.graphchallenge.folder_layout import inputs_path, neurons_of_inputs_name
from portable_spdnn.graphchallenge.inputs_tsv import read_inputs
from portable_spdnn.io.idx import count_idx, is_idx
from portable_spdnn.io.packed_layout import is_packed_store
from portable_spdnn.io.packed_store import PackedStore
from portable_spdnn.workloads.images import digits, digits_features, load_idx_features
from portable_spdnn.workloads.networks import STORE, TEXT, open_store

IMAGES, DIGITS = "images", "bundled digits"


class InputsSource(ABC):
    """Inputs, not loaded yet, for networks of some number of neurons.

    Methods raise InputError where inputs are missing, malformed, damaged or of another width.

    Attributes
    ----------
    kind : {"files", "packed store", "images", "bundled digits"}
    name : str
        What people are told.
    """

    kind: str
    name: str

    @abstractmethod
    def count(self) -> int | None:
        """Return how many inputs there are, None where only reading all of them would tell."""

    @abstractmethod
    def rows(self, rows: slice, verify: bool = True) -> Features:
        """Load some of the inputs, without keeping the others.

        Parameters
        ----------
        rows : slice
            With start and end, within the inputs.
        verify : bool
            Verify the checksum of a store's inputs, which reads all of them.
        """

    def load(self, first: int | None = None) -> tuple[Features, int]:
        """Load the inputs, or the `first` so many; returns also how many there are."""
        total = self.count() or 0
        return self.rows(slice(0, wanted(first, total, self.name))), total


class StoredInputs(InputsSource):
    """The inputs of a packed store."""

    kind = STORE

    def __init__(self, store: PackedStore) -> None:
        self.name, self.store = str(store.path), store

    def count(self) -> int:
        """Return how many inputs there are."""
        if self.store.input_shape is None:
            raise InputError(f"{self.name}: holds no inputs; name a file of them, inputs=FILE")
        return self.store.input_shape[0]

    def rows(self, rows: slice, verify: bool = True) -> Features:
        """Load some of the inputs; those of a store are mapped."""
        return self.store.inputs(verify=verify)[rows]


class ImageInputs(InputsSource):
    """Images in IDX format, resized to one pixel for each neuron."""

    kind = IMAGES

    def __init__(self, path: Path, neurons: int) -> None:
        self.name, self.neurons = str(path), neurons

    def count(self) -> int:
        """Return how many images there are."""
        return count_idx(self.name)

    def rows(self, rows: slice, verify: bool = True) -> Features:
        """Load some of the images."""
        return load_idx_features(self.name, self.neurons, rows)


class DigitInputs(InputsSource):
    """The bundled handwritten digits, resized to one pixel for each neuron."""

    kind, name = DIGITS, "bundled handwritten digits"

    def __init__(self, neurons: int) -> None:
        self.neurons = neurons

    def count(self) -> int:
        """Return how many digits there are."""
        return len(digits())

    def rows(self, rows: slice, verify: bool = True) -> Features:
        """Load some of the digits."""
        return digits_features(self.neurons, rows)


class TextInputs(InputsSource):
    """A text file of the challenge, or the one in a folder for so many neurons."""

    kind = TEXT

    def __init__(self, path: Path, neurons: int) -> None:
        self.name, self.path, self.neurons = str(path), path, neurons

    def find(self) -> Path:
        """Return the file itself; raise InputError if it is missing, or of another width."""
        found = inputs_path(self.path, self.neurons) if self.path.is_dir() else self.path
        if found is None:
            raise InputError(
                f"{self.path}: holds no sparse-images-{self.neurons}.tsv or .tsv.gz; add it, or "
                "name an input file"
            )
        named = neurons_of_inputs_name(found.name)
        if named is not None and named != self.neurons:
            raise InputError(
                f"{self.path}: holds inputs of {named} neurons, not {self.neurons}; "
                f"was neurons={named} meant?"
            )
        return found

    def count(self) -> None:
        """Return None, for lines come in any order, if there is a file."""
        self.find()

    def rows(self, rows: slice, verify: bool = True) -> Features:
        """Load all inputs, and return some."""
        return self.load()[0][rows]

    def load(self, first: int | None = None) -> tuple[Features, int]:
        """Load the inputs, or the `first` so many; returns also how many there are."""
        return read_inputs(self.find(), self.neurons, first)


def inputs_at(path: Path, neurons: int) -> InputsSource:
    """Return the inputs of a file or folder, by what it holds.

    Raises
    ------
    InputError
        If there is none, or it is a packed store of another number of neurons.
    """
    if is_packed_store(path):
        return StoredInputs(open_store(path, neurons))
    if not path.exists():
        raise InputError(f"{path}: there is no such file")
    images = path.is_file() and is_idx(path)
    return ImageInputs(path, neurons) if images else TextInputs(path, neurons)


def wanted(first: int | None, total: int, name: str) -> int:
    """Return how many of `total` inputs are meant by the `first` so many; None means all."""
    if first is not None and not 1 <= first <= total:
        raise InputError(f"{name}: there are {total} inputs, not {first}; ask for 1 to {total}")
    return total if first is None else first
