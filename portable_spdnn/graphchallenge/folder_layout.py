"""Where the files of the Sparse DNN Graph Challenge lie in a folder, and what they are called.

A folder holds, for one or several numbers of neurons N: the layers ``neuronN/nN-lK.tsv``, or
an archive ``neuronN.tar``, ``neuronN.tar.gz`` or ``neuronN.tar.xz`` of that subfolder; the
inputs ``sparse-images-N.tsv`` or ``sparse-images-N.tsv.gz``; and the truth
``neuronN-lL-categories.tsv`` after L layers. Source: graphchallenge.mit.edu, data sets of the
Sparse DNN Challenge.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.categories import layers_of_truth
from portable_spdnn.io.compressed import open_decompressed, read_text, truncated

_NETWORK = re.compile(r"neuron([1-9]\d*)(?:\.tar(?:\.gz|\.xz)?)?")
_LAYER = re.compile(r"n([1-9]\d*)-l([1-9]\d*)\.tsv")
_INPUTS = re.compile(r"sparse-images-([1-9]\d*)\.tsv(?:\.gz)?")
_BLOCK = 512  # bytes in a record of a tar archive


def network_paths(directory: Path) -> dict[int, Path]:
    """Return the folder or archive of each network in a folder, by its number of neurons.

    A subfolder is preferred to an archive of the same network.
    """
    found: dict[int, Path] = {}
    for path in sorted(directory.iterdir()):
        match = _NETWORK.fullmatch(path.name)
        if match and (path.is_dir() == ("." not in path.name)):
            found.setdefault(int(match[1]), path)
    return found


def resolve_neurons(directory: Path, neurons: int | None) -> int:
    """Return the number of neurons of the one network in a folder, or check that it is there.

    Raises
    ------
    InputError
        If there is no network, none of `neurons` neurons, or several to choose from.
    """
    if not directory.is_dir():
        raise InputError(f"{directory}: there is no such folder")
    found = network_paths(directory)
    if not found:
        inside = any(_LAYER.fullmatch(path.name) for path in directory.iterdir())
        hint = f"; was its parent {directory.parent} meant?" if inside else ""
        name = "N" if neurons is None else str(neurons)
        raise InputError(
            f"{directory}: holds no network: neither a folder neuron{name} nor an archive "
            f"neuron{name}.tar.gz, .tar.xz or .tar{hint}"
        )
    known = " and ".join(str(n) for n in sorted(found))
    if neurons is None:
        if len(found) > 1:
            raise InputError(
                f"{directory}: holds networks of {known} neurons; choose one, neurons=NUMBER"
            )
        return next(iter(found))
    if neurons not in found:
        hint = f"; was neurons={known} meant?" if len(found) == 1 else ""
        raise InputError(f"{directory}: holds networks of {known} neurons, not {neurons}{hint}")
    return neurons


def inputs_path(directory: Path, neurons: int) -> Path | None:
    """Return the input file of a network, None where there is none; plain before compressed."""
    names = (f"sparse-images-{neurons}.tsv", f"sparse-images-{neurons}.tsv.gz")
    return next((directory / name for name in names if (directory / name).is_file()), None)


def neurons_of_inputs_name(name: str) -> int | None:
    """Return the number of neurons in the official name of an input file, else None."""
    match = _INPUTS.fullmatch(name)
    return int(match[1]) if match else None


def truth_paths(directory: Path, neurons: int) -> dict[int, Path]:
    """Return the truth files of a network, by their numbers of layers."""
    found = ((layers_of_truth(path.name, neurons), path) for path in sorted(directory.iterdir()))
    return {layers: path for layers, path in found if layers is not None}


def layers_present(path: Path, neurons: int, wanted: int) -> int:
    """Return how many layers of a network are there, from the first without a gap.

    Parameters
    ----------
    path : Path
        Folder or archive of the network, as `network_paths` gives it. An archive is
        decompressed as far as its first `wanted` layers lie.
    neurons : int
    wanted : int
        Layers beyond these do not count.

    Raises
    ------
    InputError
        If an archive is truncated or damaged.
    """
    present: set[int] = set()
    for name in _names(path):
        match = _LAYER.fullmatch(name)
        if match and int(match[1]) == neurons and int(match[2]) <= wanted:
            present.add(int(match[2]))
            if len(present) == wanted:
                break
    return next(number for number in range(wanted + 1) if number + 1 not in present)


def _names(path: Path) -> Iterator[str]:
    """Yield the names of files in a folder or archive."""
    if path.is_dir():
        yield from (file.name for file in path.iterdir())
        return
    with (
        open_decompressed(path) as stream,
        tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as archive,
    ):
        for member in archive:
            if member.isfile():
                yield member.name.rpartition("/")[2]


class LayerTexts:
    """The texts of the layer files of one network, in a folder or an archive.

    Parameters
    ----------
    directory : Path
        The folder that holds ``neuronN`` or its archive.
    neurons : int
    layers : int, optional
        Only the first so many; default: all.

    Attributes
    ----------
    total : int or None
        Number of layers to come; None for an archive that is to be read whole.

    Raises
    ------
    InputError
        If the network or one of its layers is not there; for an archive this is known when
        its last member has been read.
    """

    def __init__(self, directory: Path, neurons: int, layers: int | None = None) -> None:
        if layers is not None and layers < 1:
            raise InputError(f"layers is {layers}; a network has at least 1 layer")
        self.neurons = resolve_neurons(directory, neurons)
        self.path = network_paths(directory)[neurons]
        self._wanted = layers
        self._files: dict[int, Path] = {}
        self.total = layers
        if self.path.is_dir():
            for path in self.path.iterdir():
                number = self._number(path.name)
                if number is not None:
                    self._files[number] = path
            self.total = self._check_complete(self._files)

    def __iter__(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield (number, name for messages, text): a folder in order, an archive as it comes."""
        if self.path.is_dir():
            for number in range(1, (self.total or 0) + 1):
                with open_decompressed(self._files[number]) as stream:
                    text = read_text(stream, str(self._files[number]))
                yield number, str(self._files[number]), text
        else:
            with open_decompressed(self.path) as stream:
                yield from self._members(stream)

    def _members(self, stream: BinaryIO) -> Iterator[tuple[int, str, bytes]]:
        present: set[int] = set()
        content = _ArchiveBytes(stream)
        end = 0
        with tarfile.open(fileobj=cast(BinaryIO, content), mode="r|", bufsize=1 << 20) as archive:
            for member in archive:
                end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
                number = self._number(member.name.rpartition("/")[2])
                if number is None or not member.isfile():
                    continue
                if number in present:
                    raise InputError(f"{self.path}: {member.name} is in the archive twice")
                present.add(number)
                if self._wanted is None or number <= self._wanted:
                    file = archive.extractfile(member)
                    assert file is not None  # a regular file has content
                    source = f"{self.path}: {member.name}"
                    yield number, source, read_text(cast(BinaryIO, file), source)
        # tarfile takes a cut or illegible header for the end of the archive; the format ends in
        # blocks of zeros. Reading on also lets the decompressor verify its checksum.
        while content.read(1 << 20):
            pass
        if content.last_nonzero >= end or content.size < end + _BLOCK:
            raise truncated(self.path)
        self._check_complete(present)

    def _number(self, name: str) -> int | None:
        match = _LAYER.fullmatch(name)
        return int(match[2]) if match and int(match[1]) == self.neurons else None

    def _check_complete(self, present: Collection[int]) -> int:
        name = f"n{self.neurons}-l{{}}.tsv"
        if not present:
            raise InputError(f"{self.path}: holds no layer file {name.format('K')}")
        wanted = max(present) if self._wanted is None else self._wanted
        missing = next((n for n in range(1, wanted + 1) if n not in present), None)
        if missing is not None:
            hint = f"was layers={missing - 1} meant?" if missing > 1 else "add it"
            verb = "are" if len(present) > 1 else "is"
            raise InputError(
                f"{self.path}: layer {missing} is missing ({name.format(missing)}); "
                f"{_ranges(present)} {verb} present; {hint}"
            )
        return wanted


class _ArchiveBytes:
    """A stream that remembers how far it goes and where its last byte other than zero is."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size = 0
        self.last_nonzero = -1

    def read(self, size: int) -> bytes:
        piece = self._stream.read(size)
        used = len(piece.rstrip(b"\0"))
        if used:
            self.last_nonzero = self.size + used - 1
        self.size += len(piece)
        return piece


def _ranges(numbers: Collection[int]) -> str:
    """Spell numbers as ranges: layers 1 to 6 and 8."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    parts = [f"{first} to {last}" if last > first else f"{first}" for first, last in ranges]
    shown = parts if len(parts) <= 4 else [*parts[:3], "others"]
    *head, tail = shown
    text = f"{', '.join(head)} and {tail}" if head else tail
    return f"layer{'s' if len(numbers) > 1 else ''} {text}"
