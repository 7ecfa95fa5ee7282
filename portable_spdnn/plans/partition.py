"""How inputs are shared out among ranks or devices."""

from __future__ import annotations

CHUNKS_EACH = 8  # handed out to a rank on average: enough to balance, few enough to fill tiles


def static_part(inputs: int, rank: int, size: int) -> tuple[int, int]:
    """Return (first, end) of a rank's inputs: parts differ by one input at most."""
    return inputs * rank // size, inputs * (rank + 1) // size


def chunk_bounds(inputs: int, size: int) -> list[tuple[int, int]]:
    """Return (first, end) of the chunks that the dynamic schedule hands out to `size` ranks."""
    chunks = min(inputs, CHUNKS_EACH * size)
    return [static_part(inputs, number, chunks) for number in range(chunks)]
