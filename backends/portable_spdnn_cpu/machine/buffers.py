"""Memory that calls use one after the other, so that its pages are touched but once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu.machine.cpu_info import aligned_empty

Kind = TypeVar("Kind")


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

    @contextmanager
    def lent(self) -> Iterator[Kind]:
        """Lend one. After an error it is not kept: threads may still be using it."""
        try:
            lent = self._left.pop()
        except IndexError:
            lent = self._make()
        yield lent
        self._left[:] = [lent]


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
