"""Survivors of spilled tiles, and the room that they take in the spill buffer.

Survivors of tiles that stopped after the same layer form a *pool*. They are regrouped into full
tiles once all earlier layers are done. The room is reused: what a launch spills is one region,
free again when its last pool is done, and the next launch takes the first gap that is large
enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu.tiles.kernel import Tiles

Array = npt.NDArray[np.int64]


class Survivors(NamedTuple):
    """The inputs that are left of some tiles.

    Attributes
    ----------
    inputs : ndarray of int64
        Inputs of the batch.
    position : ndarray of int64
        Where each one's first feature is in the spill buffer; the output row where it finished.
    stride : ndarray of int64
        How far apart its features are in the spill buffer.
    """

    inputs: Array
    position: Array
    stride: Array


@dataclass
class _Region:
    """Part of the spill buffer, and the pools that have something there."""

    begin: int
    end: int
    layers: set[int]


class SurvivorPools:
    """Pools by the layer at which they go on.

    Parameters
    ----------
    room : int
        Features that the spill buffer holds.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self._pools: dict[int, list[Survivors]] = {}
        self._regions: list[_Region] = []  # by `begin`

    def next_layer(self) -> int | None:
        """Return the earliest layer at which a pool goes on."""
        return min(self._pools, default=None)

    def waiting(self, layer: int) -> int:
        """Return how many inputs the pool of a layer has."""
        return sum(survivors.inputs.size for survivors in self._pools.get(layer, ()))

    def gap(self, size: int) -> int | None:
        """Return where the first gap of `size` features begins; None where there is none."""
        begin = 0
        for region in self._regions:
            if region.begin - begin >= size:
                return begin
            begin = max(begin, region.end)
        return begin if self.room - begin >= size else None

    def collect(self, tiles: Tiles, begin: int, end: int) -> list[Survivors]:
        """File what a launch spilled in begin .. end - 1; return the survivors that finished."""
        finished, layers = [], set()
        for layer in np.unique(tiles.next_layer).tolist():
            chosen = np.flatnonzero(tiles.next_layer == layer)
            counts = tiles.survivor_count[chosen]
            column = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            survivors = Survivors(
                tiles.survivors[np.repeat(chosen, counts), column],
                np.repeat(tiles.position[chosen], counts) + column,
                np.repeat(counts, counts),
            )
            if layer:
                layers.add(layer)
                self._pools.setdefault(layer, []).append(survivors)
            else:
                finished.append(survivors)
        if layers:
            self._regions.append(_Region(begin, end, layers))
            self._regions.sort(key=lambda region: region.begin)
        return finished

    def take(self, layer: int) -> Survivors:
        """Return the pool of a layer; its room stays taken until `release`."""
        return join(self._pools.pop(layer))

    def release(self, layer: int) -> None:
        """Free the room of what `take` returned."""
        for region in self._regions:
            region.layers.discard(layer)
        self._regions = [region for region in self._regions if region.layers]


def join(parts: list[Survivors]) -> Survivors:
    """Put survivors end to end: those that were spilled side by side stay so."""
    if not parts:
        parts = [Survivors(*(np.empty(0, np.int64),) * 3)]
    return Survivors(*map(np.concatenate, zip(*parts, strict=True)))
