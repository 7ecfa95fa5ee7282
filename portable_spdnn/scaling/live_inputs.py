"""When inputs die: a recorded sample, and the inputs that it stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.hashing import mix64

Array = npt.NDArray[Any]

NEIGHBOURS, LONG_LIVED = 32, 16
"""A modelled input is drawn from so many recorded ones at least, and so many that live on."""


@dataclass(frozen=True)
class LifeRecord:
    """How long the inputs of a sample lived.

    Attributes
    ----------
    layers : int
        Through which the sample went.
    source_inputs : int
        Inputs from which the sample was taken, every `stride`-th from the first on.
    stride : int
    alive_after : tuple of int
        For each input of the sample, the number of layers after which it was alive:
        0 .. `layers`. Those that reached `layers` are taken to live for ever.
    """

    layers: int
    source_inputs: int
    stride: int
    alive_after: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """Whether every input of the source was recorded."""
        return self.stride == 1

    @property
    def survival(self) -> float:
        """Part of the sample that lives on."""
        return self.alive_after.count(self.layers) / len(self.alive_after)

    @property
    def neighbours(self) -> int:
        """From how many recorded inputs around its place a modelled one is drawn.

        Among fewer, whether one of them lives on would be chance, and imbalance with it.
        """
        lasting, size = self.alive_after.count(self.layers), len(self.alive_after)
        rare = -(-LONG_LIVED * size // lasting) if lasting else size
        return min(size, max(NEIGHBOURS, rare))

    def live_per_layer(self) -> Array:
        """Return how many of the sample take part in each layer; int64, (layers + 1,).

        The last entry counts those that live for ever.
        """
        live: Array = count_live(np.array([self.alive_after]), self.layers)[0]
        return live

    def modelled(self, first: int, end: int, seed: int) -> Array:
        """Return `alive_after` of modelled inputs `first` .. `end` - 1; int64.

        Where the whole source was recorded, its inputs are those of the record. All others,
        those beyond the source included, are drawn among the `neighbours` recorded inputs
        around their own place in the order (which starts again at the end of the source), so
        that runs of inputs that live alike stay together. The draw depends on the number of the
        input and the seed alone: parts of any size cut the same inputs.
        """
        numbers = np.arange(first, end, dtype=np.int64)
        lives = np.array(self.alive_after, np.int64)
        place = (numbers % self.source_inputs) // self.stride
        window = self.neighbours
        start = np.clip(place - window // 2, 0, lives.size - window)
        begin = np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)  # odd: seeds begin far apart
        words = numbers.astype(np.uint64) + begin
        drawn = start + (mix64(words) % np.uint64(window)).astype(np.int64)
        if self.complete:
            drawn = np.where(numbers < self.source_inputs, place, drawn)
        return np.asarray(lives[drawn])


def count_live(alive_after: Array, layers: int) -> Array:
    """Count the inputs that take part in each layer.

    Parameters
    ----------
    alive_after : ndarray of int, shape (groups, inputs)
        Negative for no input.
    layers : int

    Returns
    -------
    ndarray of int64, shape (groups, layers + 1)
        Entry l counts the inputs of a group that are alive before layer l, counted from 0.
    """
    groups = alive_after.shape[0]
    steps = layers + 2  # one more for "no input"
    cell = np.arange(groups)[:, None] * steps + alive_after + 1
    counts = np.bincount(cell.ravel(), minlength=groups * steps).reshape(groups, steps)
    later: Array = counts[:, :0:-1].cumsum(axis=1)[:, ::-1]
    return later.astype(np.int64)
