"""Memory that calls use one after the other, so that its pages are touched but once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu.jit.jobs import address_of
from portable_spdnn_cpu.machine.cpu_info import aligned_empty

Kind = TypeVar("Kind")
MOST_KEPT = 1 << 26  # bytes of a workspace, for calls that need less


class Spare(Generic[Kind]):
    """What a call leaves for the next one; concurrent calls each get their own.

    Parameters
    ----------
    make : callable
        Returns a new one, where none is left.
    """

    def __init__(self, make: Callable[[], Kind]) -> None:
        self._make = make
        self._left: list[Kind] = []

    def take(self) -> Kind:
        """Return one that no other call has."""
        try:
            return self._left.pop()
        except IndexError:
            return self._make()

    def give_back(self, taken: Kind) -> None:
        """Leave it for the next call: not after an error, when threads may still be using it."""
        self._left[:] = [taken]


class Workspace:
    """Memory that starts on a cache line, and grows as it has to."""

    def __init__(self) -> None:
        self._memory = aligned_empty((0,), np.uint8)
        self._size = self._address = 0

    def of_bytes(self, size: int) -> int:
        """Return the address of so many bytes, uninitialised.

        More than MOST_KEPT are kept until a call needs less than that.
        """
        if size > self._size or self._size > MOST_KEPT > size:
            self._memory = aligned_empty((size,), np.uint8)
            self._size, self._address = size, address_of(self._memory)
        return self._address


class Buffers:
    """Arrays by name and worker, which grow as they have to."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], npt.NDArray[Any]] = {}

    def take(
        self, name: str, worker: int, shape: tuple[int, ...], dtype: npt.DTypeLike
    ) -> npt.NDArray[Any]:
        """Return an uninitialised array, a part of what was kept under its name where it can be."""
        items, dtype = math.prod(shape), np.dtype(dtype)
        kept = self._kept.get((name, worker))
        if kept is None or kept.dtype != dtype or kept.size < items:
            kept = self._kept[name, worker] = aligned_empty((items,), dtype)
        return kept[:items].reshape(shape)


WORKSPACES = Spare(Workspace)
