"""The networks that a command line names."""

from __future__ import annotations

from portable_spdnn.errors import InputError


def parse_cases(text: str) -> list[tuple[int, int]]:
    """Return neurons and layers of each case: ``1024x120,4096x120``."""
    cases = []
    for part in text.split(","):
        neurons, times, layers = part.strip().partition("x")
        if not (times and neurons.isdecimal() and layers.isdecimal() and int(layers)):
            raise InputError(f"--cases: {part!r} is no network; give NEURONSxLAYERS,...")
        cases.append((int(neurons), int(layers)))
    return cases
