"""Types that annotations of many modules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]  # of NumPy, in host memory
Progress = Callable[[int, int], None]  # called with (work done, work in all)


class Immutable:
    """Its attributes are set once, when an object is made; plans rely on that."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, name):
            raise AttributeError(
                f"{name} of a {type(self).__name__} cannot be changed; make a new one"
            )
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of a {type(self).__name__} cannot be removed")
