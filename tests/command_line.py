"""The command line as tests call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Done]


def expect_error(done: Done, *parts: str) -> None:
    """Exit 2, one line on standard error that names everything in `parts`, no traceback."""
    assert done.code == 2, done
    lines = [line for line in done.err.splitlines() if not line.endswith(" ...")]
    assert len(lines) == 1, done.err
    assert lines[0].startswith("portable-spdnn: error: ")
    for part in parts:
        assert part in lines[0], (part, lines[0])
    assert "Traceback" not in done.err
