"""Calibrations: what was measured on one node, and its file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.errors import InputError
from portable_spdnn.hashing import mix64
from portable_spdnn.io.atomic_output import atomic_output

Array = npt.NDArray[Any]
FORMAT, VERSION = "portable_spdnn scaling calibration", 1
# A modelled input is drawn from so many recorded ones at least, and so many that live on.
NEIGHBOURS, LONG_LIVED = 32, 16


@dataclass(frozen=True)
class Curve:
    """Seconds measured at some numbers of inputs, at least 1 and rising, as the seconds are.

    Nothing costs nothing. Between two measurements the curve is a straight line. Beyond the last
    it rises as from the first to the last, which holds what does not grow with the inputs apart.
    """

    inputs: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, inputs: npt.ArrayLike) -> Array:
        """Return the seconds at each number of inputs; float64, of the same shape."""
        n, x, y = np.asarray(inputs), self.inputs, self.seconds
        # With one measurement there is nothing to tell the two apart: all grows.
        slope = (y[-1] - y[0]) / (x[-1] - x[0]) if len(x) > 1 else y[0] / x[0]
        inside = np.where(n > 0, np.interp(n, x, y), 0.0)
        return np.asarray(inside + slope * np.maximum(n - x[-1], 0))


@dataclass(frozen=True)
class Messages:
    """What bringing a rank's results together costs; no network in it."""

    bytes_each: float  # of a rank's messages, pickled, beside what follows
    bytes_batch: float  # for each batch, beside what layers and survivors take
    pickle_seconds: float  # for a rank, once
    unpickle_seconds: float  # on rank 0: for a rank,
    unpickle_seconds_batch: float  # for each batch,
    unpickle_seconds_byte: float  # for each byte of layers and survivors


@dataclass(frozen=True)
class Lives:
    """How long the inputs of a sample lived: every `stride`-th of the source, from the first on."""

    layers: int  # through which the sample went
    source_inputs: int
    stride: int
    # After how many layers each was alive, 0 .. `layers`; those that reached these live for ever.
    active_after: tuple[int, ...]

    @property
    def neighbours(self) -> int:
        """From how many recorded inputs around its place a modelled one is drawn.

        Among fewer, whether one of them lives on would be chance, and imbalance with it.
        """
        lasting, size = self.active_after.count(self.layers), len(self.active_after)
        rare = -(-LONG_LIVED * size // lasting) if lasting else size
        return min(size, max(NEIGHBOURS, rare))

    def modelled(self, first: int, end: int, seed: int) -> Array:
        """Return `active_after` of modelled inputs `first` .. `end` - 1; int64.

        Inputs of a source that was recorded whole are those of the record. All others are drawn
        among the `neighbours` recorded inputs around their own place in the order (which starts
        again at the end of the source), so that runs of inputs that live alike stay together. A
        draw depends on the number of the input and the seed alone, not on the part it is in.
        """
        numbers = np.arange(first, end, dtype=np.int64)
        place = (numbers % self.source_inputs) // self.stride
        window, size = self.neighbours, len(self.active_after)
        begin = np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)  # odd: seeds begin far apart
        words = mix64(numbers.astype(np.uint64) + begin) % np.uint64(window)
        drawn = words.astype(np.int64) + np.clip(place - window // 2, 0, size - window)
        if self.stride == 1:
            drawn = np.where(numbers < self.source_inputs, place, drawn)
        return np.array(self.active_after, np.int64)[drawn]


def count_live(active_after: npt.ArrayLike, batch: int, layers: int) -> Array:
    """Count the inputs of each batch of `batch` inputs that are alive before each layer.

    Returns an int64 array of shape (batches, layers + 1); the last column counts those that live
    for ever.
    """
    lives = np.asarray(active_after, np.int64)
    batches, columns = -(-lives.size // batch), layers + 1
    cells = np.arange(lives.size) // batch * columns + lives
    died = np.bincount(cells, minlength=batches * columns).reshape(batches, columns)
    return np.asarray(died[:, ::-1].cumsum(axis=1)[:, ::-1])


@dataclass(frozen=True)
class Calibration:
    """What was measured on one node; the fields of its file, beside ``format`` and ``version``."""

    backend: str
    device: str
    dtype: str
    threads: int
    network: str  # what was run, for people
    inputs: str
    network_layers: int  # of the network that was asked for
    neurons: int  # of the network's input
    widest: int  # neurons of its widest layer
    batch_size: int  # inputs that go through the network together
    edges_per_layer: tuple[int, ...]  # of the layers that were run
    value_bytes: int  # that a weight takes in memory; 0 where all of a layer are equal
    dense: Curve  # seconds for an edge by the live inputs of a layer
    start_layers: int  # first layers, in which inputs die, measured together on real inputs
    start: Curve  # seconds of these by the inputs that enter, all else of a batch included
    depth_factor: float  # measured seconds of the layers after them over what `dense` gives
    depth_factor_measured: bool  # False where noise hid it, or all are first layers: it is then 1
    first_batch_seconds: float  # for an input of a process's first batch: memory not yet touched
    load_seconds_edge: float  # loading or generating an edge
    plan_seconds: float  # planning: once,
    plan_seconds_edge: float  # and for each edge
    messages: Messages
    lives: Lives
    memory: int  # bytes that the node had available; 0 where it did not tell
    program_bytes: int  # that the process held before anything was loaded

    @property
    def layers(self) -> int:
        """Layers that were run."""
        return len(self.edges_per_layer)


def save_calibration(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    """Write a calibration to a JSON file, whole or not at all; raises InputError as it fails."""
    content = {"format": FORMAT, "version": VERSION, **asdict(calibration)}
    with atomic_output(path) as stream:
        stream.write(json.dumps(content, indent=1).encode() + b"\n")


def load_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Read a calibration from a file.

    Raises
    ------
    InputError
        If the file is missing, is no calibration, is one of another version, or a field is
        missing or out of its range; the message names the file and the field.
    """
    try:
        content = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: is no calibration that can be read ({error})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path}: is no calibration; one is written with save_calibration=FILE")
    if content.get("version") != VERSION:
        raise InputError(
            f"{path}: is a calibration of version {content.get('version')}; this release reads "
            f"version {VERSION}; measure it again, save_calibration=FILE"
        )
    found: Calibration = _read(Calibration, content, path)
    for right, name, expected in _ranges(found):
        if not right:
            raise _wrong(path, name, attrgetter(name)(found), expected)
    return found


def _is_number(value: Any, *types: type) -> bool:
    return type(value) in types and 0 <= value < 1e300


def _is_list(value: Any, *types: type) -> bool:
    return type(value) is list and value != [] and all(_is_number(one, *types) for one in value)


# For each type of a field what is expected, and whether a value from JSON is that.
_TYPES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a text", lambda value: type(value) is str),
    "bool": ("true or false", lambda value: type(value) is bool),
    "int": ("a whole number of at least 0", lambda value: _is_number(value, int)),
    "float": ("a number of at least 0", lambda value: _is_number(value, int, float)),
    "tuple[int, ...]": ("a list of whole numbers", lambda value: _is_list(value, int)),
    "tuple[float, ...]": ("a list of numbers", lambda value: _is_list(value, int, float)),
}
_PARTS: dict[Any, type] = {"Curve": Curve, "Messages": Messages, "Lives": Lives}


def _read(kind: Any, content: Any, path: Any, prefix: str = "") -> Any:
    """Return a dataclass whose fields are those of a JSON object."""
    values = {}
    for field in fields(kind):
        name = prefix + field.name
        if not isinstance(content, dict) or field.name not in content:
            raise InputError(f"{path}: the calibration has no field {name}")
        value = content[field.name]
        if field.type in _PARTS:
            value = _read(_PARTS[field.type], value, path, f"{name}.")
        elif not _TYPES[field.type][1](value):
            raise _wrong(path, name, value, _TYPES[field.type][0])
        values[field.name] = tuple(value) if type(value) is list else value
    return kind(**values)


def _ranges(found: Calibration) -> Iterator[tuple[bool, str, str]]:
    """Yield whether a field is in its range, the field, and what is expected."""
    for name in ("threads", "network_layers", "neurons", "batch_size", "start_layers",
                 "lives.source_inputs", "lives.stride"):  # fmt: skip
        yield attrgetter(name)(found) >= 1, name, "at least 1"
    layers, neurons, lives = found.layers, found.neurons, found.lives
    yield found.dtype in ("float32", "float64"), "dtype", "float32 or float64"
    yield found.depth_factor > 0, "depth_factor", "a positive number"
    yield found.start_layers <= layers, "start_layers", f"at most {layers} layers"
    yield found.widest >= neurons, "widest", f"at least {neurons} neurons"
    for name, curve in (("dense", found.dense), ("start", found.start)):
        rising = curve.inputs[0] >= 1 and all(a < b for a, b in pairwise(curve.inputs))
        yield rising, f"{name}.inputs", "numbers that rise from 1 or more"
        size = len(curve.inputs)
        yield len(curve.seconds) == size, f"{name}.seconds", f"{size} numbers"
    size = -(-lives.source_inputs // lives.stride)
    yield lives.layers == layers, "lives.layers", f"{layers}, as many as edges_per_layer has"
    yield max(lives.active_after) <= layers, "lives.active_after", f"numbers of 0 to {layers}"
    yield len(lives.active_after) == size, "lives.active_after", f"{size} numbers"


def _wrong(path: Any, name: str, value: Any, expected: str) -> InputError:
    return InputError(f"{path}: field {name} is {value!r:.60}; {expected} is expected")
