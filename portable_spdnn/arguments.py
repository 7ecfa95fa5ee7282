"""Numbers that users give as arguments, checked."""

from __future__ import annotations

from numbers import Integral
from typing import Any

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
    shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}..."
    upper = f", at most {most}" if most < (1 << 63) - 1 else ""
    raise InputError(f"{name} is {shown}; it must be a whole number, at least {least}{upper}")
