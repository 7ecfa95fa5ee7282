"""Numbers and arrays that users give as arguments, checked."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from portable_spdnn.errors import InputError


def checked_count(name: str, value: Any, least: int = 1, most: int = (1 << 63) - 1) -> int:
    """Return a whole number that a user gave as an int.

    Parameters
    ----------
    name : str
        What the error message calls it.
    value : int
    least, most : int
        Its range.

    Raises
    ------
    InputError
        If it is no whole number, or out of its range; bool, float and text are none.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and least <= value <= most:
        return int(value)
    upper = f", at most {most}" if most < (1 << 63) - 1 else ""
    raise InputError(
        f"{name} is {shown(value)}; it must be a whole number, at least {least}{upper}"
    )


def shown(value: Any) -> str:
    """Return what a user gave as error messages show it: at most 40 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 40 else f"{text[:40]}..."


def is_masked(array: object) -> bool:
    """Whether an array has a mask, which would be lost where its values are taken."""
    return isinstance(array, np.ma.MaskedArray)


def refuse_masked(name: str, array: object) -> None:
    """Raise InputError where an array is masked."""
    if is_masked(array):
        raise InputError(
            f"{name} is a masked array; give the values that count, such as .filled(0)"
        )
