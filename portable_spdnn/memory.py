"""Amounts of memory: as users write them, and what this process holds."""

from __future__ import annotations

import re
import resource
import sys

from portable_spdnn.errors import InputError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
          "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}  # fmt: skip
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)


def parse_bytes(amount: str | int, option: str) -> int:
    """Return an amount of memory in bytes.

    Parameters
    ----------
    amount : str or int
        A number of bytes, or one with a unit: ``4GiB`` (2^30 bytes each), ``500MB`` (10^6).
    option : str
        What error messages call it.

    Raises
    ------
    InputError
        If it is no positive amount.
    """
    match = _AMOUNT.fullmatch(str(amount))
    unit = _UNITS.get(match[2].upper()) if match else None
    value = int(float(match[1]) * unit) if match and unit else 0
    if value < 1:
        raise InputError(f"{option} is {amount!r}; give an amount such as 4GiB or 500MB")
    return value


def format_bytes(amount: float) -> str:
    """Return an amount of memory with the binary unit that fits: ``3.81 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"


def resident_bytes() -> int:
    """Return the memory that this process holds now (its peak, where the system tells no more)."""
    try:
        with open("/proc/self/statm") as stream:
            return int(stream.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """Return the most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
