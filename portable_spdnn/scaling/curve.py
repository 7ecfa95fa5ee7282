"""Measured costs as functions of inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Curve:
    """A cost measured at some numbers of inputs.

    Nothing costs nothing; between two measurements it is a straight line; beyond the last it is
    the line from the first through the last, which holds what does not grow with the inputs
    apart from what does.

    Attributes
    ----------
    inputs : tuple of int
        Rising, at least one, the first at least 1.
    seconds : tuple of float
        At least 0.
    """

    inputs: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def rising(cls, measured: dict[int, float]) -> Curve:
        """Return the curve of measurements of which none may fall below one of fewer inputs."""
        inputs = sorted(measured)
        seconds = np.maximum.accumulate([max(measured[n], 0.0) for n in inputs])
        return cls(tuple(inputs), tuple(float(value) for value in seconds))

    def __call__(self, inputs: npt.ArrayLike) -> Array:
        """Return the cost at each number of inputs; float64, of the same shape."""
        n = np.asarray(inputs, np.float64)
        x, y = np.array(self.inputs, np.float64), np.array(self.seconds)
        # With one measurement there is nothing to tell the two apart: all grows.
        slope = (y[-1] - y[0]) / (x[-1] - x[0]) if x.size > 1 else y[0] / x[0]
        inside = np.interp(n, np.append(0, x), np.append(0, y))
        # Between no input and the first measured one there is no input.
        inside = np.where((n > 0) & (n < x[0]), y[0], inside)
        return np.asarray(np.where(n > x[-1], y[-1] + slope * (n - x[-1]), inside))
