"""Calibrations: what was measured on one node, and its file.

The file is JSON: ``format`` and ``version`` name it, the other fields are those of
`Calibration`, curves and records as objects of their own fields.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from portable_spdnn.errors import InputError
from portable_spdnn.io.atomic_output import atomic_output
from portable_spdnn.scaling.curve import Curve
from portable_spdnn.scaling.live_inputs import LifeRecord

FORMAT, VERSION = "portable_spdnn scaling calibration", 1


@dataclass(frozen=True)
class Messages:
    """What bringing a rank's results together costs; no network in it.

    Attributes
    ----------
    bytes_each : float
        Of a rank's messages, pickled, beside what follows.
    bytes_batch : float
        For each batch, beside 8 for each layer and 16 for each survivor.
    pickle_seconds : float
        For a rank, once.
    unpickle_seconds, unpickle_seconds_batch, unpickle_seconds_byte : float
        On rank 0: for a rank, for each batch, for each byte of what follows.
    """

    bytes_each: float
    bytes_batch: float
    pickle_seconds: float
    unpickle_seconds: float
    unpickle_seconds_batch: float
    unpickle_seconds_byte: float


@dataclass(frozen=True)
class Calibration:
    """What was measured on one node.

    Attributes
    ----------
    backend, device, dtype : str
    threads : int
    network, inputs : str
        What was run, for people.
    network_layers : int
        Of the network that was asked for; `edges_per_layer` is of those that were run.
    neurons, widest : int
        Of the network's input, and of its widest layer.
    batch_size : int
        Inputs that go through the network together.
    edges_per_layer : tuple of int
        Of the layers that were run.
    value_bytes : int
        Bytes that a weight takes in memory; 0 where all of a layer are equal.
    dense : Curve
        Seconds for an edge as a function of the live inputs of a layer.
    start_layers : int
        First layers, in which inputs die, measured together on real inputs.
    start : Curve
        Seconds of these as a function of the inputs that enter, all else of a batch included.
    depth_factor : float
        Measured seconds of the layers after them over what `dense` gives for their live inputs.
    depth_factor_measured : bool
        False where there are none of them, or noise hid them: the factor is then 1.
    first_batch_seconds : float
        For each input of the first batch of a process, beyond those of later ones: memory that
        is touched for the first time.
    load_seconds_edge, plan_seconds, plan_seconds_edge : float
        Loading or generating an edge; planning: once, and for an edge.
    messages : Messages
    lives : LifeRecord
    memory : int
        Bytes that the node had available; 0 where it did not tell.
    program_bytes : int
        Memory that the process held before anything was loaded.
    """

    backend: str
    device: str
    dtype: str
    threads: int
    network: str
    inputs: str
    network_layers: int
    neurons: int
    widest: int
    batch_size: int
    edges_per_layer: tuple[int, ...]
    value_bytes: int
    dense: Curve
    start_layers: int
    start: Curve
    depth_factor: float
    depth_factor_measured: bool
    first_batch_seconds: float
    load_seconds_edge: float
    plan_seconds: float
    plan_seconds_edge: float
    messages: Messages
    lives: LifeRecord
    memory: int
    program_bytes: int

    @property
    def layers(self) -> int:
        """Layers that were run."""
        return len(self.edges_per_layer)

    def edges_of(self, layers: int) -> list[float]:
        """Return the edges of each of so many layers; those not run have the mean of the others."""
        mean = sum(self.edges_per_layer) / self.layers
        beyond = max(0, layers - self.layers)
        return [*map(float, self.edges_per_layer[:layers]), *[mean] * beyond]


def save_calibration(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    """Write a calibration to a file, which appears whole or not at all.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
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
        raise InputError(f"{path}: is no calibration; --save-calibration writes one")
    if content.get("version") != VERSION:
        raise InputError(
            f"{path}: is a calibration of version {content.get('version')}; this release reads "
            f"version {VERSION}; measure it again with --save-calibration"
        )
    return _Reader(str(path), content, "").calibration()


class _Reader:
    """Takes fields out of a JSON object, each with its check."""

    def __init__(self, path: str, content: dict[str, Any], prefix: str) -> None:
        self.path, self.content, self.prefix = path, content, prefix

    def calibration(self) -> Calibration:
        counts = ("threads", "network_layers", "neurons", "widest", "batch_size", "start_layers")
        sizes = ("value_bytes", "memory", "program_bytes")
        rates = ("first_batch_seconds", "load_seconds_edge", "plan_seconds", "plan_seconds_edge")
        taken: dict[str, Any] = {
            name: self.take(name, "a text", lambda value: isinstance(value, str))
            for name in ("backend", "device", "network", "inputs")
        }
        taken["dtype"] = self.take(
            "dtype", "float32 or float64", lambda value: value in ("float32", "float64")
        )
        taken |= {name: self.whole(name, 1) for name in counts}
        taken |= {name: self.whole(name, 0) for name in sizes}
        taken |= {name: self.number(name) for name in rates}
        factor = self.number("depth_factor")
        if factor == 0:
            self.fail("depth_factor", "a positive number", factor)
        measured = self.take(
            "depth_factor_measured", "true or false", lambda value: isinstance(value, bool)
        )
        edges = self.take("edges_per_layer", "a list of whole numbers", _is_list_of(_is_whole))
        if not edges:
            self.fail("edges_per_layer", "at least one layer", edges)
        if taken["start_layers"] > len(edges):
            self.fail("start_layers", f"at most {len(edges)} layers", taken["start_layers"])
        if taken["widest"] < taken["neurons"]:
            self.fail("widest", f"at least {taken['neurons']} neurons", taken["widest"])
        taken["depth_factor"], taken["depth_factor_measured"] = factor, measured
        taken["edges_per_layer"] = tuple(edges)
        taken["dense"], taken["start"] = self.within("dense").curve(), self.within("start").curve()
        messages = self.within("messages")
        taken["messages"] = Messages(**{f.name: messages.number(f.name) for f in fields(Messages)})
        taken["lives"] = self.within("lives").lives(len(edges))
        return Calibration(**taken)

    def curve(self) -> Curve:
        inputs = self.take("inputs", "a list of whole numbers", _is_list_of(_is_whole))
        seconds = self.take("seconds", "a list of numbers of at least 0", _is_list_of(_is_amount))
        if not inputs or inputs[0] < 1 or any(a >= b for a, b in pairwise(inputs)):
            self.fail("inputs", "numbers that rise from 1 or more", inputs)
        if len(seconds) != len(inputs):
            self.fail("seconds", f"{len(inputs)} numbers", f"{len(seconds)} of them")
        return Curve(tuple(inputs), tuple(map(float, seconds)))

    def lives(self, layers: int) -> LifeRecord:
        lives = self.take("alive_after", "a list of whole numbers", _is_list_of(_is_whole))
        if not lives or max(lives) > layers:
            self.fail("alive_after", f"at least one number, of 0 to {layers}", lives[:3])
        if self.whole("layers", 1) != layers:
            self.fail("layers", f"{layers}, as many as edges_per_layer has", self.content["layers"])
        source, stride = self.whole("source_inputs", 1), self.whole("stride", 1)
        if -(-source // stride) != len(lives):
            self.fail("alive_after", f"{-(-source // stride)} numbers", f"{len(lives)} of them")
        return LifeRecord(layers, source, stride, tuple(lives))

    def within(self, name: str) -> _Reader:
        inner = self.take(name, "an object", lambda value: isinstance(value, dict))
        return _Reader(self.path, inner, f"{self.prefix}{name}.")

    def whole(self, name: str, least: int) -> int:
        value: int = self.take(
            name,
            f"a whole number of at least {least}",
            lambda value: _is_whole(value) and value >= least,
        )
        return value

    def number(self, name: str) -> float:
        return float(self.take(name, "a number of at least 0", _is_amount))

    def take(self, name: str, what: str, fits: Callable[[Any], bool]) -> Any:
        if name not in self.content:
            raise InputError(f"{self.path}: the calibration has no field {self.prefix}{name}")
        value = self.content[name]
        if not fits(value):
            self.fail(name, what, value)
        return value

    def fail(self, name: str, what: str, value: Any) -> None:
        raise InputError(
            f"{self.path}: field {self.prefix}{name} is {value!r:.60}; {what} is expected"
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_amount(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and isfinite(value) and value >= 0


def _is_list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))
