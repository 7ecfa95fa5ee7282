"""Types of sums and storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from portable_spdnn.errors import InputError

SINGLE = np.dtype(np.float32)


def check_half_range(what: str, values: Any) -> None:
    """Raise InputError where a number is beyond what half precision holds.

    Parameters
    ----------
    what : str
        Begins the message, before the number: "a weight is".
    values : ndarray or scipy.sparse
    """
    limit = float(np.finfo(np.float16).max)
    largest = float(abs(values).max()) if np.prod(values.shape) else 0.0
    if largest > limit:
        raise InputError(
            f"storage float16: {what} {largest:.6g}, and {limit:.0f} is the largest that half "
            "precision holds; scale them, or leave the option"
        )


@dataclass(frozen=True)
class Precision:
    """Types of a product.

    Attributes
    ----------
    sums : numpy dtype
        float32 or float64: of sums, biases and results.
    half : bool
        Whether features and weights are kept as float16; goes with float32.
    """

    sums: Any = SINGLE
    half: bool = False

    @property
    def storage(self) -> Any:
        """Type in which features and weights are kept."""
        return np.dtype(np.float16) if self.half else np.dtype(self.sums)

    def stored(self, values: Any) -> Any:
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


PRECISIONS = (
    Precision(),
    Precision(np.dtype(np.float64)),
    Precision(half=True),
)
