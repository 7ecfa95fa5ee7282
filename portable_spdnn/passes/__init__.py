"""Exact passes: rewrites that change the work and not the answer.

Each is exact up to the order of float additions, on any network and any backend. They are off
unless asked for, and named in every report.
"""

from __future__ import annotations

from collections.abc import Iterable

from portable_spdnn.errors import InputError

MERGE_NEURONS = "merge-neurons"
MERGE_INPUTS = "merge-inputs"
FIXED_POINT = "fixed-point"
EXACT_PASSES = (MERGE_NEURONS, MERGE_INPUTS, FIXED_POINT)


def parse_passes(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return the named passes in their fixed order.

    Parameters
    ----------
    names : str or iterable of str
        Names, or one text of names separated by commas; "none" and "all" stand for themselves.

    Raises
    ------
    InputError
        If a name is not that of a pass.
    """
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",")]
    elif not isinstance(names, Iterable):
        raise InputError(f"exact_passes is {names!r}; a text or several names are expected")
    asked: set[str] = set()
    for name in names:
        if name == "all":
            asked.update(EXACT_PASSES)
        elif name in EXACT_PASSES:
            asked.add(name)
        elif name not in ("none", ""):
            raise InputError(
                f"exact pass {name!r} is unknown; choose none, all, or some of "
                f"{', '.join(EXACT_PASSES)}, separated by commas"
            )
    return tuple(name for name in EXACT_PASSES if name in asked)
