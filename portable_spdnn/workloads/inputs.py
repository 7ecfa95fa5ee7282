"""Inputs of every origin: text files, a packed store, images, or the bundled digits."""

from __future__ import annotations

from collections.abc import Callable
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


class InputsSource:
    """Inputs, not loaded yet, for networks of some number of neurons.

    Methods raise InputError where inputs are missing, malformed, damaged or of another width.

    Parameters
    ----------
    kind : {"files", "packed store", "images", "bundled digits"}
    name : str
        What people are told.
    count : callable
        Returns how many inputs there are, None where only reading all of them would tell.
    rows : callable
        (rows, verify) -> some of the inputs, loaded without keeping the others. `rows` is a slice
        with start and end, within the inputs; `verify` says whether the checksum of a store's
        inputs is verified, which reads all of them.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        count: Callable[[], int | None],
        rows: Callable[[slice, bool], Features],
    ) -> None:
        self.kind, self.name, self.count, self.rows = kind, name, count, rows

    def load(self, first: int | None = None) -> tuple[Features, int]:
        """Load the inputs, or the `first` so many; returns also how many there are."""
        total = self.count() or 0
        return self.rows(slice(0, wanted(first, total, self.name)), True), total


def stored_inputs(store: PackedStore) -> InputsSource:
    """Return the inputs of a packed store, which are mapped."""

    def count() -> int:
        if store.input_shape is None:
            raise InputError(f"{store.path}: holds no inputs; name a file of them, inputs=FILE")
        return store.input_shape[0]

    return InputsSource(
        STORE, str(store.path), count, lambda rows, verify: store.inputs(verify=verify)[rows]
    )


def digit_inputs(neurons: int) -> InputsSource:
    """Return the bundled handwritten digits, resized to one pixel for each neuron."""
    return InputsSource(
        DIGITS,
        "bundled handwritten digits",
        lambda: len(digits()),
        lambda rows, verify: digits_features(neurons, rows),
    )


class TextInputs(InputsSource):
    """A text file of the challenge, or the one in a folder for so many neurons."""

    def __init__(self, path: Path, neurons: int) -> None:
        super().__init__(
            TEXT, str(path), self._uncounted, lambda rows, verify: self.load()[0][rows]
        )
        self.path, self.neurons = path, neurons

    def _uncounted(self) -> None:
        """Return None, for lines come in any order, if there is a file."""
        self.find()

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
        return stored_inputs(open_store(path, neurons))
    if not path.exists():
        raise InputError(f"{path}: there is no such file")
    if not path.is_file() or not is_idx(path):
        return TextInputs(path, neurons)
    return InputsSource(
        IMAGES,
        str(path),
        lambda: count_idx(path),
        lambda rows, verify: load_idx_features(path, neurons, rows),
    )


def wanted(first: int | None, total: int, name: str) -> int:
    """Return how many of `total` inputs are meant by the `first` so many; None means all."""
    if first is not None and not 1 <= first <= total:
        raise InputError(f"{name}: there are {total} inputs, not {first}; ask for 1 to {total}")
    return total if first is None else first
