"""Quantities as users write them: node counts, networks, latencies, bandwidths."""

from __future__ import annotations

import math
import re

from portable_spdnn.errors import InputError

MOST_NODES = 1 << 20
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_BYTES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12,
          "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}  # fmt: skip
_NUMBER = r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+)\s*"


def parse_nodes(text: str, option: str) -> tuple[int, ...]:
    """Return numbers of nodes.

    Parameters
    ----------
    text : str
        ``1..1024``: the powers of two in the range, and both ends; or a list, ``1,2,3``.
    option : str
        What error messages call it.

    Returns
    -------
    tuple of int
        Rising, each once.

    Raises
    ------
    InputError
        If it is neither, or a number is outside of 1 .. `MOST_NODES`.
    """
    example = f"{option} is {text!r}; give a range such as 1..1024 or a list such as 1,2,4"
    span = re.fullmatch(r"\s*(\d{1,9})\s*\.\.\s*(\d{1,9})\s*", text)
    if span:
        first, last = int(span[1]), int(span[2])
        if first > last:
            raise InputError(f"{option} is {text!r}: the range ends before it begins")
        powers = (1 << power for power in range(MOST_NODES.bit_length()))
        numbers = {first, last, *(power for power in powers if first <= power <= last)}
    else:
        parts = [part.strip() for part in text.split(",")]
        if not all(re.fullmatch(r"\d{1,9}", part) for part in parts):
            raise InputError(example)
        numbers = set(map(int, parts))
    if not 1 <= min(numbers) <= max(numbers) <= MOST_NODES:
        raise InputError(f"{option} is {text!r}: numbers of nodes are 1 to {MOST_NODES}")
    return tuple(sorted(numbers))


def parse_network(text: str, option: str) -> tuple[int, int]:
    """Return neurons and layers of ``65536x1920``.

    Raises
    ------
    InputError
        If it is not two numbers of at least 1.
    """
    match = re.fullmatch(r"\s*([1-9]\d{0,9})\s*[xX×]\s*([1-9]\d{0,9})\s*", text)
    if not match:
        raise InputError(
            f"{option} is {text!r}; give neurons and layers, both from 1, such as 65536x1920"
        )
    return int(match[1]), int(match[2])


def parse_latency(text: str, option: str) -> float:
    """Return seconds of ``2us``, ``0.5ms``, ``100ns`` or ``1s``.

    Raises
    ------
    InputError
        If it is no time with a unit.
    """
    match = re.fullmatch(_NUMBER + r"(s|ms|us|µs|ns)\s*", text, re.IGNORECASE)
    seconds = float(match[1]) * _TIMES[match[2].lower()] if match else math.inf
    if not seconds < math.inf:
        raise InputError(f"{option} is {text!r}; give a time with its unit, such as 2us or 0.5ms")
    return seconds


def parse_bandwidth(text: str, option: str) -> float:
    """Return bytes a second of ``10GB/s``, ``1GiB/s`` or ``100Gbit/s``.

    Raises
    ------
    InputError
        If it is no positive rate with a unit.
    """
    match = re.fullmatch(_NUMBER + r"([kKMGT]i?)?(B|bit|b)(?:/s|ps)\s*", text)
    rate = 0.0
    if match:
        rate = float(match[1]) * _BYTES[(match[2] or "").lower()] / (1 if match[3] == "B" else 8)
    if not 0 < rate < math.inf:
        raise InputError(
            f"{option} is {text!r}; give a rate with its unit, such as 10GB/s or 100Gbit/s"
        )
    return rate
