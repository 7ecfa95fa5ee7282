"""Precision: the types of sums and of storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.errors import InputError

SINGLE = np.dtype(np.float32)


def check_half_range(what: str, values: npt.NDArray[Any] | sp.sparray) -> None:
    """Raise InputError if one of the values is beyond what half precision holds.

    `what` is what the message says before the number: "a weight is".
    """
    limit = float(np.finfo(np.float16).max)
    largest = float(abs(values).max()) if np.prod(values.shape) else 0.0
    if largest > limit:
        raise InputError(
            f"storage 'float16': {what} {largest:.6g}, and {limit:.0f} is the largest that half "
            "precision holds; scale them, or take storage 'same'"
        )


@dataclass(frozen=True)
class Precision:
    """The types that a product computes and is kept in.

    Attributes
    ----------
    sums : numpy dtype
        The type of sums, biases and results: float32 or float64.
    half : bool
        Whether features and weights are kept as float16, which goes with sums in float32.
    """

    sums: np.dtype[Any] = SINGLE
    half: bool = False

    @property
    def storage(self) -> np.dtype[Any]:
        """The type in which features and weights are kept."""
        return np.dtype(np.float16) if self.half else self.sums

    def stored(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values in the type in which they are kept.

        Raises
        ------
        InputError
            If one is beyond the range of that type.
        """
        if not self.half:
            return values
        check_half_range("a weight is", values)
        return values.astype(np.float16)
