"""Inputs of one number of neurons, for all networks of that size."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from portable_spdnn.challenge_table.sources import STORE, TEXT, Sources
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features
from portable_spdnn.graphchallenge.folder_layout import inputs_path
from portable_spdnn.io.idx import is_idx
from portable_spdnn.plans.checkpoint import features_fingerprint
from portable_spdnn.workloads.inputs import InputsSource
from portable_spdnn.workloads.sources import Request, resolve

DIGITS = "bundled digits"


@dataclass(frozen=True)
class InputsOfASize:
    """Inputs in memory, and what names them.

    Attributes
    ----------
    neurons : int
    features : PackedFeatures or csr_array
    total : int
        Inputs there are, of which the first `count` are used.
    source : InputsSource
    kind : str
        "files", "packed store", "bundled digits" or the name of the user's file.
    own : bool
        Whether they lie beside the network, so that its truth speaks of them.
    fingerprint : str
        Equal for equal features.
    seconds : float
        That loading took.
    """

    neurons: int
    features: Features
    total: int
    source: InputsSource
    kind: str
    own: bool
    fingerprint: str
    seconds: float

    @property
    def count(self) -> int:
        """Number of inputs that are used."""
        return int(self.features.shape[0])


def load_inputs_of_size(
    sources: Sources, neurons: int, file: Path | None, first: int | None
) -> InputsOfASize:
    """Load the inputs for networks of so many neurons.

    Parameters
    ----------
    sources : Sources
        Their inputs are taken where `file` is None and they have any; else the bundled digits.
    neurons : int
    file : Path or None
        Inputs that the user named.
    first : int or None
        Only the first so many.

    Raises
    ------
    InputError
        As `loading.load_inputs`, and if there are fewer inputs than `first`.
    """
    start = time.perf_counter()
    path = sources.inputs_path(neurons) if file is None else file
    source = resolve(Request(neurons=neurons, inputs=path, first_inputs=first))
    features, total = source.load_inputs()
    if file is not None:
        kind = file.name
    elif path is None:
        kind = DIGITS
    else:
        kind = TEXT if path.is_dir() else STORE
    fingerprint = f"{features_fingerprint(features):016x}"
    return InputsOfASize(
        neurons,
        features,
        total,
        source.inputs,
        kind,
        file is None and path is not None,
        fingerprint,
        time.perf_counter() - start,
    )


def check_inputs_file(file: Path, sizes: set[int]) -> None:
    """Raise InputError where a file or folder does not hold inputs for all sizes.

    Images are resized and a folder may hold a file for each size; any other file holds inputs of
    one number of neurons.
    """
    if not file.exists():
        raise InputError(f"{file}: there is no such file")
    if file.is_dir():
        missing = [neurons for neurons in sorted(sizes) if inputs_path(file, neurons) is None]
        if missing:
            raise InputError(
                f"{file}: holds no sparse-images-{missing[0]}.tsv or .tsv.gz; add it, or choose "
                "other networks with --sizes"
            )
    elif len(sizes) > 1 and not is_idx(file):
        sizes_asked = ", ".join(map(str, sorted(sizes)))
        raise InputError(
            f"{file}: holds inputs of one number of neurons, but networks of {sizes_asked} are "
            "asked for; choose one with --sizes, or name images in IDX format, or a folder with "
            "a file for each"
        )
