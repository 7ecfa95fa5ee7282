"""Calibrations: what was measured on one node, and the file that keeps it."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.hashing import mix64
from portable_spdnn.io.atomic_output import atomic_output
from portable_spdnn.io.run_folder import read_bounded

FORMAT, VERSION = "portable_spdnn scaling calibration", 5


@dataclass(frozen=True)
class Curve:
    """Seconds measured at some numbers of inputs, both rising; no inputs take no time.

    Between two measurements the curve is a straight line. Beyond the last one it continues with
    the slope from the first to the last, so that a fixed cost is not multiplied.
    """

    inputs: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, inputs: npt.ArrayLike) -> Array:
        """Return the seconds at each number of inputs; float64, of the same shape."""
        n, x, y = np.asarray(inputs), self.inputs, self.seconds
        # One measurement cannot tell fixed from growing costs: all of it is taken to grow.
        slope = (y[-1] - y[0]) / (x[-1] - x[0]) if len(x) > 1 else y[0] / x[0]
        inside = np.where(n > 0, np.interp(n, x, y), 0.0)
        return np.asarray(inside + slope * np.maximum(n - x[-1], 0))


def count_active(active_after: npt.ArrayLike, layers: int) -> Array:
    """Count the active inputs before each layer; the last number are the survivors.

    Parameters
    ----------
    active_after : array_like of int, shape (inputs,)
        After how many layers, 0 .. `layers`, each input is last active.
    layers : int

    Returns
    -------
    ndarray of int64, shape (layers + 1,)
    """
    died = np.bincount(np.asarray(active_after, np.int64), minlength=layers + 1)
    return died[::-1].cumsum()[::-1]


@dataclass(frozen=True)
class Calibration:
    """What was measured on one node."""

    backend: str
    device: str
    dtype: str
    threads: int
    network: str  # where the network came from, in words
    inputs: str  # where the inputs came from, in words
    network_layers: int  # layers of the network that was asked for
    neurons: int  # of the network's input
    widest: int  # neurons of its widest layer
    batch_size: int  # inputs that go through the network together
    edges_per_layer: tuple[int, ...]  # of the layers that were run
    value_bytes: int  # memory of one weight as loaded; 0 where all weights of a layer are equal
    dense: Curve  # seconds for an edge, by the number of active inputs of a layer
    start_layers: (
        int  # the first layers, in which inputs become inactive; measured together on real inputs
    )
    start: Curve  # seconds of these layers and all other costs of a batch, by its inputs
    load_seconds_edge: float  # for loading or generating an edge
    plan_seconds_edge: float  # for planning an edge
    source_inputs: int  # of which some were run
    active: tuple[int, ...]  # of those that were run, before each layer; the last are survivors
    memory: int  # bytes that the node had available; 0 where the system did not tell
    program_bytes: int  # that the process held before anything was loaded

    @property
    def layers(self) -> int:
        """The number of layers that were run."""
        return len(self.edges_per_layer)

    def lifetimes(self, first: int, end: int) -> Array:
        """Return after how many layers each of the inputs `first` .. `end` - 1 is last active.

        Each has the lifetime of one of those that were run, drawn by its number alone. A survivor
        is taken to stay active in all layers beyond those that were run.

        Returns
        -------
        ndarray of int64, shape (end - first,)
            0 .. `layers`.
        """
        known = np.repeat(np.arange(len(self.active)), -np.diff(self.active, append=0))
        return known[mix64(np.arange(first, end, dtype=np.uint64)) % np.uint64(known.size)]


def save_calibration(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    """Write a calibration to a JSON file, which appears whole or not at all.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    fields = asdict(calibration)
    head = {"format": FORMAT, "version": VERSION, "checksum": _checksum(fields)}
    with atomic_output(path) as stream:
        stream.write(json.dumps({**head, "calibration": fields}, indent=1).encode() + b"\n")


def load_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Read a calibration from a file that `save_calibration` wrote.

    Raises
    ------
    InputError
        If the file cannot be read, is no calibration of this version, or was changed.
    """
    try:
        content: Any = json.loads(read_bounded(Path(path)), object_hook=_with_tuples)
        head, fields = (content["format"], content["version"]), content.get("calibration")
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise InputError(f"{path}: is no calibration that can be read ({error})") from error
    if head != (FORMAT, VERSION):
        raise InputError(
            f"{path}: is no calibration of version {VERSION}; write one with save_calibration=FILE"
        )
    if content.get("checksum") != _checksum(fields):
        raise InputError(f"{path}: is damaged, or was edited by hand; measure it again")
    curves = {name: Curve(**fields[name]) for name in ("dense", "start")}
    return Calibration(**fields | curves)


def _checksum(fields: Any) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a JSON object with its lists as tuples, as the dataclasses have them."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
